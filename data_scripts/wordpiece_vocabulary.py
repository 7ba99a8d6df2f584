"""Build a WordPiece vocabulary of many languages, as for CMLM's multilingual models (Yang et al. 2021, section 4.4).

    python data_scripts/wordpiece_vocabulary.py --text_file documents/*.parquet --output_dir out/multilingual-vocabulary
    python data_scripts/wordpiece_vocabulary.py --text_file en.txt fi.txt --vocab_size 30000 --output_dir out/small-vocabulary

Each file is one language. Its words count (share of all words) ** smoothing instead of their share, so that small languages get
pieces too. 0.3 and 501,153 pieces are the paper's. Writes a folder for `run_cmlm.py --from_scratch`: a cased tokenizer and the
configuration of BERT base with as many embeddings. The file vocabulary.json records how it was made.

The paper used the generator of TensorFlow Text. This one counts and smooths words in the same way, but the pieces are chosen by
the library tokenizers, which merges pairs from single characters up, where the generator cuts words from the whole down.
Words are counted in memory and each is given to the trainer as often as it counts: give a sample of a few gigabytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import BertConfig, BertTokenizerFast

from mirror.cmlm.reading import read_documents
from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, run_main
from mirror.common.files import atomic_write_text, make_output_folder
from mirror.data.files import expand_paths
from mirror.data.source import CorpusSource


PAPER_SIZE, PAPER_SMOOTHING = 501_153, 0.3
SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MIN_COUNT, MAX_WORD_LENGTH = 2, 50  # the defaults of TensorFlow Text's generator
WORDS_AT_ONCE = 10_000


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add(
        "--text_file",
        nargs="+",
        required=True,
        metavar="F",
        help="Paths or globs, one file per language: txt, csv, tsv, json, jsonl or parquet, each also as .gz.",
    )
    add("--text_column", metavar="C", help="Name of the text column of tables.")
    add(
        "--vocab_size",
        type=positive,
        default=PAPER_SIZE,
        metavar="N",
        help="Number of pieces, special tokens included.",
    )
    add("--smoothing", type=float, default=PAPER_SMOOTHING, metavar="S",
        help="Exponent of a language's share, from 0 (all equal) to 1 (as they are).")  # fmt: skip
    add("--output_dir", required=True, metavar="O", help="Path of the folder to write.")
    args = parser.parse_args()
    if not 0 <= args.smoothing <= 1:
        raise InputError(f"--smoothing is an exponent in [0, 1], got {args.smoothing}; the paper uses 0.3")

    check_is_empty(args.output_dir)
    paths = list(dict.fromkeys(expand_paths(args.text_file)))
    names = [path.name for path in paths]
    if repeated := [str(path) for path in paths if names.count(path.name) > 1]:
        raise InputError(f"--text_file: {' and '.join(repeated)} have the same name; name each after its language")

    counts = {path.name: count_words(path, args.text_column) for path in paths}
    pieces = learn_pieces(smoothed(counts, args.smoothing), args.vocab_size)
    settings = {"vocab_size": args.vocab_size, "smoothing": args.smoothing}
    write_folder(args.output_dir, pieces, settings, {name: words.total() for name, words in counts.items()})


def count_words(path: Path, column: str | None = None) -> Counter[str]:
    """Count the words of a file, split at white space, punctuation and Chinese characters as BERT does.

    Raises:
        InputError: the file cannot be read, or no word occurs twice.
    """
    source = CorpusSource(train_file=(str(path),), text_column=column, streaming=True)
    (rows,) = read_documents(source, line_is_document=True)
    normalize, split = _normalizer().normalize_str, pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words = Counter(word for row in rows for word, _ in split(normalize(row["text"])))
    kept = Counter({word: n for word, n in words.items() if n >= MIN_COUNT and len(word) <= MAX_WORD_LENGTH})
    if not kept:
        raise InputError(f"{path}: no word occurs {MIN_COUNT} times; give more text of this language")
    return kept


def smoothed(counts: Mapping[str, Counter[str]], exponent: float) -> Counter[str]:
    """Add up the word counts of languages, each weighted so that its share of all words is share ** exponent.

    The shares are normalized, and the total is about that of `counts`; no word is lost.
    """
    totals = {language: words.total() for language, words in counts.items()}
    powers = {language: (total / sum(totals.values())) ** exponent for language, total in totals.items()}
    added: Counter[str] = Counter()
    for language, words in counts.items():
        weight = powers[language] / sum(powers.values()) * sum(totals.values()) / totals[language]
        added.update({word: max(1, round(weight * count)) for word, count in words.items()})
    return added


def learn_pieces(words: Counter[str], vocab_size: int) -> dict[str, int]:
    """Learn a vocabulary of exactly `vocab_size` pieces from word counts, and return the id of each piece.

    Raises:
        InputError: the words do not give as many pieces, or there are more characters than pieces.
    """
    characters = len(set("".join(words)))
    if 2 * characters + len(SPECIAL_TOKENS) > vocab_size:
        raise InputError(
            f"--vocab_size {vocab_size}: the texts have {characters:,} characters, each with two pieces; give a higher number"
        )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=1,  # rare words are gone already
        special_tokens=SPECIAL_TOKENS,
        limit_alphabet=characters,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_occurrences(words), trainer)
    pieces = tokenizer.get_vocab()
    if len(pieces) < vocab_size:
        raise InputError(
            f"the texts give only {len(pieces):,} pieces, --vocab_size is {vocab_size:,}; give more text or a lower number"
        )
    return pieces


def check_is_empty(output_dir: str) -> None:
    """Raise an `InputError` if the folder exists and is not empty."""
    if Path(output_dir).is_dir() and any(Path(output_dir).iterdir()):
        raise InputError(f"--output_dir {output_dir} is not empty; choose another folder")


def write_folder(output_dir: str, pieces: dict[str, int], settings: dict, words: dict[str, int]) -> None:
    """Write tokenizer, configuration and record, or nothing.

    Raises:
        InputError: the folder exists and is not empty, or cannot be written.
    """
    folder = make_output_folder(output_dir)
    check_is_empty(output_dir)
    ordered = sorted(pieces, key=pieces.__getitem__)
    record = {
        "made_by": Path(__file__).name,
        "settings": settings,
        "words": words,
        "sha256": hashlib.sha256("\n".join(ordered).encode()).hexdigest(),
        "tokenizers": version("tokenizers"),
    }
    try:
        BertTokenizerFast(vocab=pieces, do_lower_case=False, strip_accents=False).save_pretrained(folder)
        atomic_write_text(folder / "vocabulary.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        BertConfig(vocab_size=len(pieces)).save_pretrained(folder)  # last: without it no model is found in the folder
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise InputError(f"--output_dir {output_dir}: {error.strerror}") from error
    print(f"{output_dir}: {len(pieces):,} pieces from {sum(words.values()):,} words of {len(words)} files")


def _normalizer() -> normalizers.Normalizer:
    return normalizers.BertNormalizer(strip_accents=False, lowercase=False)


def _occurrences(words: Counter[str]) -> Iterator[str]:
    """Yield texts in which each word occurs as often as it counts: the trainer takes no counts."""
    for word, count in words.items():
        for start in range(0, count, WORDS_AT_ONCE):
            yield " ".join([word] * min(WORDS_AT_ONCE, count - start))


if __name__ == "__main__":
    run_main(main)
