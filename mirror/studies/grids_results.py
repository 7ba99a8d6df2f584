"""Studies of the main results: words, names and sentences, monolingual, multilingual and cross-lingual."""

from __future__ import annotations

from mirror.evaluation.bli import PAPER_PAIRS
from mirror.evaluation.published import BIOMEDICAL, MULTILINGUAL_STS, MULTISIMLEX, STS_PAPER
from mirror.studies.cells import (
    DROPHEAD,
    STS_SENTENCES,
    UMLS_NAMES,
    WORDS,
    Cell,
    Column,
    Study,
    baseline_cells,
    main_scores,
    numbers,
    scores_of,
)


# ISO 639-3 codes of the tasks -> ISO 639-1 codes of the word lists
WORD_LISTS = {"eng": "en", "fra": "fr", "est": "et", "ara": "ar", "cmn": "zh", "rus": "ru", "spa": "es", "pol": "pl",
              "heb": "he"}  # fmt: skip
STS_CORPORA = (
    ("sts17_es", "spanish_wikimatrix_10k_sents_random_sampled.txt"),
    ("sts17_ar", "arabic_wikimatrix_10k_sents_random_sampled.txt"),
    ("sts_ru", "russian_wikimatrix_10k_sents_random_sampled.txt"),
)
CROSS_PAIRS = tuple(f"multisimlex_{pair}" for pair in "eng_fra eng_cmn eng_heb fra_cmn fra_heb cmn_heb".split())
BLI = tuple(f"bli_{pair.replace('-', '_')}" for pair in PAPER_PAIRS)


def _by_language(tasks_and_corpora, level: str) -> tuple[Cell, ...]:
    """Return cells that score the task of each language before and after training on its corpora."""
    cells = []
    for task, *corpora in tasks_and_corpora:
        part = task.split("_", 1)[1]
        cells += [
            *baseline_cells((task,), level, part=part),
            Cell("Mirror", (task,), tuple(corpora), level, part=part),
        ]
    return tuple(cells)


def _two_lists(task: str) -> tuple[str, str, str]:
    one, other = (WORD_LISTS.get(code, code) for code in task.split("_")[1:])
    return task, WORDS.format(one), WORDS.format(other)


TABLE1 = Study(
    "Table 1: words by language (Multi-SimLex)",
    _by_language([(task, WORDS.format(WORD_LISTS[task.split("_")[1]])) for task in MULTISIMLEX], "word"),
    main_scores(MULTISIMLEX),
    average=True,
    published={
        "bert": {
            "before, cls": scores_of("bert-base-uncased cls"),
            "before, mean_padded": scores_of("bert-base-uncased mean_padded"),
            "Mirror": scores_of("mirror-bert-base-uncased"),
        },
        "mbert": {
            "before, cls": numbers(MULTISIMLEX, ".062 .046 .074 .047 .204 .063 .039 .051"),
            "before, mean_padded": numbers(MULTISIMLEX, ".105 .130 .094 .101 .261 .109 .095 .087"),
            "Mirror": numbers(MULTISIMLEX, ".358 .341 .134 .097 .501 .210 .332 .141"),
        },
    },
    note="The paper uses a BERT of each language (--language_models). The released Spanish word list is the Estonian one.",
)

_ACCURACY_COLUMNS = tuple(
    (f"{task}{suffix}", task, field)
    for task in BIOMEDICAL
    for suffix, field in (("", "accuracy@1"), (" @5", "accuracy@5"))
)
_LABELS_AT_5 = tuple(f"{task} @5" for task in BIOMEDICAL)
TABLE2 = Study(
    "Table 2: biomedical entity linking, accuracy at 1 and at 5",
    (
        Cell("before, cls", BIOMEDICAL, level="phrase", pooling="cls"),
        Cell("Mirror", BIOMEDICAL, (UMLS_NAMES,), "phrase"),
    ),
    tuple(Column(*parts) for parts in _ACCURACY_COLUMNS),
    published={
        "bert": {
            "before, cls": scores_of("bert-base-uncased cls") | numbers(_LABELS_AT_5, ".770 .891 .912 .433 .477"),
            "Mirror": scores_of("mirror-bert-base-uncased") | numbers(_LABELS_AT_5, ".921 .949 .971 .695 .647"),
        },
        "pubmedbert": {
            "before, cls": scores_of("PubMedBERT cls") | numbers(_LABELS_AT_5, ".869 .938 .946 .496 .532"),
            "Mirror": scores_of("mirror-PubMedBERT") | numbers(_LABELS_AT_5, ".948 .962 .979 .750 .713"),
        },
    },
)

