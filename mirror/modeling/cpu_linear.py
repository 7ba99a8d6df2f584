"""Linear layers in float32 on AMD processors with AVX-512: oneDNN in place of MKL, which PyTorch calls and which stops at AVX2 there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.utils.mkldnn import MkldnnLinear


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
    """
    replaced = []
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu":
                replaced.append((module, name, layer))
    try:
        for module, name, layer in replaced:
            setattr(module, name, MkldnnLinear(layer, torch.float32))
        yield
    finally:
        for module, name, layer in replaced:
            setattr(module, name, layer)
