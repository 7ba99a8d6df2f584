"""Search your own texts by meaning, in the terminal.

    python -m mirror.tools.search out/mirror texts.txt "how to open a file"
    python -m mirror.tools.search out/mirror texts.txt                            # interactive queries
    python -m mirror.tools.search out/mirror texts.txt < queries.txt | cut -f 4   # one query per line
    python -m mirror.tools.search out/mirror 'notes/*.txt' "rain" --top_k 3 --cache_dir ~/.cache/mirror

Texts are read like --train_file of run_mirror.py (txt with one text per line, csv, tsv, json, jsonl, parquet); blank
and duplicate texts are dropped. In a pipe or a file, the output is tab-separated: rank, cosine, query, text. With
--cache_dir, the embeddings of the texts are stored, so that a second search over the same texts starts immediately.
"""

from __future__ import annotations

import io
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from mirror.common.cli import Parser, add_trust, configure_logging, hide_dataset_progress, positive
from mirror.common.errors import InputError, run_main


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")  # tabs would break columns, escape sequences a terminal


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", metavar="OUT", help="Checkpoint: a path or a Hub id.")
    add("texts", metavar="TEXTS", help="Path to the file with the texts, or a glob in quotes.")
    add("query", nargs="?", metavar="QUERY", help="Query (default: one per line from stdin).")
    add("--top_k", type=positive, default=10, metavar="K", help="Number of matches per query.")
    add("--text_column", metavar="T", help="Column with the text (default: 'text', or the only column).")
    add("--pooling", help="Pooling. Required for a plain masked LM (default: the checkpoint's).")
    add("--batch_size", type=positive, default=64, metavar="B", help="Number of texts per forward pass.")
    add("--cache_dir", metavar="C", help="Path to a folder that keeps the embeddings of the texts (default: none).")
    add_trust(parser)
    args = parser.parse_args()
    if any("\ud800" <= character <= "\udfff" for character in args.query or ""):
        parser.error("argument QUERY: not UTF-8")  # Python keeps bytes of another encoding as surrogates
    configure_logging(logging.WARNING)

    # Imported late so that --help and errors in the flags are fast. torch follows after the texts are read.
    from mirror.data.corpus import load_corpus
    from mirror.data.source import CorpusSource

    hide_dataset_progress()  # the encoder shows its own
    source = CorpusSource(train_file=(args.texts,), text_column=args.text_column)
    texts = list(load_corpus(source).rows["text"])

    from mirror.common import trust
    from mirror.common.vectors import top_k, unit_length
    from mirror.modeling.embedding_cache import EmbeddingCache, fingerprint
    from mirror.modeling.encoder import Encoder

    trust.grant(args.allow_pickle, args.trust_remote_code)
    encoder = Encoder.from_pretrained(args.model, args.pooling)
    encode_texts = partial(encoder.encode, batch_size=args.batch_size)
    if args.cache_dir:
        folder = Path(args.cache_dir).expanduser() / fingerprint(encoder)[:16]
        encode_texts = EmbeddingCache(folder, encode_texts)
    vectors = unit_length(encode_texts(texts))  # (N, D)
    for query in [args.query] if args.query is not None else read_queries(len(texts)):
        scores, rows = top_k(unit_length(encoder.encode([query])), vectors, args.top_k)  # (1, k) each
        width = max(20, shutil.get_terminal_size().columns - 8) if sys.stdout.isatty() else None
        found = [(float(score), texts[row]) for score, row in zip(scores[0], rows[0], strict=True)]
        print_matches(query, found, width)


def read_queries(num_texts: int) -> Iterator[str]:
    """Yield queries from stdin, one per line. On a terminal, prompt until an empty line, Ctrl-D or Ctrl-C."""
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


def print_matches(query: str, found: list[tuple[float, str]], width: int | None) -> None:
    """Print cosine and text of each match, cut to `width`, or without it tab-separated: rank, cosine, query, text."""
    for rank, (score, text) in enumerate(found, start=1):
        query, text = CONTROL.sub(" ", query), CONTROL.sub(" ", text)
        if width is None:
            sys.stdout.write(f"{rank}\t{score:.4f}\t{query}\t{text}\n")
        else:
            sys.stdout.write(f" {score:5.3f}  {text if len(text) <= width else text[: width - 1] + '…'}\n")
    sys.stdout.write("" if width is None else "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run_main(main)
