"""Biomedical entity linking: retrieve the concept of a mention by its nearest dictionary name (SapBERT's protocol).

A dictionary consists of rows (name, ids) and a query is (mention, ids); several ids are joined by "|". A row is a hit
if it shares an id with the query. Reads the files of the data folder and two licensed layouts: BioSyn's, and COMETA's
as packaged by SapBERT. A folder in one of these layouts can be used as `biomed/<set>/`.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mirror.common.errors import InputError
from mirror.common.nearest_neighbors import top_k, unit_length
from mirror.evaluation.lines import LineFile
from mirror.evaluation.task import Columns, DataFile, Task
from mirror.modeling.encoder import Encode


Pairs = list[tuple[str, str]]  # (text, ids joined by "|")

# task, folder of the queries, folder of the dictionary, accepted numbers of test queries (empty: any)
SETS = (
    ("bel_ncbi", "ncbi-disease", "ncbi-disease", (960,)),
    ("bel_bc5cdr_disease", "bc5cdr-disease", "ncbi-disease", (4420, 4424)),  # without or with mentions without id
    ("bel_bc5cdr_chemical", "bc5cdr-chemical", "bc5cdr-chemical", ()),
    ("bel_askapatient", "askapatient", "askapatient", ()),
    ("bel_cometa", "cometa", "cometa", ()),
)
# Mirror-BERT section 3: COMETA's stratified general split is the test, its zero-shot general split the tuning set.
COMETA_TUNING = ("bel_cometa_zero_shot", "cometa-zero-shot", "cometa", ())
COMETA_SPLITS = {"cometa": "stratified_general", "cometa-zero-shot": "zeroshot_general"}  # by folder of the queries
XLBEL_LANGUAGES = ("de", "en", "es", "fi", "ja", "ko", "ru", "th", "tr", "zh")
XLBEL_ROWS = 1000
DEPTH = 5  # accuracy@1 and accuracy@5 are reported


class QuotedFile(DataFile):
    """A tab-separated file with quoted fields, which may contain line breaks, as in COMETA's column of examples."""

    def read(self, data_dir: Path) -> Columns:
        """Read and validate the file; return the columns `self.columns` as lists of strings.

        Raises:
            InputError: the file cannot be read, has the wrong number of rows, or lacks a column or a field.
        """
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
    """Location of the queries and the dictionary of a data set, and the function that reads them."""

    files: tuple[DataFile, ...]
    read: Callable[[Path], tuple[Pairs, Pairs]]  # data folder -> queries, dictionary
    layout: str


def tasks(data_dir: Path, add_mentions: bool = False) -> list[Task]:
    """Return the tasks of the five English sets, of COMETA's tuning split and of XL-BEL's ten languages.

    Args:
        add_mentions: add the training and dev mentions to the dictionary, as BioSyn and SapBERT do when they test
            (their `test_dictionary.txt` already contains them).
    """
    sources = {name: _source(data_dir, *places, add_mentions) for name, *places in (*SETS, COMETA_TUNING)}
    tuning = _task(COMETA_TUNING[0], sources.pop(COMETA_TUNING[0]), (), "")
    english = [_task(name, source, ("bel",), "Mirror-BERT Table 2") for name, source in sources.items()]
    xlbel = [_task(f"xlbel_{code}", _xlbel_source(code), ("xlbel",), "SapBERT") for code in XLBEL_LANGUAGES]
    return [*english, tuning, *xlbel]


def score(source: Source, encode: Encode, data_dir: Path) -> dict:
    """Compute accuracy@1 and accuracy@5, and report the size and hash of the dictionary."""
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
    """Rank the first hit of each query among the dictionary rows.

    A name shared by several concepts is encoded and searched once; its rows are ranked in dictionary order, and
    duplicate rows count once. A composite mention ("breast cancer|ovarian cancer") gets the rank of its worst part.

    Returns:
        (Q,) ranks, starting at 1; `depth` + 1 if there is no hit among the first `depth` rows.
    """
    rows: dict[str, list[str]] = {}  # name -> ids of each of its rows
    for name, ids in dict.fromkeys(dictionary):
        rows.setdefault(name, []).append(ids)
    names = list(rows)
    parts = [(number, part) for number, (mention, _) in enumerate(queries) for part in mention.split("|")]
    mentions = list(dict.fromkeys(part for _, part in parts))
    of_mentions, of_names = encode(mentions), encode(names)  # (M, D), (N, D)
    _, nearest = top_k(unit_length(of_mentions), unit_length(of_names, out=of_names), depth)  # (M, depth)
    candidates = {
        mention: [ids for column in found for ids in rows[names[column]]][:depth]
        for mention, found in zip(mentions, nearest.tolist(), strict=True)
    }
    ranks = np.ones(len(queries), dtype=int)
    for number, part in parts:
        ranks[number] = max(ranks[number], first_hit(candidates[part], queries[number][1], depth))
    return ranks


