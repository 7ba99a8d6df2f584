"""Random strings of letters and digits: a corpus without any meaning, to see what training does without it.

    python data_scripts/random_strings.py --length_like data/en_words_top_10k.txt --output_file data/random.txt
    python data_scripts/random_strings.py --count 10000 --min_length 3 --max_length 12 --output_file data/random.txt

Every character is drawn alike from a-z, A-Z and 0-9. Lengths are those of the texts of --length_like, one for one and in
their order, blanks counted too; or drawn alike from a range. Beside the file a .json says how it was made. Short strings
come up more than once; run_mirror.py drops the repeated ones.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

import numpy as np


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.corpus_files import write_corpus
from mirror.data import check_text_file
from mirror.errors import InputError, run_main
from mirror.flags import Parser, positive


ALPHABET = string.ascii_letters + string.digits


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--output_file", required=True, help="text file to write")
    parser.add_argument("--length_like", help="text file, one text a line, whose lengths are taken over")
    parser.add_argument("--count", type=positive, help="strings (default: 10000, or as many as --length_like has)")
    parser.add_argument("--min_length", type=positive, default=3, help="characters of the shortest (default: 3)")
    parser.add_argument("--max_length", type=positive, default=12, help="characters of the longest (default: 12)")
    parser.add_argument("--seed", type=int, default=0, help="of all draws (default: 0)")
    args = parser.parse_args()
    if args.seed < 0:
        raise InputError(f"--seed must be 0 or more, got {args.seed}")
    if args.min_length > args.max_length:
        raise InputError(f"--min_length {args.min_length} is more than --max_length {args.max_length}")
    rng = np.random.default_rng(args.seed)
    if args.length_like:
        lengths = lengths_of(args.length_like, args.count)
    else:
        lengths = rng.integers(args.min_length, args.max_length + 1, size=args.count or 10_000)
    settings = vars(args) | {"length_like": args.length_like and Path(args.length_like).name, "alphabet": ALPHABET}
    del settings["output_file"]
    write_corpus(args.output_file, random_strings(lengths, rng), "random_strings.py", settings)


def random_strings(lengths: np.ndarray, rng: np.random.Generator) -> list[str]:
    """One string of each of the (N,) lengths."""
    letters = np.array(list(ALPHABET))
    return ["".join(letters[rng.integers(len(letters), size=length)]) for length in lengths]


def lengths_of(path: str, count: int | None) -> np.ndarray:
    """Characters of each text of a file that is not blank, of the first `count` ones.

    Raises:
        InputError: no such file, not text, or fewer texts than `count`.
    """
    check_text_file(Path(path))
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    lengths = [len(line.strip()) for line in lines if line.strip()]
    if count and len(lengths) < count:
        raise InputError(f"--length_like {path}: {len(lengths):,} texts, fewer than --count {count}")
    return np.array(lengths[:count])


if __name__ == "__main__":
    run_main(main)
