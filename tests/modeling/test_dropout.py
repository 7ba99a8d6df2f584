"""Dropout rate, controlled dropout and drophead, on every family of encoders."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModel

from mirror.common.errors import InputError
from mirror.modeling.attention import mirror_attention
from mirror.modeling.dropout import FastDropout, PairedDropout, apply_dropout, drophead_scale, set_dropout
from mirror.modeling.packing import configure_noise_and_packing, pack, packed_forward
from tests.architectures import CONFIGS, INTERFACE, LAYERS, OWN_ATTENTION, padded, random_rows, tiny


def batch_of(model, rows=6):
    return padded(random_rows(rows, 3, 9), model.config.pad_token_id)


def hidden(model, batch):
    return model(**batch).last_hidden_state


# Rate


@pytest.mark.parametrize("rate", [0.99, 0.9999, 0.999999, 1 - 2**-17])
def test_a_rate_close_to_one_drops_nearly_everything_and_stays_finite(rate):
    torch.manual_seed(0)
    kept = apply_dropout(torch.ones(400_000), rate)
    assert torch.isfinite(kept).all() and 0 < (kept > 0).float().mean() < 1.3 * max(1 - rate, 2**-16)
    assert kept.mean() == pytest.approx(1, abs=0.6)


@pytest.mark.parametrize("name", CONFIGS)
def test_rate_zero_silences_every_dropout(name):
    model = tiny(name)
    batch = batch_of(model)
    set_dropout(model, 0.2)
    assert not torch.equal(hidden(model, batch), hidden(model, batch))
    set_dropout(model, 0.0)
    assert torch.equal(hidden(model, batch), hidden(model, batch))


@pytest.mark.parametrize("name", CONFIGS)
def test_rate_reaches_every_dropout_attention_included(name, monkeypatch):
    calls = []  # (dimensions of the tensor, rate) and, over all calls, how many values were zeroed
    zeroed = values = 0
    original = F.dropout

    def recorded(input, p=0.5, training=True, inplace=False):
        nonlocal zeroed, values
        output = original(input, p, training, inplace)
        calls.append((input.dim(), p, training))
        zeroed += int(((output == 0) & (input != 0)).sum())
        values += int((input != 0).sum())
        return output

    model = tiny(name)
    if name in INTERFACE:
        model.set_attn_implementation("eager")  # its dropout is visible; the fused one gets the same rate
    set_dropout(model, 0.3)
    monkeypatch.setattr(F, "dropout", recorded)
    for _ in range(4):
        hidden(model, batch_of(model, rows=16))
    assert {(p, training) for _, p, training in calls} == {(0.3, True)}
    assert sum(dimensions == 4 for dimensions, _, _ in calls) == 4 * LAYERS  # attention weights are (B, H, T, T)
    if name != "eurobert":  # has no dropout but attention's
        assert sum(dimensions == 3 for dimensions, _, _ in calls) >= 4 * LAYERS
    assert zeroed / values == pytest.approx(0.3, abs=5 * (0.21 / values) ** 0.5)


@pytest.mark.parametrize("name", ["bert", "modernbert", "deberta_v3"])
def test_config_keeps_the_rates_of_the_base_model(name, tmp_path):
    model = tiny(name)
    model.save_pretrained(tmp_path / "before")
    drophead = {"drophead_rate": 0.2} if name in INTERFACE else {}
    configure_noise_and_packing(model, "cls", packing="off", dropout_rate=0.37, **drophead)
    model.save_pretrained(tmp_path / "after")
    before, after = (json.loads((tmp_path / side / "config.json").read_text()) for side in ("before", "after"))
    assert before == after and "mirror" not in str(after)
    reloaded = AutoModel.from_pretrained(tmp_path / "after")
    torch.testing.assert_close(reloaded.state_dict(), model.state_dict())


def test_rate_is_checked():
    with pytest.raises(InputError, match=r"--dropout_rate must be a share or probability in \[0, 1\), got 1\.0"):
        set_dropout(tiny("bert"), 1.0)
    with pytest.raises(InputError, match="Linear has no dropout"):
        set_dropout(nn.Linear(2, 2), 0.1)


# Masks from raw bits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_fast_dropout_has_the_rate_and_the_scale(rate, dtype):
    torch.manual_seed(0)
    count = 400_003  # not a multiple of four: the last word of random bits is used in part
    x = torch.ones(count, dtype=dtype)
    y = FastDropout(rate).train()(x)
    assert y.dtype == dtype
    assert (y == 0).double().mean().item() == pytest.approx(rate, abs=4 * (rate * (1 - rate) / count) ** 0.5)
    for lane in range(4):  # a 64-bit word serves four values
        assert (y[lane::4] == 0).double().mean().item() == pytest.approx(rate, abs=0.006)
    kept = y[y != 0]
    assert kept.unique().numel() == 1
    assert kept[0].item() == pytest.approx(1 / (1 - rate), rel=1e-4 if dtype == torch.float32 else 4e-3)


def test_fast_dropout_follows_the_seed_and_passes_the_gradient_of_what_it_kept():
    x = torch.ones(50, 7, requires_grad=True)
    layer = FastDropout(0.4)
    torch.manual_seed(1)
    y = layer(x)
    y.sum().backward()
    assert 0 < (y == 0).sum() < y.numel()
    torch.testing.assert_close(x.grad, y.detach())
    torch.manual_seed(1)
    assert torch.equal(layer(x), y)
    assert not torch.equal(layer(x), y)
    assert layer.eval()(x) is x


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("scaling", [None, 0.7])
@pytest.mark.parametrize("sliding_window", [None, 2])
def test_attention_with_dropout_is_attention_whose_weights_are_dropped(paired, scaling, sliding_window):
    """Compare with the same masks, drawn from the same seed, and with none if the rate is almost 0."""
    query, key, value = torch.randn(3, 2, 4, 5, 8, generator=torch.Generator().manual_seed(0))  # (B, H, T, d) each
    mask = (torch.arange(5) < 4).expand(2, 1, 5, 5)
    seen = mask & ((torch.arange(5)[:, None] - torch.arange(5)).abs() < (sliding_window or 9))
    weights = (query @ key.transpose(2, 3) * (scaling or 8**-0.5)).masked_fill(~seen, -1e9).softmax(dim=-1)
    for rate in (0.4, 1e-9):
        torch.manual_seed(1)
        output, _ = mirror_attention(
            *(nn.Module(), query, key, value, mask, rate, scaling, sliding_window), drophead_rate=0.0, paired=paired
        )
        torch.manual_seed(1)
        torch.testing.assert_close(output, (apply_dropout(weights, rate, paired) @ value).transpose(1, 2))
    plain = F.scaled_dot_product_attention(query, key, value, seen, scale=scaling)
    torch.testing.assert_close(output, plain.transpose(1, 2))


# Controlled dropout


@pytest.mark.parametrize("name", CONFIGS)
def test_controlled_dropout_gives_equal_views_to_the_last_bit(name):
    model = tiny(name)
    rows = random_rows(5, 3, 9)
    batch = padded((rows + rows[:1]) * 2, model.config.pad_token_id)  # row 5 repeats the text of row 0
    configure_noise_and_packing(model, "cls", packing="off", dropout_rate=0.2)
    first, second = hidden(model, batch).chunk(2)
    assert not torch.equal(first, second)
    drophead = {"drophead_rate": 0.4, "dropout_rate": 0.2} if name in INTERFACE else {}
    configure_noise_and_packing(model, "cls", controlled_dropout=True, **drophead)
    assert {type(module) for module in model.modules() if isinstance(module, nn.Dropout)} <= {PairedDropout}
    output = hidden(model, batch)
    first, second = output.chunk(2)
    assert torch.equal(first, second)
    assert not torch.allclose(first[0], first[5])  # the noise is a text's own
    assert not torch.allclose(hidden(model, batch), output)  # and of this step
    first.sum().backward()
    assert max(p.grad.abs().max() for p in model.parameters() if p.grad is not None) > 0


def test_controlled_dropout_refuses_noise_that_it_cannot_reach():
    model = tiny("mpnet")
    model.encoder.layer[0].register_forward_hook(lambda module, args, output: (F.dropout(output[0], 0.5), *output[1:]))
    with pytest.raises(InputError, match="--controlled_dropout: MPNetModel applies dropout in its own way"):
        configure_noise_and_packing(model, "cls", controlled_dropout=True)


# Drophead


def test_drophead_scale_drops_at_the_rate_and_keeps_the_sum():
    torch.manual_seed(0)
    scale = drophead_scale(20_000, 12, 0.2, torch.device("cpu"))  # (rows, heads)
    assert (scale == 0).double().mean().item() == pytest.approx(0.2, abs=0.004)
    kept = (scale != 0).sum(dim=1, keepdim=True)
    torch.testing.assert_close(scale, (scale != 0) * 12 / kept)
    assert torch.equal(drophead_scale(3, 4, 0.0, torch.device("cpu")), torch.ones(3, 4))


def test_drophead_never_drops_all_heads():
    torch.manual_seed(0)
    scale = drophead_scale(4_000, 2, 0.9, torch.device("cpu"))
    assert torch.isfinite(scale).all()
    assert (scale.sum(dim=1) == 2).all()
    alone = (scale == 2).double().mean(dim=0)  # the head that stays is as often the one as the other
    assert (alone[0] / alone.sum()).item() == pytest.approx(0.5, abs=0.04)


def test_drophead_on_a_hand_made_attention():
    torch.manual_seed(3)
    rows, heads, tokens, width = 64, 4, 3, 2
    query = key = torch.zeros(rows, heads, tokens, width)  # uniform attention: the mean of the values
    value = torch.arange(tokens * width, dtype=torch.float).view(tokens, width).expand(rows, heads, tokens, width)
    module = nn.Module().train()
    output, _ = mirror_attention(module, query, key, value, None, drophead_rate=0.5, paired=False)
    assert output.shape == (rows, tokens, heads, width)
    factor = output[:, 0, :, 0] / 2  # the first column is 0, 2, 4
    torch.testing.assert_close(output, factor[:, None, :, None] * torch.tensor([2.0, 3.0]).expand_as(output))
    for row in factor:
        kept = row[row != 0]
        torch.testing.assert_close(kept, torch.full_like(kept, heads / len(kept)))
    assert 0.4 < (factor == 0).float().mean() < 0.6
    plain, _ = mirror_attention(module.eval(), query, key, value, None, drophead_rate=0.5, paired=False)
    torch.testing.assert_close(plain, torch.tensor([2.0, 3.0]).expand_as(plain))


def exact(name: str) -> dict:
    """Tolerances for equal bits, or for MPNet, whose own attention adds in another order."""
    return {"rtol": 1e-4, "atol": 1e-5} if name == "mpnet" else {"rtol": 0, "atol": 0}


@pytest.mark.parametrize("name", INTERFACE)
def test_drophead_is_plain_attention_in_eval_mode_and_noise_in_training(name):
    model = tiny(name)
    batch = batch_of(model)
    with torch.no_grad():
        plain = hidden(model.eval(), batch)
        configure_noise_and_packing(model, "cls", packing="off", drophead_rate=0.5)
        torch.testing.assert_close(hidden(model.eval(), batch), plain, **exact(name))
        noisy = hidden(model.train(), batch)
    own = batch["attention_mask"].bool()
    assert not torch.allclose(noisy[own], plain[own])
    assert not torch.allclose(noisy, hidden(model, batch))


@pytest.mark.parametrize("name", INTERFACE)
def test_drophead_of_rate_zero_trains_like_the_plain_model(name):
    plain, ours, tolerance = tiny(name), tiny(name), {"rtol": 1e-4, "atol": 1e-3} if name == "mpnet" else {}
    set_dropout(plain, 0.0)
    configure_noise_and_packing(ours, "cls", packing="off", dropout_rate=0.0, drophead_rate=0.0)
    batch = batch_of(plain)
    for model in (plain, ours):
        hidden(model, batch).square().sum().backward()
    for (name, theirs), parameter in zip(plain.named_parameters(), ours.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(parameter.grad, theirs.grad, **tolerance, msg=name)
    assert sum(float(p.grad.abs().sum()) for p in ours.parameters() if p.grad is not None) > 0


def test_drophead_alone_sets_dropout_to_zero_as_in_the_paper():
    rates = []
    for options in ({"drophead_rate": 0.2}, {"drophead_rate": 0.2, "dropout_rate": 0.1}, {}):
        model = tiny("roberta")
        configure_noise_and_packing(model, "cls", **options)
        rates.append({module.p for module in model.modules() if isinstance(module, nn.Dropout)})
    assert rates == [{0.0}, {0.1}, {0.1}]  # the last: what RobertaConfig says


@pytest.mark.parametrize("name", OWN_ATTENTION)
def test_drophead_refuses_models_that_compute_attention_themselves(name):
    with pytest.raises(
        InputError, match=r"--drophead_rate: the attention of \w+Model does not go through transformers'"
    ):
        configure_noise_and_packing(tiny(name), "cls", drophead_rate=0.2)


@pytest.mark.parametrize(("paired", "packing"), [(False, "off"), (True, "off"), (False, "on")])
def test_gradient_checkpointing_replays_the_noise(paired, packing):
    gradients = []
    for checkpointing in (False, True):
        model = tiny("bert")
        noise = {"dropout_rate": 0.2, "drophead_rate": 0.3, "controlled_dropout": paired}
        configure_noise_and_packing(model, "cls", packing, **noise)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        torch.manual_seed(5)
        rows = random_rows(4, 3, 9)
        packed = packing == "on" and packed_forward(model, pack(rows, 0, 0), "cls")[0].last_hidden_state
        (packed if packing == "on" else hidden(model, padded(rows, 0)))[:, 0].square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert max(float(gradient.abs().max()) for gradient in gradients[0]) > 0
    torch.testing.assert_close(gradients[0], gradients[1])
