"""Studies of CMLM's tables and figures (Yang et al. 2021): cells are chains of stages of run_cmlm.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirror.evaluation.amazon import LANGUAGES as AMAZON_LANGUAGES
from mirror.evaluation.published import TRANSFER
from mirror.evaluation.published_cmlm import AVERAGES, printed_table
from mirror.evaluation.xeval import LANGUAGES as XEVAL_LANGUAGES
from mirror.studies.cells import Column, Study, main_scores
from mirror.studies.chains import ENGLISH, ChainCell, Stage
from mirror.studies.table import AVERAGE


BASE, LARGE, MULTILINGUAL = "bert-base-uncased", "bert-large-uncased", "multilingual-vocabulary"
MBERT, XLMR = "bert-base-multilingual-cased", "xlm-roberta-large"
# Standard BERT: no conditioning, and the masking rate of its paper (section 3 calls 31.3% higher than classical BERT's).
PLAIN_MLM = {"num_projections": 0, "mlm_probability": 0.15}
PCR = {"remove_components": 1}  # the first component of each language (section 5.1)

# Names of the stages; section 4.4 has their steps. "S1" to "S3" are named as in the caption of Table 3.
CMLM = Stage("cmlm", "cmlm-multilingual")
MLM = Stage("mlm", "cmlm-multilingual", PLAIN_MLM)
FIRST = Stage("first", "cmlm-multilingual-first")
NLI = Stage("nli", "cmlm-multilingual-nli")
S1, S2, S3 = (FIRST, Stage("br", "cmlm-multilingual-s1")), (Stage("s2", "cmlm-multilingual-s2"),), (
    FIRST,
    Stage("cmlm_br", "cmlm-multilingual-s3"),
)  # fmt: skip
F_MBERT = Stage("f_mbert", "cmlm-f-mbert")

SENTEVAL = dict(zip("MR CR SUBJ MPQA SST TREC MRPC SICK-E SICK-R".split(), TRANSFER, strict=True))
XEVAL = {language: f"xeval_{language}" for language in XEVAL_LANGUAGES}
# Table 5's codes -> Tatoeba's
TATOEBA = {
    code: f"tatoeba_{task}"
    for code, task in zip(
        "af ar bg bn de el es et eu fa fi fr he hi hu id it ja jv ka kk ko ml mr nl pt ru sw ta te th tl tr ur vi zh".split(),
        "afr ara bul ben deu ell spa est eus pes fin fra heb hin hun ind ita jpn jav kat kaz kor mal mar nld por rus swh tam "
        "tel tha tgl tur urd vie cmn".split(),
        strict=True,
    )
}
TABLE6_LANGUAGES = {code: f"tatoeba_{code}" for code in "fra cmn spa deu rus ita tur por hun jpn nld".split()}
DIRECTIONS = {"out of English": "accuracy_from_english", "mean of both directions": "accuracy_mean"}


def _published(table: str, labels: Mapping[str, str], rows: Mapping[str, tuple[str, ...]]) -> dict:
    """Return what a table prints, by checkpoint and row.

    Args:
        labels: column of the paper -> label of the study.
        rows: checkpoint -> the rows that belong to it.
    """
    labels = {**labels, **dict.fromkeys(AVERAGES, AVERAGE)}
    printed = {
        row: {labels[column]: value for column, value in values.items()}
        for row, values in printed_table(table).items()
    }
    return {checkpoint: {row: printed[row] for row in own} for checkpoint, own in rows.items()}


def _english(name: str, flags: Mapping[str, object] | None = None, size: str = "base") -> tuple[Stage, ...]:
    return (Stage(name, f"cmlm-{size}-en", flags or {}, ENGLISH),)


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
    published=_published(
        "1",
        SENTEVAL,
        {
            BASE: ("QuickThought (CC)", "English BERT base", "English BERT base (CC)", "CMLM base"),
            LARGE: ("English BERT large", "English BERT large (CC)", "CMLM large"),
        },
    ),
    note="QuickThought has one shared transformer here, and learns from the same pairs of segments as CMLM.",
)

_VARIANTS = {f"N = {count}": {"num_projections": count} for count in (1, 5, 10, 15, 20)}
_VARIANTS |= {
    "skip": {"num_projections": 15, "skip_connection": True},
    "proj": {"num_projections": 15, "sentence_vector": "proj"},
}
TABLE7 = Study(
    "CMLM Table 7: number of projections, skip connection, projected sentence vector",
    tuple(ChainCell(row, TRANSFER, chain=_english(row, flags)) for row, flags in _VARIANTS.items()),
    main_scores(TRANSFER),
    average=True,
    published=_published("7", SENTEVAL, {BASE: tuple(_VARIANTS)}),
)


# ---- Multilingual --------------------------------------------------------------------------------------------------
_XEVAL_TASKS = tuple(XEVAL.values())
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
    published=_published("2", XEVAL, {MULTILINGUAL: ("MLM (CC)", "CMLM"), MBERT: ("mBERT",), XLMR: ("XLM-R",)}),
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
    published=_published("3", XEVAL, {MULTILINGUAL: ("S1", "S2", "S3", "S3+NLI"), MBERT: ("mBERT", "f-mBERT")}),
    note="S1: CMLM, then BR. S2: CMLM+BR. S3: CMLM, then CMLM+BR; as in the table's caption, which section 4.2 contradicts.",
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
    published=_published(
        "4",
        {column.label: column.label for column in _AMAZON_COLUMNS},
        {MULTILINGUAL: ("CMLM", "CMLM+BR", "CMLM+BR+NLI"), MBERT: ("mBERT",), XLMR: ("XLM-R",)},
    ),
)


def _with_pcr(*cells: ChainCell) -> tuple[ChainCell, ...]:
    """Each cell, and the same one scored without the first principal component of each language."""
    return tuple(
        one
        for cell in cells
        for one in (cell, replace(cell, row=f"{cell.row} + PCR", scoring={**cell.scoring, **PCR}))
    )


_TATOEBA_TASKS = tuple(TATOEBA.values())
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
    published=_published(
        "5", TATOEBA, {MULTILINGUAL: ("CMLM+BR", "CMLM+BR+NLI"), MBERT: ("mBERT",), XLMR: ("XLM-R",)}
    ),
    also=DIRECTIONS,
    note="Rows without a direction: into English, as in XTREME. PCR removes the first component of each language.",
)

_TABLE6_TASKS = tuple(TABLE6_LANGUAGES.values())
TABLE6 = Study(
    "CMLM Table 6: principal component removal on Tatoeba",
    _with_pcr(_other("mBERT", _TABLE6_TASKS, "mBERT"), ChainCell("CMLM+BR", _TABLE6_TASKS, chain=S3)),
    main_scores(_TABLE6_TASKS),
    average=True,
    published=_published(
        "6", TABLE6_LANGUAGES, {MULTILINGUAL: ("CMLM+BR", "CMLM+BR + PCR"), MBERT: ("mBERT", "mBERT + PCR")}
    ),
    note="The paper's caption says 36 languages; the table has these eleven. It prints .602 for mBERT on French here and .663 "
    "in Table 5.",
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
)
