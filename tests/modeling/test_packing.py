"""Packed rows give the padded result, vectors and gradients, on every architecture that packing claims."""

from __future__ import annotations

import logging
import re
import sys
from functools import partial
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import modeling_flash_attention_utils as flash
from transformers.integrations import hub_kernels

import mirror.modeling.attention
import mirror.modeling.packing
from mirror.common.errors import InputError
from mirror.modeling.attention import (
    PackedLayout,
    _attend,
    attend_flash,
    attend_padded,
    has_flash_attention,
    mirror_attention,
)
from mirror.modeling.cpu_attention import _noise, attend_by_length
from mirror.modeling.packing import (
    _trial_length,
    configure_noise_and_packing,
    first_position,
    pack,
    packed_forward,
    packing_unsupported_reason,
)
from mirror.modeling.pooling import pool
from tests.architectures import INTERFACE, OWN_ATTENTION, padded, random_rows, tiny


POOLINGS = ["cls", "mean", "max", "first_last_mean"]
ROWS = random_rows(24, 2, 14) + random_rows(4, 7, 7, seed=1)


def packed_vectors(model, rows, pooling):
    batch = pack(rows, first_position(model), model.config.pad_token_id or 0, round_to=64)
    return pool(*packed_forward(model, batch, pooling), pooling)


def padded_vectors(model, rows, pooling):
    batch = padded(rows, model.config.pad_token_id)
    return pool(model(**batch, output_hidden_states=True), batch["attention_mask"], pooling)


def gradients(model, vectors):
    model.zero_grad()
    weights = torch.linspace(-1, 1, vectors.numel()).view_as(vectors)
    (vectors * weights).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# The row


def test_the_batch_of_the_docstring():
    batch = pack([[5, 6, 7], [8, 9]], first_position=0, pad_token_id=0)
    expected = {
        "input_ids": [[8, 9, 5, 6, 7]],
        "position_ids": [[0, 1, 0, 1, 2]],
        "lengths": [2, 3],
        "starts": [2, 0],
        "slots": [3, 4, 0, 1, 2],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
    }
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected


def test_positions_start_after_the_padding_index_and_filler_is_padding():
    batch = pack([[7] * 10, [8] * 9], first_position=2, pad_token_id=1, round_to=2)  # 19 tokens, one to fill up
    assert batch["input_ids"][0].tolist() == [8] * 9 + [7] * 10 + [1]
    assert batch["position_ids"][0].tolist() == [*range(2, 11), *range(2, 12), 2]
    assert first_position(tiny("roberta")) == 2
    assert first_position(tiny("bert")) == first_position(tiny("modernbert")) == 0


@pytest.mark.parametrize(
    ("tokens", "round_to", "length"),
    [(5600, 512, 5632), (5632, 512, 5632), (1200, 512, 1280), (100, 512, 104), (5, 512, 5), (5600, 64, 5632)],
)
def test_rounding(tokens, round_to, length):
    assert pack([[3] * tokens], 0, 0, round_to)["input_ids"].shape == (1, length)


def test_the_default_is_a_multiple_of_512():
    assert pack([[3] * 9000], 0, 0)["input_ids"].shape == (1, 18 * 512)


def test_rounding_leaves_few_lengths_and_little_waste():
    lengths = [pack([[3] * tokens], 0, 0)["input_ids"].shape[1] for tokens in range(1024, 2048)]
    assert len(set(lengths)) == 9  # eight steps and the next octave's first
    assert all(length <= tokens * 9 / 8 for tokens, length in zip(range(1024, 2048), lengths, strict=True))


def test_every_value_is_a_tensor_that_trainer_can_move():
    assert {type(value) for value in pack(ROWS, 0, 0).values()} == {torch.Tensor}


@pytest.fixture(params=["as on a CPU", "as on a GPU", "as with flash-attn"])
def each_way(request, monkeypatch):
    """The ways of packed attention, one after the other."""
    if request.param != "as on a CPU":
        monkeypatch.setattr(mirror.modeling.attention, "BY_LENGTH", ())
    if request.param == "as with flash-attn":
        monkeypatch.setattr(mirror.modeling.attention, "has_flash_attention", lambda query: True)
        install_stand_in(monkeypatch)


