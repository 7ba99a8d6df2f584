"""Search your own texts by meaning, in the terminal.

    python -m mirror.search out/mirror texts.txt "how to open a file"
    python -m mirror.search out/mirror texts.txt                            # asks for queries until an empty line
    python -m mirror.search out/mirror texts.txt < queries.txt | cut -f 4   # one query a line, tab-separated answers
    python -m mirror.search out/mirror 'notes/*.txt' "rain" --top_k 3 --cache_dir ~/.cache/mirror

Texts are read like --train_file of run_mirror.py (txt: a text a line; csv, tsv, json, jsonl, parquet), blank and repeated
ones left out. Into a pipe or a file go lines of rank, cosine, query and text with tabs between. Vectors of texts are kept
in --cache_dir, so that a second search over the same texts starts at once.
"""

from __future__ import annotations

import argparse
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.errors import run_main
from mirror.flags import Parser, positive


if TYPE_CHECKING:
    import numpy as np

    from mirror.evaluation.task import Encode

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")  # a tab would split a column, an escape could repaint a terminal


class Index:
    """Texts and their vectors of unit length.

    Raises:
        InputError: a text has no finite vector.
    """

    def __init__(self, texts: list[str], encode: Encode):
        from mirror.evaluation.search import unit_length

        self.texts = texts
        self.vectors: np.ndarray = unit_length(encode(texts))  # (N, D)

    def search(self, query: str, encode: Encode, k: int) -> list[tuple[float, str]]:
        """The `k` nearest texts and their cosines, best first."""
        from mirror.evaluation.search import top_k, unit_length

        scores, rows = top_k(unit_length(encode([query])), self.vectors, k)  # (1, k) each
        return [(float(score), self.texts[row]) for score, row in zip(scores[0], rows[0], strict=True)]


def main() -> None:
    args = parse_arguments()
    logging.basicConfig(format="%(message)s", level=logging.WARNING)

    # Imported here so that --help and a mistyped flag answer at once.
    from mirror.data import DataSettings, load_corpus
    from mirror.encoder import Encoder
    from mirror.evaluation.cache import EmbeddingCache, fingerprint

    _no_bars_of_libraries()
    settings = DataSettings(train_file=(args.texts,), text_column=args.text_column)
    texts = list(load_corpus(settings).rows["text"])
    encoder = Encoder.from_pretrained(args.model, args.pooling)
    encode_texts = partial(encoder.encode, batch_size=args.batch_size)
    if args.cache_dir:
        folder = Path(args.cache_dir).expanduser() / fingerprint(encoder)[:16]
        encode_texts = EmbeddingCache(folder, encode_texts)
    index = Index(texts, encode_texts)
    write = write_for_people if sys.stdout.isatty() else write_for_programs
    for query in [args.query] if args.query is not None else asked_queries(len(texts)):
        write(query, index.search(query, encoder.encode, args.top_k))


def asked_queries(num_texts: int) -> Iterator[str]:
    """Lines of stdin; from a person, with a prompt, until an empty line, Ctrl-D or Ctrl-C."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin if line.strip())
        return
    sys.stderr.write(f"{num_texts:,} texts; an empty line ends\n")
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


def write_for_programs(query: str, found: list[tuple[float, str]]) -> None:
    """Rank, cosine, query and text, a line each, with tabs between."""
    for rank, (score, text) in enumerate(found, start=1):
        sys.stdout.write(f"{rank}\t{score:.4f}\t{CONTROL.sub(' ', query)}\t{CONTROL.sub(' ', text)}\n")
    sys.stdout.flush()


def write_for_people(query: str, found: list[tuple[float, str]]) -> None:
    """Cosines and texts, a text cut to the width of the terminal."""
    width = max(20, shutil.get_terminal_size().columns - 8)
    for score, text in found:
        text = CONTROL.sub(" ", text)
        sys.stdout.write(f" {score:5.3f}  {text if len(text) <= width else text[: width - 1] + '…'}\n")
    sys.stdout.write("\n")


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", metavar="OUT", help="a checkpoint: a folder or a Hub id")
    add("texts", metavar="TEXTS", help="a file, or a glob in quotes")
    add("query", nargs="?", metavar="QUERY", help="without it, queries are asked for, or read from stdin line by line")
    add("--top_k", type=positive, default=10, metavar="K", help="matches of a query (default: 10)")
    add("--text_column", metavar="T", help="column with the text; default: 'text' or the only one")
    add("--pooling", help="overrides the checkpoint's; a plain masked LM needs it")
    add("--batch_size", type=positive, default=64, metavar="B", help="texts of one forward pass (default: 64)")
    add("--cache_dir", metavar="C", help="keep the vectors of the texts here for the next search")
    return parser.parse_args()


def _no_bars_of_libraries() -> None:
    """Only the encoder's own bar is shown, for a long list on a terminal."""
    from datasets import disable_progress_bars

    disable_progress_bars()
    for chatty in ("sentence_transformers", "httpx"):
        logging.getLogger(chatty).setLevel(logging.ERROR)


if __name__ == "__main__":
    run_main(main)
