"""Encode a corpus of any size into parquet shards, one embedding per row of the input.

    python run_encode.py --model_name_or_path out/mirror --input_file texts.txt --output_dir out/vectors
    python run_encode.py --model_name_or_path out/mirror --input_file products.csv --text_column title description \\
        --id_column sku --output_dir out/vectors
    python run_encode.py --model_name_or_path out/mirror --dataset_name user/corpus --streaming --text_column body \\
        --dtype bfloat16 --vector_type int8 --output_dir out/vectors
    accelerate launch run_encode.py --model_name_or_path out/mirror --input_file 'corpus/*.parquet' \\
        --output_dir out/vectors

Blank and duplicate rows are kept, and the column `row` counts from 0 over all files. Of documents (docs/documents.md)
each passage is a row, with its file, offset and section. After an interruption, the same command resumes where it stopped.
With accelerate launch each process encodes its own shards. The path of the output folder is printed on stdout.
docs/scaling.md shows how to read the shards with Spark, Ray, faiss or a vector database.
"""

from __future__ import annotations

import json
import logging
import sys
from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tqdm.auto import tqdm

from mirror.common.cli import Parser, add_prompt, add_timeout, add_trust, configure_logging, positive
from mirror.common.errors import InputError, library_errors, one_line, run_main
from mirror.common.files import LOCK, atomic_path, atomic_write_text, digest, lock_output_dir, make_output_folder


if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

    from mirror.modeling.encoder import Encode

logger = logging.getLogger(__name__)

VectorType = Literal["float32", "float16", "int8", "binary"]
QUERIES, ENTRIES, NEIGHBORS = 200, 5000, 10  # of the recall that a run measures
MANIFEST = "_manifest.json"
DIGEST = b"mirror_texts_sha256"  # key in the metadata of a shard: hash of its texts


@dataclass(frozen=True)
class ShardFolder:
    """The shards with one model's embeddings of one input, in the folder `path`.

        OUT/_manifest.json          settings that all vectors share; the numbers of rows and shards, once complete
        OUT/shard-000000.parquet    row (int64), vector (list of numbers), scale (with int8), id (with ids), file, offset and
                                    section (of documents), text (with keep_text)
        OUT/shard-000001.parquet    the next `shard_rows` rows, and so on; only the last shard may be shorter

    Shards are written atomically, so after a crash the same command continues with the missing shards. Programs that
    read a folder of parquet files ignore names that start with an underscore.
    """

    path: Path
    common: dict[str, str | int]  # what all vectors share (model, pooling, ...); a folder with other values is refused
    shard_rows: int
    vector_type: VectorType = "float32"
    keep_text: bool = False  # whether to write the column `text` too

    @property
    def settings(self) -> dict[str, str | int | bool]:
        """The settings in the manifest, which hold for every vector."""
        return self.common | {name: getattr(self, name) for name in ("vector_type", "shard_rows", "keep_text")}

    def shard(self, number: int) -> Path:
        return self.path / f"shard-{number:06d}.parquet"

    def open(self) -> None:
        """Create and lock the folder, or check that it was created with the same settings. Delete leftovers of a crash."""
        make_output_folder(self.path)
        lock_output_dir(self.path)  # what another run is writing is no leftover
        manifest = self.path / MANIFEST
        left = {*self.path.glob("_shard-*.tmp"), *self.path.glob(f"_{MANIFEST}.*.tmp")}
        if manifest.exists() and any(self.path.glob("shard-*.parquet")):
            with library_errors(str(manifest)):
                stored = dict(json.loads(manifest.read_text(encoding="utf-8")))
            for key in (*self.settings, "id_column"):  # which only a folder with ids has
                value = self.settings.get(key)
                if (found := stored.get(key)) != value:
                    what = f"--output_dir {self.path} holds vectors with {key} {found}, not {value}"
                    raise InputError(f"{what}; use another folder, or delete it to start over")
        elif set(self.path.iterdir()) - left - {self.path / LOCK, manifest}:
            raise InputError(f"--output_dir {self.path} contains other files; give a new or an empty folder")
        else:
            atomic_write_text(manifest, json.dumps(self.settings, indent=2) + "\n")
        for temporary in left:
            temporary.unlink()

    def holds(self, number: int, rows: dict[str, list[str]]) -> bool:
        """Return whether shard `number` exists, whole. An `InputError`: it has vectors of other texts or ids."""
        shard = self.shard(number)
        if not shard.exists():
            return False
        try:
            stored = (pq.read_schema(shard).metadata or {}).get(DIGEST)
        except (pa.ArrowException, OSError) as error:
            logger.warning("%s is damaged (%s); its rows are encoded again", shard, one_line(error, 120))
            return False
        if stored != _digest(rows):
            raise InputError(f"{shard} holds vectors of other texts: the input has changed; use another --output_dir")
        return True

    def write(self, number: int, rows: dict[str, list[str]], vectors: np.ndarray) -> None:
        """Write shard `number` atomically: N rows of `text` and the columns beside it, and embeddings, (N, D) float32."""
        stored, scale = encode_vectors(vectors, self.vector_type)
        flat = pa.array(np.ascontiguousarray(stored).reshape(-1))
        columns = {"row": pa.array(np.arange(len(vectors)) + number * self.shard_rows, pa.int64())}
        columns["vector"] = pa.FixedSizeListArray.from_arrays(flat, stored.shape[1])
        if scale is not None:
            columns["scale"] = pa.array(scale)
        for name in [*(name for name in rows if name != "text"), *(["text"] if self.keep_text else [])]:
            columns[name] = pa.array(rows[name], pa.string())
        table = pa.table(columns).replace_schema_metadata({DIGEST: _digest(rows)})
        with atomic_path(self.shard(number)) as temporary:
            pq.write_table(table, temporary, use_dictionary=False)  # vectors rarely repeat

    def finish(self, num_rows: int) -> None:
        """Check that the shards hold exactly `num_rows` rows, and write the counts to the manifest."""
        starts = enumerate(range(0, num_rows, self.shard_rows))
        expected = {self.shard(number): min(self.shard_rows, num_rows - start) for number, start in starts}
        found = {shard: pq.read_metadata(shard).num_rows for shard in self.path.glob("shard-*.parquet")}
        if extra := sorted(found.keys() - expected.keys()):
            raise InputError(f"{extra[0]} is beyond the {num_rows:,} rows of the input; use another --output_dir")
        if found != expected:
            wrong = min(shard for shard in expected if found.get(shard) != expected[shard])
            raise RuntimeError(f"{wrong} has {found.get(wrong, 0):,} rows, expected {expected[wrong]:,}")
        counts = {"num_rows": num_rows, "num_shards": len(expected)}
        atomic_write_text(self.path / MANIFEST, json.dumps(self.settings | counts, indent=2) + "\n")


