"""What every training run of this project can set: `TrainingArguments` with other defaults and an automatic precision."""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, fields
from datetime import timedelta

import torch
from accelerate import PartialState
from transformers import TrainingArguments

from mirror.common.errors import InputError
from mirror.training.base_options import BaseOptions


logger = logging.getLogger(__name__)


@dataclass
class BaseConfig(BaseOptions, TrainingArguments):
    """Defaults that `MirrorConfig` and `CMLMConfig` share.

    Differences from `TrainingArguments`: `bf16` or `fp16` wherever the hardware computes fast in it; the last incomplete
    batch is dropped; the collator decides which columns reach the model; a loss that is not finite stops the run; no
    checkpoints on the way.
    """

    def __post_init__(self) -> None:
        for name, value in ((item.name, getattr(self, item.name)) for item in fields(self)):
            if isinstance(value, float) and not math.isfinite(value):
                raise InputError(f"--{name} {value} is not a finite number")
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise --bf16 is refused on a machine without a GPU
        if self.use_cpu:
            # AdamW's moments of rare words decay to subnormal numbers, with which a CPU computes eight times as slowly.
            # Set here, before torch starts its threads, which inherit the setting.
            torch.set_flush_denormal(True)
            # transformers passes the timeout on for GPUs only; the first process group that is made decides.
            PartialState(cpu=True, backend=self.ddp_backend, timeout=timedelta(seconds=self.ddp_timeout))
        self.bf16, self.fp16, self.precision_reason = choose_precision(self.bf16, self.fp16, self.use_cpu)
        if isinstance(self.resume_from_checkpoint, str) and self.resume_from_checkpoint.lower() in ("true", "false"):
            self.resume_from_checkpoint = self.resume_from_checkpoint.lower() == "true" or None
        if self.dataloader_persistent_workers:
            logger.warning("--dataloader_persistent_workers has no effect: an epoch has new masks, and new workers")
            self.dataloader_persistent_workers = False  # they would go on with the rows of the epoch they began in
        super().__post_init__()


def choose_precision(bf16: bool | None, fp16: bool | None, use_cpu: bool) -> tuple[bool, bool, str]:
    """(bf16, fp16, reason): what the user asked for, otherwise what the device computes fast."""
    if fp16 and use_cpu:  # accelerate neither casts nor scales there, without a word
        return bool(bf16), False, "CPUs do not train in float16"
    if bf16 or fp16:
        return bool(bf16), bool(fp16), "as asked"
    launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launcher in ("bf16", "fp16"):
        return launcher == "bf16", launcher == "fp16", "as accelerate's configuration says"
    if bf16 is False or fp16 is False:
        return False, False, "as asked"
    if use_cpu:
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return fast, False, "auto: the CPU multiplies bfloat16 in hardware" if fast else "auto: plain CPU"
    if not torch.cuda.is_available():
        return False, False, "auto: no CUDA"
    major, minor = torch.cuda.get_device_capability()
    bf16 = major >= 8
    return bf16, not bf16, f"auto: compute capability {major}.{minor}" + ("" if bf16 else " has no bfloat16")
