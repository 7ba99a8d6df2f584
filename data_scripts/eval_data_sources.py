"""The authors' original files of the evaluation data, in the folder of a checkout or download, and functions that read them.

Each function returns a header and rows of strings. It writes nothing, and only checks that its own files exist.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.eval_data_hub import SENTENCES, Table, as_field
from mirror.common.errors import InputError


WORDS = ("word1", "word2", "score")

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
class LocalFile:
    """A file of the authors' original distribution."""

    folder: str  # a key of FOLDERS
    reader: Callable[..., Table]
    parts: tuple[str, ...]  # variable parts of the path: a language, a split

    def read(self, root: Path) -> Table:
        """Return the header and rows of the file in the folder `root`."""
        return self.reader(root, *self.parts)


def local_source(path: str) -> LocalFile | None:
    """Return the original file for the file `path` of the evaluation folder, if there is a function that reads it."""
    for pattern, folder, reader in LOCAL:
        if match := re.fullmatch(pattern, path):
            return LocalFile(folder, reader, match.groups())
    return None


def _senteval_sts(root: Path, year: str) -> Table:
    """Read all subsets of one year, without the unscored pairs of 2015 and 2016, which are not part of the evaluation."""
    folder, rows = root / "STS" / f"STS{year}-en-test", []
    for path in sorted(folder.glob("STS.input.*.txt")):
        subset = path.name.removeprefix("STS.input.").removesuffix(".txt")
        scores = _lines(folder / f"STS.gs.{subset}.txt")
        for pair, score in zip(_lines(path), scores, strict=True):
            if score:
                rows.append(
                    (subset.removeprefix("surprise."), *(as_field(side) for side in pair.split("\t")[:2]), score)
                )
    return ("subset", *SENTENCES), rows


def _senteval_sick(root: Path, part: str) -> Table:
    name = {"train": "SICK_train", "trial": "SICK_trial", "test": "SICK_test_annotated"}[part]
    rows = [line.split("\t") for line in _lines(root / "SICK" / f"{name}.txt")[1:] if line]
    return ("subset", *SENTENCES, "entailment"), [(f"SICK-{part}", *row[1:5]) for row in rows]


def _senteval_binary(root: Path, task: str) -> Table:
    """Read MR, CR, SUBJ or MPQA: one file per label, as Latin-1 as in SentEval."""
    files = {
        "mr": ("MR/rt-polarity.neg", "MR/rt-polarity.pos"),
        "cr": ("CR/custrev.neg", "CR/custrev.pos"),
        "subj": ("SUBJ/subj.subjective", "SUBJ/subj.objective"),
        "mpqa": ("MPQA/mpqa.neg", "MPQA/mpqa.pos"),
    }[task]
    texts = [[as_field(line) for line in _lines(root / name, "latin-1") if line.strip()] for name in files]
    return ("split", "text", "label"), [("all", text, str(label)) for label in (0, 1) for text in texts[label]]


def _senteval_sst2(root: Path) -> Table:
    rows = []
    for split in ("train", "dev", "test"):
        for line in filter(None, _lines(root / "SST" / "binary" / f"sentiment-{split}")):
            text, label = line.rsplit("\t", 1)
            rows.append((split, as_field(text), label.strip()))
    return ("split", "text", "label"), rows


def _senteval_trec(root: Path) -> Table:
    rows = []
    for split, name in (("train", "train_5500"), ("test", "TREC_10")):
        for line in filter(None, _lines(root / "TREC" / f"{name}.label", "latin-1")):
            fine, text = line.split(" ", 1)
            rows.append((split, as_field(text), fine.split(":")[0], fine))
    return ("split", "text", "label", "fine_label"), rows


def _senteval_mrpc(root: Path) -> Table:
    rows = []
    for split in ("train", "test"):
        for line in filter(None, _lines(root / "MRPC" / f"msr_paraphrase_{split}.txt")[1:]):
            label, _, _, first, second = line.split("\t")
            rows.append((split, as_field(first), as_field(second), label))
    return ("split", "sentence1", "sentence2", "label"), rows


def _word_pairs(root: Path, name: str) -> Table:
    file = {
        **{"simlex999": "SIMLEX-999", "simverb3500": "SimVerb-3500", "men3000": "MEN-TR-3k", "rw2034": "RW-STANFORD"},
        **{"ws353": "WS-353-ALL", "ws353_sim": "WS-353-SIM", "ws353_rel": "WS-353-REL", "rg65": "RG-65"},
        **{"mturk287": "MTurk-287", "mturk771": "MTurk-771"},
    }[name]
    return WORDS, [tuple(line.split()) for line in _lines(root / f"EN-{file}.txt") if line]


def _multisimlex(root: Path, language: str) -> Table:
    """Read the concept pairs in the order of their ids, with scores to four decimals."""
    return WORDS, [(first, second, f"{score:.4f}") for first, second, score in _concept_pairs(root, language)]


def _multisimlex_pair(root: Path, left: str, right: str) -> Table:
    return cross_multisimlex(_concept_pairs(root, left), _concept_pairs(root, right))


def cross_multisimlex(left: list[tuple[str, str, float]], right: list[tuple[str, str, float]]) -> Table:
    """Build cross-lingual pairs from two aligned languages, as in Vulić et al. (2020).

    Word 1 of one language is paired with word 2 of the other, in both directions, with the mean of the two scores. A
    concept pair is dropped if the two scores differ by more than a fifth of the scale (1.2). Duplicate pairs are
    dropped too.

    Args:
        left, right: Word 1, word 2 and score of each concept pair, in the same order.
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
        (as_field(words[i][sides[0]]), as_field(words[i][sides[1]]), float(scores[i][language]))
        for i in sorted(scores, key=int)
    ]


def _xling_eval(root: Path, pair: str, part: str) -> Table:
    name = {"train1k": "train.freq.1k", "train5k": "train.freq.5k", "test2k": "test.freq.2k"}[part]
    lines = filter(None, _lines(root / pair / f"yacle.{name}.{pair}.tsv"))
    return ("source", "target"), [tuple(line.split("\t")) for line in lines]


def _laser(root: Path, language: str) -> Table:
    sides = [_lines(root / f"tatoeba.{language}-eng.{side}") for side in (language, "eng")]
    return ("source", "english"), [(as_field(a), as_field(b)) for a, b in zip(*sides, strict=True)]


def _cls10(root: Path, language: str, domain: str, split: str) -> Table:
    path, rows = root / language / domain / f"{split}.review", []
    _require_file(path)
    for item in ElementTree.parse(path).iter("item"):
        summary, rating, text = (item.findtext(tag) or "" for tag in ("summary", "rating", "text"))
        stars = int(float(rating))
        rows.append((str(int(stars > 3)), str(stars), as_field(summary), as_field(text)))
    return ("label", "rating", "summary", "text"), rows


def _xlbel(root: Path, language: str) -> Table:
    lines = filter(None, _lines(root / f"{language}_1k_test_query_with_context.txt"))
    return ("cui", "mention"), [tuple(as_field(field) for field in line.split("||")[:2]) for line in lines]


# Path in the evaluation folder, flag of the source folder, and the function that reads it, called with the groups of the path.
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
    """Return the lines without line ends. Only line feeds separate lines."""
    _require_file(path)
    lines = [line.rstrip("\r") for line in path.read_text(encoding=encoding).split("\n")]
    return lines if lines[-1] else lines[:-1]


def _csv(path: Path) -> Iterator[dict[str, str]]:
    _require_file(path)
    with path.open(encoding="utf-8-sig", newline="") as lines:
        yield from csv.DictReader(lines)
