"""Semantic search over your own texts, in the terminal.

    python -m mirror.tools.search out/mirror texts.txt "how to open a file"
    python -m mirror.tools.search out/mirror texts.txt                            # interactive queries
    python -m mirror.tools.search out/mirror texts.txt < queries.txt | cut -f 4   # one query per line
    python -m mirror.tools.search out/mirror 'notes/*.txt' "rain" --top_k 3 --cache_dir ~/.cache/mirror

Texts are read like --train_file of run_mirror.py (txt with one text per line, csv, tsv, json, jsonl, parquet); blank
and duplicate texts are dropped. In a pipe or a file, the output is tab-separated: rank, cosine, query, text. With
--cache_dir, the embeddings of the texts are stored, so that a second search over the same texts starts immediately.
"""

from __future__ import annotations

import argparse
import io
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.cli import Parser, add_trust, positive
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging, hide_dataset_progress


if TYPE_CHECKING:
    import numpy as np

    from mirror.modeling.encoder import Encode

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")  # tabs would break columns, escape sequences a terminal


class Index:
    """Texts and their embeddings, normalised to unit length.

    Raises:
        InputError: an embedding is not finite.
    """

    def __init__(self, texts: list[str], encode: Encode):
        from mirror.common.nearest_neighbors import unit_length

        self.texts = texts
        self.vectors: np.ndarray = unit_length(encode(texts))  # (N, D)

    def search(self, query: str, encode: Encode, k: int) -> list[tuple[float, str]]:
        """The `k` nearest texts with their cosines, best first."""
        from mirror.common.nearest_neighbors import top_k, unit_length

        scores, rows = top_k(unit_length(encode([query])), self.vectors, k)  # (1, k) each
        return [(float(score), self.texts[row]) for score, row in zip(scores[0], rows[0], strict=True)]


def main() -> None:
    args = parse_arguments()
    configure_logging(logging.WARNING)

    # Imported late to keep --help and errors in the flags fast; torch after the texts are read.
    from mirror.data.corpus import CorpusSource, load_corpus

    hide_dataset_progress()  # only the progress bar of the encoder is shown
    source = CorpusSource(train_file=(args.texts,), text_column=args.text_column)
    texts = list(load_corpus(source).rows["text"])

    from mirror.common import loading_policy
    from mirror.modeling.embedding_cache import EmbeddingCache, fingerprint
    from mirror.modeling.encoder import Encoder

    loading_policy.grant(args.allow_pickle, args.trust_remote_code)
    encoder = Encoder.from_pretrained(args.model, args.pooling)
    encode_texts = partial(encoder.encode, batch_size=args.batch_size)
    if args.cache_dir:
        folder = Path(args.cache_dir).expanduser() / fingerprint(encoder)[:16]
        encode_texts = EmbeddingCache(folder, encode_texts)
    index = Index(texts, encode_texts)
    write = print_matches if sys.stdout.isatty() else print_tab_separated
    for query in [args.query] if args.query is not None else read_queries(len(texts)):
        write(query, index.search(query, encoder.encode, args.top_k))


def read_queries(num_texts: int) -> Iterator[str]:
    """Queries from stdin, one per line; on a terminal with a prompt, until an empty line, Ctrl-D or Ctrl-C."""
    if not sys.stdin.isatty():
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # whatever the locale says
        try:
            yield from (line.strip() for line in sys.stdin if line.strip())
        except UnicodeDecodeError as error:
            raise InputError(f"stdin: not UTF-8 ({error.reason}); convert it, e.g. with iconv") from error
        return
    sys.stderr.write(f"{num_texts:,} texts; an empty line ends the search\n")
    while True:
        try:
            sys.stderr.write("query> ")
            sys.stderr.flush()
            query = sys.stdin.readline().strip()
        except KeyboardInterrupt:
            query = ""
        if not query:
            sys.stderr.write("\n")
            return
        yield query


def print_tab_separated(query: str, found: list[tuple[float, str]]) -> None:
    """One tab-separated line per match: rank, cosine, query, text."""
    for rank, (score, text) in enumerate(found, start=1):
        sys.stdout.write(f"{rank}\t{score:.4f}\t{CONTROL.sub(' ', query)}\t{CONTROL.sub(' ', text)}\n")
    sys.stdout.flush()


def print_matches(query: str, found: list[tuple[float, str]]) -> None:
    """One line per match: cosine and text, shortened to the width of the terminal."""
    width = max(20, shutil.get_terminal_size().columns - 8)
    for score, text in found:
        text = CONTROL.sub(" ", text)
        sys.stdout.write(f" {score:5.3f}  {text if len(text) <= width else text[: width - 1] + '…'}\n")
    sys.stdout.write("\n")


def utf8(text: str) -> str:
    """Refuse an argument in another encoding, which Python keeps as surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise argparse.ArgumentTypeError("not UTF-8")
    return text


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", metavar="OUT", help="checkpoint: a folder or a Hub id")
    add("texts", metavar="TEXTS", help="file with the texts, or a glob in quotes")
    add(
        "query",
        nargs="?",
        type=utf8,
        metavar="QUERY",
        help="default: read queries from stdin, one per line, with a prompt on a terminal",
    )
    add("--top_k", type=positive, default=10, metavar="K", help="matches per query (default: 10)")
    add("--text_column", metavar="T", help="column with the text; default: 'text', or the only column")
    add("--pooling", help="override the pooling of the checkpoint; required for a plain masked LM")
    add("--batch_size", type=positive, default=64, metavar="B", help="texts per forward pass (default: 64)")
    add("--cache_dir", metavar="C", help="store the embeddings of the texts in this folder for the next search")
    add_trust(parser)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
