"""Tasks in the formats of others: folders of corpus, queries and qrels, as BEIR and TREC have them, and tasks of mteb.

A folder contains `corpus.*` (columns `_id`, `text` and perhaps `title`), `queries.*` (`_id`, `text`), and the judgments:
`qrels/SPLIT.*` or `qrels.*` with `query-id`, `corpus-id` and `score`, or TREC's four fields and no header. For a task
`mteb:NAME`, mteb loads the data and computes the score, and this project's encoder gives the vectors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from mirror.common.errors import InputError, library_errors, one_line
from mirror.common.vectors import top_k, unit_length
from mirror.data.files import ending_of, place, text_lines
from mirror.data.tables import columns_of, read_rows
from mirror.evaluation.metrics import BM25, DEPTH, MAIN, Sample, fuse, measure, summarize
from mirror.evaluation.task import MTEB, TABLE_ENDINGS, Task, file_task, find_column, parse_number, stem
from mirror.modeling.encoder import Encode, encode_sides


logger = logging.getLogger(__name__)

IDS = ("_id", "id")
QREL_COLUMNS = [
    names.split() for names in ("query-id query_id qid", "corpus-id corpus_id doc_id docid pid", "score relevance rel")
]
QREL_ENDINGS = (*TABLE_ENDINGS, "txt", "trec", "qrels")
NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?"
BLOCK = 65_536  # documents whose vectors are in memory at once


@dataclass
class SearchData:
    """N documents, sorted by falling id so that ties rank as in trec_eval, and Q judged queries."""

    ids: list[str]
    documents: list[str]
    queries: list[str]
    qrels: list[dict[str, float]]  # for each query the judged documents
    unjudged: int  # queries without qrels, which are left out

    @cached_property
    def lexical(self) -> list[list[str]]:
        """Return the best documents of each query by BM25."""
        return self.named(BM25(self.documents).search(self.queries, DEPTH))

    def named(self, found: Sequence[Sequence[int]]) -> list[list[str]]:
        """Return the ids of rows."""
        return [[self.ids[row] for row in rows] for rows in found]


def search(
    encode: Encode, queries: Sequence[str], documents: Sequence[str], depth: int = DEPTH
) -> tuple[np.ndarray, np.ndarray]:
    """Find the `depth` documents with the highest cosine for each query, best first, equal ones by lowest row.

    Returns cosines (Q, depth) float32 and rows (Q, depth) int64, fewer for fewer documents. Vectors of 65,536 documents are in
    memory at once. Queries and documents get their prompts where `encode` has some (`encode_sides`).
    """
    of_queries, vectors = encode_sides(encode, queries, documents[:BLOCK])
    of_queries = unit_length(of_queries)
    scores, rows = top_k(of_queries, unit_length(vectors, out=vectors), depth)
    for start in range(BLOCK, len(documents), BLOCK):
        vectors = getattr(encode, "document", encode)(documents[start : start + BLOCK])
        more, found = top_k(of_queries, unit_length(vectors, out=vectors), depth)
        scores, rows = np.hstack([scores, more]), np.hstack([rows, found + start])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :depth]  # stable: earlier rows of equal ones stay first
        scores, rows = np.take_along_axis(scores, best, axis=1), np.take_along_axis(rows, best, axis=1)
    return scores, rows


def folder_task(folder: Path, split: str | None = None) -> Task:
    """Return the task of a folder in BEIR's layout, named by the folder. `split` is of the qrels: `test`, or the only one.

    A file that is missing or wrong is an `InputError` with the file, the row and the id.
    """
    folder = folder.resolve()
    paths = (_table(folder, "corpus"), _table(folder, "queries"), _qrels(folder, split))
    protocol = (
        f"documents ranked by cosine among all, {paths[2].relative_to(folder)}; bm25: BM25 without stemming; fusion: "
        f"reciprocal ranks of both, k 60, top {DEPTH} of each"
    )
    return file_task(folder.name, MAIN, protocol, folder.name, load, paths, score_search)


def score_search(data: SearchData, encode: Encode) -> dict:
    """Score an encoder, BM25 and the fusion of both, each with intervals (`metrics.summarize`)."""
    ranked = data.named(search(encode, data.queries, data.documents)[1].tolist())
    runs = {"encoder": ranked, "bm25": data.lexical, "fusion": fuse(ranked, data.lexical)}
    values = {name: measure(run, data.qrels) for name, run in runs.items()}
    summaries = {name: summarize(each) for name, each in values.items()}
    samples = {name: Sample.mean_of(values[name][MAIN]) for name in ("encoder", "bm25")}  # for paired comparisons
    fields = {"main_score": summaries["encoder"][MAIN], "num_examples": len(data.queries), **summaries.pop("encoder")}
    fields |= {**summaries, "documents": len(data.ids), "queries_without_qrels": data.unjudged}
    return fields | {"samples": samples}


def load(corpus: Path, queries: Path, qrels: Path) -> SearchData:
    """Read and check a folder's files."""
    documents, empty = _texts(corpus, "document")
    if empty:
        line = "%s: document '%s' has no text; %d in all have none and are kept"
        logger.warning(line, place(corpus, empty[0][0]), empty[0][1], len(empty))
    asked, empty = _texts(queries, "query")
    if empty:
        raise InputError(f"{place(queries, empty[0][0])}: query '{empty[0][1]}' has no text")
    judged = read_qrels(qrels, documents, asked, (corpus, queries))
    if unjudged := len(asked) - len(judged):
        line = "%s: %d of %d queries have no qrels in %s and are left out"
        logger.info(line, queries, unjudged, len(asked), qrels.name)
    ids = sorted(documents, reverse=True)
    texts = [documents[id] for id in ids]
    return SearchData(ids, texts, [asked[id] for id in judged], list(judged.values()), unjudged)


