"""Texts per second of an encoder, its students and its exports.

    python benchmarks/small_speed.py --texts docs/search.tsv --column target \\
        --encoders ours-fp32=out/adapted ours-bf16=out/adapted ours-fp32=out/static

`--encoders` lists pairs of a way to encode and a checkpoint:

    ours-fp32, ours-bf16     Encoder.encode
    sentence-transformers    SentenceTransformer.encode, in float32
    openvino, openvino-int8  the same with backend="openvino", and the export of 8 bits (`mirror.tools.onnx --openvino --int8`)

The backends of sentence-transformers need an environment of their own (docs/small.md): `--peer_python` names its Python, which then
measures every way but ours. One subprocess per pair and round, interleaved, in batches of 64. A first pass and loading are not
counted. Run it on an idle machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import side_by_side as bench
from mirror.common.errors import InputError, run_main


WAYS = ("ours-fp32", "ours-bf16", "sentence-transformers", "openvino", "openvino-int8")
INT8_FILE = "openvino_model_qint8_quantized.xml"
LEAST_SECONDS = 2.0  # passes are repeated until they took as long: a static encoder needs a tenth of a second for one


def main() -> None:
    args = parse_arguments()
    bench.run_benchmark(__file__, args, measure, args.encoders, report, partial(python_of, args))


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = bench.make_parser(__doc__)
    add = parser.add_argument
    add("--texts", required=True, help="File with one text per line, or tab-separated with a header for --column")
    add("--column", help="Column of the texts")
    add(
        "--encoders",
        nargs="+",
        required=True,
        metavar="WAY=FOLDER",
        help="Ways and checkpoints; the first is the baseline",
    )
    add("--batch_size", type=int, default=64, help="Number of texts in a batch")
    add("--peer_python", metavar="FILE", help="Python of the environment for the ways of sentence-transformers")
    args = parser.parse_args(argv)
    for encoder in args.encoders:
        way, _, folder = encoder.partition("=")
        if way not in WAYS or not folder:
            raise InputError(f"--encoders {encoder}: expected a way ({', '.join(WAYS)}), = and a folder")
    return args


def python_of(args: Namespace, variant: str) -> str:
    """Return the Python that measures a variant."""
    ours = variant == "prepare" or variant.startswith("ours")
    return sys.executable if ours or not args.peer_python else args.peer_python


def report(args: Namespace, facts: dict, results: bench.Results) -> tuple[str, str]:
    """Return the title, and a table with one row per encoder. One that failed says so."""
    title = f"Encoding {facts['texts']:,} texts; {facts['machine']}; {args.rounds} rounds; median (min-max)"
    first, rows = results[args.encoders[0]], []
    for encoder, runs in results.items():
        if not runs:
            rows.append((encoder, "failed", "-"))
            continue
        ratio = f"{bench.median(runs, 'speed') / bench.median(first, 'speed'):.2f}x" if first else "-"
        rows.append((encoder, bench.spread([run["speed"] for run in runs]), ratio))
    return title, bench.markdown(("encoder", "texts per second", "ratio"), rows)


# ---- In a measuring subprocess, perhaps of another environment: imports inside ---------------------------------------


def measure(variant: str, args: Namespace) -> dict:
    texts = read_texts(args)
    if variant == "prepare":
        from benchmarks.stand_in import machine

        return {"texts": len(texts), "machine": machine()}
    way, _, folder = variant.partition("=")
    encode = (ours if way.startswith("ours") else sentence_transformers)(way, folder, args.batch_size)
    encode(texts)
    speeds, begin = [], time.perf_counter()
    while not speeds or time.perf_counter() - begin < LEAST_SECONDS:
        start = time.perf_counter()
        encode(texts)
        speeds.append(len(texts) / (time.perf_counter() - start))
    return {"speed": statistics.median(speeds)}


def read_texts(args: Namespace) -> list[str]:
    lines = Path(args.texts).read_text(encoding="utf-8").splitlines()
    if not args.column:
        return [line for line in lines if line.strip()]
    header, *rows = (line.split("\t") for line in lines)
    if args.column not in header:
        raise InputError(f"{args.texts}: no column {args.column}; it has {', '.join(header)}")
    return [row[header.index(args.column)] for row in rows]


def ours(way: str, folder: str, batch_size: int) -> Callable:
    from mirror.modeling.encoder import Encoder

    encoder = Encoder.from_pretrained(folder, dtype={"fp32": "float32", "bf16": "bfloat16"}[way.rpartition("-")[2]])
    return partial(encoder.encode, batch_size=batch_size, show_progress=False)


def sentence_transformers(way: str, folder: str, batch_size: int) -> Callable:
    from sentence_transformers import SentenceTransformer

    options = {"model_kwargs": {"file_name": INT8_FILE}} if way == "openvino-int8" else {}
    backend = "openvino" if way.startswith("openvino") else "torch"
    encoder = SentenceTransformer(folder, device="cpu", backend=backend, **options)
    return partial(encoder.encode, batch_size=batch_size, show_progress_bar=False)


if __name__ == "__main__":
    run_main(main)
