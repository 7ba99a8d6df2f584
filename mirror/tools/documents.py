"""Write the pairs of texts that the structure of documents gives: headings and sections, questions and answers.

    mirror-documents docs/ --output pairs.jsonl
    mirror-documents manual.md notes/ --output pairs.jsonl --pairs heading question \\
        --model_name_or_path out/mirror --max_seq_length 128

Reads Markdown, HTML, reStructuredText, txt, notebooks, Python and EPUB, and with the extra "documents" PDF, Word and PowerPoint.
Each line of the output is a pair: anchor, positive, and where the positive is from (kind, file, heading, offset in characters).
sentence-transformers and `--pair_columns anchor positive` of run_mirror.py read the file. A report is printed on stdout.
"""

from __future__ import annotations

import json
import logging
import sys

from mirror.assets import EMBEDDED_MODEL
from mirror.common.cli import Parser, configure_logging, positive
from mirror.common.errors import InputError, run_main
from mirror.data.source import PAIR_KINDS, PASSAGE_TOKENS


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("documents", nargs="+", metavar="DOCS", help="Folders or files of documents.")
    add("--output", required=True, metavar="FILE", help="Path of the JSON lines to write.")
    add("--pairs", nargs="+", choices=("auto", *PAIR_KINDS), default=["auto"], metavar="KIND",
        help=f"Kinds of pairs: {', '.join(PAIR_KINDS)}, or auto for all of them.")  # fmt: skip
    add("--model_name_or_path", default=str(EMBEDDED_MODEL), metavar="M",
        help="Model whose tokenizer counts the tokens of a passage. Default: the embedded model.")  # fmt: skip
    add("--max_seq_length", type=positive, default=PASSAGE_TOKENS, metavar="N", help="Maximum tokens per passage.")
    args = parser.parse_args()
    configure_logging(logging.INFO)

    # Imported late so that --help and errors in the flags are fast.
    from mirror.common.files import atomic_write_text
    from mirror.data.document_corpus import describe_pairs, structure_pairs
    from mirror.data.documents import read_documents
    from mirror.modeling.backbone import tokenizer_of

    documents = read_documents(args.documents, tokenizer_of(args.model_name_or_path), args.max_seq_length)
    found = structure_pairs(documents, PAIR_KINDS if "auto" in args.pairs else args.pairs)
    if not found.pairs:
        raise InputError(f"{' '.join(args.documents)}: no pairs; no heading, question, name or link leads to a text")
    rows = (pair._asdict() for pair in found.pairs)
    lines = (json.dumps({key: row[key] for key in row if key != "document"}, ensure_ascii=False) for row in rows)
    atomic_write_text(args.output, "".join(f"{line}\n" for line in lines))
    sys.stdout.write(f"{describe_pairs(found)}\nSaved to {args.output}\n")


if __name__ == "__main__":
    run_main(main)
