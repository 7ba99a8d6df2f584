"""Sources of the files in the evaluation folder, and their readers.

A reader returns a header and rows of strings. It writes nothing, and only checks that its own files exist. Hub
datasets are pinned to a revision; for the authors' original files, the user gives the folder of a checkout or
download.
"""

from __future__ import annotations

import csv
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from datasets import ClassLabel, load_dataset


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.common.errors import InputError, one_line


Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # header and rows
SENTENCES, WORDS = ("sentence1", "sentence2", "score"), ("word1", "word2", "score")

# Folders with the authors' files: flags of prepare_eval_data.py and their help texts.
FOLDERS = {
    "senteval_dir": "data/downstream of a checkout of github.com/facebookresearch/SentEval, after running its "
    "get_transfer_data.bash",
    "word_similarity_dir": "data/word-sim of a checkout of github.com/mfaruqui/eval-word-vectors",
    "multisimlex_dir": "folder with scores.csv and translation.csv from multisimlex.com",
    "xling_eval_dir": "bli_datasets of a checkout of github.com/codogogo/xling-eval",
    "laser_dir": "data/tatoeba/v1 of a checkout of github.com/facebookresearch/LASER",
    "cls10_dir": "cls-acl10-unprocessed of webis.de/data/webis-cls-10",
    "biosyn_dir": "folder with the data sets of github.com/dmis-lab/BioSyn, one folder each, and COMETA in cometa/",
    "xlbel_dir": "evaluation/xl_bel/xlbel_v1.0 of a checkout of github.com/cambridgeltl/sapbert",
}


@dataclass(frozen=True)
class HubFile:
    """A split of a Hub dataset, with a mapping to the columns of the evaluation folder."""

    dataset: str
    revision: str
    columns: dict[str, str]  # column in the evaluation folder -> column of the dataset
    config: str | None = None
    split: str = "test"

    def read(self, mirror: Path | None = None) -> Table:
        """Header and rows; class labels are replaced by their names.

        Args:
            mirror: a folder with copies of Hub datasets as `mirror/owner/name`, for machines without network access.

        Raises:
            InputError: the dataset cannot be loaded, or a column is missing.
        """
        if mirror is None:
            return self._load_columns(self.dataset, load_kwargs={"revision": self.revision})
        with tempfile.TemporaryDirectory() as fresh:  # the default cache confuses two folders of the same name
            return self._load_columns(str(mirror / self.dataset), load_kwargs={"cache_dir": fresh})

    def _load_columns(self, name_or_path: str, load_kwargs: dict) -> Table:
        try:
            data = load_dataset(name_or_path, self.config, split=self.split, **load_kwargs)
        except (OSError, ValueError) as error:  # includes the errors of datasets and of the network
            raise InputError(f"cannot load {name_or_path} ({one_line(error, 200)})") from error
        if missing := set(self.columns.values()) - set(data.column_names):
            raise InputError(f"{name_or_path} has no column {missing.pop()!r}; it has {data.column_names}")
        to_text = {
            column: data.features[column].int2str if isinstance(data.features[column], ClassLabel) else _text
            for column in self.columns.values()
        }
        read = [[to_text[column](value) for value in data[column]] for column in self.columns.values()]
        return tuple(self.columns), list(zip(*read, strict=True))


@dataclass(frozen=True)
class LocalFile:
    """A file of the authors' original distribution."""

    folder: str  # a key of FOLDERS
    reader: Callable[..., Table]
    parts: tuple[str, ...]  # variable parts of the path: a language, a split

    def read(self, root: Path) -> Table:
        return self.reader(root, *self.parts)


