"""Collect the docstrings of the installed Python packages, real text without a download.

    python data_scripts/docstring_corpus.py --output_dir data/docs
    python data_scripts/docstring_corpus.py --output_dir data/docs --packages stdlib numpy my_own_package

Writes `train.txt` (function names and docstring summaries of 5/8 of the functions, one text per line, unpaired: the
default corpus of run_mirror.py), `pairs.tsv` (name and summary of the same functions, a pair per row) and `search.tsv` (query and target for 1/4 of the functions: the task docs_search).
The remaining 1/8 is held out for docs_search_dev.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, run_main
from mirror.common.files import atomic_write_text
from mirror.data.docstrings import DEFAULT_PACKAGES, collect, search_pairs, training_texts


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument(
        "--output_dir", required=True, metavar="DIR", help="Path of the folder for train.txt and search.tsv."
    )
    parser.add_argument(
        "--packages",
        nargs="+",
        default=list(DEFAULT_PACKAGES),
        metavar="P",
        help="Names of importable packages, or stdlib.",
    )
    parser.add_argument(
        "--num_proc", type=positive, metavar="N", help="Number of parsing processes. Default: one per core."
    )
    args = parser.parse_args()

    entries = collect(args.packages, args.num_proc)
    if not entries:
        raise InputError(f"no docstrings found in {' '.join(args.packages)}; are they installed in this environment?")
    given = args.packages if args.packages != list(DEFAULT_PACKAGES) else []
    if unknown := [name for name in given if name != "stdlib" and not find_spec(name.partition(".")[0])]:
        print(f"not installed, so left out: {', '.join(unknown)}", file=sys.stderr)
    texts, pairs = training_texts(entries), search_pairs(entries)
    training_pairs = search_pairs(entries, "train")
    folder = Path(args.output_dir)
    atomic_write_text(folder / "train.txt", "".join(f"{text}\n" for text in texts))
    for file, header, rows in (("pairs.tsv", "name\tsummary", training_pairs), ("search.tsv", "query\ttarget", pairs)):
        atomic_write_text(folder / file, f"{header}\n" + "".join(f"{name}\t{summary}\n" for name, summary in rows))
    print(
        f"{len(entries):,} docstrings: {len(texts):,} training texts, {len(training_pairs):,} training pairs, "
        f"{len(pairs):,} search pairs in {folder}"
    )


if __name__ == "__main__":
    run_main(main)
