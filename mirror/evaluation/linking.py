"""Biomedical entity linking: find the concept of a mention by the nearest name of a dictionary (SapBERT's protocol).

A dictionary is rows of (name, ids), a query is (mention, ids); ids of one concept or one mention are joined by "|". A
row is a hit if it shares an id with the query. Knows the data folder's own files and two layouts that people with a
licence have: BioSyn's, and COMETA's as SapBERT packs it. A folder in either may stand as `biomed/<set>/`.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mirror.errors import InputError
from mirror.evaluation.lines import LineFile
from mirror.evaluation.search import top_k, unit_length
from mirror.evaluation.task import Columns, DataFile, Encode, Task


Pairs = list[tuple[str, str]]  # (text, ids joined by "|")

# task, folder of the queries, folder of the dictionary, sizes of the test part (none: any), published row
SETS = (
    ("bel_ncbi", "ncbi-disease", "ncbi-disease", (960,)),
    ("bel_bc5cdr_disease", "bc5cdr-disease", "ncbi-disease", (4420, 4424)),  # without or with mentions that have no id
    ("bel_bc5cdr_chemical", "bc5cdr-chemical", "bc5cdr-chemical", ()),
    ("bel_askapatient", "askapatient", "askapatient", ()),
    ("bel_cometa", "cometa", "cometa", ()),
)
XLBEL_LANGUAGES = ("de", "en", "es", "fi", "ja", "ko", "ru", "th", "tr", "zh")
XLBEL_ROWS = 1000
DEPTH = 5  # accuracy at 1 and at 5
COMETA_SPLIT = "zeroshot_general"


class QuotedFile(DataFile):
    """A tab-separated file whose fields may be quoted and then hold line ends, as the examples of COMETA do."""

    def read(self, data_dir: Path) -> Columns:
        path = data_dir / self.path
        try:
            with path.open(encoding="utf-8-sig", newline="") as lines:
                rows = list(csv.DictReader(lines, delimiter="\t"))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"cannot read {path} as tab-separated UTF-8: {error}") from error
        self._check_size(path, len(rows))
        if missing := [column for column in self.columns if column not in rows[0]]:
            raise InputError(f"{path}: no column {missing[0]!r}; the header has {list(rows[0])}")
        for number, row in enumerate(rows, start=1):
            if any(row[column] is None for column in self.columns):
                raise InputError(f"{path}, record {number} has fewer fields than the header")
        return {column: [row[column] for row in rows] for column in self.columns}


@dataclass(frozen=True)
class Source:
    """Where a set's queries and dictionary are, and how they are read."""

    files: tuple[DataFile, ...]
    read: Callable[[Path], tuple[Pairs, Pairs]]  # data folder -> queries, dictionary
    layout: str


def tasks(data_dir: Path, add_mentions: bool = False) -> list[Task]:
    """The five English sets and XL-BEL's ten languages.

    Args:
        add_mentions: put the mentions of the training and dev part into the dictionary, as BioSyn and SapBERT do for
            their test runs (their own `test_dictionary.txt` has them already).
    """
    english = [
        _task(name, _source(data_dir, folder, dictionary, rows, add_mentions), "bel", "Mirror-BERT Table 2")
        for name, folder, dictionary, rows in SETS
    ]
    xlbel = [_task(f"xlbel_{language}", _xlbel_source(language), "xlbel", "SapBERT") for language in XLBEL_LANGUAGES]
    return english + xlbel


def score(source: Source, encode: Encode, data_dir: Path) -> dict:
    """Accuracy at 1 and at 5, with the size and hash of the dictionary that was searched."""
    queries, dictionary = source.read(data_dir)
    ranks = link(encode, queries, dictionary)
    listing = "\n".join(f"{ids}\t{name}" for name, ids in dictionary)
    return {
        "main_score": float((ranks <= 1).mean()),
        "num_examples": len(queries),
        "accuracy@1": float((ranks <= 1).mean()),
        f"accuracy@{DEPTH}": float((ranks <= DEPTH).mean()),
        "dictionary_size": len(dictionary),
        "dictionary_names": len({name for name, _ in dictionary}),
        "dictionary_sha256": hashlib.sha256(listing.encode()).hexdigest(),
    }


def link(encode: Encode, queries: Pairs, dictionary: Pairs, depth: int = DEPTH) -> np.ndarray:
    """(Q,) rank, from 1, of the first dictionary row that is a hit; `depth` + 1 if none of the first `depth` is.

    A name is encoded and searched once, however many concepts share it; its rows are then ranked in the dictionary's
    order, a repeated row once. A composite mention ("breast cancer|ovarian cancer") is as good as its worst part.
    """
    rows: dict[str, list[str]] = {}  # the ids of each row, by name
    for name, ids in dict.fromkeys(dictionary):
        rows.setdefault(name, []).append(ids)
    names = list(rows)
    parts = [(number, part) for number, (mention, _) in enumerate(queries) for part in mention.split("|")]
    mentions = list(dict.fromkeys(part for _, part in parts))
    _, nearest = top_k(unit_length(encode(mentions)), unit_length(encode(names)), depth)  # (M, depth)
    candidates = {
        mention: [ids for column in found for ids in rows[names[column]]][:depth]
        for mention, found in zip(mentions, nearest.tolist(), strict=True)
    }
    ranks = np.ones(len(queries), dtype=int)
    for number, part in parts:
        ranks[number] = max(ranks[number], first_hit(candidates[part], queries[number][1], depth))
    return ranks


