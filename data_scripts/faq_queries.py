"""Make queries with known answers of documents whose headings are questions, such as an FAQ.

    python data_scripts/faq_queries.py --faq docs/faq --documents docs --output_dir data/faq

Writes a folder in BEIR's layout for `--tasks`: each heading that ends with a question mark is a query, and the passages of its section
are its answers. They have to be found among all passages of --faq, and of --documents, of which --max_passages are drawn. Leave the
documents of --faq out of what you train on.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.assets import EMBEDDED_MODEL
from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, run_main
from mirror.common.files import atomic_write_text


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--faq", nargs="+", required=True, metavar="DOCS", help="Folders or files of documents with questions.")
    add("--documents", nargs="+", default=[], metavar="DOCS", help="More documents to search. Default: none.")
    add("--output_dir", required=True, metavar="DIR", help="Path to the folder for the task.")
    add("--max_passages", type=positive, default=5000, metavar="N", help="Number of passages of --documents.")
    add("--max_seq_length", type=positive, default=128, metavar="N", help="Maximum number of tokens per passage.")
    args = parser.parse_args()

    from mirror.data.document_corpus import NUMBERING
    from mirror.data.documents import read_documents
    from mirror.modeling.backbone import tokenizer_of

    tokenizer = tokenizer_of(str(EMBEDDED_MODEL))
    ids: dict[str, str] = {}  # of the passages
    answers: dict[str, dict[str, None]] = {}  # question -> ids
    for document in read_documents(args.faq, tokenizer, args.max_seq_length):
        for section in document.sections:
            found = [ids.setdefault(passage.text, f"a{len(ids)}") for passage in section.prose]
            if section.path and section.path[-1].endswith("?") and found:
                # A person who asks does not type the number of the heading.
                answers.setdefault(NUMBERING.sub("", section.path[-1]), {}).update(dict.fromkeys(found))
    if not answers:
        raise InputError(f"{' '.join(args.faq)}: no heading ends with a question mark")
    others = read_documents(args.documents, tokenizer, args.max_seq_length) if args.documents else []
    texts = [passage.text for document in others for section in document.sections for passage in section.prose]
    random.Random(0).shuffle(texts)
    for text in texts[: args.max_passages]:
        ids.setdefault(text, f"d{len(ids)}")

    folder = Path(args.output_dir)
    queries = {f"q{at}": question for at, question in enumerate(answers)}
    for name, rows in (("corpus", {id: text for text, id in ids.items()}), ("queries", queries)):
        lines = "".join(json.dumps({"_id": id, "text": text}, ensure_ascii=False) + "\n" for id, text in rows.items())
        atomic_write_text(folder / f"{name}.jsonl", lines)
    judged = "".join(f"{id}\t{answer}\t1\n" for id, question in queries.items() for answer in answers[question])
    atomic_write_text(folder / "qrels" / "test.tsv", f"query-id\tcorpus-id\tscore\n{judged}")
    print(f"{len(queries)} questions and {len(ids):,} passages in {folder}")


if __name__ == "__main__":
    run_main(main)
