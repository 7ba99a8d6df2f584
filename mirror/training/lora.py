"""Low-rank updates of a frozen encoder (LoRA, Hu et al. 2022) through peft, merged into the weights when saved."""

from __future__ import annotations

import copy

from transformers import PreTrainedModel, TrainingArguments

from mirror.common.errors import InputError


def check_lora(rank: int | None, args: TrainingArguments) -> None:
    """Refuse what merged checkpoints do not support, before anything is loaded.

    Raises:
        InputError: a rank below 1, or a run that would need the updates from a checkpoint.
    """
    if rank is None:
        return
    if rank < 1:
        raise InputError(f"--lora_rank must be at least 1, got {rank}; 8 or 16 is common")
    for flag in ("resume_from_checkpoint", "load_best_model_at_end"):
        if getattr(args, flag):
            raise InputError(f"--{flag}: checkpoints of --lora_rank hold merged weights; leave out one of the two")


def add_lora(model: PreTrainedModel, rank: int) -> None:
    """Freeze `model` and add an update of rank `rank` to every linear layer, in place; initially the vectors do not change.

    The update is scaled by 2 and has no dropout of its own, so the noise of the views is what the flags say.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise InputError("--lora_rank needs peft: pip install peft") from error

    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"), model)


def merged(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of `model` without adapters, with the updates added to its weights."""
    from peft.tuners.lora import LoraLayer

    plain = copy.deepcopy(model)
    for name, module in list(plain.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            plain.set_submodule(name, module.get_base_layer())
    return plain