def hub_source(path: str) -> HubFile | None:
    """The Hub dataset for the file `path` of the evaluation folder, if there is one."""
    if path in HUB:
        return HUB[path]
    if match := re.fullmatch(r"tatoeba/([a-z]{3})-eng\.tsv", path):
        return HubFile(
            *("mteb/tatoeba-bitext-mining", "69e8f12da6e31d59addadda9a9c8a2e601a0e282"),
            {"source": "sentence1", "english": "sentence2"},
            f"{match[1]}-eng",
        )
    if match := re.fullmatch(r"pawsx/(dev|test)_([a-z]{2})\.tsv", path):
        split = {"dev": "validation", "test": "test"}[match[1]]
        columns = {name: name for name in ("sentence1", "sentence2", "label")}
        return HubFile(
            "google-research-datasets/paws-x", "8a04d940a42cd40658986fdd8e3da561533a3646", columns, match[2], split
        )
    return None


def local_source(path: str) -> LocalFile | None:
    """The original file for the file `path` of the evaluation folder, if there is a reader for it."""
    for pattern, folder, reader in LOCAL:
        if match := re.fullmatch(pattern, path):
            return LocalFile(folder, reader, match.groups())
    return None


def _mteb_sts(name: str, revision: str, config: str | None = None, split: str = "test") -> HubFile:
    return HubFile(f"mteb/{name}", revision, {column: column for column in SENTENCES}, config, split)


_STSB, _STS17 = "b0fddb56ed78048fa8b90373c8a3cfc37b684831", "faeb762787bd10488a50c8b5be4a3b82e411949c"
_GLUE = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"
HUB = {
    "sts/sts12.tsv": _mteb_sts("sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384"),
    "sts/sts13.tsv": _mteb_sts("sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca"),
    "sts/sts14.tsv": _mteb_sts("sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375"),
    "sts/sts15.tsv": _mteb_sts("sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3"),
    "sts/sts16.tsv": _mteb_sts("sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513"),
    "sts/stsb_test.tsv": _mteb_sts("stsbenchmark-sts", _STSB),
    "sts/stsb_dev.tsv": _mteb_sts("stsbenchmark-sts", _STSB, split="validation"),
    "sts/sickr_full.tsv": _mteb_sts("sickr-sts", "20a6d6f312dd54037fe07a32d58e5e168867909d"),
    "sts/sts17_es.tsv": _mteb_sts("sts17-crosslingual-sts", _STS17, "es-es"),
    "sts/sts17_ar.tsv": _mteb_sts("sts17-crosslingual-sts", _STS17, "ar-ar"),
    "sts/sts_ru.tsv": HubFile(
        *("ai-forever/ru-stsbenchmark-sts", "7cf24f325c6da6195df55bef3d86b5e0616f3018"),
        {column: column for column in SENTENCES},
    ),
    "qnli/dev.tsv": HubFile(
        *("nyu-mll/glue", _GLUE, {name: name for name in ("question", "sentence", "label")}, "qnli", "validation")
    ),
    "qqp/qqp.tsv": HubFile(
        *("nyu-mll/glue", _GLUE, {"question1": "question1", "question2": "question2", "label": "label"}),
        *("qqp", "validation"),
    ),
}


def _senteval_sts(root: Path, year: str) -> Table:
    """All subsets of one year, without the unscored pairs of 2015 and 2016, which are not part of the evaluation."""
    folder, rows = root / "STS" / f"STS{year}-en-test", []
    for path in sorted(folder.glob("STS.input.*.txt")):
        subset = path.name.removeprefix("STS.input.").removesuffix(".txt")
        scores = _lines(folder / f"STS.gs.{subset}.txt")
        for pair, score in zip(_lines(path), scores, strict=True):
            if score:
                rows.append((subset.removeprefix("surprise."), *(_text(side) for side in pair.split("\t")[:2]), score))
    return ("subset", *SENTENCES), rows


def _senteval_sick(root: Path, part: str) -> Table:
    name = {"train": "SICK_train", "trial": "SICK_trial", "test": "SICK_test_annotated"}[part]
    rows = [line.split("\t") for line in _lines(root / "SICK" / f"{name}.txt")[1:] if line]
    return ("subset", *SENTENCES, "entailment"), [(f"SICK-{part}", *row[1:5]) for row in rows]


