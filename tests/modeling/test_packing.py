"""Packed rows give the padded result, vectors and gradients, on every architecture that packing claims."""

from __future__ import annotations

import logging
import re
import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModel
from transformers import modeling_flash_attention_utils as flash
from transformers.modeling_outputs import BaseModelOutput

import mirror.modeling.attention
import mirror.modeling.cpu_kernels
import mirror.modeling.packing
from mirror.common.errors import InputError
from mirror.data.batches import pack
from mirror.modeling.attention import PackedLayout, attend_flash, attend_padded, has_flash_attention, mirror_attention
from mirror.modeling.cpu_kernels import Scores, attend_by_length
from mirror.modeling.packing import (
    _trial_length,
    configure_noise_and_packing,
    first_position,
    packed_forward,
    packing_unsupported_reason,
    shared_forward,
    takes_shared_rows,
)
from mirror.modeling.pooling import pool
from tests.architectures import CONFIGS, DISENTANGLED, INTERFACE, OWN_ATTENTION, padded, random_rows, tiny


POOLINGS = ["cls", "mean", "max", "first_last_mean"]
ROWS = random_rows(24, 2, 14) + random_rows(4, 7, 7, seed=1)


def packed_vectors(model, rows, pooling, compiled=None):
    batch = pack(rows, first_position(model), model.config.pad_token_id or 0, round_to=64)
    return pool(*packed_forward(model if compiled is None else compiled, batch, pooling), pooling)


def padded_vectors(model, rows, pooling):
    batch = padded(rows, model.config.pad_token_id)
    return pool(model(**batch, output_hidden_states=True), batch["attention_mask"], pooling)


def gradients(model, vectors):
    model.zero_grad()
    weights = torch.linspace(-1, 1, vectors.numel()).view_as(vectors)
    (vectors * weights).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.fixture(params=["as on a CPU", "as on a GPU", "as with flash-attn"])
def each_way(request, monkeypatch):
    """Run a test with each implementation of packed attention."""
    if request.param != "as on a CPU":
        for module in (mirror.modeling.attention, mirror.modeling.packing):
            monkeypatch.setattr(module, "BY_LENGTH", ())
    if request.param == "as with flash-attn":
        monkeypatch.setattr(mirror.modeling.attention, "has_flash_attention", lambda query: True)
        install_stand_in(monkeypatch)


def install_stand_in(monkeypatch):
    """Install a substitute for flash-attn where transformers looks for it."""
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
    window_size=(-1, -1), deterministic=False, softcap=0.0,
):  # fmt: skip
    """`flash_attn_varlen_func` of flash-attn 2, (tokens, H, d) each, text by text; transformers' own code around it runs."""
    assert cu_seqlens_q.dtype == torch.int32 and torch.equal(cu_seqlens_q, cu_seqlens_k)
    assert cu_seqlens_q[0] == 0 and cu_seqlens_q[-1] == len(q)
    assert cu_seqlens_q.diff().max() == max_seqlen_q == max_seqlen_k
    outputs = []
    for start, end in pairwise(cu_seqlens_q.tolist()):
        text = (x[None, start:end].transpose(1, 2) for x in (q, k, v))  # (1, H, T, d) each
        distance = torch.arange(end - start)[:, None] - torch.arange(end - start)
        seen = (distance.abs() <= window_size[0]) if window_size[0] >= 0 else torch.ones_like(distance).bool()
        seen = seen & (distance >= 0) if causal else seen
        query, key, value = text
        scores = query @ key.transpose(2, 3) * (softmax_scale or q.shape[-1] ** -0.5)
        scores = torch.tanh(scores / softcap) * softcap if softcap else scores
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        outputs.append(nn.functional.dropout(weights, dropout_p) @ value)
    return torch.cat([output[0].transpose(0, 1) for output in outputs])


def layout_of(batch):
    return PackedLayout(batch["lengths"], batch["slots"], batch["attention_mask"])


# The same as padded


@pytest.mark.parametrize("lengths", [[3, 1, 4, 1, 5], [2, 0, 2, 0, 7], [0, 0], [6]])
def test_the_means_of_a_packed_row_are_those_of_the_padded_batch(lengths):
    """In double precision, and the gradients of the tokens. Texts of no tokens have zeros."""
    batch = pack([[7] * length for length in lengths], 0, 0, round_to=8)
    layout, generator = layout_of(batch), torch.Generator().manual_seed(0)
    tokens = torch.randn(batch["input_ids"].shape[1], 3, dtype=torch.float64, generator=generator).requires_grad_()
    found, weights = layout.means(tokens), torch.randn(len(lengths), 3, dtype=torch.float64, generator=generator)
    expected = pool(BaseModelOutput(layout.pad(tokens)), layout.mask, "mean")
    torch.testing.assert_close(found, expected)
    assert found[torch.tensor(lengths) == 0].eq(0).all()
    of_found, of_expected = (torch.autograd.grad((each * weights).sum(), tokens)[0] for each in (found, expected))
    torch.testing.assert_close(of_found, of_expected)
    assert bool(of_found.any()) == any(lengths)