def install_stand_in(monkeypatch):
    """For flash-attn, where transformers looks for it."""
    monkeypatch.setattr(flash, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    package, padding = ModuleType("flash_attn"), ModuleType("flash_attn.bert_padding")
    for name in ("flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"):
        setattr(package, name, stand_in_for_flash_attn)
    padding.pad_input = padding.unpad_input = None
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.bert_padding", padding)


def stand_in_for_flash_attn(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False,
    window_size=(-1, -1), deterministic=False,
):  # fmt: skip
    """`flash_attn_varlen_func` of flash-attn 2, (tokens, H, d) each, text by text; transformers' own code around it runs."""
    assert cu_seqlens_q.dtype == torch.int32 and torch.equal(cu_seqlens_q, cu_seqlens_k) and not causal
    assert cu_seqlens_q[0] == 0 and cu_seqlens_q[-1] == len(q)
    assert cu_seqlens_q.diff().max() == max_seqlen_q == max_seqlen_k
    outputs = []
    for start, end in pairwise(cu_seqlens_q.tolist()):
        text = (x[None, start:end].transpose(1, 2) for x in (q, k, v))  # (1, H, T, d) each
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
        seen = (distance.abs() <= window_size[0]) if window_size[0] >= 0 else torch.ones_like(distance).bool()
        outputs.append(nn.functional.scaled_dot_product_attention(*text, seen, dropout_p, scale=softmax_scale))
    return torch.cat([output[0].transpose(0, 1) for output in outputs])


def test_the_build_of_the_package_kernels_is_taken_where_it_is_asked_for(monkeypatch):
    """transformers loads it from the Hub; here the stand-in is what it finds there."""
    asked = []
    package = ModuleType("flash-attn2")
    package.flash_attn_func = package.flash_attn_with_kvcache = package.flash_attn_varlen_func = (
        stand_in_for_flash_attn
    )
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    monkeypatch.setattr(hub_kernels, "load_and_register_attn_kernel", lambda name, *_: asked.append(name) or package)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mirror.modeling.packing, "is_kernels_available", lambda: True)
    monkeypatch.setattr(mirror.modeling.attention, "BY_LENGTH", ())
    monkeypatch.setattr(mirror.modeling.attention, "suits_flash_attention", lambda query: True)
    plain, model = tiny("modernbert").eval(), tiny("modernbert")
    assert configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0, attention="kernels")
    assert asked == ["kernels-community/flash-attn2"]
    torch.testing.assert_close(packed_vectors(model, ROWS, "mean"), padded_vectors(plain, ROWS, "mean"))
    assert "kernels" not in model.config.to_json_string()


def test_what_kernels_needs_is_said_before_the_training(monkeypatch):
    with pytest.raises(InputError, match="--attention kernels needs a GPU, and torch sees none; leave it out"):
        configure_noise_and_packing(tiny("bert"), "mean", attention="kernels")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(mirror.modeling.packing, "is_kernels_available", lambda: False)
    with pytest.raises(InputError, match="--attention kernels needs the package kernels: pip install kernels"):
        configure_noise_and_packing(tiny("bert"), "mean", attention="kernels")


def layout_of(batch):
    return PackedLayout(batch["lengths"], batch["slots"], batch["attention_mask"])


# The same as padded


@pytest.mark.parametrize("name", INTERFACE)
def test_packed_equals_padded(name, each_way):
    plain, model = tiny(name).eval(), tiny(name)
    assert configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    for pooling in POOLINGS:
        expected, vectors = padded_vectors(plain, ROWS, pooling), packed_vectors(model, ROWS, pooling)
        assert vectors.shape == (len(ROWS), 32)
        torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)
        theirs, ours = gradients(plain, expected), gradients(model, vectors)
        assert theirs.keys() == ours.keys()
        assert max(float(gradient.abs().max()) for gradient in theirs.values()) > 1e-2
        for parameter in theirs:
            scale = max(1.0, float(theirs[parameter].abs().max()))  # sums over all rows: large, where weights are
            torch.testing.assert_close(
                ours[parameter] / scale, theirs[parameter] / scale, atol=1e-5, rtol=1e-4, msg=f"{pooling} {parameter}"
            )


def test_a_text_does_not_see_its_neighbours():
    model = tiny("bert")
    configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    changed = [*ROWS[:5], [59] * len(ROWS[5]), *ROWS[6:]]
    before, after = packed_vectors(model, ROWS, "mean"), packed_vectors(model, changed, "mean")
    apart = (before - after).abs().amax(dim=1)
    assert apart[5] > 1e-2
    assert torch.cat([apart[:5], apart[6:]]).max() < 1e-5