def _senteval_binary(root: Path, task: str) -> Table:
    """MR, CR, SUBJ, MPQA: one file per label, read as Latin-1 as in SentEval."""
    files = {
        "mr": ("MR/rt-polarity.neg", "MR/rt-polarity.pos"),
        "cr": ("CR/custrev.neg", "CR/custrev.pos"),
        "subj": ("SUBJ/subj.subjective", "SUBJ/subj.objective"),
        "mpqa": ("MPQA/mpqa.neg", "MPQA/mpqa.pos"),
    }[task]
    texts = [[_text(line) for line in _lines(root / name, "latin-1") if line.strip()] for name in files]
    return ("split", "text", "label"), [("all", text, str(label)) for label in (0, 1) for text in texts[label]]


def _senteval_sst2(root: Path) -> Table:
    rows = []
    for split in ("train", "dev", "test"):
        for line in filter(None, _lines(root / "SST" / "binary" / f"sentiment-{split}")):
            text, label = line.rsplit("\t", 1)
            rows.append((split, _text(text), label.strip()))
    return ("split", "text", "label"), rows


def _senteval_trec(root: Path) -> Table:
    rows = []
    for split, name in (("train", "train_5500"), ("test", "TREC_10")):
        for line in filter(None, _lines(root / "TREC" / f"{name}.label", "latin-1")):
            fine, text = line.split(" ", 1)
            rows.append((split, _text(text), fine.split(":")[0], fine))
    return ("split", "text", "label", "fine_label"), rows


def _senteval_mrpc(root: Path) -> Table:
    rows = []
    for split in ("train", "test"):
        for line in filter(None, _lines(root / "MRPC" / f"msr_paraphrase_{split}.txt")[1:]):
            label, _, _, first, second = line.split("\t")
            rows.append((split, _text(first), _text(second), label))
    return ("split", "sentence1", "sentence2", "label"), rows


def _word_pairs(root: Path, name: str) -> Table:
    file = {
        **{"simlex999": "SIMLEX-999", "simverb3500": "SimVerb-3500", "men3000": "MEN-TR-3k", "rw2034": "RW-STANFORD"},
        **{"ws353": "WS-353-ALL", "ws353_sim": "WS-353-SIM", "ws353_rel": "WS-353-REL", "rg65": "RG-65"},
        **{"mturk287": "MTurk-287", "mturk771": "MTurk-771"},
    }[name]
    return WORDS, [tuple(line.split()) for line in _lines(root / f"EN-{file}.txt") if line]


def _multisimlex(root: Path, language: str) -> Table:
    """Concept pairs in the order of their ids, with scores to four decimals."""
    return WORDS, [(first, second, f"{score:.4f}") for first, second, score in _concept_pairs(root, language)]


def _multisimlex_pair(root: Path, left: str, right: str) -> Table:
    return cross_multisimlex(_concept_pairs(root, left), _concept_pairs(root, right))


def cross_multisimlex(left: list[tuple[str, str, float]], right: list[tuple[str, str, float]]) -> Table:
    """Cross-lingual pairs from two aligned languages, as in Vulić et al. (2020).

    Word 1 of one language is paired with word 2 of the other, in both directions, with the mean of the two scores. A
    concept pair is dropped if the two scores differ by more than a fifth of the scale (1.2); duplicate pairs are
    dropped too.

    Args:
        left, right: word 1, word 2 and score of each concept pair, in the same order.
    """
    rows: dict[tuple[str, str], tuple[str, str]] = {}
    for number, ((a1, a2, a_score), (b1, b2, b_score)) in enumerate(zip(left, right, strict=True), start=1):
        if abs(a_score - b_score) <= 1.2:
            mean = f"{(a_score + b_score) / 2:.4f}"
            rows.setdefault((a1, b2), (mean, f"{number}a"))
            rows.setdefault((a2, b1), (mean, f"{number}b"))
    return (*WORDS, "pair"), [(*words, *rest) for words, rest in rows.items()]


