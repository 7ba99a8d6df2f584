"""Sample distinct sentences from text files or from columns of tables.

    # text files with one sentence per line
    python data_scripts/sample_sentences.py --input_file wiki.txt --output_file data/wiki_10k.txt
    # both sentences of STS-B; questions and sentences of QNLI
    python data_scripts/sample_sentences.py --input_file stsb_train.tsv --columns sentence1 sentence2 --output_file data/stsb_10k.txt
    python data_scripts/sample_sentences.py --input_file qnli/train.tsv --columns question sentence --output_file data/qnli_10k.txt
    # SNLI and MNLI together
    python data_scripts/sample_sentences.py --input_file snli_1.0_train.jsonl multinli_1.0_train.jsonl \\
        --columns sentence1 sentence2 --output_file data/nli_10k.txt
    # WikiMatrix has no header; its columns are a score, then one sentence per language, in the order of the file name
    python data_scripts/sample_sentences.py --input_file WikiMatrix.ar-en.tsv.gz --no_header --columns 2 --output_file data/ar_10k.txt

Files may be txt, csv, tsv, json, jsonl or parquet, also with .gz. The sample is uniform over distinct sentences,
however often they occur; blank sentences are dropped. All distinct sentences are held in memory. A .json file next to
the output records how it was made.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.corpus_files import add_sampling, draw_sample, write_corpus
from mirror.common.cli import Parser
from mirror.common.errors import InputError, run_main
from mirror.data.files import check_text_file, expand_paths
from mirror.data.tables import columns_of, read_rows


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--input_file", nargs="+", required=True, metavar="F", help="Paths or globs of the input files."
    )
    parser.add_argument(
        "--columns",
        nargs="+",
        metavar="C",
        help="Names of the columns with sentences. With --no_header: their numbers, starting at 1.",
    )
    parser.add_argument(
        "--no_header", action="store_true", help="Whether the tsv files have no header line, like WikiMatrix."
    )
    add_sampling(parser, "sentences")
    args = parser.parse_args()
    paths = expand_paths(args.input_file)
    distinct, facts = distinct_sentences(
        sentence for path in paths for sentence in sentences_of(path, args.columns, args.no_header)
    )
    sample = draw_sample(args, distinct, "distinct sentences")
    settings = vars(args) | {"input_file": [path.name for path in paths]}
    del settings["output_file"]
    write_corpus(args.output_file, sample, "sample_sentences.py", settings, facts)


def distinct_sentences(sentences: Iterable[str]) -> tuple[list[str], dict[str, int]]:
    """Return the distinct sentences in order of first occurrence, white space normalized, and the counts of dropped ones."""
    seen: dict[str, None] = {}
    read = blank = 0
    for sentence in sentences:
        read += 1
        clean = " ".join(sentence.split())
        if clean:
            seen.setdefault(clean)
        else:
            blank += 1
    return list(seen), {"read": read, "blank": blank, "repeated": read - blank - len(seen)}


def sentences_of(path: Path, columns: list[str] | None, no_header: bool) -> Iterator[str]:
    """Yield all sentences of a file, row by row.

    Raises:
        InputError: the file is not text or has no such column. Names the file and, if known, the line.
    """
    if no_header:
        yield from _numbered_columns(path, columns)
        return
    found = columns_of(path)
    wanted = columns or (found if len(found) == 1 else ["text"])
    for _, sentences in read_rows(str(path), wanted, choose="use --columns"):
        yield from sentences


def _numbered_columns(path: Path, columns: list[str] | None) -> Iterator[str]:
    if not columns or not all(column.isdecimal() and int(column) for column in columns):
        raise InputError("--no_header needs --columns with column numbers starting at 1, e.g. --columns 2")
    if ".csv" in path.suffixes:
        raise InputError(f"{path}: --no_header splits lines at tabs; add a header line to the csv, or save it as tsv")
    check_text_file(path)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as lines:
        for number, line in enumerate(lines, start=1):
            row = line.rstrip("\r\n").split("\t")
            for column in map(int, columns):
                if column > len(row):
                    raise InputError(
                        f"{path}, line {number}: {len(row)} columns, but --columns asks for column {column}"
                    )
                yield row[column - 1]


if __name__ == "__main__":
    run_main(main)