def test_padded_batches_still_work_after_preparing():
    plain, model = tiny("modernbert").eval(), tiny("modernbert")
    configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    with torch.no_grad():
        assert torch.equal(padded_vectors(model.eval(), ROWS, "mean"), padded_vectors(plain, ROWS, "mean"))
        unmasked = torch.tensor(random_rows(3, 12, 12))  # local attention without any mask
        mask = torch.ones_like(unmasked)
        expected = plain(input_ids=unmasked, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(model(input_ids=unmasked).last_hidden_state, expected)


@pytest.mark.parametrize("drophead", [False, True])
def test_all_ways_of_packed_attention_agree(drophead, monkeypatch):
    install_stand_in(monkeypatch)
    batch = pack(ROWS, 0, 0)
    layout, tokens = layout_of(batch), sum(map(len, ROWS))
    inputs = torch.randn(3, batch["input_ids"].shape[1], 4, 8, generator=torch.Generator().manual_seed(0)).unbind()
    scale = torch.full((len(ROWS), 4), 2.0) if drophead else None
    attend = partial(_attend, dropout=0.0, scaling=None, sliding_window=3, paired=False)
    by_length = attend_by_length(*inputs, scale, layout.groups, 0.0, None, 3)
    assert by_length[:tokens].shape == (tokens, 4, 8) and not by_length[tokens:].any()
    torch.testing.assert_close(by_length, attend_padded(*inputs, scale, layout, attend))
    torch.testing.assert_close(by_length, attend_flash(*inputs, scale, layout, 0.0, None, 3))


@pytest.mark.parametrize("scaling", [None, 0.7])
def test_packed_attention_is_scaled_as_the_model_says(each_way, scaling):
    batch = pack(ROWS, 0, 0)
    inputs = torch.randn(3, 1, 4, batch["input_ids"].shape[1], 8, generator=torch.Generator().manual_seed(0)).unbind()
    output, _ = mirror_attention(
        *(nn.Module().eval(), *inputs, None, 0.0, scaling), packed=layout_of(batch), drophead_rate=0.0, paired=False
    )
    start = 0
    for length in batch["lengths"].tolist():
        text = (x[:, :, start : start + length] for x in inputs)
        expected = nn.functional.scaled_dot_product_attention(*text, scale=scaling).transpose(1, 2)
        torch.testing.assert_close(output[:, start : start + length], expected)
        start += length


@pytest.mark.parametrize("sliding_window", [None, 3])
@pytest.mark.parametrize("drophead", [False, True])
def test_the_gradient_of_attention_by_length(drophead, sliding_window):
    """Against numbers: the function moved a little each way, in float64."""
    groups = [(2, 1), (3, 4), (1, 6)]
    inputs = torch.randn(3, 22, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))  # 2 of filler
    scale = torch.tensor([[2.0, 0.0], [1.0, 1.0]]).repeat(3, 1).double() if drophead else None

    def attend(query, key, value, dropout=0.3):
        torch.manual_seed(1)
        return attend_by_length(query, key, value, scale, groups, dropout, 0.7, sliding_window)

    query, key, value = (x.requires_grad_() for x in inputs.unbind())
    output = attend(query, key, value)
    gradients = torch.autograd.grad(output.square().sum(), (query, key, value))
    assert min(gradient[:20].abs().max() for gradient in gradients) > 1e-2
    assert not any(x[20:].any() for x in (output, *gradients))
    assert not torch.equal(output, attend(query, key, value, dropout=0.0))
    assert torch.autograd.gradcheck(attend, (query, key, value))


def test_noise_is_drawn_in_float32_or_higher():
    for given, drawn in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        (mask,) = _noise(torch.zeros(6, 2, 3, dtype=given), None, [(2, 3)], 0.3)
        assert (mask.shape, mask.dtype) == ((4, 3, 3), drawn)


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "installed", "fits"),
    [
        ("cuda", torch.bfloat16, (8, 0), True, True),
        ("cuda", torch.float16, (9, 0), True, True),
        ("cuda", torch.float32, (9, 0), True, False),
        ("cuda", torch.bfloat16, (7, 5), True, False),
        ("cuda", torch.bfloat16, (9, 0), False, False),
        ("cpu", torch.bfloat16, (9, 0), True, False),
    ],
)
def test_where_flash_attention_is_used(monkeypatch, device, dtype, capability, installed, fits):
    monkeypatch.setattr(mirror.modeling.attention, "is_flash_attn_2_available", lambda: installed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {torch.device(device): capability}.__getitem__)
    query = SimpleNamespace(device=torch.device(device), dtype=dtype)
    assert has_flash_attention(query) is fits


