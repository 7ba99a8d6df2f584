"""Packed linear layers compute the vectors of PyTorch's, and the model is unchanged afterwards."""

from __future__ import annotations

import copy
import platform
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import weight_norm
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertIntermediate

from mirror.modeling import encoder as encoder_module
from mirror.modeling.cpu_kernels import packed_linear
from mirror.modeling.encoder import Encoder
from tests.documents import ROOT


pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch was built without oneDNN")


@pytest.fixture
def layers() -> nn.Module:
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    return nn.ModuleDict(
        {
            "plain": nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4, bias=False)),
            "shared": nn.Sequential(shared, shared),
            "narrow": nn.Linear(8, 8, dtype=torch.bfloat16),
            "hooked": weight_norm(nn.Linear(8, 8)),  # computes its weight in a hook before each call
            "attention": nn.MultiheadAttention(8, 2),  # its own kind of linear layer, which it does not call
        }
    )


def test_layers_are_replaced_and_put_back(layers):
    before = dict(layers.named_modules())
    weights = copy.deepcopy(layers.state_dict())
    inputs = torch.randn(3, 5, 8)
    with torch.inference_mode():
        expected = layers["plain"](inputs), layers["shared"](inputs)
        with pytest.raises(ValueError, match="while they are replaced"):
            with packed_linear(layers, {torch.float32}):
                assert not any(type(module) is nn.Linear for module in layers["plain"])
                assert layers["narrow"] is before["narrow"] and layers["hooked"] is before["hooked"]
                assert layers["attention"].out_proj is before["attention.out_proj"]
                torch.testing.assert_close(layers["plain"](inputs), expected[0])
                torch.testing.assert_close(layers["shared"](inputs), expected[1])
                raise ValueError("while they are replaced")
    assert dict(layers.named_modules()) == before
    assert all((weights[name] == weight).all() for name, weight in layers.state_dict().items())


def test_layers_in_bfloat16_too():
    torch.manual_seed(0)
    layers, inputs = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).bfloat16(), torch.randn(7, 9, 64)
    with torch.inference_mode():
        expected = layers.float()(inputs)
        layers.bfloat16()
        with packed_linear(layers, {torch.bfloat16}):
            assert not any(type(module) is nn.Linear for module in layers)
            found = layers(inputs.bfloat16())
        with packed_linear(layers.float(), {torch.float32}), torch.autocast("cpu", torch.bfloat16):
            within_autocast = layers(inputs)
    assert found.dtype == torch.bfloat16 and expected.std() > 0.05
    torch.testing.assert_close(found.float(), expected, atol=2e-2, rtol=0)
    assert within_autocast.dtype == torch.bfloat16  # as PyTorch's own layers
    torch.testing.assert_close(within_autocast.float(), expected, atol=2e-2, rtol=0)


@pytest.mark.parametrize("activation", ["gelu", "gelu_new", "relu"])
def test_gelu_is_computed_with_the_layer_before_it(activation):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 32, "num_attention_heads": 2}
    module = nn.ModuleDict({"up": BertIntermediate(BertConfig(**sizes, hidden_act=activation))})
    module["up"].other = nn.Linear(8, 8)  # not before the activation
    inputs, before = torch.randn(3, 5, 8), dict(module.named_modules())
    with torch.inference_mode():
        expected = module["up"](inputs)
        with packed_linear(module, {torch.float32}):
            assert isinstance(module["up"].intermediate_act_fn, nn.Identity) == (activation == "gelu")
            assert module["up"].other.then == "none"
            torch.testing.assert_close(module["up"](inputs), expected)
            with torch.autocast("cpu", torch.bfloat16):
                torch.testing.assert_close(module["up"](inputs).float(), expected, atol=2e-2, rtol=0)
    assert expected.std() > 0.05 and dict(module.named_modules()) == before


def test_an_encoder_gives_the_same_vectors(bert_folder, sentences, monkeypatch):
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    monkeypatch.setattr(encoder_module, "packed_types", lambda: set())
    plain = encoder.encode(sentences, batch_size=8)
    monkeypatch.setattr(encoder_module, "packed_types", lambda: {torch.float32})
    np.testing.assert_allclose(encoder.encode(sentences, batch_size=8), plain, rtol=1e-4, atol=1e-5)

    with torch.no_grad():  # as training does between two calls
        for layer in encoder.model.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(1.5)
    changed = encoder.encode(sentences, batch_size=8)
    assert np.abs(changed - plain).max() > 1e-2
    monkeypatch.setattr(encoder_module, "packed_types", lambda: set())
    np.testing.assert_allclose(changed, encoder.encode(sentences, batch_size=8), rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's mallopt")
def test_freed_memory_is_used_again_without_clearing_its_pages():
    """Count the pages that the system clears for a tensor of 16,384 of them, before the call and after it."""
    # In a process of its own, because the setting stays.
    code = """
import resource, torch
from mirror.modeling.cpu_kernels import keep_freed_memory

def cleared():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

cleared()
once = cleared()
keep_freed_memory(torch.device("cpu"))
cleared()
print(once, *[cleared() for _ in range(40)][-5:])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    before, *after = map(int, done.stdout.split())
    if before < 8_000:
        pytest.skip("the system has large pages")
    # The first calls may find small objects in the middle of what was freed, until the heap has grown to hold both.
    # Where torch asks glibc for an aligned block, one of the same size that was freed is too small, but two neighbors hold it.
    assert (min if torch.__version__ < "2.13" else max)(after) < 100