def _digest(rows: dict[str, list[str]]) -> bytes:
    return digest([*rows.values()] if len(rows) > 1 else rows["text"]).encode()


def fill(
    folder: ShardFolder, rows: Dataset | IterableDataset, encode: Encode, process: int = 0, num_processes: int = 1
) -> int:
    """Encode the missing shards of this process, with one shard in memory at a time.

    Every process reads all rows (`text`, and the columns to store beside the vectors), which is cheap compared to encoding, and
    encodes every `num_processes`-th shard. Returns the number of rows of the input. None at all is an InputError.
    """
    from datasets import Dataset

    from mirror.data.corpus import read_batches

    total = len(rows) if isinstance(rows, Dataset) else None
    num_rows = 0
    with tqdm(total=total, desc="rows", unit="row", unit_scale=True, disable=None if process == 0 else True) as bar:
        for number, batch in enumerate(read_batches(rows, folder.shard_rows, "the input")):
            texts = batch["text"]
            if number % num_processes == process and not folder.holds(number, batch):
                vectors = encode(texts)
                folder.write(number, batch, vectors)
                if number == 0 and folder.vector_type != "float32":  # early, while a long run can still be stopped
                    share, entries = recall(vectors, folder.vector_type)
                    if not np.isnan(share):
                        line = "%s vectors: recall@%d %.3f against cosine in float32, among %s texts"
                        logger.info(line, folder.vector_type, NEIGHBORS, share, f"{entries:,}")
            num_rows += len(texts)
            bar.update(len(texts))
    if not num_rows:
        raise InputError("the input has no rows")
    return num_rows


def encode_vectors(vectors: np.ndarray, vector_type: VectorType) -> tuple[np.ndarray, np.ndarray | None]:
    """Return vectors (N, D) float32 in the type in which they are stored, and for `int8` their scales, (N,) float32.

    `int8`: vector = int8 vector * scale (0 for a zero vector), with an error of at most half the scale per dimension.
    `binary`: the signs, eight to a byte, (N, ceil(D / 8)) uint8, as in faiss's binary indexes and the `ubinary` of
    sentence-transformers. A value that `float16` cannot hold is an InputError.
    """
    if vector_type == "int8":
        # One scale per vector, its largest magnitude / 127, and not one per dimension as in sentence-transformers:
        # shards stay independent of each other, and cosines of int8 vectors need no scales.
        scale = np.abs(vectors).max(axis=1) / 127  # (N,)
        return np.rint(vectors / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8), scale.astype(np.float32)
    if vector_type == "binary":
        return np.packbits(vectors > 0, axis=1), None
    if vector_type == "float16":
        if np.abs(vectors).max() > np.finfo(np.float16).max:
            raise InputError("a vector has a value beyond 65504, the float16 maximum; use --vector_type float32")
        return vectors.astype(np.float16), None
    return vectors, None