# xlm_roberta and camembert are classes of their own with the code of roberta.
@pytest.mark.parametrize(
    "name", [name for name in INTERFACE | DISENTANGLED if name not in ("xlm_roberta", "camembert")]
)
def test_packed_equals_padded(name, each_way):
    plain, model = tiny(name).eval(), tiny(name)
    assert packing_unsupported_reason(model, "cls") is None and model.training
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


@pytest.mark.parametrize(
    ("drophead", "scaling", "causal", "softcap"),
    [(False, 8**-0.5, False, None), (True, 0.7, False, 2.0), (False, 0.7, True, 1.0)],
)
def test_all_ways_of_packed_attention_agree(drophead, scaling, causal, softcap, monkeypatch):
    install_stand_in(monkeypatch)
    batch = pack(ROWS, 0, 0)
    layout, tokens = layout_of(batch), sum(map(len, ROWS))
    inputs = torch.randn(3, batch["input_ids"].shape[1], 4, 8, generator=torch.Generator().manual_seed(0)).unbind()
    scale = torch.full((len(ROWS), 4), 2.0) if drophead else None
    scores = Scores(scaling, 3, causal, softcap)
    by_length = attend_by_length(*inputs, scale, layout.groups, 0.0, scores)
    assert by_length[:tokens].shape == (tokens, 4, 8) and not by_length[tokens:].any()
    torch.testing.assert_close(by_length, attend_padded(*inputs, scale, layout, 0.0, scores))
    torch.testing.assert_close(by_length, attend_flash(*inputs, scale, layout, 0.0, scores))


