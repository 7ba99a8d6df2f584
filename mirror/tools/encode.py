"""Encode a corpus of any size into parquet shards, one embedding per row of the input.

    python run_encode.py --model_name_or_path out/mirror --input_file texts.txt --output_dir out/vectors
    python run_encode.py --model_name_or_path out/mirror --input_file products.csv --text_column title description \\
        --id_column sku --output_dir out/vectors
    python run_encode.py --model_name_or_path out/mirror --dataset_name user/corpus --streaming --text_column body \\
        --dtype bfloat16 --vector_type int8 --output_dir out/vectors
    accelerate launch run_encode.py --model_name_or_path out/mirror --input_file 'corpus/*.parquet' \\
        --output_dir out/vectors

Blank and duplicate rows are kept, and the column `row` counts from 0 over all files. After an interruption, the same
command resumes where it stopped. With accelerate launch each process encodes its own shards. The path of the output
folder is printed on stdout. docs/scaling.md shows how to read the shards with Spark, Ray, faiss or a vector database.
"""

from __future__ import annotations

import logging
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.cli import Parser, add_prompt, add_timeout, add_trust, configure_logging, positive
from mirror.common.errors import run_main


if TYPE_CHECKING:
    from mirror.data.source import CorpusSource

logger = logging.getLogger(__name__)


def main() -> None:
    # ---- Arguments -------------------------------------------------------------------------------------------------
    args = parse_arguments()
    configure_logging()

    # Imported here so that --help and errors in the flags are immediate. torch follows after the files are found.
    from mirror.data.files import expand_paths

    expand_paths(args.input_file or ())

    from mirror.common import trust
    from mirror.common.distributed import join_processes
    from mirror.data.corpus import text_rows
    from mirror.modeling.embedding_cache import fingerprint
    from mirror.modeling.encoder import Encoder
    from mirror.tools.vectors import ShardFolder, fill
    from mirror.training.finish import after_encoding

    state = join_processes(args.ddp_timeout)

    trust.grant(args.allow_pickle, args.trust_remote_code)

    # ---- Rows, model, folder ---------------------------------------------------------------------------------------
    with state.main_process_first():
        rows = text_rows(corpus_source(args), strip=False, id_column=args.id_column)
    encoder = Encoder.from_pretrained(
        args.model_name_or_path, args.pooling, args.max_seq_length, args.dtype, state.device, args.prompt,
        args.prompt_name, args.truncate_dim,
    )  # fmt: skip
    common = {
        "pooling": encoder.pooling,
        "max_seq_length": encoder.max_seq_length,
        "dtype": args.dtype,
        "dimension": encoder.dimension,
        "model_sha256": fingerprint(encoder),
        **({"id_column": args.id_column} if args.id_column else {}),  # not in the manifests of earlier versions
    }
    folder = ShardFolder(Path(args.output_dir), common, args.shard_rows, args.vector_type, args.keep_text)
    if state.is_main_process:
        folder.open()
    state.wait_for_everyone()

    # ---- Encoding --------------------------------------------------------------------------------------------------
    show_progress = None if state.is_local_main_process else False
    encode = partial(encoder.encode, batch_size=args.batch_size, show_progress=show_progress)
    num_rows = fill(folder, rows, encode, state.process_index, state.num_processes)
    state.wait_for_everyone()
    if state.is_main_process:
        folder.finish(num_rows)
        line = "Encoded %s rows into %d-dimensional %s vectors"
        logger.info(line, f"{num_rows:,}", encoder.dimension, args.vector_type)
        logger.info(after_encoding(args.output_dir))
        sys.stdout.write(f"{args.output_dir}\n")
    state.destroy_process_group()


def parse_arguments() -> Namespace:
    parser = Parser(__doc__)
    encoding = parser.add_argument_group("Model")
    add = encoding.add_argument
    add("--model_name_or_path", metavar="M", required=True, help="Hub id or path of the model.")
    add("--pooling", help="Pooling. Required for a plain masked LM (default: the checkpoint's).")
    add_prompt(encoding)
    add("--max_seq_length", type=positive, metavar="N", help="Maximum number of tokens (default: the checkpoint's).")
    add("--truncate_dim", type=positive, metavar="D", help="Number of dimensions to keep (default: the checkpoint's).")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="Precision of the model.")
    add("--batch_size", type=positive, default=64, metavar="B", help="Number of texts per forward pass.")
    add_timeout(encoding)
    add = parser.add_argument_group("Texts").add_argument
    add("--input_file", nargs="+", metavar="F",
        help="Path or glob of txt (one text per line), csv, tsv, json, jsonl or parquet files (default: --dataset_name).")  # fmt: skip
    add("--dataset_name", metavar="D", help="Hub id or path of a data set, instead of --input_file (default: none).")
    add("--dataset_config_name", metavar="C", help="Configuration of the data set (default: the only one).")
    add("--dataset_split", default="train", metavar="S", help="Split of the data set.")
    add("--streaming", action="store_true", help="Whether to read the input while encoding, without a copy on disk.")
    names = "Column with the text, or several to join (default: 'text', or the only column)."
    add("--text_column", nargs="+", metavar="T", help=names)
    add("--text_separator", default=". ", metavar="S", help="Separator of the joined columns.")
    add("--id_column", metavar="C", help="Column with ids to store beside the vectors (default: none).")
    add = parser.add_argument_group("Output").add_argument
    add("--output_dir", metavar="V", required=True, help="Path to the folder of the shards.")
    add("--vector_type", choices=("float32", "float16", "int8", "binary"), default="float32",
        help="Type of the stored vectors: 4, 2, 1 or 1/8 bytes a number. The loss in search is logged.")  # fmt: skip
    add("--shard_rows", type=positive, default=20_000, metavar="R", help="Number of rows per shard.")
    add("--keep_text", action="store_true", help="Whether to store the text of each row too.")
    add_trust(parser.add_argument_group("Untrusted models"))
    args = parser.parse_args()
    if bool(args.input_file) == bool(args.dataset_name):
        parser.error("give either --input_file or --dataset_name")
    return args


def corpus_source(args: Namespace) -> CorpusSource:
    """Return the source of the rows, strict because every line gets a row."""
    from mirror.data.source import CorpusSource

    given = {name: value for name, value in vars(args).items() if name in CorpusSource.__dataclass_fields__}
    return CorpusSource(train_file=tuple(args.input_file or ()), strict=True, **given)


if __name__ == "__main__":
    run_main(main)
