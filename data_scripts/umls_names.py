"""Sample names of biomedical concepts from the UMLS Metathesaurus.

    python data_scripts/umls_names.py --mrconso META/MRCONSO.RRF --output_file data/umls_10k.txt
    python data_scripts/umls_names.py --mrconso META/MRCONSO.RRF.gz --language SPA --output_file data/umls_es_10k.txt

MRCONSO.RRF comes with a UMLS licence from https://www.nlm.nih.gov/research/umls. Rows of other languages and rows that
UMLS marks as suppressed or obsolete (SUPPRESS other than N) are left out, and so is a name that differs from an earlier
one in case or blanks only: in a batch the two would be false negatives. Every name left is as likely as any other. Two
names of one concept may both be drawn. Beside the file a .json says how it was made. The names are under the UMLS licence.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections import Counter
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.corpus_files import write_corpus
from mirror.errors import InputError, run_main
from mirror.flags import Parser, positive


# UMLS Reference Manual, MRCONSO: CUI LAT TS LUI STT SUI ISPREF AUI SAUI SCUI SDUI SAB TTY CODE STR SRL SUPPRESS CVF,
# each followed by a bar.
FIELDS = 18
LANGUAGE, NAME, SUPPRESS = 1, 14, 16


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--mrconso", required=True, help="MRCONSO.RRF, also as .gz")
    parser.add_argument("--language", default="ENG", help="three-letter code of UMLS (default: ENG)")
    parser.add_argument("--count", type=positive, default=10_000, help="names to sample (default: 10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    parser.add_argument("--output_file", required=True, help="text file to write")
    args = parser.parse_args()
    names, facts = read_names(Path(args.mrconso), args.language)
    if len(names) < args.count:
        raise InputError(f"{args.mrconso}: {len(names):,} names of {args.language}, fewer than --count {args.count}")
    sample = random.Random(args.seed).sample(names, args.count)
    settings = vars(args) | {"mrconso": Path(args.mrconso).name}
    del settings["output_file"]
    write_corpus(args.output_file, sample, "umls_names.py", settings, facts)


def read_names(path: Path, language: str) -> tuple[list[str], dict[str, int]]:
    """Distinct names of a language in the order of the file, and how many rows were left out for what.

    Raises:
        InputError: no such file, or a line that is not one of MRCONSO; names it.
    """
    names: dict[str, str] = {}
    left_out = Counter(rows=0, other_language=0, suppressed=0, blank=0, repeated=0)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                left_out["rows"] += 1
                reason = _take(line, f"{path}, line {number}", language, names)
                left_out.update([reason] if reason else [])
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(f"--mrconso {path}: {' '.join(str(error).split())}") from error
    return list(names.values()), dict(left_out)


def _take(line: str, where: str, language: str, names: dict[str, str]) -> str | None:
    """Put a row's name among the names; or say why not."""
    fields = line.rstrip("\r\n").split("|")
    if len(fields) != FIELDS + 1:
        raise InputError(f"{where}: {len(fields) - 1} fields, MRCONSO.RRF has {FIELDS}")
    if fields[LANGUAGE] != language:
        return "other_language"
    if fields[SUPPRESS] != "N":
        return "suppressed"
    name = " ".join(fields[NAME].split())
    if not name:
        return "blank"
    if name.casefold() in names:
        return "repeated"
    names[name.casefold()] = name
    return None


if __name__ == "__main__":
    run_main(main)
