"""Write the most frequent words of a language, or a later slice of the frequency list, from the library wordfreq.

    python -m pip install -r requirements-corpora.txt
    python data_scripts/frequent_words.py --language en --output_file data/en_words_top_10k.txt
    python data_scripts/frequent_words.py --language en --bucket 3 --output_file data/en_words_20k_30k.txt

Writes one word per line, most frequent first, and a .json file that records how they were made. Bucket k contains the
words with ranks (k - 1) x count + 1 to k x count, for studies of word frequency. The library excludes numbers of two
or more digits.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.corpus_files import write_corpus
from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, did_you_mean, run_main


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--language", required=True, metavar="L", help="Two-letter code: en, fr, ar, zh, ...")
    parser.add_argument("--count", type=positive, default=10_000, metavar="N", help="Number of words per bucket.")
    parser.add_argument(
        "--bucket", type=positive, default=1, metavar="K", help="Number of the bucket. 1 has the most frequent words."
    )
    parser.add_argument("--output_file", required=True, metavar="F", help="Path of the text file to write.")
    args = parser.parse_args()
    words = frequent_words(args.language, args.count, args.bucket)
    settings = {"language": args.language, "count": args.count, "bucket": args.bucket}
    write_corpus(args.output_file, words, "frequent_words.py", settings | {"wordfreq": version("wordfreq")})


def frequent_words(language: str, count: int, bucket: int) -> list[str]:
    """Return the words of one bucket, most frequent first.

    Raises:
        InputError: wordfreq is not installed, does not support the language, or has too few words.
    """
    try:
        import wordfreq
    except ImportError as error:
        raise InputError("wordfreq is not installed; python -m pip install -r requirements-corpora.txt") from error
    known = wordfreq.available_languages()
    if language not in known:
        raise InputError(
            f"--language {language}: not in wordfreq{did_you_mean(language, known)}; available: {' '.join(known)}"
        )
    words = wordfreq.top_n_list(language, count * bucket)
    if len(words) < count * bucket:
        raise InputError(
            f"wordfreq has {len(words):,} words of '{language}', bucket {bucket} ends at {count * bucket:,}; "
            "lower --bucket or --count"
        )
    return words[-count:]


if __name__ == "__main__":
    run_main(main)
