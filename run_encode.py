"""Turn a corpus of any size into parquet shards of vectors, one vector for every row of the input.

    python run_encode.py --model_name_or_path out/mirror --input_file texts.txt --output_dir out/vectors
    python run_encode.py --model_name_or_path out/mirror --dataset_name user/corpus --streaming --text_column body \\
        --dtype bfloat16 --vector_type int8 --output_dir out/vectors
    accelerate launch run_encode.py --model_name_or_path out/mirror --input_file 'corpus/*.parquet' --output_dir out/vectors

Blank and repeated rows are kept, and the column `row` counts from 0 over all files. Interrupted, the same command goes on
where it stopped; with accelerate launch each process takes its own shards. The folder's path is printed on stdout.
docs/scaling.md shows how Spark, Ray, faiss or a vector database reads the shards.
"""

from __future__ import annotations

import logging
import os
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

from mirror.errors import run_main
from mirror.flags import Parser, add_timeout, add_trust, positive


logger = logging.getLogger("run_encode")


def main() -> None:
    # ---- Arguments -------------------------------------------------------------------------------------------------
    args = parse_arguments()
    first = os.environ.get("LOCAL_RANK", "0") == "0"
    logging.basicConfig(format="%(message)s", level=logging.INFO if first else logging.WARNING)
    for chatty in ("httpx", "sentence_transformers"):
        logging.getLogger(chatty).setLevel(logging.WARNING)

    # Imported here so that --help and a mistyped flag answer at once.
    from mirror import trust
    from mirror.distributed import join_processes
    from mirror.encoder import Encoder
    from mirror.evaluation.cache import fingerprint
    from mirror.shards import ShardFolder, fill, read_rows

    state = join_processes(args.ddp_timeout)

    trust.grant(args.allow_pickle, args.trust_remote_code)

    # ---- Rows, model, folder ---------------------------------------------------------------------------------------
    with state.main_process_first():
        rows = read_rows(data_settings(args))
    encoder = Encoder.from_pretrained(
        args.model_name_or_path, args.pooling, args.max_seq_length, args.dtype, state.device
    )
    common = {
        "pooling": encoder.pooling,
        "max_seq_length": encoder.max_seq_length,
        "dtype": args.dtype,
        "dimension": encoder.dimension,
        "model_sha256": fingerprint(encoder),
    }
    folder = ShardFolder(Path(args.output_dir), common, args.shard_rows, args.vector_type, args.keep_text)
    if state.is_main_process:
        folder.open()
    state.wait_for_everyone()

    # ---- Encoding --------------------------------------------------------------------------------------------------
    encode = partial(encoder.encode, batch_size=args.batch_size, show_progress=None if first else False)
    num_rows = fill(folder, rows, encode, state.process_index, state.num_processes)
    state.wait_for_everyone()
    if state.is_main_process:
        folder.finish(num_rows)
        logger.info("%s vectors of %d dimensions, %s", f"{num_rows:,}", encoder.dimension, args.vector_type)
        sys.stdout.write(f"{args.output_dir}\n")
    state.destroy_process_group()


def parse_arguments() -> Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--model_name_or_path", metavar="M", required=True, help="a Hub id or a folder")
    add("--pooling", help="overrides the checkpoint's; a plain masked LM needs it")
    add("--max_seq_length", type=positive, metavar="N", help="in tokens; overrides the checkpoint's")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="of the computation")
    add("--batch_size", type=positive, default=64, metavar="B", help="texts of one forward pass (default: 64)")
    add(
        "--input_file",
        nargs="+",
        metavar="F",
        help="txt (a row a line), csv, tsv, json, jsonl, parquet; names or globs",
    )
    add("--dataset_name", metavar="D", help="a Hub dataset or a local dataset folder, instead")
    add("--dataset_config_name", metavar="C", help="its configuration")
    add("--dataset_split", default="train", metavar="S", help="its split (default: train)")
    add("--streaming", action="store_true", help="read while encoding, for inputs that do not fit on the disk twice")
    add("--text_column", metavar="T", help="column with the text; default: 'text' or the only one")
    add("--output_dir", metavar="V", required=True, help="where the shards go")
    add(
        "--vector_type", choices=("float32", "float16", "int8"), default="float32", help="of the numbers that are kept"
    )
    add("--shard_rows", type=positive, default=20_000, metavar="R", help="rows of a shard (default: 20,000)")
    add("--keep_text", action="store_true", help="write the text beside its vector")
    add_timeout(parser)
    add_trust(parser)
    args = parser.parse_args()
    if bool(args.input_file) == bool(args.dataset_name):
        parser.error("give either --input_file or --dataset_name")
    return args


def data_settings(args: Namespace):
    from mirror.data import DataSettings

    return DataSettings(
        train_file=tuple(args.input_file or ()),
        dataset_name=args.dataset_name,
        dataset_config_name=args.dataset_config_name,
        dataset_split=args.dataset_split,
        streaming=args.streaming,
        text_column=args.text_column,
    )


if __name__ == "__main__":
    run_main(main)