def _concept_pairs(root: Path, language: str) -> list[tuple[str, str, float]]:
    scores, words = ({row["ID"]: row for row in _csv(root / f"{name}.csv")} for name in ("scores", "translation"))
    sides = (f"{language} 1", f"{language} 2")
    for column, table, name in ((language, scores, "scores"), (sides[0], words, "translation")):
        if column not in next(iter(table.values())):
            raise InputError(f"{root / name}.csv has no column {column!r}")
    return [
        (_text(words[i][sides[0]]), _text(words[i][sides[1]]), float(scores[i][language]))
        for i in sorted(scores, key=int)
    ]


def _xling_eval(root: Path, pair: str, part: str) -> Table:
    name = {"train1k": "train.freq.1k", "train5k": "train.freq.5k", "test2k": "test.freq.2k"}[part]
    lines = filter(None, _lines(root / pair / f"yacle.{name}.{pair}.tsv"))
    return ("source", "target"), [tuple(line.split("\t")) for line in lines]


def _laser(root: Path, language: str) -> Table:
    sides = [_lines(root / f"tatoeba.{language}-eng.{side}") for side in (language, "eng")]
    return ("source", "english"), [(_text(a), _text(b)) for a, b in zip(*sides, strict=True)]


def _cls10(root: Path, language: str, domain: str, split: str) -> Table:
    path, rows = root / language / domain / f"{split}.review", []
    _require_file(path)
    for item in ElementTree.parse(path).iter("item"):
        summary, rating, text = (item.findtext(tag) or "" for tag in ("summary", "rating", "text"))
        stars = int(float(rating))
        rows.append((str(int(stars > 3)), str(stars), _text(summary), _text(text)))
    return ("label", "rating", "summary", "text"), rows


def _xlbel(root: Path, language: str) -> Table:
    lines = filter(None, _lines(root / f"{language}_1k_test_query_with_context.txt"))
    return ("cui", "mention"), [tuple(_text(field) for field in line.split("||")[:2]) for line in lines]


# Path in the evaluation folder, flag of the source folder, and its reader, called with the groups of the path.
LOCAL = (
    (r"sts/sts(1[2-6])\.tsv", "senteval_dir", _senteval_sts),
    (r"sts/sickr_(train|trial|test)\.tsv", "senteval_dir", _senteval_sick),
    (r"senteval/(mr|cr|subj|mpqa)\.tsv", "senteval_dir", _senteval_binary),
    (r"senteval/sst2\.tsv", "senteval_dir", _senteval_sst2),
    (r"senteval/trec\.tsv", "senteval_dir", _senteval_trec),
    (r"senteval/mrpc\.tsv", "senteval_dir", _senteval_mrpc),
    (r"wordsim/(\w+)\.tsv", "word_similarity_dir", _word_pairs),
    (r"multisimlex/([A-Z]{3})\.tsv", "multisimlex_dir", _multisimlex),
    (r"multisimlex/([A-Z]{3})-([A-Z]{3})\.tsv", "multisimlex_dir", _multisimlex_pair),
    (r"bli/([a-z]+-[a-z]+)\.(\w+)\.tsv", "xling_eval_dir", _xling_eval),
    (r"tatoeba/([a-z]{3})-eng\.tsv", "laser_dir", _laser),
    (r"amazon_cls10/([a-z]+)_([a-z]+)_(train|test)\.tsv", "cls10_dir", _cls10),
    (r"biomed/xlbel/([a-z]{2})_queries\.tsv", "xlbel_dir", _xlbel),
)


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"{path} is missing; check that the folder is the one described in --help")


def _lines(path: Path, encoding: str = "utf-8-sig") -> list[str]:
    """Lines without line ends; only line feeds separate lines."""
    _require_file(path)
    lines = [line.rstrip("\r") for line in path.read_text(encoding=encoding).split("\n")]
    return lines if lines[-1] else lines[:-1]


def _csv(path: Path) -> Iterator[dict[str, str]]:
    _require_file(path)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from csv.DictReader(lines)


def _text(value: object) -> str:
    """The value as one line without tabs, which separate fields in the evaluation folder."""
    return " ".join(str(value).split())
