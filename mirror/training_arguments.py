"""`TrainingArguments` with the released code's optimiser, in the precision that the hardware is fast at."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta

import torch
from accelerate import PartialState
from transformers import TrainingArguments


@dataclass
class MirrorTrainingArguments(TrainingArguments):
    """`TrainingArguments` with the released code's optimiser: what the paper leaves open follows that code.

    Differences from the defaults of transformers: batch 200, rate 2e-5 held constant, no clipping, decay 0.01 on all
    weights (biases and norms too), last incomplete batch dropped; bf16 or fp16 wherever the hardware is fast at it.
    """

    output_dir: str = field(default="out/mirror", metadata={"help": "Where the encoder goes."})
    per_device_train_batch_size: int = field(
        default=200, metadata={"help": "Texts a step on each device; twice as many views."}
    )
    learning_rate: float = field(default=2e-5, metadata={"help": "AdamW's rate, constant."})
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Schedule of the rate."})
    weight_decay: float = field(default=0.01, metadata={"help": "Decoupled decay, on all weights."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip the gradient to this norm; 0: no clipping."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the texts, each with fresh masks."})
    dataloader_drop_last: bool = field(
        default=True,
        metadata={"help": "accelerate fills an incomplete batch with rows of its start: false negatives."},
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "The collator decides what reaches the model."}
    )
    logging_steps: float = field(default=10, metadata={"help": "Steps between two lines of the log."})
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "The first non-finite loss stops the run instead."}
    )
    save_strategy: str = field(default="no", metadata={"help": "Checkpoints on the way: no, steps or epoch."})
    bf16: bool | None = field(
        default=None, metadata={"help": "bfloat16 autocast. Default: where the hardware has it."}
    )
    fp16: bool | None = field(
        default=None, metadata={"help": "float16 autocast. Default: on GPUs that have no bfloat16."}
    )

    def __post_init__(self) -> None:
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise --bf16 is refused on a machine without a GPU
        if self.use_cpu:
            # AdamW's moments of rare words decay to subnormal numbers and stay there; a CPU takes eight times as long over
            # them. Set here, before torch starts its threads, which inherit it.
            torch.set_flush_denormal(True)
            # transformers hands the time-out to processes on GPUs only; who joins first decides
            PartialState(cpu=True, backend=self.ddp_backend, timeout=timedelta(seconds=self.ddp_timeout))
        self.bf16, self.fp16, self.precision_reason = choose_precision(self.bf16, self.fp16, self.use_cpu)
        if self.resume_from_checkpoint is not None and self.resume_from_checkpoint.lower() in ("true", "false"):
            self.resume_from_checkpoint = self.resume_from_checkpoint.lower() == "true" or None
        super().__post_init__()


def choose_precision(bf16: bool | None, fp16: bool | None, use_cpu: bool) -> tuple[bool, bool, str]:
    """(bf16, fp16, why). What the user said stands; otherwise what the device is fast at."""
    if fp16 and use_cpu:  # accelerate neither casts nor scales there, without a word
        return bool(bf16), False, "a CPU trains in no float16"
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
