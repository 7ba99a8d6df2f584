"""Compares engines for an index of vectors on one machine: recall at equal time, memory, disk, and search with a filter.

    python run_encode.py --model_name_or_path out/demo --input_file passages.jsonl --output_dir out/vectors
    pip install lancedb usearch faiss-cpu
    python benchmarks/index_engines.py out/vectors

A hundred of the vectors are queries. Each engine builds its index in one process and searches it in another, whose peak memory
counts. Recall is the share of the ten nearest that are found, `filter` the same among the tenth of the rows with a given tag.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import SUPPRESS
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.scale import run_and_measure
from benchmarks.side_by_side import markdown
from mirror.common.cli import Parser


K, QUERIES, TAGS, TAG, TRUTH = 10, 100, 10, 3, "truth.npz"
# Engine and setting -> what makes it more exact, in the steps that are shown.
ENGINES = {"lancedb": (8, 32, 128), "faiss-ivf-sq8": (8, 32, 128), "usearch-f16": (32, 128, 512)}


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("vectors", help="Folder of run_encode.py, float32")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=[*ENGINES], help="Engines to compare")
    parser.add_argument("--child", nargs=2, help=SUPPRESS)
    args = parser.parse_args()
    if args.child:
        step, folder = args.child
        STEPS[step](args.engines[0], Path(folder), args.vectors)
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        # In a process of its own: one that is started has the peak memory of the one that started it.
        run(args.engines[0], "truth", Path(folder, "none"), args.vectors)
        for engine in args.engines:
            made = Path(folder, engine)
            made.mkdir()
            spent = [run(engine, step, made, args.vectors) for step in ("build", "search")]
            size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file())
            built = (f"{spent[0][1]:.0f}", f"{spent[0][2]:.1f}", f"{size / 1e9:.2f}", f"{spent[1][2]:.1f}")
            rows += [(engine, *built, *cells) for cells in json.loads(spent[1][0])]
    header = ("engine", "build s", "build GB", "disk GB", "search GB", "setting", "ms/query", "recall@10", "filter")
    print(markdown(header, rows))


def write_truth(engine: str, folder: Path, source: str) -> None:
    """Store the queries and their nearest rows, among all and among those with the tag."""
    everything = np.concatenate([*batches(source)])
    queries = everything[np.linspace(0, len(everything) - 1, QUERIES).astype(int)]
    scores = queries @ everything.T
    tagged = np.where(np.arange(len(everything)) % TAGS == TAG, scores, -2)
    best = [np.argpartition(-each, K, axis=1)[:, :K] for each in (scores, tagged)]
    np.savez(folder.parent / TRUTH, queries=queries, all=best[0], tagged=best[1])


def run(engine: str, step: str, folder: Path, vectors: str) -> tuple[str, float, float]:
    """Return output, seconds and peak GB of one step in a process of its own."""
    return run_and_measure([sys.executable, __file__, vectors, "--engines", engine, "--child", step, folder])


def batches(source: str):
    """Yield the vectors of unit length, (n, D), shard by shard."""
    import pyarrow.parquet as pq

    for shard in sorted(Path(source).glob("shard-*.parquet")):
        column = pq.read_table(shard, columns=["vector"])["vector"].combine_chunks()
        vectors = column.flatten().to_numpy().reshape(len(column), -1)
        yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def build(engine: str, folder: Path, source: str) -> None:
    if engine == "lancedb":
        import lancedb
        import pyarrow as pa
        from lancedb.index import IvfSq

        database, table, row = lancedb.connect(folder), None, 0
        for vectors in batches(source):
            tags = np.arange(row, row + len(vectors)) % TAGS
            lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
            block = pa.table({"row": np.arange(row, row + len(vectors)), "tag": tags, "vector": lists})
            table = (table.add(block) and table) if table else database.create_table("texts", block)
            row += len(vectors)
        table.create_index("vector", config=IvfSq(distance_type="cosine"))
    elif engine == "usearch-f16":
        from usearch.index import Index

        index, row = None, 0
        for vectors in batches(source):
            index = index or Index(ndim=vectors.shape[1], metric="ip", dtype="f16")
            index.add(np.arange(row, row + len(vectors)), vectors)
            row += len(vectors)
        index.save(str(folder / "index"))
    else:
        import faiss

        index = None
        for vectors in batches(source):
            if index is None:  # trained on the first shard
                flat = faiss.IndexFlatIP(vectors.shape[1])
                kind = faiss.ScalarQuantizer.QT_8bit
                index = faiss.IndexIVFScalarQuantizer(flat, vectors.shape[1], 1024, kind, faiss.METRIC_INNER_PRODUCT)
                index.train(vectors)
            index.add(vectors)
        faiss.write_index(index, str(folder / "index"))


def search(engine: str, folder: Path, source: str) -> None:
    """Print for each setting its milliseconds a query, and recall without and with a filter."""
    known, find, lines = np.load(folder.parent / TRUTH), SEARCHES[engine](folder), []
    for setting in ENGINES[engine]:
        find(known["queries"][0], setting, False)
        start = time.perf_counter()
        found = [find(query, setting, False) for query in known["queries"]]
        seconds = time.perf_counter() - start
        tagged = [find(query, setting, True) for query in known["queries"]]
        filtered = "none" if tagged[0] is None else f"{recall(tagged, known['tagged']):.3f}"
        lines.append([str(setting), f"{1000 * seconds / QUERIES:.1f}", f"{recall(found, known['all']):.3f}", filtered])
    print(json.dumps(lines))


def recall(found, best: np.ndarray) -> float:
    return float(
        np.mean([len({*map(int, rows)} & {*truth.tolist()}) / K for rows, truth in zip(found, best, strict=True)])
    )


def search_lancedb(folder: Path):
    import lancedb

    table = lancedb.connect(folder).open_table("texts")

    def find(query: np.ndarray, setting: int, tagged: bool) -> list[int]:
        asked = table.search(query).distance_type("cosine").limit(K).nprobes(setting).refine_factor(4)
        asked = asked.where(f"tag = {TAG}", prefilter=True) if tagged else asked
        return asked.select(["row", "_distance"]).to_arrow()["row"].to_pylist()

    return find


def search_usearch(folder: Path):
    from usearch.index import Index

    index = Index.restore(str(folder / "index"), view=True)  # stays on disk

    def find(query: np.ndarray, setting: int, tagged: bool):
        index.expansion_search = setting
        return None if tagged else index.search(query, K).keys  # it has no filter in Python

    return find


def search_faiss(folder: Path):
    import faiss

    index = faiss.read_index(str(folder / "index"), faiss.IO_FLAG_MMAP)
    allowed = faiss.IDSelectorBatch(np.arange(TAG, index.ntotal, TAGS))

    def find(query: np.ndarray, setting: int, tagged: bool) -> np.ndarray:
        options = {"sel": allowed} if tagged else {}
        return index.search(query[None], K, params=faiss.SearchParametersIVF(nprobe=setting, **options))[1][0]

    return find


STEPS = {"truth": write_truth, "build": build, "search": search}
SEARCHES = {"lancedb": search_lancedb, "faiss-ivf-sq8": search_faiss, "usearch-f16": search_usearch}


if __name__ == "__main__":
    main()
