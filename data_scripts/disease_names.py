"""Sample names of diseases from the dictionary of an entity linking set in the data folder: a corpus of names without a licence.

    python data_scripts/disease_names.py --data_dir data --output_file data/made/disease_names_10k.txt

The names are those of `biomed/ncbi-disease/dictionary.tsv`, in lower case as the task compares them. Names that are mentions in
the test queries of the two disease sets are left out, so that a training sees no query. A .json file next to the output
records how it was made.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.corpus_files import write_corpus
from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, run_main
from mirror.evaluation.linking import read_table
from mirror.evaluation.task import DataFile


DICTIONARY = DataFile("biomed/ncbi-disease/dictionary.tsv", ("cui", "name"))
QUERIES = tuple(
    DataFile(f"biomed/{name}/test_queries.tsv", ("mention", "cui")) for name in ("ncbi-disease", "bc5cdr-disease")
)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--data_dir", required=True, help="data folder with biomed/ncbi-disease/ and biomed/bc5cdr-disease/"
    )
    parser.add_argument("--count", type=positive, default=10_000, help="names to sample (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")
    parser.add_argument("--output_file", required=True, help="text file to write")
    args = parser.parse_args()
    data_dir = Path(args.data_dir)
    names = dict.fromkeys(name for name, _ in read_table(DICTIONARY, data_dir, "name"))
    queries = {
        part for file in QUERIES for mention, _ in read_table(file, data_dir, "mention") for part in mention.split("|")
    }
    kept = [name for name in names if name not in queries]
    if len(kept) < args.count:
        raise InputError(f"{DICTIONARY.path}: {len(kept):,} names that are no query, fewer than --count {args.count}")
    sample = random.Random(args.seed).sample(kept, args.count)
    facts = {"names": len(names), "left_out_queries": len(names) - len(kept)}
    write_corpus(args.output_file, sample, "disease_names.py", {"count": args.count, "seed": args.seed}, facts)


if __name__ == "__main__":
    run_main(main)
