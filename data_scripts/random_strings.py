"""Random strings of letters and digits: a corpus without meaning, as a control for training on real text.

    python data_scripts/random_strings.py --length_like data/en_words_top_10k.txt --output_file data/random.txt
    python data_scripts/random_strings.py --count 10000 --min_length 3 --max_length 12 --output_file data/random.txt

Characters are drawn uniformly from a-z, A-Z and 0-9. The lengths are those of the texts of --length_like, in the same
order and with spaces counted, or drawn uniformly from a range. A .json file next to the output records how it was
made. Short strings may repeat. run_mirror.py drops duplicates.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

import numpy as np


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.corpus_files import write_corpus
from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, run_main
from mirror.data.files import check_text_file


ALPHABET = string.ascii_letters + string.digits


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--output_file", required=True, metavar="F", help="Path of the text file to write.")
    parser.add_argument(
        "--length_like", metavar="F", help="Path of a text file with one text per line, whose lengths are copied."
    )
    parser.add_argument(
        "--count", type=positive, metavar="N", help="Number of strings. Default: 10000, or all texts of --length_like."
    )
    parser.add_argument("--min_length", type=positive, metavar="N", help="Minimum length in characters. Default: 3.")
    parser.add_argument("--max_length", type=positive, metavar="N", help="Maximum length in characters. Default: 12.")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Random seed.")
    args = parser.parse_args()
    if args.seed < 0:
        raise InputError(f"--seed must be 0 or more, got {args.seed}")
    rng = np.random.default_rng(args.seed)
    if args.length_like:
        if args.min_length or args.max_length:
            raise InputError("--length_like has lengths of its own; leave out --min_length and --max_length")
        lengths = lengths_of(args.length_like, args.count)
    else:
        args.min_length, args.max_length = args.min_length or 3, args.max_length or 12
        if args.min_length > args.max_length:
            raise InputError(f"--min_length {args.min_length} is more than --max_length {args.max_length}")
        lengths = rng.integers(args.min_length, args.max_length + 1, size=args.count or 10_000)
    settings = vars(args) | {"length_like": args.length_like and Path(args.length_like).name, "alphabet": ALPHABET}
    del settings["output_file"]
    write_corpus(args.output_file, random_strings(lengths, rng), "random_strings.py", settings)


def random_strings(lengths: np.ndarray, rng: np.random.Generator) -> list[str]:
    """Draw one random string for each length.

    Args:
        lengths: (N,), in characters.
    """
    letters = np.array(list(ALPHABET))
    return ["".join(letters[rng.integers(len(letters), size=length)]) for length in lengths]


def lengths_of(path: str, count: int | None) -> np.ndarray:
    """Return the lengths in characters of the first `count` non-blank lines of a file: (count,).

    Raises:
        InputError: the file is missing, not text, or has fewer texts than `count`.
    """
    check_text_file(Path(path))
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    lengths = [len(line.strip()) for line in lines if line.strip()]
    if count and len(lengths) < count:
        raise InputError(f"--length_like {path}: {len(lengths):,} texts, fewer than --count {count}")
    return np.array(lengths[:count])


if __name__ == "__main__":
    run_main(main)