def first_hit(candidates: list[str], gold: str, depth: int = DEPTH) -> int:
    """Rank, from 1, of the first candidate that shares an id with `gold`, both "|"-joined; else `depth` + 1."""
    wanted = set(gold.split("|"))
    return next((rank for rank, ids in enumerate(candidates, 1) if wanted.intersection(ids.split("|"))), depth + 1)


def read_table(file: DataFile, data_dir: Path, text: str) -> Pairs:
    """Rows of a file of the data folder; its normalised column (`mention_norm`, `name_norm`) where it has one."""
    columns: Columns = file.read(data_dir)
    texts = columns.get(f"{text}_norm") or [value.lower() for value in columns[text]]
    return list(zip(texts, columns["cui"], strict=True))


def read_biosyn_dictionary(file: DataFile, data_dir: Path) -> Pairs:
    """BioSyn's `test_dictionary.txt`, or SapBERT's `COMETA_id_sf_dictionary.txt`: names with their ids."""
    columns = file.read(data_dir)
    return _with_ids(columns["name"], columns["cui"])


def read_biosyn_queries(files: Sequence[DataFile], data_dir: Path) -> Pairs:
    """The mentions of BioSyn's `*.concept` files that have an id."""
    columns = [file.read(data_dir) for file in files]
    return [pair for document in columns for pair in _with_ids(document["mention"], document["cui"])]


def read_cometa_queries(file: DataFile, data_dir: Path) -> Pairs:
    """The terms of a COMETA split with their general SNOMED ids."""
    columns = file.read(data_dir)
    return _with_ids(columns["Term"], columns["General SNOMED ID"])


def _task(name: str, source: Source, group: str, published: str) -> Task:
    return Task(
        name=name,
        metric="accuracy@1",
        protocol=f"nearest dictionary name by cosine, a hit shares an id; {source.layout}",
        files=source.files,
        score=partial(score, source),
        groups=(group,),
        published=published,
    )


def _source(data_dir: Path, folder: str, dictionary: str, rows: tuple[int, ...], add_mentions: bool) -> Source:
    """The layout that `biomed/<folder>/` has: BioSyn's or COMETA's if their files are there, else our own."""
    root = data_dir / "biomed" / folder
    if any(root.glob("processed_test/*.concept")):
        return _biosyn_source(data_dir, root)
    if (root / "splits").is_dir():
        return _cometa_source(data_dir, root)
    parts = ("test", "train", "dev") if add_mentions else ("test",)
    test, *others = (
        DataFile(f"biomed/{folder}/{part}_queries.tsv", ("mention", "cui"), rows if part == "test" else ())
        for part in parts
    )
    names = DataFile(f"biomed/{dictionary}/dictionary.tsv", ("cui", "name"))
    layout = f"dictionary of {dictionary}" + (" and training and dev mentions" if add_mentions else "")
    return Source((test, names, *others), partial(_read_tables, test, names, others), layout)


def _xlbel_source(language: str) -> Source:
    test = DataFile(f"biomed/xlbel/{language}_queries.tsv", ("mention", "cui"), (XLBEL_ROWS,))
    names = DataFile("biomed/xlbel/dictionary.tsv", ("cui", "name"))
    return Source((test, names), partial(_read_tables, test, names, ()), "dictionary of xlbel")


def _biosyn_source(data_dir: Path, root: Path) -> Source:
    folder = root / "processed_test"
    names = LineFile(_inside(root / "test_dictionary.txt", data_dir), ("cui", "name"), separator="||")
    queries = tuple(
        LineFile(_inside(path, data_dir), ("document", "span", "type", "mention", "cui"), separator="||")
        for path in sorted(folder.glob("*.concept"))
    )
    return Source(
        (names, *queries),
        lambda data_dir: (read_biosyn_queries(queries, data_dir), read_biosyn_dictionary(names, data_dir)),
        "BioSyn's test_dictionary.txt (with training and dev mentions) and processed_test",
    )


def _cometa_source(data_dir: Path, root: Path) -> Source:
    names = LineFile(_inside(root / "COMETA_id_sf_dictionary.txt", data_dir), ("cui", "name"), separator="||")
    test = QuotedFile(_inside(root / "splits" / COMETA_SPLIT / "test.csv", data_dir), ("Term", "General SNOMED ID"))
    return Source(
        (test, names),
        lambda data_dir: (read_cometa_queries(test, data_dir), read_biosyn_dictionary(names, data_dir)),
        f"COMETA's own files, split {COMETA_SPLIT}",
    )


def _read_tables(test: DataFile, names: DataFile, others: list[DataFile], data_dir: Path) -> tuple[Pairs, Pairs]:
    """Queries and dictionary, to which the mentions of `others` are added."""
    dictionary = read_table(names, data_dir, "name")
    for file in others:
        dictionary += read_table(file, data_dir, "mention")
    return read_table(test, data_dir, "mention"), dictionary


def _with_ids(texts: list[str], ids: list[str]) -> Pairs:
    """Lower-cased texts that have an id; the "+" with which BioSyn joins the ids of a composite becomes "|"."""
    return [
        (text.lower(), one.replace("+", "|"))
        for text, one in zip(texts, ids, strict=True)
        if one.lower() != "cui-less"
    ]


def _inside(path: Path, data_dir: Path) -> str:
    return str(path.relative_to(data_dir))
