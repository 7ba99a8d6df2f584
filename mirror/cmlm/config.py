"""What a user can set about a CMLM run: `CMLMConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from mirror.cmlm.options import CMLMOptions
from mirror.common.errors import InputError
from mirror.training.base_config import BaseConfig


@dataclass
class CMLMConfig(CMLMOptions, BaseConfig):
    """Everything that can be set about conditional masked language modelling (CMLM, sections 2 to 4).

    >>> config = CMLMConfig(stage="cmlm", output_dir="out")

    Model:
        num_projections, skip_connection, sentence_vector: the parts of section 2 and Table 7.
        pooling: how the token vectors of s1 become v.
        max_seq_length: tokens per segment or text, special ones included; by default 256, or as many as the model has room for.
        from_scratch: random weights in the architecture of the given model.

    Data:
        language: for splitting sentences: one for all datasets, or one for each.
        language_smoothing: exponent of the datasets' shares; not in the paper, whose 0.3 is for the vocabulary (4.4).
        swap_probability, mlm_probability: how a pair of segments becomes a row (section 3).

    Training:
        stage: "cmlm", "cmlm_bitext", "bitext", "nli" or the baseline "quickthought".
        bitext_weight, margin, scale, normalize_embeddings: of the bitext loss (Eq. 1). As printed: margin 0.3, scale 1, not
            normalized.
        optimizer: "adamw" or the paper's "lamb".
        mini_batch_size: rows in memory at once (gradient caching).

    Note:
        Defaults that differ from `TrainingArguments`: batch 32, warm-up over a tenth of the steps and then linear decay,
        weight decay 0.01, and what `BaseConfig` lists.

    Raises:
        InputError: a value outside its range, or two that contradict each other; names the flag.
    """

    def __post_init__(self) -> None:
        CMLMOptions.__post_init__(self)
        BaseConfig.__post_init__(self)
        if self.eval_strategy != "no":
            raise InputError(
                "--eval_strategy: CMLM has nothing to evaluate on the way; score checkpoints with run_eval.py"
            )