def recall(vectors: np.ndarray, vector_type: VectorType) -> tuple[float, int]:
    """Measure recall@10 of a search among vectors (N, D) of this type, queries included, against cosine in float32.

    Of the first `ENTRIES` distinct vectors, at most `QUERIES` and at most a tenth are queries. The others are searched.
    Returns the share of the ten nearest in float32 that are among the ten nearest in this type (`binary`: by Hamming
    distance), nan if fewer than ten vectors are searched, and the number of vectors that are searched.
    """
    from mirror.common.vectors import top_k, unit_length

    first = np.sort(np.unique(vectors[:ENTRIES], axis=0, return_index=True)[1])  # equal vectors would be ties
    vectors = vectors[first]
    queries = min(QUERIES, len(vectors) // 10)
    entries = len(vectors) - queries
    if not queries or entries < NEIGHBORS:
        return float("nan"), entries
    # Cosines of signs order vectors as the Hamming distance does.
    is_binary = vector_type == "binary"
    stored = np.where(vectors > 0, 1, -1) if is_binary else encode_vectors(vectors, vector_type)[0]
    units = unit_length(vectors), unit_length(stored.astype(np.float32))
    pairs = (top_k(unit[:queries], unit[queries:], NEIGHBORS)[1] for unit in units)
    kept = [len(np.intersect1d(*rows)) for rows in zip(*pairs, strict=True)]
    return float(np.mean(kept)) / NEIGHBORS, entries


def main() -> None:
    # ---- Arguments -------------------------------------------------------------------------------------------------
    args = parse_arguments()
    configure_logging()

    # Imported here so that --help and errors in the flags are immediate. torch follows after the files are found.
    from mirror.data.documents import are_documents, passage_columns
    from mirror.data.source import CorpusSource

    given = {name: value for name, value in vars(args).items() if name in CorpusSource.__dataclass_fields__}
    source = CorpusSource(train_file=tuple(args.input_file or ()), strict=True, **given)  # every line gets a row
    source.check_files()
    is_documents = are_documents(source.train_file)
    if is_documents and (args.text_column or args.id_column or args.streaming):
        raise InputError("documents have no columns or ids, and are no stream; leave out these flags")

    from datasets import Dataset

    from mirror.common import trust
    from mirror.common.distributed import join_processes
    from mirror.data.corpus import text_rows
    from mirror.evaluation.encoding import fingerprint
    from mirror.modeling.encoder import Encoder
    from mirror.training.finish import after_encoding

    state = join_processes(args.ddp_timeout)
    trust.grant(args.allow_pickle, args.trust_remote_code)

    # ---- Rows, model, folder ---------------------------------------------------------------------------------------
    with state.main_process_first():
        rows = None if is_documents else text_rows(source, strip=False, id_column=args.id_column)
    encoder = Encoder.from_pretrained(
        args.model_name_or_path, args.pooling, args.max_seq_length, args.dtype, state.device, args.prompt,
        args.prompt_name, args.truncate_dim,
    )  # fmt: skip
    if {*encoder.role_prompts.values()} != {encoder.prompt}:
        logger.warning("The prompt is %r; texts to find need --prompt_name document, queries query", encoder.prompt)
    if is_documents:
        rows = Dataset.from_dict(passage_columns(source.train_file, encoder.tokenizer, encoder.max_seq_length))
    common = {name: getattr(encoder, name) for name in ("pooling", "max_seq_length", "dimension")}
    common |= {"dtype": args.dtype, "model_sha256": fingerprint(encoder)}
    common |= {"id_column": args.id_column} if args.id_column else {}
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
        logger.info("Encoded %s rows: %s vectors of %d numbers", f"{num_rows:,}", args.vector_type, encoder.dimension)
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
        help="Path or glob of txt (one text per line), csv, tsv, json, jsonl or parquet files, or of documents and folders of "
        "them, whose passages are the rows (default: --dataset_name).")  # fmt: skip
    add("--dataset_name", metavar="D", help="Hub id or path of a data set, instead of --input_file (default: none).")
    add("--dataset_config_name", metavar="C", help="Configuration of the data set (default: the only one).")
    add("--dataset_split", default="train", metavar="S", help="Split of the data set.")
    add("--streaming", action="store_true", help="Whether to read the input while encoding, without a copy on disk.")
    add("--text_column", nargs="+", metavar="T", help="Columns of the text (default: 'text', or the only column).")
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


if __name__ == "__main__":
    run_main(main)
