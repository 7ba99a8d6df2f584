"""Sample names of diseases from the dictionary of an entity linking set in the data folder: names without a license.

    python data_scripts/disease_names.py --data_dir data --output_file data/made/disease_names_10k.txt

The names are those of `biomed/ncbi-disease/dictionary.tsv`, in lower case as the task compares them. Names that are mentions in
the test queries of the two disease sets are left out, so that no query is trained on. A .json file next to the output records
how it was made.
"""

from __future__ import annotations

import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.corpus_files import add_sampling, draw_sample, write_corpus
from mirror.common.cli import Parser
from mirror.common.errors import run_main
from mirror.evaluation.linking import read_table
from mirror.evaluation.task import DataFile


DICTIONARY = DataFile("biomed/ncbi-disease/dictionary.tsv", ("cui", "name"))
QUERIES = tuple(
    DataFile(f"biomed/{name}/test_queries.tsv", ("mention", "cui")) for name in ("ncbi-disease", "bc5cdr-disease")
)


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--data_dir",
        required=True,
        help="Path to the data folder, with biomed/ncbi-disease/ and biomed/bc5cdr-disease/.",
    )
    add_sampling(parser, "names")
    args = parser.parse_args()
    data_dir = Path(args.data_dir)
    names = dict.fromkeys(name for name, _ in read_table(DICTIONARY, data_dir, "name"))
    queries = {
        part for file in QUERIES for mention, _ in read_table(file, data_dir, "mention") for part in mention.split("|")
    }
    kept = [name for name in names if name not in queries]
    sample = draw_sample(args, kept, "names that are no query", DICTIONARY.path)
    facts = {"names": len(names), "left_out_queries": len(names) - len(kept)}
    write_corpus(args.output_file, sample, "disease_names.py", {"count": args.count, "seed": args.seed}, facts)


if __name__ == "__main__":
    run_main(main)