# Noise in a packed row


def test_dropout_acts_in_a_packed_row():
    model = tiny("bert")
    configure_noise_and_packing(model, "mean", "on", dropout_rate=0.2)
    assert not torch.allclose(packed_vectors(model, ROWS, "mean"), packed_vectors(model, ROWS, "mean"))
    configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    assert torch.equal(packed_vectors(model, ROWS, "mean"), packed_vectors(model, ROWS, "mean"))


def test_attention_dropout_of_a_packed_row_has_the_rate(each_way):
    torch.manual_seed(0)
    length, texts, heads = 8, 64, 4
    batch = pack([[3] * length] * texts, 0, 0)
    layout = layout_of(batch)
    zeros = torch.zeros(1, heads, texts * length, length)  # uniform attention
    value = torch.eye(length).repeat(texts, 1).expand(1, heads, -1, -1)  # so that the output is the weights
    output, _ = mirror_attention(
        nn.Module(), zeros, zeros, value, None, 0.25, packed=layout, drophead_rate=0.0, paired=False
    )
    count = output.numel()
    assert (output == 0).double().mean().item() == pytest.approx(0.25, abs=4 * (0.1875 / count) ** 0.5)
    torch.testing.assert_close(output[output != 0], torch.full((int((output != 0).sum()),), 1 / 8 / 0.75))


def test_drophead_keeps_the_precision_of_the_model(each_way):
    batch = pack(ROWS, 0, 0)
    ones = torch.ones(1, 4, batch["input_ids"].shape[1], 8, dtype=torch.bfloat16)
    output, _ = mirror_attention(
        nn.Module(), ones, ones, ones, None, packed=layout_of(batch), drophead_rate=0.5, paired=False
    )
    padded_output, _ = mirror_attention(nn.Module(), ones, ones, ones, None, drophead_rate=0.5, paired=False)
    assert output.dtype == padded_output.dtype == torch.bfloat16


def test_drophead_of_a_packed_row_drops_heads_of_texts(each_way):
    torch.manual_seed(0)
    batch = pack(ROWS, 0, 0)
    layout = layout_of(batch)
    ones = torch.ones(1, 4, batch["input_ids"].shape[1], 8)
    output, _ = mirror_attention(nn.Module(), ones, ones, ones, None, packed=layout, drophead_rate=0.5, paired=False)
    assert output.shape == (1, batch["input_ids"].shape[1], 4, 8)
    factors = []
    for text in output[0, : sum(map(len, ROWS))].split(layout.lengths.tolist()):  # (length, H, d)
        torch.testing.assert_close(text, text[:1, :, :1].expand_as(text))  # one factor for a head of a text
        kept = text[0, :, 0][text[0, :, 0] > 0.5]
        torch.testing.assert_close(kept, torch.full_like(kept, 4 / len(kept)))
        factors.append(tuple(text[0, :, 0].round(decimals=3).tolist()))
    assert len(set(factors)) > 5


def test_gradient_checkpointing_in_a_packed_row():
    results = []
    for checkpointing in (False, True):
        model = tiny("roberta")
        configure_noise_and_packing(model, "cls", "on", dropout_rate=0.2, drophead_rate=0.3)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(5)
        results.append(gradients(model, packed_vectors(model, ROWS, "cls")))
    assert max(float(gradient.abs().max()) for gradient in results[0].values()) > 0
    torch.testing.assert_close(results[0], results[1])


def test_autocast_stays_close(each_way):
    model = tiny("bert")
    configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    exact = packed_vectors(model, ROWS, "mean")
    exact_gradients = gradients(model, exact)
    with torch.autocast("cpu", torch.bfloat16):
        rough = packed_vectors(model, ROWS, "mean").float()
    assert torch.cosine_similarity(exact, rough).min() > 0.999
    for name, gradient in gradients(model, rough).items():
        if exact_gradients[name].norm() > 1e-3:  # the key's bias has none but rounding's
            assert torch.cosine_similarity(gradient.flatten(), exact_gradients[name].flatten(), dim=0) > 0.99, name


# Which models


@pytest.mark.parametrize("name", INTERFACE)
def test_nothing_stands_in_the_way(name):
    model = tiny(name)
    assert packing_unsupported_reason(model, "cls") is None
    assert model.training


