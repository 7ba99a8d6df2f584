"""The flags that all training runs of this project share. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror.common.errors import InputError


@dataclass
class BaseOptions:
    """Flags that do not depend on the method."""

    _argument_group_name = "Precision, log and checks"

    weight_decay: float = field(default=0.01, metadata={"help": "Decoupled weight decay."})
    dataloader_drop_last: bool = field(
        default=True,
        metadata={"help": "accelerate would fill an incomplete batch with rows from the start: false negatives."},
    )
    remove_unused_columns: bool = field(
        default=False, metadata={"help": "Leave false: the collator decides what reaches the model."}
    )
    logging_steps: float = field(default=10, metadata={"help": "Steps between two lines of the log."})
    logging_nan_inf_filter: bool = field(
        default=False, metadata={"help": "Leave false: the first loss that is not finite stops the run."}
    )
    save_strategy: str = field(default="no", metadata={"help": "Checkpoints on the way: no, steps or epoch."})
    bf16: bool | None = field(
        default=None, metadata={"help": "bfloat16 autocast. Default: where the hardware computes fast in it."}
    )
    fp16: bool | None = field(default=None, metadata={"help": "float16 autocast. Default: on GPUs without bfloat16."})
    force: bool = field(
        default=False,
        metadata={
            "help": "Go on where a check would stop: the output folder holds another run, the checkpoint to resume is of a run "
            "with other flags or texts, or the tokenizer does not know the texts."
        },
    )
    resume_from_checkpoint: str | None = field(
        default=None,
        metadata={
            "help": "A checkpoint folder, true for the newest complete one of --output_dir, or auto: the same, and where "
            "there is none, start."
        },
    )
    dataloader_persistent_workers: bool = field(
        default=False, metadata={"help": "No effect: an epoch has new masks, and new workers to read them."}
    )
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Processes that tokenize the texts. Default: this one."}
    )


def check_max_seq_length(max_seq_length: int) -> None:
    """
    Raises:
        InputError: no room for a word between two special tokens.
    """
    if max_seq_length < 3:
        raise InputError(
            f"--max_seq_length must leave room for a word between two special tokens, got {max_seq_length}"
        )
