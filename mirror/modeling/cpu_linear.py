"""Linear layers in float32 on AMD processors with AVX-512: oneDNN instead of MKL.

PyTorch calls MKL, which uses no more than AVX2 on these processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn


class OneDNNLinear(nn.Module):
    """A linear layer with the weights that it has now, without gradient.

    As `torch.utils.mkldnn.MkldnnLinear`, but without TorchScript, which PyTorch has deprecated.
    """

    def __init__(self, layer: nn.Linear):
        super().__init__()
        self.weight = layer.weight.detach().to_mkldnn()
        self.bias = None if layer.bias is None else layer.bias.detach().to_mkldnn()

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.ops.aten.mkldnn_linear(inputs.to_mkldnn(), self.weight, self.bias).to_dense()


@cache
def onednn_is_faster() -> bool:
    """Whether this is such a processor, on Linux."""
    processor = Path("/proc/cpuinfo")
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
        and processor.is_file()
        and "AuthenticAMD" in processor.read_text(encoding="utf-8")
    )


@contextmanager
def onednn_linear(model: nn.Module) -> Iterator[None]:
    """In this context the linear layers of `model` that are in float32 on the CPU run in oneDNN; they have no gradient.

    The layers are copied, so the context costs their memory once more, and a change of their weights in it has no effect.
    Layers with hooks, which may change them at each call, and with weights of another kind (sharded, quantized) are left alone.
    """
    replaced = []
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear and _can_be_copied(layer):
                replaced.append((module, name, layer))
    try:
        for module, name, layer in replaced:
            setattr(module, name, OneDNNLinear(layer))
        yield
    finally:
        for module, name, layer in replaced:
            setattr(module, name, layer)


def _can_be_copied(layer: nn.Linear) -> bool:
    weight = layer.weight
    is_plain = type(weight) is nn.Parameter and not layer._forward_hooks and not layer._forward_pre_hooks
    return is_plain and weight.dtype == torch.float32 and weight.device.type == "cpu"
