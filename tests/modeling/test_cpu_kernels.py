"""oneDNN's linear layers compute the vectors of PyTorch's, and the model is unchanged afterwards."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import weight_norm

from mirror.modeling import encoder as encoder_module
from mirror.modeling.cpu_kernels import onednn_linear
from mirror.modeling.encoder import Encoder


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
            with onednn_linear(layers):
                assert not any(type(module) is nn.Linear for module in layers["plain"])
                assert layers["narrow"] is before["narrow"] and layers["hooked"] is before["hooked"]
                assert layers["attention"].out_proj is before["attention.out_proj"]
                torch.testing.assert_close(layers["plain"](inputs), expected[0])
                torch.testing.assert_close(layers["shared"](inputs), expected[1])
                raise ValueError("while they are replaced")
    assert dict(layers.named_modules()) == before
    assert all((weights[name] == weight).all() for name, weight in layers.state_dict().items())


def test_an_encoder_gives_the_same_vectors(bert_folder, sentences, monkeypatch):
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    monkeypatch.setattr(encoder_module, "onednn_is_faster", lambda: False)
    plain = encoder.encode(sentences, batch_size=8)
    monkeypatch.setattr(encoder_module, "onednn_is_faster", lambda: True)
    np.testing.assert_allclose(encoder.encode(sentences, batch_size=8), plain, rtol=1e-4, atol=1e-5)

    with torch.no_grad():  # as training does between two calls
        for layer in encoder.model.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.mul_(1.5)
    changed = encoder.encode(sentences, batch_size=8)
    assert np.abs(changed - plain).max() > 1e-2
    monkeypatch.setattr(encoder_module, "onednn_is_faster", lambda: False)
    np.testing.assert_allclose(changed, encoder.encode(sentences, batch_size=8), rtol=1e-4, atol=1e-5)
