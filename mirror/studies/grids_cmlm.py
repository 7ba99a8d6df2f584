"""Studies of CMLM's tables and figures (Yang et al. 2021): cells are chains of stages of run_cmlm.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirror.evaluation.amazon import LANGUAGES as AMAZON_LANGUAGES
from mirror.evaluation.published import TRANSFER
from mirror.evaluation.published_cmlm import AVERAGES, TASKS, printed_table
from mirror.studies.cells import AVERAGE, Claim, Column, Study, main_scores
from mirror.studies.chains import ENGLISH, ChainCell, Stage


BASE, LARGE, MULTILINGUAL = "bert-base-uncased", "bert-large-uncased", "multilingual-vocabulary"
MBERT, XLMR = "bert-base-multilingual-cased", "xlm-roberta-large"
# Standard BERT: no conditioning, and the masking rate of its paper (section 3 calls 31.3% higher than classical BERT's).
PLAIN_MLM = {"num_projections": 0, "mlm_probability": 0.15}
LARGE_MODEL, MBERT_MODEL = {"large": "cmlm-large-en"}, {"mBERT": "cmlm-f-mbert"}  # for --paper_models
PCR = {"remove_components": 1}  # the first component of each language (section 5.1)

# Names of the stages; section 4.4 has their steps. "S1" to "S3" are named as in the caption of Table 3.
CMLM = Stage("cmlm", "cmlm-multilingual")
MLM = Stage("mlm", "cmlm-multilingual", PLAIN_MLM)
FIRST = Stage("first", "cmlm-multilingual-first")
NLI = Stage("nli", "cmlm-multilingual-nli")
S1 = (FIRST, Stage("br", "cmlm-multilingual-s1"))
S2 = (Stage("s2", "cmlm-multilingual-s2"),)
S3 = (FIRST, Stage("cmlm_br", "cmlm-multilingual-s3"))
F_MBERT = Stage("f_mbert", "cmlm-f-mbert")

DIRECTIONS = {"out of English": "accuracy_from_english", "mean of both directions": "accuracy_mean"}


def _printed(table: str, labels: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """Return what a table prints, with this study's labels instead of the paper's columns: row -> label -> score."""
    labels = {**labels, **dict.fromkeys(AVERAGES, AVERAGE)}
    return {
        row: {labels[column]: value for column, value in values.items()}
        for row, values in printed_table(table).items()
    }


def _compared(table: str, labels: Mapping[str, str], rows: Mapping[str, tuple[str, ...]]) -> dict:
    """Return the fields `published` and `baselines` of a study.

    Args:
        labels: column of the paper -> label of the study.
        rows: checkpoint -> the rows that belong to it; the other rows of the table are baselines.
    """
    printed, ours = _printed(table, labels), {row for own in rows.values() for row in own}
    return {
        "published": {checkpoint: {row: printed[row] for row in own} for checkpoint, own in rows.items()},
        "baselines": {row: scores for row, scores in printed.items() if row not in ours},
    }


def _english(name: str, flags: Mapping[str, object] | None = None, size: str = "base") -> tuple[Stage, ...]:
    return (Stage(f"en_{name}", f"cmlm-{size}-en", flags or {}, ENGLISH),)


def _other(row: str, tasks: tuple[str, ...], part: str, **fields) -> ChainCell:
    """A model that another paper made, or one that starts from it."""
    return ChainCell(row, tasks, part=part, own_model=True, **fields)


# ---- English -------------------------------------------------------------------------------------------------------
TABLE1 = Study(
    "CMLM Table 1: SentEval, English",
    (
        ChainCell("QuickThought (CC)", TRANSFER, chain=_english("quickthought", {"stage": "quickthought"})),
        ChainCell("English BERT base", TRANSFER),
        ChainCell("English BERT base (CC)", TRANSFER, chain=_english("mlm", PLAIN_MLM)),
        ChainCell("CMLM base", TRANSFER, chain=_english("cmlm")),
        _other("English BERT large", TRANSFER, "large"),
        _other("English BERT large (CC)", TRANSFER, "large", chain=_english("mlm", PLAIN_MLM, "large")),
        _other("CMLM large", TRANSFER, "large", chain=_english("cmlm", size="large")),
    ),
    main_scores(TRANSFER),
    average=True,
    **_compared(
        "1",
        TASKS["1"],
        {
            BASE: ("QuickThought (CC)", "English BERT base", "English BERT base (CC)", "CMLM base"),
            LARGE: ("English BERT large", "English BERT large (CC)", "CMLM large"),
        },
    ),
    paper_models=LARGE_MODEL,
    claims=(
        Claim("CMLM base", "QuickThought (CC)"),
        Claim("CMLM base", "English BERT base (CC)"),
        Claim("CMLM large", "English BERT large (CC)"),
    ),
    note="QuickThought has one shared transformer here, and learns from the same pairs of segments as CMLM.",
)

# N = 15 is the recipe's, and the stage that of Table 1.
_VARIANTS = {f"N = {count}": {"num_projections": count} for count in (1, 5, 10)} | {"N = 15": {}}
_VARIANTS |= {
    "N = 20": {"num_projections": 20},
    "skip": {"skip_connection": True},
    "proj": {"sentence_vector": "proj"},
}
TABLE7 = Study(
    "CMLM Table 7: number of projections, skip connection, projected sentence vector",
    tuple(
        ChainCell(row, TRANSFER, chain=_english(row if flags else "cmlm", flags)) for row, flags in _VARIANTS.items()
    ),
    main_scores(TRANSFER),
    average=True,
    **_compared("7", TASKS["7"], {BASE: tuple(_VARIANTS)}),
    claims=tuple(Claim("N = 15", row) for row in _VARIANTS if row != "N = 15"),
)


# ---- Multilingual --------------------------------------------------------------------------------------------------
_XEVAL_TASKS = tuple(TASKS["2"].values())
TABLE2 = Study(
    "CMLM Table 2: XEVAL, trained on monolingual text",
    (
        _other("mBERT", _XEVAL_TASKS, "mBERT"),
        ChainCell("MLM (CC)", _XEVAL_TASKS, chain=(MLM,)),
        _other("XLM-R", _XEVAL_TASKS, "XLM-R"),
        ChainCell("CMLM", _XEVAL_TASKS, chain=(CMLM,)),
    ),
    main_scores(_XEVAL_TASKS),
    average=True,
    **_compared("2", TASKS["2"], {MULTILINGUAL: ("MLM (CC)", "CMLM"), MBERT: ("mBERT",)}),
    paper_models=MBERT_MODEL,
    claims=(Claim("CMLM", "MLM (CC)"), Claim("CMLM", "mBERT")),
)

TABLE3 = Study(
    "CMLM Table 3: XEVAL, trained with translations and NLI",
    (
        ChainCell("S1", _XEVAL_TASKS, chain=S1),
        ChainCell("S2", _XEVAL_TASKS, chain=S2),
        ChainCell("S3", _XEVAL_TASKS, chain=S3),
        ChainCell("S3+NLI", _XEVAL_TASKS, chain=(*S3, NLI)),
        _other("mBERT", _XEVAL_TASKS, "mBERT"),
        _other("f-mBERT", _XEVAL_TASKS, "mBERT", chain=(F_MBERT,)),
    ),
    main_scores(_XEVAL_TASKS),
    average=True,
    **_compared("3", TASKS["3"], {MULTILINGUAL: ("S1", "S2", "S3", "S3+NLI"), MBERT: ("mBERT", "f-mBERT")}),
    note="S1: CMLM, then BR. S2: CMLM+BR. S3: CMLM, then CMLM+BR; as in the table's caption, which section 4.2 contradicts.",
    paper_models=MBERT_MODEL,
    claims=(
        Claim("S2", "S1"),
        Claim("S3", "S2"),
        Claim("S3+NLI", "S3"),
        Claim("S3+NLI", "f-mBERT"),
        Claim("f-mBERT", "mBERT"),
    ),
)

_AMAZON_TASKS = ("amazon_zero_shot", "amazon_zero_shot_tuned")
_AMAZON_NAMES = dict(zip(("English", "German", "French", "Japanese"), AMAZON_LANGUAGES, strict=True))
_AMAZON_COLUMNS = tuple(
    Column(f"{name}, {half}", task, f"accuracy_{_AMAZON_NAMES[name]}")
    for task, half in zip(_AMAZON_TASKS, ("frozen", "trained"), strict=True)
    for name in ("English", "French", "German", "Japanese")
)
TABLE4 = Study(
    "CMLM Table 4: Amazon reviews, trained on English ones",
    (
        _other("mBERT", _AMAZON_TASKS, "mBERT"),
        _other("XLM-R", _AMAZON_TASKS, "XLM-R"),
        ChainCell("CMLM", _AMAZON_TASKS, chain=(CMLM,)),
        ChainCell("CMLM+BR", _AMAZON_TASKS, chain=S3),
        ChainCell("CMLM+BR+NLI", _AMAZON_TASKS, chain=(*S3, NLI)),
    ),
    _AMAZON_COLUMNS,
    **_compared(
        "4",
        {column.label: column.label for column in _AMAZON_COLUMNS},
        {MULTILINGUAL: ("CMLM", "CMLM+BR", "CMLM+BR+NLI"), MBERT: ("mBERT",)},
    ),
    paper_models=MBERT_MODEL,
    claims=tuple(Claim("CMLM+BR+NLI", "mBERT", column.label) for column in _AMAZON_COLUMNS),
)


def _with_pcr(*cells: ChainCell) -> tuple[ChainCell, ...]:
    """Each cell, and the same one scored without the first principal component of each language."""
    return tuple(
        one
        for cell in cells
        for one in (cell, replace(cell, row=f"{cell.row} + PCR", scoring={**cell.scoring, **PCR}))
    )


_TATOEBA_TASKS = tuple(TASKS["5"].values())
TABLE5 = Study(
    "CMLM Table 5: Tatoeba, into and out of English",
    (
        *_with_pcr(_other("mBERT", _TATOEBA_TASKS, "mBERT")),
        _other("XLM-R", _TATOEBA_TASKS, "XLM-R"),
        *_with_pcr(
            ChainCell("CMLM+BR", _TATOEBA_TASKS, chain=S3), ChainCell("CMLM+BR+NLI", _TATOEBA_TASKS, chain=(*S3, NLI))
        ),
    ),
    main_scores(_TATOEBA_TASKS),
    average=True,
    **_compared("5", TASKS["5"], {MULTILINGUAL: ("CMLM+BR", "CMLM+BR+NLI"), MBERT: ("mBERT",), XLMR: ("XLM-R",)}),
    also=DIRECTIONS,
    note="Rows without a direction: into English, as in XTREME. PCR removes the first component of each language.",
    paper_models=MBERT_MODEL,
    claims=(Claim("CMLM+BR", "mBERT"), Claim("CMLM+BR + PCR", "CMLM+BR"), Claim("mBERT + PCR", "mBERT")),
)

_TABLE6_TASKS = tuple(TASKS["6"].values())
TABLE6 = Study(
    "CMLM Table 6: principal component removal on Tatoeba",
    _with_pcr(_other("mBERT", _TABLE6_TASKS, "mBERT"), ChainCell("CMLM+BR", _TABLE6_TASKS, chain=S3)),
    main_scores(_TABLE6_TASKS),
    average=True,
    **_compared("6", TASKS["6"], {MULTILINGUAL: ("CMLM+BR", "CMLM+BR + PCR"), MBERT: ("mBERT", "mBERT + PCR")}),
    note="The paper's caption says 36 languages; the table has these eleven. It prints .602 for mBERT on French here and .663 "
    "in Table 5.",
    paper_models=MBERT_MODEL,
    claims=(Claim("CMLM+BR + PCR", "CMLM+BR"), Claim("mBERT + PCR", "mBERT")),
)

FIGURE2 = Study(
    "CMLM Figure 2: languages of retrieved sentences, PAWS-X",
    _with_pcr(_other("mBERT", ("language_bias",), "mBERT"), ChainCell("CMLM+BR", ("language_bias",), chain=S3)),
    (
        Column("neutrality", "language_bias"),
        Column("own language", "language_bias", "own_language"),
        Column("translation found", "language_bias", "accuracy"),
    ),
    figure="languages",
    note="The paper reports a plot without numbers.",
    paper_models=MBERT_MODEL,
    claims=(Claim("mBERT + PCR", "mBERT", "neutrality"), Claim("mBERT", "mBERT + PCR", "own language")),
)

FIGURE3 = Study(
    "CMLM Figure 3: Tatoeba in the plane",
    (
        ChainCell("CMLM+BR", ("tatoeba_projection",), chain=S3),
        _other("mBERT", ("tatoeba_projection",), "mBERT"),
    ),
    (Column("nearest in the other language", "tatoeba_projection"),),
    figure="plane",
    note="The paper reports a plot without numbers and does not name the projection; here the first two principal components.",
    paper_models=MBERT_MODEL,
)
