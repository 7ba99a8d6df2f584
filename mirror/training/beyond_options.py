"""Flags of ideas that came after Mirror-BERT, and their checks; docs/methods.md says whose they are. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirror.common.cli import one_of, probability
from mirror.common.errors import InputError
from mirror.training.choices import BATCHINGS, PROJECTION_HEADS


@dataclass
class BeyondOptions:
    """What came after Mirror-BERT (docs/methods.md). The encoder that is saved has none of it."""

    _argument_group_name = "Beyond Mirror-BERT"

    projection_head: str | None = field(
        default=None,
        metadata={
            "help": "mlp: a linear layer and tanh between the vectors and the loss (SimCSE), in training only. Default: none."
        },
    )
    negative_queue: int | None = field(
        default=None,
        metadata={
            "help": "Compare also with the first views of the last N texts of all processes, encoded by a slowly moving copy "
            "of the encoder (ESimCSE; there 2.5 times the batch). Default: none."
        },
    )
    queue_momentum: float | None = field(
        default=None,
        metadata={"help": "Share of itself that the copy keeps at a step. Default with --negative_queue: 0.995."},
    )
    noise_negatives: int | None = field(
        default=None,
        metadata={"help": "Compare also with K Gaussian vectors, new ones at every step (DCLR). Default: none."},
    )
    false_negative_weighting: float | None = field(
        default=None,
        metadata={
            "help": "Leave negatives out whose cosine with the anchor is above PHI (DCLR; there 0.9 or 0.85). Default: keep all."
        },
    )
    hardness: float | None = field(
        default=None,
        metadata={
            "help": "Add ALPHA times its cosine, as a constant, to the logit of each negative (hardness_strength of "
            "sentence-transformers; 9 in its source). Default: nothing."
        },
    )
    batching: str | None = field(
        default=None,
        metadata={
            "help": "length: batches of texts of similar length, which are harder negatives. Default: drawn at random."
        },
    )
    matryoshka_dims: list[int] | None = field(
        default=None,
        metadata={
            "help": "Train the first D dimensions of the vectors too, for each of these D, e.g. 128 64. Default: all "
            "dimensions only."
        },
    )

    def check_beyond(self) -> None:
        """
        Raises:
            InputError: a value outside its range, or one that cannot be had with another flag.
        """
        if self.projection_head is not None:
            one_of("--projection_head", self.projection_head, PROJECTION_HEADS)
        if self.batching is not None:
            one_of("--batching", self.batching, BATCHINGS)
        for flag in ("negative_queue", "noise_negatives"):
            value = getattr(self, flag)
            if value is not None and value < 1:
                raise InputError(f"--{flag} must be at least 1, got {value}; leave it out for none")
        if self.negative_queue is None and self.queue_momentum is not None:
            raise InputError("--queue_momentum is that of --negative_queue; give that too, or leave it out")
        if self.negative_queue is not None:
            self.queue_momentum = 0.995 if self.queue_momentum is None else self.queue_momentum
            probability("--queue_momentum", self.queue_momentum, "ESimCSE uses 0.995")
        if self.false_negative_weighting is not None and not -1 < self.false_negative_weighting < 1:
            raise InputError(
                f"--false_negative_weighting is a cosine between -1 and 1, got {self.false_negative_weighting}; "
                "DCLR uses 0.9 for BERT and RoBERTa"
            )
        if self.hardness is not None and self.hardness < 0:
            raise InputError(f"--hardness must be 0 or more, got {self.hardness}; its source uses 9")
        self._check_dimensions()
        self._check_beyond_together()

    def _check_dimensions(self) -> None:
        dims = self.matryoshka_dims
        if dims is None:
            return
        if not dims or min(dims) < 1 or len(set(dims)) < len(dims):
            raise InputError(f"--matryoshka_dims must be different positive numbers, got {' '.join(map(str, dims))}")
        if self.projection_head:
            raise InputError(
                "--matryoshka_dims trains the first dimensions of the saved vectors, which the loss does not see behind "
                "--projection_head; leave out one of the two"
            )

    def _check_beyond_together(self) -> None:
        of_info_nce = ("negative_queue", "noise_negatives", "false_negative_weighting", "hardness")
        given = [flag for flag in of_info_nce if getattr(self, flag) is not None]
        if given and self.loss == "multi_similarity":
            raise InputError(f"--loss multi_similarity has no --{given[0]}; use nt_xent or leave it out")
        if self.false_negative_weighting is not None and self.loss == "decoupled":
            raise InputError(
                "--loss decoupled divides by the negatives only, and --false_negative_weighting may leave none; use nt_xent"
            )