@pytest.mark.parametrize("long", [mirror.modeling.cpu_kernels.LONG, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("sliding_window", "drophead", "softcap"),
    [
        (None, False, None),
        pytest.param(2, True, None, marks=pytest.mark.slow),
        pytest.param(2, False, 0.8, marks=pytest.mark.slow),
        (None, True, 0.8),
    ],
)
def test_the_gradient_of_attention_by_length(drophead, softcap, sliding_window, long, monkeypatch):
    """Compare with finite differences in float64."""
    monkeypatch.setattr(mirror.modeling.cpu_kernels, "LONG", long)
    groups = [(2, 1), (2, 3), (1, 4)]
    inputs = torch.randn(3, 14, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))  # 2 of filler
    scale = torch.tensor([[2.0, 0.0], [1.0, 1.0]]).repeat(3, 1)[:5].double() if drophead else None

    bias = torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()

    def attend(query, key, value, bias=bias, dropout=0.3):
        torch.manual_seed(1)
        scores = Scores(0.7, sliding_window, drophead, softcap, bias)
        return attend_by_length(query, key, value, scale, groups, dropout, scores)

    query, key, value = (x.requires_grad_() for x in inputs.unbind())
    output = attend(query, key, value)
    gradients = torch.autograd.grad(output.square().sum(), (query, key, value))
    assert min(gradient[:12].abs().max() for gradient in gradients) > 1e-2
    assert not any(x[12:].any() for x in (output, *gradients))
    plain = attend(query, key, value, dropout=0.0)
    assert not torch.equal(output, plain)
    monkeypatch.setattr(mirror.modeling.cpu_kernels, "LONG", 9)
    torch.testing.assert_close(attend(query, key, value, dropout=0.0), plain)
    monkeypatch.setattr(mirror.modeling.cpu_kernels, "LONG", long)
    assert torch.autograd.gradcheck(attend, (query, key, value, bias))


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "installed", "fits"),
    [
        ("cuda", torch.bfloat16, (8, 0), True, True),
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


def test_drophead_of_a_packed_row_drops_heads_of_texts(each_way):
    torch.manual_seed(0)
    batch = pack(ROWS, 0, 0)
    layout = layout_of(batch)
    ones = torch.ones(1, 4, batch["input_ids"].shape[1], 8)
    noise = {"packed": layout, "drophead_rate": 0.5, "paired": False}
    assert mirror_attention(nn.Module(), *[ones.bfloat16()] * 3, None, **noise)[0].dtype == torch.bfloat16
    output, _ = mirror_attention(nn.Module(), ones, ones, ones, None, **noise)
    assert output.shape == (1, batch["input_ids"].shape[1], 4, 8)
    factors = []
    for text in output[0, : sum(map(len, ROWS))].split(layout.lengths.tolist()):  # (length, H, d)
        torch.testing.assert_close(text, text[:1, :, :1].expand_as(text))  # one factor for a head of a text
        kept = text[0, :, 0][text[0, :, 0] > 0.5]
        torch.testing.assert_close(kept, torch.full_like(kept, 4 / len(kept)))
        factors.append(tuple(text[0, :, 0].round(decimals=3).tolist()))
    assert len(set(factors)) > 5


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


def test_the_trial_notices_a_layer_that_mixes_neighbors():
    model = tiny("bert")
    model.embeddings.register_forward_hook(lambda module, args, output: output + output.roll(1, dims=1))
    assert "BertModel computes other vectors for packed texts" in packing_unsupported_reason(model, "cls")


def test_the_trial_reaches_past_a_local_window(monkeypatch):
    """A packed row that sees too far is seen only by a text that is longer than the window."""
    model = tiny("modernbert")
    assert _trial_length(model) == model.config.sliding_window + 9 < _trial_length(longer_window(tiny("modernbert")))
    assert _trial_length(tiny("bert")) == 9
    blind = mirror.modeling.attention.attend_by_length

    def without_window(*args):  # in a packed row
        return blind(*args[:-1], args[-1]._replace(sliding_window=None))

    monkeypatch.setattr(mirror.modeling.attention, "attend_by_length", without_window)
    assert "computes other vectors for packed texts" in packing_unsupported_reason(longer_window(model), "cls")


def longer_window(model):
    """Widen the window to that of a real checkpoint, in which nine tokens all see each other."""
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


@pytest.mark.slow
def test_compiled_models_take_packed_rows_of_any_lengths():
    model = tiny("bert")
    configure_noise_and_packing(model, "cls", "on", dropout_rate=0.0)
    compiled = torch.compile(model, backend="eager", dynamic=True)
    for seed in range(3):
        rows = random_rows(12, 3, 12, seed)
        found = packed_vectors(model, rows, "cls", compiled)
        torch.testing.assert_close(packed_vectors(model, rows, "cls"), found)


@pytest.mark.parametrize("length", [120, 400])
def test_long_texts_of_modernbert_are_packed_right_past_its_windows(length, each_way):
    """Sliding layers and global ones, texts several windows long, and their neighbors in the row."""
    settings = {"local_attention": 32, "max_position_embeddings": 8192}
    plain, model = (AutoModel.from_config(CONFIGS["modernbert"](**settings)) for _ in range(2))
    model.load_state_dict(plain.state_dict())
    rows = random_rows(3, length, length + 9) + random_rows(3, 10, 40, seed=2)
    assert configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
    expected = padded_vectors(plain.eval(), rows, "mean")
    torch.testing.assert_close(packed_vectors(model.eval(), rows, "mean"), expected, atol=1e-5, rtol=1e-4)


# Several texts in a row


@pytest.mark.parametrize("name", CONFIGS)
def test_texts_that_share_rows_have_the_vectors_of_padded_ones(name):
    plain, model = tiny(name).eval(), tiny(name).eval()
    assert takes_shared_rows(model) == (name in INTERFACE)
    if name not in INTERFACE:
        return
    for rows in (sorted(ROWS, key=len, reverse=True), ROWS[:1], random_rows(3, 12, 12), random_rows(2, 3, 3)):
        batch = padded(rows, model.config.pad_token_id)
        for pooling in POOLINGS:
            expected = pool(plain(**batch, output_hidden_states=True), batch["attention_mask"], pooling)
            vectors = pool(*shared_forward(model, batch["input_ids"], batch["attention_mask"], pooling), pooling)
            torch.testing.assert_close(vectors, expected, atol=1e-5, rtol=1e-5)


def test_a_shared_row_holds_whole_texts_and_a_multiple_of_sixteen_tokens(monkeypatch):
    model, seen = tiny("bert").eval(), []
    assert takes_shared_rows(model)
    monkeypatch.setattr(
        model,
        "forward",
        lambda **inputs: seen.append(inputs) or BaseModelOutput(inputs["position_ids"][..., None].float()),
    )
    ids = torch.arange(1, 31).view(5, 6)
    mask = (torch.arange(6) < torch.tensor([6, 6, 5, 4, 4])[:, None]).long()
    output, _ = shared_forward(model, ids, mask, "cls")
    assert torch.equal(output.last_hidden_state[..., 0], torch.arange(6.0).expand(5, 6))  # back in their places
    (inputs,) = seen
    assert inputs["input_ids"].shape == (1, 48)
    assert [token for token in inputs["input_ids"].flatten().tolist() if token] == ids.flatten().tolist()
    # A token of a text sees the tokens of that text, and no padding.
    counts = inputs["attention_mask"][:, 0].sum(-1).flatten()[:30].view(5, 6)
    assert torch.equal(counts[mask.bool()], mask.sum(1, keepdim=True).expand(5, 6)[mask.bool()])