TABLE3 = Study(
    "Table 3: English STS",
    (
        *baseline_cells(STS_PAPER),
        Cell("Mirror", STS_PAPER, (STS_SENTENCES,)),
        Cell("Mirror, drophead", STS_PAPER, (STS_SENTENCES,), flags={"drophead_rate": DROPHEAD}),
    ),
    main_scores(STS_PAPER),
    average=True,
    published={
        family: {
            "before, cls": scores_of(f"{model} cls"),
            "before, mean_padded": scores_of(f"{model} mean_padded"),
            "Mirror": scores_of(f"mirror-{model}"),
            "Mirror, drophead": scores_of(f"mirror-{model} drophead"),
        }
        for family, model in (("bert", "bert-base-uncased"), ("roberta", "roberta-base"))
    },
)

TABLE4 = Study(
    "Table 4: STS in other languages",
    _by_language(STS_CORPORA, "sentence"),
    main_scores(MULTILINGUAL_STS),
    average=True,
    published={
        "bert": {
            "before, cls": scores_of("bert-base-uncased cls"),
            "before, mean_padded": scores_of("bert-base-uncased mean_padded"),
            "Mirror": scores_of("mirror-bert-base-uncased"),
        },
        "mbert": {
            "before, cls": numbers(MULTILINGUAL_STS, ".421 .326 .430"),
            "before, mean_padded": numbers(MULTILINGUAL_STS, ".610 .447 .616"),
            "Mirror": numbers(MULTILINGUAL_STS, ".755 .594 .692"),
        },
    },
    note="The paper uses a BERT of each language (--language_models).",
)

FIGURE4 = Study(
    "Figure 4: QNLI, area under the ROC curve",
    (
        Cell("before", ("qnli",)),
        Cell("Mirror, QNLI text", ("qnli",), ("qnli_train_10k_sents_random_sampled.txt",)),
        Cell("Mirror, STS text", ("qnli",), (STS_SENTENCES,)),
    ),
    main_scores(("qnli",)),
    figure="roc",
    published={
        "bert": {"Mirror, QNLI text": scores_of("mirror-bert-base-uncased"), "Mirror, STS text": {"qnli": 0.665}},
        "roberta": {"Mirror, QNLI text": scores_of("mirror-roberta-base")},
    },
)

TABLE5 = Study(
    "Table 5: word similarity across two languages",
    _by_language(map(_two_lists, CROSS_PAIRS), "word"),
    main_scores(CROSS_PAIRS),
    average=True,
    published={
        "mbert": {
            "before, cls": numbers(CROSS_PAIRS, ".059 .053 .032 .042 .024 .050"),
            "before, mean_padded": numbers(CROSS_PAIRS, ".163 .118 .071 .142 .104 .010"),
            "Mirror": numbers(CROSS_PAIRS, ".454 .385 .133 .465 .163 .179"),
        }
    },
    note="Trained on the word lists of both languages.",
)

TABLE6 = Study(
    "Table 6: bilingual lexicon induction",
    _by_language(map(_two_lists, BLI), "word"),
    main_scores(BLI),
    average=True,
    published={
        "bert": {
            "before, cls": numbers(BLI, ".045 .049 .108 .109 .046 .068"),
            "before, mean_padded": numbers(BLI, ".014 .112 .154 .150 .025 .018"),
            "Mirror": numbers(BLI, ".458 .378 .336 .289 .417 .345"),
        }
    },
    note="Here one model encodes both languages; the paper uses a BERT of each language.",
)

FIGURE7 = Study(
    "Figure 7: cosines of paraphrases and of other pairs, before and after",
    (Cell("before", ("qqp_cosine",)), Cell("after", ("qqp_cosine",), (STS_SENTENCES,))),
    (Column("AUC", "qqp_cosine"), Column("gap of the mean cosines", "qqp_cosine", "gap")),
    figure="histograms",
    note="The pairs are those of qqp/qqp.tsv in the data folder; the paper uses QQP.",
)
