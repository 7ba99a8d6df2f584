"""Sample concept names from the UMLS Metathesaurus.

    python data_scripts/umls_names.py --mrconso META/MRCONSO.RRF --output_file data/umls_10k.txt
    python data_scripts/umls_names.py --mrconso META/MRCONSO.RRF.gz --language SPA --output_file data/umls_es_10k.txt

MRCONSO.RRF is available with a UMLS license from https://www.nlm.nih.gov/research/umls. Rows in other languages and
rows marked as suppressed or obsolete (SUPPRESS other than N) are dropped, as are names that differ from an earlier one
only in case or white space, because the two would be false negatives in a batch. The sample is uniform over the
remaining names; it may contain several names of one concept. A .json file next to the output records how it was made.
The names are subject to the UMLS license.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from collections import Counter
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data_scripts.corpus_files import add_sampling, draw_sample, write_corpus
from mirror.common.cli import Parser
from mirror.common.errors import InputError, one_line, run_main


# UMLS Reference Manual, MRCONSO: CUI LAT TS LUI STT SUI ISPREF AUI SAUI SCUI SDUI SAB TTY CODE STR SRL SUPPRESS CVF,
# each followed by a vertical bar.
FIELDS = 18
LANGUAGE, NAME, SUPPRESS = 1, 14, 16


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("--mrconso", required=True, metavar="F", help="Path to MRCONSO.RRF or MRCONSO.RRF.gz.")
    parser.add_argument("--language", default="ENG", metavar="L", help="UMLS language code of three letters.")
    add_sampling(parser, "names")
    args = parser.parse_args()
    names, facts = read_names(Path(args.mrconso), args.language)
    sample = draw_sample(args, names, f"names of {args.language}", args.mrconso)
    settings = vars(args) | {"mrconso": Path(args.mrconso).name}
    del settings["output_file"]
    write_corpus(args.output_file, sample, "umls_names.py", settings, facts)


def read_names(path: Path, language: str) -> tuple[list[str], dict[str, int]]:
    """Return the distinct names of a language in file order, and the number of dropped rows by reason.

    Raises:
        InputError: the file is missing, or a line is not in the format of MRCONSO.RRF. Names the line.
    """
    names: dict[str, str] = {}
    counts = Counter(rows=0, other_language=0, suppressed=0, blank=0, repeated=0)
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                counts["rows"] += 1
                reason = _add_name(line, f"{path}, line {number}", language, names)
                counts.update([reason] if reason else [])
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InputError(f"--mrconso {path}: {one_line(error)}") from error
    return list(names.values()), dict(counts)


def _add_name(line: str, where: str, language: str, names: dict[str, str]) -> str | None:
    """Add the name of a row to `names`, or return the reason why it is dropped."""
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
