"""The study of the test on one's own text: runs that help and runs that harm, on four kinds of corpus."""

from __future__ import annotations

from mirror.assets import EMBEDDED_MODEL
from mirror.studies.cells import RATE, STS_SENTENCES, WORDS, Cell, Column, Study, main_scores
from mirror.training.levels import LEVELS


TARGETS = ("docs_search_dev", "stsb_dev", "bel_ncbi", "simlex999")
# corpus -> file in --corpus_dir, level, temperature of the level, the scores that such texts can be trained for
CORPORA = {
    "docstrings": ("train.txt", "sentence", 0.04, ("docs_search_dev", "stsb_dev")),
    "sentences": (STS_SENTENCES, "sentence", 0.04, ("docs_search_dev", "stsb_dev")),
    "names": ("disease_names_10k.txt", "phrase", 0.04, ("bel_ncbi",)),
    "words": (WORDS.format("en"), "word", 0.2, ("simlex999",)),
}
# base -> pooling; "as published" is the model of --model_name_or_path with its own modules
BASES = {"as published": None, "first token": "cls", "embedded": None}
TEXTS = {"max_train_samples": 4000, "validation_samples": 1000}
FEW = ("preset", "rate x 5", "rate x 15", "delete 0.5", "3 epochs")  # variants that are run on every corpus
SPAN, DELETE = {"augmentation": "span"}, "delete"


def _variants(temperature: float, has_words: bool) -> dict[str, dict[str, object]]:
    """Settings of the runs of a corpus: the preset, and each with one thing changed."""
    rates = {f"rate x {times:g}": SPAN | {RATE: times} for times in (0.25, 5, 15)}
    temperatures = {
        f"temperature {other}": SPAN | {"temperature": other} for other in (0.02, 0.04, 0.2) if other != temperature
    }
    deletions = {
        f"delete {rate}": {"augmentation": DELETE, "augmentation_rate": rate} for rate in (0.5, 0.8) if has_words
    }
    noise = {"no noise": {"augmentation": "none"}, **deletions}
    return {"preset": SPAN, **rates, **temperatures, **noise, "3 epochs": SPAN | {"num_train_epochs": 3}}


def _cells() -> tuple[Cell, ...]:
    cells = [Cell(f"{base}, before", TARGETS, pooling=pooling, language=base) for base, pooling in BASES.items()]
    for corpus, (file, level, temperature, targets) in CORPORA.items():
        variants = _variants(temperature, has_words=corpus != "words")
        length = {"num_train_epochs": LEVELS[level]["num_train_epochs"]}  # one length for encoders and masked LMs
        for base, pooling in BASES.items():
            if base == "first token" and corpus not in ("docstrings", "words"):
                continue
            names = variants if (base, corpus) == ("as published", "docstrings") else FEW
            for name in filter(variants.__contains__, names):
                flags = TEXTS | length | variants[name]
                cells.append(
                    Cell(f"{base}, {name}", targets, (file,), level, flags, pooling, part=corpus, language=base)
                )
    return tuple(cells)


OWN_TEXT = Study(
    "Does the test on held-out texts tell the truth? (not in the papers)",
    _cells(),
    (*main_scores(TARGETS), Column("own_text", "own_text")),
    figure="own_text",
    models={"embedded": str(EMBEDDED_MODEL)},
    note="Spearman over runs between each criterion and a score; in brackets the mean of the correlations within one base "
    "model. alignment_uniformity is negated, and measured with the same noise in all runs.",
)
