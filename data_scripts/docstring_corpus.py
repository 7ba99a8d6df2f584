"""Collect the docstrings of the Python packages installed on this machine: real text, no download.

    python data_scripts/docstring_corpus.py --output_dir data/docs
    python data_scripts/docstring_corpus.py --output_dir data/docs --packages stdlib numpy my_own_package

Writes `train.txt` (names and summaries of five functions in eight, one text a line, unpaired: what run_mirror.py trains on
by default) and `search.tsv` (query and target of one quarter: the task docs_search). The rest is docs_search_dev's.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.docstrings import DEFAULT_PACKAGES, collect, search_pairs, training_texts
from mirror.errors import InputError, run_main
from mirror.files import write_whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", required=True, help="folder for the two files")
    parser.add_argument("--packages", nargs="+", default=DEFAULT_PACKAGES, help="importable packages, or 'stdlib'")
    parser.add_argument("--num_proc", type=int, help="processes to parse with (default: one for each core)")
    args = parser.parse_args()

    entries = collect(args.packages, args.num_proc)
    if not entries:
        raise InputError(f"no docstrings found in {' '.join(args.packages)}; are they installed in this environment?")
    texts, pairs = training_texts(entries), search_pairs(entries)
    folder = Path(args.output_dir)
    write_whole(folder / "train.txt", "".join(f"{text}\n" for text in texts))
    write_whole(folder / "search.tsv", "query\ttarget\n" + "".join(f"{name}\t{summary}\n" for name, summary in pairs))
    print(f"{len(entries):,} docstrings: {len(texts):,} training texts, {len(pairs):,} search pairs in {folder}")


if __name__ == "__main__":
    run_main(main)