def first_hit(candidates: list[str], gold: str, depth: int = DEPTH) -> int:
    """Return the rank, from 1, of the first candidate that shares an id with `gold`, or `depth` + 1 if none does.

    Args:
        candidates: ids of each candidate, joined by "|".
        gold: ids of the query, joined by "|".
    """
    wanted = set(gold.split("|"))
    return next((rank for rank, ids in enumerate(candidates, 1) if wanted.intersection(ids.split("|"))), depth + 1)


def read_table(file: DataFile, data_dir: Path, text: str) -> Pairs:
    """Read a file of the data folder.

    Args:
        text: column of the texts. Its normalised version (`mention_norm`, `name_norm`) is preferred; without one the
            texts are lower-cased.
    """
    columns: Columns = file.read(data_dir)
    texts = columns.get(f"{text}_norm") or [value.lower() for value in columns[text]]
    return list(zip(texts, columns["cui"], strict=True))


def read_biosyn_dictionary(file: DataFile, data_dir: Path) -> Pairs:
    """Read BioSyn's `test_dictionary.txt` or SapBERT's `COMETA_id_sf_dictionary.txt`."""
    columns = file.read(data_dir)
    return _drop_without_id(columns["name"], columns["cui"])


def read_biosyn_queries(files: Sequence[DataFile], data_dir: Path) -> Pairs:
    """Read the mentions of BioSyn's `*.concept` files; mentions without an id are dropped."""
    columns = [file.read(data_dir) for file in files]
    return [pair for document in columns for pair in _drop_without_id(document["mention"], document["cui"])]


def read_cometa_queries(file: DataFile, data_dir: Path) -> Pairs:
    """Read the terms of a COMETA split with their general SNOMED ids."""
    columns = file.read(data_dir)
    return _drop_without_id(columns["Term"], columns["General SNOMED ID"])


def _task(name: str, source: Source, groups: tuple[str, ...], published: str) -> Task:
    return Task(
        name=name,
        metric="accuracy@1",
        protocol=f"nearest dictionary name by cosine, a hit shares an id; {source.layout}",
        files=source.files,
        score=partial(score, source),
        groups=groups,
        published=published,
    )


def _source(data_dir: Path, folder: str, dictionary: str, rows: tuple[int, ...], add_mentions: bool) -> Source:
    """Detect the layout of `biomed/<folder>/`: BioSyn's, COMETA's, or this project's."""
    root = data_dir / "biomed" / folder
    if any(root.glob("processed_test/*.concept")):
        return _biosyn_source(data_dir, root)
    cometa = data_dir / "biomed" / dictionary
    if folder in COMETA_SPLITS and (cometa / "splits").is_dir():
        return _cometa_source(data_dir, cometa, COMETA_SPLITS[folder])
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
    names = LineFile(_relative_path(root / "test_dictionary.txt", data_dir), ("cui", "name"), separator="||")
    queries = tuple(
        LineFile(_relative_path(path, data_dir), ("document", "span", "type", "mention", "cui"), separator="||")
        for path in sorted(folder.glob("*.concept"))
    )
    return Source(
        (names, *queries),
        lambda data_dir: (read_biosyn_queries(queries, data_dir), read_biosyn_dictionary(names, data_dir)),
        "BioSyn's test_dictionary.txt (with training and dev mentions) and processed_test",
    )


def _cometa_source(data_dir: Path, root: Path, split: str) -> Source:
    names = LineFile(_relative_path(root / "COMETA_id_sf_dictionary.txt", data_dir), ("cui", "name"), separator="||")
    test = QuotedFile(_relative_path(root / "splits" / split / "test.csv", data_dir), ("Term", "General SNOMED ID"))
    return Source(
        (test, names),
        lambda data_dir: (read_cometa_queries(test, data_dir), read_biosyn_dictionary(names, data_dir)),
        f"COMETA's own files, split {split}",
    )


def _read_tables(test: DataFile, names: DataFile, others: list[DataFile], data_dir: Path) -> tuple[Pairs, Pairs]:
    """Read the queries and the dictionary, and add the mentions of `others` to the dictionary."""
    dictionary = read_table(names, data_dir, "name")
    for file in others:
        dictionary += read_table(file, data_dir, "mention")
    return read_table(test, data_dir, "mention"), dictionary


def _drop_without_id(texts: list[str], ids: list[str]) -> Pairs:
    """Lower-case the texts and drop those without an id.

    BioSyn joins the ids of composite mentions by "+", which is replaced by "|".
    """
    return [
        (text.lower(), text_ids.replace("+", "|"))
        for text, text_ids in zip(texts, ids, strict=True)
        if text_ids.lower() != "cui-less"
    ]


def _relative_path(path: Path, data_dir: Path) -> str:
    return str(path.relative_to(data_dir))