@pytest.mark.parametrize("name", OWN_ATTENTION)
def test_models_that_compute_attention_themselves_are_padded(name, caplog):
    with caplog.at_level(logging.INFO, logger="mirror.modeling.packing"):
        assert not configure_noise_and_packing(tiny(name), "cls", "auto")
    attention = f"(the attention of {type(tiny(name)).__name__} does not go through"
    assert f"packing: off {attention}" in caplog.text
    with pytest.raises(InputError, match=re.escape(f"--packing on: not possible here {attention}")):
        configure_noise_and_packing(tiny(name), "cls", "on")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"pooling": "mean_padded"}, "--pooling mean_padded needs padded rows"),
        ({"pooling": "pooler"}, "--pooling pooler needs padded rows"),
        ({"pooling": "cls", "controlled_dropout": True}, "--controlled_dropout"),
    ],
)
def test_settings_that_need_padded_rows(options, reason):
    assert not configure_noise_and_packing(tiny("bert"), **options)
    with pytest.raises(InputError, match=reason):
        configure_noise_and_packing(tiny("bert"), **options, packing="on")


def test_packing_can_be_switched_off():
    assert not configure_noise_and_packing(tiny("bert"), "cls", "off")


def test_the_trial_notices_another_result(monkeypatch):
    monkeypatch.setattr("mirror.modeling.packing.first_position", lambda model: 1)
    assert "BertModel computes other vectors for packed texts" in packing_unsupported_reason(tiny("bert"), "cls")


@pytest.mark.parametrize(("difference", "packs"), [(0.0099, True), (0.01, False), (float("nan"), False)])
def test_a_difference_of_one_per_cent_is_too_much(monkeypatch, difference, packs):
    monkeypatch.setattr("mirror.modeling.packing._packed_difference", lambda model: difference)
    assert (packing_unsupported_reason(tiny("bert"), "cls") is None) == packs


def test_the_trial_notices_a_layer_that_mixes_neighbours():
    model = tiny("bert")
    model.embeddings.register_forward_hook(lambda module, args, output: output + output.roll(1, dims=1))
    assert "BertModel computes other vectors for packed texts" in packing_unsupported_reason(model, "cls")


def test_the_choice_is_said_where_it_was_left_open(caplog):
    caplog.set_level(logging.INFO)
    assert configure_noise_and_packing(tiny("bert"), "mean")
    assert not configure_noise_and_packing(tiny("bert"), "pooler")
    assert caplog.messages == [
        "packing: on, no padding",
        "packing: off (--pooling pooler needs padded rows), padding to the longest row",
    ]
    assert configure_noise_and_packing(tiny("bert"), "mean", "on")
    assert not configure_noise_and_packing(tiny("bert"), "mean", "off")
    assert len(caplog.messages) == 2


def test_the_trial_reaches_past_a_local_window(monkeypatch):
    """A packed row that sees too far is seen only by a text that is longer than the window."""
    model = tiny("modernbert")
    assert _trial_length(model) == model.config.sliding_window + 9 < _trial_length(longer_window(tiny("modernbert")))
    assert _trial_length(tiny("bert")) == 9
    blind = mirror.modeling.attention.attend_by_length
    monkeypatch.setattr(
        mirror.modeling.attention, "attend_by_length", lambda *args: blind(*args[:6], None)
    )  # no window in a packed row
    assert "computes other vectors for packed texts" in packing_unsupported_reason(longer_window(model), "cls")


def longer_window(model):
    """As of a real checkpoint, where nine tokens all see each other."""
    model.config.local_attention = 40
    for layer in model.layers:
        if layer.attn.sliding_window is not None:
            layer.attn.sliding_window = model.config.sliding_window + 1
    return model


def test_the_trial_reports_a_model_that_takes_no_packed_row():
    model = tiny("bert")
    forward = model.forward
    model.forward = lambda input_ids, attention_mask=None: forward(input_ids, attention_mask)
    assert "BertModel does not accept a packed row: " in packing_unsupported_reason(model, "cls")
    assert model.training


def test_compiled_models_take_packed_rows_of_any_lengths():
    model = tiny("bert")
    configure_noise_and_packing(model, "cls", "on", dropout_rate=0.0)
    compiled = torch.compile(model, backend="eager", dynamic=True)
    for seed in range(3):
        rows = random_rows(12, 3, 12, seed)
        torch.testing.assert_close(packed_vectors(model, rows, "cls"), compiled_vectors(compiled, model, rows))


def compiled_vectors(compiled, model, rows):
    batch = pack(rows, first_position(model), model.config.pad_token_id or 0, round_to=64)
    return pool(*packed_forward(compiled, batch, "cls"), "cls")