def _texts(path: Path, what: str) -> tuple[dict[str, str], list[tuple[int, str]]]:
    """Read the texts of a file by id, documents with their titles as in BEIR, and the rows and ids of those that are empty."""
    known = columns_of(path)
    id_column, text_column = (find_column(path, known, names) for names in (IDS, ("text",)))
    titles = ["title"] if what == "document" and "title" in known else []
    texts: dict[str, str] = {}
    empty = []
    for row, (*parts, id) in read_rows(str(path), [*titles, text_column], [id_column]):
        if not id:
            raise InputError(f"{place(path, row)}: the {what} has no id")
        if id in texts:
            raise InputError(f"{place(path, row)}: the id '{one_line(id, 80)}' is that of an earlier row too")
        texts[id] = " ".join(parts).strip()
        if not texts[id]:
            empty.append((row, id))
    if not texts:
        raise InputError(f"{path}: no rows in it")
    return texts, empty


def read_qrels(
    path: Path, documents: dict[str, str], queries: dict[str, str], names: tuple[Path, Path]
) -> dict[str, dict[str, float]]:
    """Read the relevance of documents, by query and document id."""
    rows = _trec_rows(path) if ending_of(path) not in ("parquet", "json", "jsonl") else []
    if not rows:
        known = columns_of(path)
        rows = read_rows(str(path), (), [find_column(path, known, names) for names in QREL_COLUMNS])
    judged: dict[str, dict[str, float]] = {}
    for row, (query, document, score) in rows:
        where, pair = place(path, row), f"query '{one_line(query, 80)}' and document '{one_line(document, 80)}'"
        if query not in queries:
            raise InputError(f"{where}: query '{one_line(query, 80)}' is not in {names[1].name}")
        if document not in documents:
            raise InputError(f"{where}: document '{one_line(document, 80)}' is not in {names[0].name}")
        relevance = parse_number(score, f"{where}: score of {pair}")
        of_query = judged.setdefault(query, {})
        if of_query.setdefault(document, relevance) != relevance:
            raise InputError(f"{where}: {pair} have two scores")
    if not any(value > 0 for of_query in judged.values() for value in of_query.values()):
        raise InputError(f"{path}: no query has a document with a score above 0")
    if without := [id for id, of_query in judged.items() if max(of_query.values()) <= 0]:
        line = "%s: %d queries have no document with a score above 0 and count as 0, first '%s'"
        logger.warning(line, path, len(without), without[0])
    return {id: judged[id] for id in queries if id in judged}


def _trec_rows(path: Path) -> list[tuple[int, Sequence[str]]]:
    """Read lines of three or four fields without a header. Empty if the first line is none of these."""
    lines = text_lines(path)
    first = next(lines).split()
    if len(first) not in (3, 4) or not re.fullmatch(NUMBER, first[-1]):
        return []
    rows = [(number, line.split()) for number, line in enumerate(lines, start=2) if line.strip()]
    for number, fields in rows:
        if len(fields) != len(first):
            raise InputError(f"{path}, line {number}: {len(fields)} fields, and line 1 has {len(first)}")
    return [(number, (fields[0], *fields[-2:])) for number, fields in [(1, first), *rows]]


