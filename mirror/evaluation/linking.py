"""Biomedical entity linking: retrieve the concept of a mention by its nearest dictionary name (SapBERT's protocol).

A dictionary consists of rows (name, ids) and a query is (mention, ids); several ids are joined by "|". A row is a hit
if it shares an id with the query. Reads the files of the data folder and two licensed layouts: BioSyn's, and COMETA's
as packaged by SapBERT. A folder in one of these layouts can be used as `biomed/<set>/`.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from mirror.common.vectors import top_k, unit_length
from mirror.evaluation.task import DataFile, LineFile, Options, Task
from mirror.modeling.encoder import Encode


logger = logging.getLogger(__name__)

Pairs = list[tuple[str, str]]  # (text, ids joined by "|")

# Task, folder of the queries, folder of the dictionary, accepted numbers of test queries (empty: any), name of the set.
SETS = (
    ("bel_ncbi", "ncbi-disease", "ncbi-disease", (960,), "NCBI Disease"),
    # without or with mentions without id
    ("bel_bc5cdr_disease", "bc5cdr-disease", "ncbi-disease", (4420, 4424), "BC5CDR (diseases)"),
    ("bel_bc5cdr_chemical", "bc5cdr-chemical", "bc5cdr-chemical", (), "BC5CDR (chemicals)"),
    ("bel_askapatient", "askapatient", "askapatient", (), "AskAPatient"),
    ("bel_cometa", "cometa", "cometa", (), "COMETA"),
    # Mirror-BERT section 3: COMETA's stratified general split is the test, its zero-shot general split the tuning set.
    ("bel_cometa_zero_shot", "cometa-zero-shot", "cometa", (), "COMETA (zero-shot split)"),
)
COMETA_SPLITS = {"cometa": "stratified_general", "cometa-zero-shot": "zeroshot_general"}  # by folder of the queries
DEPTH = 5  # accuracy@1 and accuracy@5 are reported


def tasks(data_dir: Path, options: Options) -> list[Task]:
    """Return the tasks of the English sets, of XL-BEL's ten languages and of other folders `biomed/NAME/`, as `bel_NAME`.

    `bel_add_mentions` adds the training and dev mentions to the dictionary, as BioSyn and SapBERT do when they test. Their
    `test_dictionary.txt` already contains them.
    """
    found = []
    for name, folder, dictionary, rows, dataset in SETS:
        source = _source(data_dir, folder, dictionary, rows, options.bel_add_mentions)
        in_table = {"groups": ("bel",), "published": "Mirror-BERT Table 2"} if name != "bel_cometa_zero_shot" else {}
        found.append(_task(name, *source, dataset=dataset, **in_table))
    known = {folder for _, folder, *_ in SETS} | {"xlbel"}
    for path in sorted((data_dir / "biomed").glob("*")):
        name = "bel_" + re.sub(r"\W+", "_", path.name.lower())
        if path.name in known or not ((path / "test_queries.tsv").is_file() or (path / "processed_test").is_dir()):
            continue
        if name in {task.name for task in found}:
            logger.warning("%s is not a task, because another one is called %s; rename the folder", path, name)
            continue
        source = _source(data_dir, path.name, path.name, (), options.bel_add_mentions)
        found.append(_task(name, *source, dataset=path.name))
    names = DataFile("biomed/xlbel/dictionary.tsv", ("cui", "name"))
    for code in "de en es fi ja ko ru th tr zh".split():
        test = DataFile(f"biomed/xlbel/{code}_queries.tsv", ("mention", "cui"), (1000,))
        source = (test, names), partial(_read_tables, test, names, ()), "dictionary of xlbel"
        fields = {"groups": ("xlbel",), "dataset": f"XL-BEL ({code})", "published": "SapBERT"}
        found.append(_task(f"xlbel_{code}", *source, **fields))
    return found


def score(read: Callable[[Path], tuple[Pairs, Pairs]], encode: Encode, data_dir: Path) -> dict:
    """Compute accuracy@1 and accuracy@5, and the size and hash of the dictionary. `read` returns queries and dictionary."""
    queries, dictionary = read(data_dir)
    ranks = link(encode, queries, dictionary)
    accuracy, listing = float((ranks <= 1).mean()), "\n".join(f"{ids}\t{name}" for name, ids in dictionary)
    return {
        "main_score": accuracy,
        "num_examples": len(queries),
        "accuracy@1": accuracy,
        f"accuracy@{DEPTH}": float((ranks <= DEPTH).mean()),
        "dictionary_size": len(dictionary),
        "dictionary_names": len({name for name, _ in dictionary}),
        "dictionary_sha256": hashlib.sha256(listing.encode()).hexdigest(),
    }


def link(encode: Encode, queries: Pairs, dictionary: Pairs, depth: int = DEPTH) -> np.ndarray:
    """Compute (Q,) ranks, from 1, of the first hit of each query among the rows, `depth` + 1 if none of the first is one.

    A name shared by several concepts is searched once. Its rows are ranked in dictionary order, and duplicate rows count once.
    A composite mention ("breast cancer|ovarian cancer") gets the rank of its worst part.
    """
    rows: dict[str, list[str]] = {}  # name -> ids of each of its rows
    for name, ids in dict.fromkeys(dictionary):
        rows.setdefault(name, []).append(ids)
    names = list(rows)
    parts = [(number, part) for number, (mention, _) in enumerate(queries) for part in mention.split("|")]
    mentions = list(dict.fromkeys(part for _, part in parts))
    of_mentions, of_names = encode(mentions), encode(names)  # (M, D), (N, D)
    # In place, because a UMLS dictionary has millions of names.
    _, nearest = top_k(unit_length(of_mentions), unit_length(of_names, out=of_names), depth)  # (M, depth)
    found = ([ids for column in columns for ids in rows[names[column]]][:depth] for columns in nearest.tolist())
    candidates = dict(zip(mentions, found, strict=True))
    ranks = np.ones(len(queries), dtype=int)
    for number, part in parts:
        gold = set(queries[number][1].split("|"))
        hits = (rank for rank, ids in enumerate(candidates[part], 1) if gold.intersection(ids.split("|")))
        ranks[number] = max(ranks[number], next(hits, depth + 1))
    return ranks


def read_table(file: DataFile, data_dir: Path, text: str) -> Pairs:
    """Read (text, ids) from the columns `text`_norm, or the lower-cased `text`, and `cui` of a file of the data folder."""
    columns = file.read(data_dir)
    texts = columns.get(f"{text}_norm") or [value.lower() for value in columns[text]]
    return list(zip(texts, columns["cui"], strict=True))


def _task(name: str, files: tuple[DataFile, ...], read: Callable, layout: str, **fields) -> Task:
    protocol = f"nearest dictionary name by cosine, a hit shares an id; {layout}"
    return Task(name, "accuracy@1", protocol, files, partial(score, read), **fields)


def _source(
    data_dir: Path, folder: str, dictionary: str, rows: tuple[int, ...], add_mentions: bool
) -> tuple[tuple[DataFile, ...], Callable[[Path], tuple[Pairs, Pairs]], str]:
    """Return the files of `biomed/<folder>/`, a function that reads them, and their layout: BioSyn's, COMETA's or our own."""
    line_file = partial(LineFile, separator="||")
    if concepts := sorted((data_dir / "biomed" / folder).glob("processed_test/*.concept")):
        names = line_file(f"biomed/{folder}/test_dictionary.txt", ("cui", "name"))
        columns = ("document", "span", "type", "mention", "cui")
        queries = tuple(line_file(str(path.relative_to(data_dir)), columns) for path in concepts)
        layout = "BioSyn's test_dictionary.txt (with training and dev mentions) and processed_test"
        return (names, *queries), partial(_read_foreign, queries, names, "mention", "cui"), layout
    if folder in COMETA_SPLITS and (data_dir / "biomed" / dictionary / "splits").is_dir():
        names = line_file(f"biomed/{dictionary}/COMETA_id_sf_dictionary.txt", ("cui", "name"))
        columns, split = ("Term", "General SNOMED ID"), COMETA_SPLITS[folder]
        # The column of examples has quoted fields with line breaks.
        test = DataFile(f"biomed/{dictionary}/splits/{split}/test.csv", columns, quoted=True)
        return (test, names), partial(_read_foreign, (test,), names, *columns), f"COMETA's own files, split {split}"
    test = DataFile(f"biomed/{folder}/test_queries.tsv", ("mention", "cui"), rows)
    parts = ("train", "dev") if add_mentions else ()
    others = [DataFile(f"biomed/{folder}/{part}_queries.tsv", ("mention", "cui")) for part in parts]
    names = DataFile(f"biomed/{dictionary}/dictionary.tsv", ("cui", "name"))
    layout = f"dictionary of {dictionary}" + (" and training and dev mentions" if add_mentions else "")
    return (test, names, *others), partial(_read_tables, test, names, others), layout


def _read_tables(test: DataFile, names: DataFile, others: Sequence[DataFile], data_dir: Path) -> tuple[Pairs, Pairs]:
    """Read the queries and the dictionary, and add the mentions of `others` to the dictionary."""
    dictionary = read_table(names, data_dir, "name")
    for file in others:
        dictionary += read_table(file, data_dir, "mention")
    return read_table(test, data_dir, "mention"), dictionary


def _read_foreign(
    queries: Sequence[DataFile], names: DataFile, text: str, ids: str, data_dir: Path
) -> tuple[Pairs, Pairs]:
    """Read another project's queries and dictionary, lower-cased, without texts that have no id, `+` of BioSyn as `|`."""

    def pairs(file: DataFile, text: str, ids: str) -> Pairs:
        columns = file.read(data_dir)
        rows = zip(columns[text], columns[ids], strict=True)
        return [(one.lower(), of_one.replace("+", "|")) for one, of_one in rows if of_one.lower() != "cui-less"]

    return [pair for file in queries for pair in pairs(file, text, ids)], pairs(names, "name", "cui")
