"""The presets of the paper's levels, and the defaults that depend on the model. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from mirror.assets import EMBEDDED_MODEL


# Mirror-BERT, section 3 and appendix B; `span_mask_min_chars` of sentences is the released code's, that of phrases is
# ours: the paper masks two characters of biomedical names, most of which are shorter than thirty.
LEVELS = {
    "word": {
        "temperature": 0.2,
        "span_mask_length": 0,
        "span_mask_min_chars": 30,
        "num_train_epochs": 2.0,
        "max_seq_length": 25,
        "pooling": "cls",
    },
    "phrase": {
        "temperature": 0.04,
        "span_mask_length": 2,
        "span_mask_min_chars": 8,
        "num_train_epochs": 2.0,
        "max_seq_length": 25,
        "pooling": "cls",
    },
    "sentence": {
        "temperature": 0.04,
        "span_mask_length": 5,
        "span_mask_min_chars": 30,
        "num_train_epochs": 1.0,
        "max_seq_length": 50,
    },  # pooling depends on the model: see `default_pooling`
}
# The paper's rate. Adam moves every weight by about the rate, so the output of a layer moves in proportion to its width, and
# the embedded model, which is 256 wide instead of 768, needs more: chosen on STS-B dev (docs/results.md).
LEARNING_RATE, EMBEDDED_LEARNING_RATE = 2e-5, 2e-4
# Appendix B: only BERT on sentences is mean-pooled, all other models take the first token.
CLS_FAMILIES = ("roberta", "xlm-roberta", "camembert")


def default_learning_rate(model_name_or_path: str) -> float:
    """AdamW's rate where the user gives none."""
    is_embedded = Path(model_name_or_path).resolve() == EMBEDDED_MODEL
    return EMBEDDED_LEARNING_RATE if is_embedded else LEARNING_RATE


def default_pooling(model_type: str) -> str:
    """The paper's choice for sentences (appendix B)."""
    return "cls" if model_type in CLS_FAMILIES else "mean"