def _table(folder: Path, name: str) -> Path:
    """Return the file `name.*` of a folder."""
    found = sorted(path for path in folder.glob(f"{name}.*") if ending_of(path) in TABLE_ENDINGS)
    if not found:
        endings = f"{name}.jsonl (or {', '.join(TABLE_ENDINGS[:-1])}, also .gz)"
        raise InputError(f"{folder}: no {name} file; it needs {endings}")
    return _only(folder, found)


def _only(folder: Path, found: Sequence[Path]) -> Path:
    if len(found) > 1:
        raise InputError(f"{folder} has {' and '.join(path.name for path in found)}; keep one of them")
    return found[0]


def _qrels(folder: Path, split: str | None) -> Path:
    """Return the qrels file of a split: of `qrels/`, or beside the corpus."""
    named: dict[str, list[Path]] = {}
    for path in sorted([*folder.glob("qrels/*"), *folder.glob("qrels*")]):
        if path.is_file() and not path.name.startswith((".", "_")) and ending_of(path) in QREL_ENDINGS:
            name = re.sub(r"^qrels[-_.]?", "", stem(path)) if path.parent == folder else stem(path)
            named.setdefault(name, []).append(path)
    wanted = split if split is not None else "test" if "test" in named or len(named) != 1 else next(iter(named))
    if wanted in named:
        return _only(folder, named[wanted])
    if not named:
        raise InputError(f"{folder}: no qrels; it needs qrels/test.tsv with query-id, corpus-id and score")
    has = " ".join(f"{folder.name}:{name}" for name in named if name) or "one without a name"
    raise InputError(f"{folder}: no qrels of the split '{wanted}'; choose one of {has}")


def mteb_task(name: str) -> Task:
    """Return a task of mteb by `mteb:NAME`. Without mteb, or if it has no such task, raise an `InputError`."""
    if importlib.util.find_spec("mteb") is None:
        raise InputError(f"--tasks {name} needs mteb: pip install 'mirror-encoders[mteb]'")
    import mteb

    try:
        found = mteb.get_task(name.removeprefix(MTEB))
    except KeyError as error:
        raise InputError(f"--tasks {name}: {one_line(error.args[0]).removeprefix('KeyError: ')}") from error
    data = found.metadata
    splits = " and ".join(data.eval_splits)
    protocol = f"mteb {mteb.__version__}, {data.type}, its main score, mean of its subsets on {splits}"
    hub = (str(data.dataset.get("path", "")), "default", data.eval_splits[0])
    return Task(name, data.main_score, protocol, (), partial(score_mteb, found), dataset=data.name, hub=hub)


def score_mteb(task, encode: Encode, data_dir: Path) -> dict:
    """Score a task object of mteb. An `InputError` names the task if its data cannot be loaded."""
    import mteb

    with library_errors(f"{MTEB}{task.metadata.name}"):
        (result,) = mteb.evaluate(mteb_model(encode), task, cache=None, show_progress_bar=False).task_results
        score = float(result.get_score())
    version = f"{result.task_name} {result.dataset_revision}"
    subsets = {split: {row["hf_subset"]: row["main_score"] for row in rows} for split, rows in result.scores.items()}
    return {
        "main_score": score,
        "num_examples": sum(len(rows) for rows in subsets.values()),
        "subsets": subsets,
        "dataset_revision": result.dataset_revision,
        "data_sha256": hashlib.sha256(version.encode()).hexdigest(),  # mteb identifies data by revision
    }


def mteb_model(encode: Encode):
    """Return an encoder as mteb calls one, with cosine similarity. Queries and documents get their prompts."""
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ModelMeta

    encoders = {role: getattr(encode, role, encode) for role in ("query", "document")} | {None: encode}

    class Model(AbsEncoder):
        mteb_model_meta = ModelMeta.create_empty()

        def encode(self, inputs, *, prompt_type=None, **options) -> np.ndarray:
            texts = [text for batch in inputs for text in batch["text"]]
            return encoders[getattr(prompt_type, "value", prompt_type)](texts)

    return Model()
