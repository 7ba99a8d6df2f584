"""The presets of the paper's levels, and the defaults that depend on the base model. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection
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
# A base that is an encoder already has settings of its own in place of the level's: chosen by measurement, with the test on
# held-out texts and STS-B dev (docs/results.md). Any flag of the level, the noise on the text, the rate or `max_steps` can
# stand here.
ENCODER_SETTINGS = {
    "word": {},
    "phrase": {},
    "sentence": {"augmentation": "delete", "augmentation_rate": 0.2, "max_steps": 20},
}
TEXT_NOISE = ("augmentation", "augmentation_rate", "span_mask_length", "span_mask_min_chars", "mask_token")
# Flags of one choice: where a user gives one of them, `ENCODER_SETTINGS` changes none of them.
ONE_CHOICE = (TEXT_NOISE, ("num_train_epochs", "max_steps"))
LEVEL_TEXTS = {"word": "words", "phrase": "phrases", "sentence": "sentences"}
# The paper's rate. Adam moves every weight by about the rate, so the output of a layer moves in proportion to its width, and
# the embedded model, which is 256 wide instead of 768, needs more: chosen on STS-B dev (docs/results.md).
LEARNING_RATE, EMBEDDED_LEARNING_RATE = 2e-5, 1e-4
# Appendix B: only BERT on sentences is mean-pooled, all other models take the first token.
CLS_FAMILIES = ("roberta", "xlm-roberta", "camembert")


def default_learning_rate(model_name_or_path: str) -> float:
    """AdamW's rate where the user gives none."""
    is_embedded = Path(model_name_or_path).resolve() == EMBEDDED_MODEL
    return EMBEDDED_LEARNING_RATE if is_embedded else LEARNING_RATE


def encoder_settings(level: str, given: Collection[str]) -> dict[str, object]:
    """What training an encoder further changes in the preset of the level.

    Args:
        given: names of the flags that the user gave, which win.
    """
    fixed = {*given}.union(*(flags for flags in ONE_CHOICE if {*given} & {*flags}))
    return {name: value for name, value in ENCODER_SETTINGS[level].items() if name not in fixed}


def noise_of_encoders() -> str:
    """`delete at 0.2`, for the help."""
    settings = ENCODER_SETTINGS["sentence"]
    return f"{settings['augmentation']} at {settings['augmentation_rate']}"


def default_pooling(model_type: str) -> str:
    """The paper's choice for sentences (appendix B)."""
    return "cls" if model_type in CLS_FAMILIES else "mean"
