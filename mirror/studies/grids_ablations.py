"""Studies of ablations: noise, corpora, corpus size, geometry, hyperparameters, checkpoint selection."""

from __future__ import annotations

from itertools import product
from operator import ne

from mirror.evaluation.published import STS_PAPER
from mirror.studies.cells import (
    RATE,
    STS_SENTENCES,
    UMLS_NAMES,
    WORDS,
    Cell,
    Claim,
    Column,
    Study,
    baseline,
    baseline_cells,
    gains,
    main_scores,
    printed,
)
from mirror.training.choices import ALIGNMENT_UNIFORMITY, OWN_TEXT


ENGLISH_WORDS = WORDS.format("en")
SIMLEX = ("multisimlex_eng",)


def _sts(row: str, tasks: tuple[str, ...] = STS_PAPER, **flags) -> Cell:
    return Cell(row, tasks, (STS_SENTENCES,), flags=flags)


# level, what is scored and the corpus (footnote 11) of each curve
FIGURE5_CURVES = (
    ("word", "multisimlex_eng", "en_words_top_100k.txt"),
    ("phrase", "bel_cometa", "umls_names_100k.txt"),
    ("sentence", "sts12", "en_sentences_100k.txt"),
)
FIGURE5 = Study(
    "Figure 5: number of training texts",
    tuple(
        Cell(str(size), (task,), (corpus,), level, {"max_train_samples": size}, part=level)
        for size in (1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
        for level, task, corpus in FIGURE5_CURVES
    ),
    tuple(Column(f"{level}s, {task}", task, part=level) for level, task, _ in FIGURE5_CURVES),
    figure="curve",
    paper_models={"word": "word-bert", "phrase": "phrase-pubmedbert", "sentence": "sentence-roberta"},
    paper="All three curves peak at 10,000 to 20,000 texts and then fall: what is learnt is exposed rather than new.",
    claims=tuple(
        Claim("10000", other, f"{level}s, {task}") for level, task, _ in FIGURE5_CURVES for other in ("1000", "100000")
    ),
    note="Rows are numbers of texts. The paper uses BERT for words, PubMedBERT for phrases and RoBERTa for sentences "
    "(--paper_models), and reports a plot without numbers.",
)

NO_NOISE = {"dropout_rate": 0.0, "span_mask_length": 0}
TABLE7 = Study(
    "Table 7: ablation of the augmentations",
    (
        _sts("full"),
        Cell("- dropout + drophead", STS_PAPER, (STS_SENTENCES,), drophead=True),
        _sts("- dropout", dropout_rate=0.0),
        _sts("- span mask", span_mask_length=0),
        _sts("- both", **NO_NOISE),
    ),
    main_scores(STS_PAPER),
    average=True,
    # Table 20 is the paper's full ablation; its first rows differ slightly from Table 3, which has drophead.
    published=printed(
        ("20", {"full": "mirror", "- dropout": "mirror no dropout", "- span mask": "mirror no span mask",
                "- both": "mirror no noise"}),
        ("3", {"- dropout + drophead": "mirror drophead"}),
    ),
    paper="Both noises help, the span mask more than dropout (BERT: .744 in full, .726 without dropout, .717 "
    "without spans, .651 without both); drophead instead of dropout is better still (.754).",
    claims=(
        Claim("- dropout + drophead", "full"),
        Claim("full", "- dropout"),
        Claim("full", "- span mask"),
        Claim("full", "- both"),
        Claim("- dropout", "- span mask"),
    ),
)  # fmt: skip

TABLE8_VARIANTS = {"no dropout": "mirror no noise", "dropout": "mirror no span mask"}
TABLE8 = Study(
    "Table 8: controlled dropout, no span mask",
    (
        _sts("no dropout", ("sts12",), **NO_NOISE),
        _sts("dropout", ("sts12",), span_mask_length=0),
        _sts("controlled dropout", ("sts12",), span_mask_length=0, controlled_dropout=True),
    ),
    main_scores(("sts12",)),
    published=printed(
        ("8", TABLE8_VARIANTS | {"controlled dropout": "mirror controlled dropout"}), ("20", TABLE8_VARIANTS)
    ),
    paper="Without spans, dropout lifts RoBERTa's STS12 from .562 to .648, and the same dropout in both views "
    "sinks it to .452: the gain is augmentation, not regularisation.",
    claims=(
        Claim("dropout", "no dropout", "sts12"),
        Claim("dropout", "controlled dropout", "sts12"),
        Claim("no dropout", "controlled dropout", "sts12"),
    ),
    note="Table 8 of the paper is RoBERTa's; BERT's values are from Table 20. For RoBERTa with dropout and no span mask "
    "Table 8 prints .648, which is the full method's score in Table 20; there this setting has .616.",
)


# ---- Geometry ------------------------------------------------------------------------------------------------------
LEVEL_TEXTS = {"word": ENGLISH_WORDS, "phrase": UMLS_NAMES, "sentence": STS_SENTENCES}
GEOMETRY_VARIANTS = {
    "before, cls": "cls",
    "before, mean_padded": "mean_padded",
    "Mirror": "mirror",
    "Mirror, no augmentation": "mirror no noise",
}


def _geometry_cells() -> tuple[Cell, ...]:
    cells = []
    for level, texts in LEVEL_TEXTS.items():
        common = {"level": level, "part": level, "isotropy_texts": texts}
        cells += [
            *baseline_cells(("isotropy",), **common),
            Cell("Mirror", ("isotropy",), (texts,), **common),
            Cell("Mirror, no augmentation", ("isotropy",), (texts,), flags=NO_NOISE, **common),
        ]
    return tuple(cells)


def _geometry_columns(name: str, field: str) -> tuple[Column, ...]:
    return tuple(Column(f"{name} {level}", "isotropy", field, level) for level in LEVEL_TEXTS)


IS_COLUMNS = _geometry_columns("IS", "isotropy_score_rows")
MVN_COLUMNS = _geometry_columns("MVN", "mean_vector_norm")
GEOMETRY_NOTE = (
    "Measured on the training texts of each level, with the interpretation of Eq. 2 that fits the printed values."
)
GEOMETRY = printed(("14", GEOMETRY_VARIANTS))  # Table 9 repeats three of its rows
IS_CLAIMS = (
    *(Claim("Mirror", "before, mean_padded", f"IS {level}") for level in LEVEL_TEXTS),
    Claim("Mirror, no augmentation", "Mirror", "IS word"),
    Claim("Mirror", "Mirror, no augmentation", "IS phrase"),
    Claim("Mirror", "Mirror, no augmentation", "IS sentence"),
)
TABLE9 = Study(
    "Table 9: isotropy score",
    _geometry_cells(),
    IS_COLUMNS,
    published=GEOMETRY,
    paper="Mirror-BERT makes the space more isotropic at every level (.169 to .599 for words); without "
    "augmentation only words get more isotropic still.",
    claims=IS_CLAIMS,
    note=GEOMETRY_NOTE,
)
TABLE14 = Study(
    "Table 14: isotropy score and mean-vector norm",
    _geometry_cells(),
    IS_COLUMNS + MVN_COLUMNS,
    published=GEOMETRY,
    paper="The mean vector shrinks as isotropy grows: 7.89 to 2.11 for words, 6.82 to 5.91 for phrases, 6.93 to "
    "5.57 for sentences.",
    claims=(*IS_CLAIMS, *(Claim("before, mean_padded", "Mirror", f"MVN {level}") for level in LEVEL_TEXTS)),
    note=GEOMETRY_NOTE,
)


# ---- Corpora -------------------------------------------------------------------------------------------------------
TABLE10 = Study(
    "Table 10: training on random strings",
    (
        *baseline_cells(SIMLEX, "word"),
        Cell("Mirror, words", SIMLEX, (ENGLISH_WORDS,), "word"),
        Cell("Mirror, random strings", SIMLEX, ("random_strings_10k.txt",), "word"),
        Cell("Mirror, random strings, 2.5 x rate", SIMLEX, ("random_strings_10k.txt",), "word", {RATE: 2.5}),
    ),
    main_scores(SIMLEX),
    published=printed(
        ("10", {"before, cls": "cls", "before, mean_padded": "mean_padded", "Mirror, words": "mirror",
                "Mirror, random strings": "mirror random strings",
                "Mirror, random strings, 2.5 x rate": "mirror random strings, rate 5e-5"})
    ),
    baselines={"fastText": baseline("10", "fastText")},
    paper="Even random strings make an encoder, .393 and at a higher rate .481 against .105 or .267 before, "
    "though words are better (.556).",
    claims=(
        *gains("multisimlex_eng", row="Mirror, words"),
        *gains("multisimlex_eng", row="Mirror, random strings"),
        Claim("Mirror, random strings, 2.5 x rate", "Mirror, random strings", "multisimlex_eng"),
        Claim("Mirror, words", "Mirror, random strings, 2.5 x rate", "multisimlex_eng"),
    ),
    note="2.5 x the default learning rate is the paper's 5e-5 for a model of width 768.",
)  # fmt: skip

FIGURE8 = Study(
    "Figure 8: frequency rank of the training words",
    tuple(Cell(f"{bucket}0000", SIMLEX, (f"en_words_bucket_{bucket}0k.txt",), "word") for bucket in range(1, 11)),
    main_scores(SIMLEX),
    figure="curve",
    paper="The more frequent the training words, the better the encoder.",
    claims=(
        Claim("10000", "50000", "multisimlex_eng"),
        Claim("50000", "100000", "multisimlex_eng"),
        Claim("10000", "100000", "multisimlex_eng"),
    ),
    note="Rows are the last rank of each bucket of 10,000 words. The paper has ten, of Wikipedia's 100,000 most "
    "frequent words, and reports a plot without numbers.",
)


# ---- Hyperparameters -----------------------------------------------------------------------------------------------
TABLE12 = Study(
    "Table 12: dropout rate",
    tuple(_sts(str(rate), dropout_rate=rate) for rate in (0.05, 0.1, 0.2, 0.3, 0.4)),
    main_scores(STS_PAPER),
    average=True,
    figure="curve",
    published=printed(("12", {rate: f"mirror dropout {rate}" for rate in "0.05 0.1 0.2 0.3 0.4".split()})),
    paper="BERT is robust and prefers .2 or .3 (.748), .4 costs a point (.731); RoBERTa prefers .05 (.755) and "
    "falls steeply from .2 on.",
    claims=(Claim("0.2", "0.1"), Claim("0.3", "0.1"), Claim("0.2", "0.4"), Claim("0.3", "0.4")),
)

TABLE13 = Study(
    "Table 13: length of the masked span, characters",
    tuple(_sts(str(length), span_mask_length=length) for length in (2, 5, 10, 15, 20)),
    main_scores(STS_PAPER),
    average=True,
    figure="curve",
    published=printed(("13", {length: f"mirror span {length}" for length in "2 5 10 15 20".split()})),
    paper="BERT is best at 2 to 5 characters (.741, .743) and falls from 10 on (.720, .690, .616); RoBERTa bears "
    "longer spans (.757 at 10, .706 at 20).",
    claims=(Claim("5", "10"), Claim("10", "15"), Claim("15", "20")),
)


SEARCHED = (RATE, "per_device_train_batch_size", "num_train_epochs", "temperature")


def _search(level: str, task: str, corpus: str, epochs: int = 2, temperature: float = 0.04) -> Study:
    """Return the grid of Table 21 on the dev set of a level (section 3).

    Args:
        epochs, temperature: the paper's choice; its rate x 1 and its batch of 200 are those of all levels.
    """
    rows = {
        setting: "rate x {:g}, batch {}, epochs {}, temperature {}".format(*setting)
        for setting in product((0.5, 1, 2.5), (100, 200, 300), (1, 2, 3, 5), (0.03, 0.04, 0.05, 0.07, 0.1, 0.2, 0.3))
    }
    chosen = (1, 200, epochs, temperature)
    others = [setting for setting in rows if sum(map(ne, setting, chosen)) == 1]
    return Study(
        f"Table 21: hyperparameters of {level}s, chosen on {task}",
        tuple(
            Cell(row, (task,), (corpus,), level, dict(zip(SEARCHED, setting, strict=True)))
            for setting, row in rows.items()
        ),
        main_scores((task,)),
        choose_on=task,
        paper=f"Rate 2e-5, batch 200, {epochs} epoch{'s' * (epochs > 1)} and temperature {temperature} were chosen for "
        f"{level}s; no scores are printed, and the caption calls them generally (close to) the best.",
        claims=tuple(Claim(rows[chosen], rows[other], task) for other in others),
        note="Compared: settings that differ from the chosen one in one value. Rates x 0.5, 1 and 2.5 are the paper's 1e-5, "
        "2e-5 and 5e-5 for a model of width 768. No test set is scored.",
    )


TABLE21 = _search("sentence", "stsb_dev", STS_SENTENCES, epochs=1)
TABLE21_WORDS = _search("word", "simlex999", ENGLISH_WORDS, temperature=0.2)
TABLE21_PHRASES = _search("phrase", "bel_cometa_zero_shot", UMLS_NAMES)

CLS_VS_MEAN = Study(
    "CLS token or mean (Appendix B)",
    tuple(
        Cell(f"{pooling}, {when}", tasks, (corpus,) if when == "after" else (), level, pooling=pooling, part=level)
        for pooling in ("cls", "mean", "mean_padded")
        for when in ("before", "after")
        for level, tasks, corpus in (("word", SIMLEX, ENGLISH_WORDS), ("sentence", STS_PAPER, STS_SENTENCES))
    ),
    main_scores(SIMLEX + STS_PAPER),
    paper="The mean is better before; after Mirror-BERT the first token is, except for BERT's sentences, where "
    "the mean is.",
    claims=(
        Claim("mean, before", "cls, before", "multisimlex_eng"),
        Claim("cls, after", "mean, after", "multisimlex_eng"),
        *(Claim(f"mean, {when}", f"cls, {when}", task) for when in ("before", "after") for task in STS_PAPER),
    ),
    note="For RoBERTa the first token is the better one after Mirror-BERT, on sentences too (Appendix B).",
)

SELECTION = Study(
    "Label-free checkpoint selection: agreement with STS-B dev",
    tuple(
        Cell(name, ("stsb_dev",), (corpus,), level,
             {"select_by": OWN_TEXT, "validation_samples": 500, "eval_tasks": "stsb_dev", "eval_strategy": "steps",
              "eval_steps": 0.1, "num_train_epochs": 5})
        for name, level, corpus in (("sentences", "sentence", STS_SENTENCES), ("words", "word", ENGLISH_WORDS))
    ),
    (
        Column("rho, own text", f"selection_{OWN_TEXT}"),
        Column("rho, alignment + uniformity", f"selection_{ALIGNMENT_UNIFORMITY}"),
        Column("dev, chosen by own text", f"selection_{OWN_TEXT}", "dev_of_chosen"),
        Column("dev, chosen by alignment + uniformity", f"selection_{ALIGNMENT_UNIFORMITY}", "dev_of_chosen"),
        Column("dev, best", f"selection_{OWN_TEXT}", "dev_of_best"),
        Column("dev, last", f"selection_{OWN_TEXT}", "dev_of_last"),
    ),
    figure="agreement",
    note="rho: Spearman over ten checkpoints of five epochs between the criterion and STS-B dev.",
)  # fmt: skip
