"""Search your own texts by meaning, in the terminal.

    python -m mirror.tools.search out/mirror texts.txt "how to open a file"
    python -m mirror.tools.search out/mirror texts.txt                            # interactive queries
    python -m mirror.tools.search out/mirror texts.txt < queries.txt | cut -f 4   # one query per line
    python -m mirror.tools.search out/mirror 'notes/*.txt' "rain" --top_k 3 --cache_dir ~/.cache/mirror
    python -m mirror.tools.search out/mirror products.csv "red shoes" --text_column title description \\
        --id_column sku --show_columns price
    python -m mirror.tools.search out/mirror corpus.jsonl --id_column _id --queries queries.jsonl --qrels qrels.tsv
    python -m mirror.tools.search out/mirror 'shards/*.parquet' "rain" --index out/index   # builds an index on disk
    python -m mirror.tools.search out/mirror out/index "another query"                     # and searches it

Texts are read like --train_file of run_mirror.py (txt with one text per line, csv, tsv, json, jsonl, parquet). Blank texts are
dropped, and without --id_column repeated ones too. In a pipe or a file, the output is tab-separated: rank, cosine, query, text,
then id and --show_columns. Documents (Markdown, HTML and others, docs/documents.md) are searched by passages, with file, offset
and section. --json prints one JSON object per match. With --qrels, it is not the matches but their quality that
is printed: each measure, its mean over the queries, and a 95% interval. Only queries from stdin need the embeddings of all texts
in memory. With --cache_dir they are stored, so that a second search over the same texts starts immediately. --index is for millions
of texts: it stores them with their vectors, from which a search reads only what is near the query, so it may miss a match.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.cli import Parser, add_prompt, add_trust, configure_logging, hide_dataset_progress, positive
from mirror.common.errors import InputError, run_main


if TYPE_CHECKING:
    from datasets import Dataset

    from mirror.modeling.encoder import Encoder

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")  # tabs would break columns, escape sequences a terminal
IDS = ("_id", "id")  # columns of ids as BEIR names them
SHOWN = "shown "  # before the names of --show_columns, one of which may be `text`


def main() -> None:
    args = parse_arguments()
    configure_logging(logging.WARNING)

    # Imported late so that --help and errors in the flags are fast. torch follows after the files are read.
    hide_dataset_progress()  # the encoder shows its own
    from mirror.data.documents import are_documents
    from mirror.tools.index import TextIndex, build_index, is_index

    from_index = is_index(args.texts)
    if from_index and args.index:
        raise InputError(f"{args.texts} is an index already; leave out --index, or name the texts")
    stored = args.texts if from_index else args.index
    is_folder = not from_index and are_documents([args.texts])
    columns = args.id_column or args.show_columns or args.text_column or args.qrels
    if columns and (is_folder or from_index):
        what = "documents have no columns or ids" if is_folder else "an index has the columns that it was built with"
        raise InputError(f"{args.texts}: {what}; leave out the flags of columns and --qrels")
    documents = None if is_folder or from_index else read_texts(args)
    queries = read_queries(args) if args.queries else {"": args.query} if args.query is not None else None
    from mirror.common import trust
    from mirror.common.vectors import top_k, unit_length
    from mirror.evaluation.benchmark_formats import read_qrels, search
    from mirror.evaluation.encoding import EmbeddingCache, fingerprint
    from mirror.evaluation.metrics import DEPTH, measure, summarize
    from mirror.modeling.encoder import EncodeByRole, Encoder
    from mirror.modeling.read_checkpoint import ROLES

    if args.qrels:
        names = Path(args.texts), Path(args.queries)
        qrels = read_qrels(Path(args.qrels), dict.fromkeys(documents["id"], ""), queries, names)
        queries = {id: queries[id] for id in qrels}
    trust.grant(args.allow_pickle, args.trust_remote_code)
    encoder = Encoder.from_pretrained(args.model, args.pooling, prompt=args.prompt, prompt_name=args.prompt_name)
    if is_folder:
        documents = read_passages(args.texts, encoder)
    of_query, of_document = (partial(getattr(encoder, f"encode_{role}"), batch_size=args.batch_size) for role in ROLES)
    if args.cache_dir:
        folder = Path(args.cache_dir).expanduser() / fingerprint(encoder.for_role("document"))[:16]
        of_document = EmbeddingCache(folder, of_document)
    encode = EncodeByRole(of_document, of_query, of_document)
    if stored:
        of_encoder = fingerprint(encoder.for_role("document"))
        if documents is not None:
            build_index(stored, documents, encode.document, of_encoder)
        index = TextIndex(stored, of_encoder)
        for id, query in queries.items() if queries else (("", query) for query in ask(index.rows)):
            (found,) = index.search(encode.query([query]), args.top_k)
            print_matches(query, found, args.json, id)
        return
    if queries is None:
        vectors = unit_length(encode.document(documents["text"][:]))  # (N, D)
        for query in ask(len(documents)):
            scores, rows = top_k(unit_length(encode.query([query])), vectors, args.top_k)  # (1, k) each
            print_matches(query, matches(documents, scores[0], rows[0]), args.json)
        return
    depth = DEPTH if args.qrels else args.top_k
    scores, rows = search(encode, list(queries.values()), documents["text"], depth)  # (Q, k) each
    if args.qrels:
        ids = documents["id"][:]
        summary = summarize(measure([[ids[row] for row in found] for found in rows], list(qrels.values())))
        lines = [
            f"{name}\t{summary[name]:.4f}\t{low:.4f}\t{high:.4f}" for name, (low, high) in summary["intervals"].items()
        ]
        sys.stdout.write((json.dumps(summary) if args.json else "\n".join(lines)) + "\n")
        return
    for (id, query), *found in zip(queries.items(), scores, rows, strict=True):
        print_matches(query, matches(documents, *found), args.json, id)


def parse_arguments() -> Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", metavar="OUT", help="Checkpoint: a path or a Hub id.")
    add("texts", metavar="TEXTS", help="Path to the file with the texts, or a glob in quotes.")
    add("query", nargs="?", metavar="QUERY", help="Query (default: one per line from stdin).")
    add("--top_k", type=positive, default=10, metavar="K", help="Number of matches per query.")
    add("--text_column", nargs="+", metavar="T", help="Columns of the text (default: 'text', or the only column).")
    add("--text_separator", default=". ", metavar="S", help="Separator of the joined columns.")
    add("--id_column", metavar="C", help="Column with ids to print, which keeps repeated texts (default: none).")
    add("--show_columns", nargs="+", default=[], metavar="C", help="More columns to print (default: none).")
    add("--json", action="store_true", help="Whether to print JSON lines.")
    add("--queries", metavar="F", help="Path to a file with queries, instead of QUERY (default: none).")
    add("--query_column", metavar="C", help="Column with the query (default: 'query', 'text', or the only column).")
    judged = "Path to judgments (query-id, corpus-id, score): print measures of the search, not matches. "
    add("--qrels", metavar="F", help=judged + "Ids are those of --id_column and of '_id' or 'id' (default: none).")
    add("--pooling", help="Pooling. Required for a plain masked LM (default: the checkpoint's).")
    add_prompt(parser)
    add("--batch_size", type=positive, default=64, metavar="B", help="Number of texts per forward pass.")
    add("--cache_dir", metavar="C", help="Path to a folder that keeps the embeddings of the texts (default: none).")
    index = "Path to a folder for an index of the texts, which later replaces TEXTS (needs lancedb, default: none)."
    add("--index", metavar="I", help=index)
    add_trust(parser)
    args = parser.parse_args()
    if args.query is not None and args.queries:
        parser.error("give either QUERY or --queries")
    if args.index and args.qrels:
        parser.error("--qrels measures the exact search; leave out --index")
    if (args.qrels or args.query_column) and not args.queries:
        parser.error(f"{'--qrels' if args.qrels else '--query_column'} needs --queries")
    try:  # Python decodes arguments as the locale says, and keeps other bytes as surrogates
        args.query = None if args.query is None else os.fsencode(args.query).decode("utf-8")
    except UnicodeError:
        parser.error("argument QUERY: not UTF-8")
    return args


def read_texts(args: Namespace) -> Dataset:
    """Return the texts to search as rows of `text`, of `id` with ids, and of the columns to show.

    With --qrels they are sorted by falling id, because equal scores rank by position, and trec_eval ranks them so.
    """
    from datasets import concatenate_datasets

    from mirror.data.corpus import text_rows
    from mirror.data.files import expand_paths
    from mirror.data.source import CorpusSource
    from mirror.data.tables import check_columns, columns_of, read_table

    paths = expand_paths([args.texts])
    if args.qrels and not args.id_column:
        args.id_column = next((name for name in IDS if name in columns_of(paths[0])), IDS[0])
    for path in paths if args.id_column else ():
        check_columns(str(path), [args.id_column], columns_of(path), "choose with --id_column")
    source = CorpusSource([args.texts], text_column=args.text_column, text_separator=args.text_separator)
    rows = text_rows(source, id_column=args.id_column)
    if args.show_columns:
        choose = "choose with --show_columns"
        parts = [read_table(path, (), list(dict.fromkeys(args.show_columns)), choose=choose) for path in paths]
        shown = concatenate_datasets(parts)
        shown = shown.rename_columns({name: SHOWN + name for name in shown.column_names})
        rows = concatenate_datasets([rows, shown], axis=1)
    kept, seen = [], set()
    for number, text in enumerate(text for batch in rows.select_columns("text").iter(1000) for text in batch["text"]):
        if text and (args.id_column or hash(text) not in seen):
            kept.append(number)
            seen.add(hash(text))
    if not kept:
        raise InputError(f"{args.texts}: no text in it")
    if args.qrels:
        ids = rows["id"][:]
        kept.sort(key=ids.__getitem__, reverse=True)
    return rows if kept == list(range(len(rows))) else rows.select(kept)


def read_passages(name: str, encoder: Encoder) -> Dataset:
    """Return the distinct passages of documents as rows of `text`, and of file, offset and section to show."""
    from datasets import Dataset

    from mirror.data.documents import passage_columns

    columns = passage_columns([name], encoder.tokenizer, encoder.max_seq_length)
    last = list({text: row for row, text in enumerate(columns["text"])}.values())  # of each text
    rows = Dataset.from_dict(columns).select(last)
    return rows.rename_columns({column: SHOWN + column for column in columns if column != "text"})


def read_queries(args: Namespace) -> dict[str, str]:
    """Return the queries of --queries by their ids, or by their numbers if the file has none."""
    from mirror.data.files import expand_paths
    from mirror.data.tables import columns_of, read_table

    path, *others = expand_paths([args.queries])
    if others:
        raise InputError(f"--queries {args.queries} is {1 + len(others)} files; name one")
    known = columns_of(path)
    key = next((name for name in IDS if name in known), IDS[0] if args.qrels else None)
    texts = [name for name in known if name != key]
    guesses = ("query", "text", *(texts if len(texts) == 1 else ()))  # among several it would be a guess
    column = args.query_column or next((name for name in guesses if name in known), "query")
    table = read_table(path, [column], key=key, choose="choose with --query_column")
    ids = table[key] if key else map(str, range(1, len(table) + 1))
    queries = {id: query.strip() for id, query in zip(ids, table[column], strict=True)}
    if empty := [id for id, query in queries.items() if not query]:
        raise InputError(f"{path}: query '{empty[0]}' has no text; remove it")
    if not queries:
        raise InputError(f"{path}: no queries in it")
    return queries


def ask(num_texts: int) -> Iterator[str]:
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


def matches(documents: Dataset, scores: Iterable[float], rows: Iterable[int]) -> Iterator[tuple[float, dict]]:
    """Yield the cosine and the columns of each match."""
    return ((score, documents[int(row)]) for score, row in zip(scores, rows, strict=True))


def print_matches(query: str, found: Iterable[tuple[float, dict]], as_json: bool = False, query_id: str = "") -> None:
    """Print each match, (cosine, columns): as JSON lines, in a pipe tab-separated, and on a terminal cut to its width."""
    width = max(20, shutil.get_terminal_size().columns - 8) if sys.stdout.isatty() and not as_json else None
    for rank, (score, match) in enumerate(found, start=1):
        text, id = match["text"], [match["id"]] if "id" in match else []
        more = {name.removeprefix(SHOWN): value for name, value in match.items() if name.startswith(SHOWN)}
        if as_json:
            line = {"query": query, "rank": rank, "score": round(float(score), 6), "text": text}
            line |= ({"query_id": query_id} if query_id else {}) | ({"id": id[0]} if id else {})
            line |= {"columns": more} if more else {}
            sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
            continue
        cells = [CONTROL.sub(" ", cell) for cell in (query, text, *id, *more.values())]
        if width is None:
            sys.stdout.write("\t".join([str(rank), f"{score:.4f}", *cells]) + "\n")
        else:
            lines = ["  ".join([*cells[2 : 2 + len(id)], cells[1]]), "  ".join(cells[2 + len(id) :])]
            shown = [line if len(line) <= width else line[: width - 1] + "…" for line in lines if line]
            sys.stdout.write(f" {score:5.3f}  " + "\n        ".join(shown) + "\n")
    sys.stdout.write("" if width is None else "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    run_main(main)
