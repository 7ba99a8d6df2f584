"""Make a catalog of products with queries of Debian's package descriptions: real text to try the commands for own queries on.

    curl -O http://deb.debian.org/debian/dists/bookworm/main/i18n/Translation-en.xz
    python data_scripts/package_catalog.py --translation_file Translation-en.xz --output_dir data/catalog

Writes `products.csv` (sku, title, description, price) of 3,000 programs, with commas, quotes, line breaks and some empty titles,
and the folder `queries` in BEIR's layout: the synopses of 50 programs are queries, and the description of each is the answer.
A synopsis is not in products.csv, so a search has to find the description by its meaning.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import random
import re
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, library_errors, run_main
from mirror.common.files import atomic_write_text


# Packages that are no programs, or whose description is that of another package.
LEFT_OUT = re.compile(
    r"^(lib|golang|node-|ruby-|r-|ghc|haskell|elpa|task-|hunspell|aspell|fonts|linux-|rust)|i18n|l10n|-lang-|"
    r"-(dev|dbg|dbgsym|doc|data|common|all|locales?)$"
)
ENTRY = re.compile(r"^Package: (.+)(?:\n.*)*?\nDescription-en: (.*)((?:\n .*)*)")


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--translation_file", required=True, metavar="FILE", help="Path to Translation-en.xz of a Debian release.")
    add("--output_dir", required=True, metavar="DIR", help="Path to the folder for the catalog and the queries.")
    add("--products", type=positive, default=3000, metavar="N", help="Number of products.")
    add("--queries", type=positive, default=50, metavar="N", help="Number of queries.")
    args = parser.parse_args()

    with library_errors(args.translation_file), lzma.open(args.translation_file, "rt", encoding="utf-8") as file:
        entries = [ENTRY.search(entry) for entry in file.read().split("\n\n")]
    found = {match[2]: (match[1], match[3]) for match in entries if match and not LEFT_OUT.search(match[1])}
    rng = random.Random(1)
    products = sorted((name, synopsis, paragraphs(lines)) for synopsis, (name, lines) in found.items())
    products = [product for product in products if product[2]]
    if len(products) < args.products:
        raise InputError(f"{args.translation_file}: {len(products):,} programs, {args.products:,} are asked for")
    products = rng.sample(products, args.products)

    folder, table = Path(args.output_dir), io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(("sku", "title", "description", "price"))
    for name, _, description in products:
        writer.writerow((name, name if rng.random() < 0.9 else "", description, f"{100 * rng.random():.2f}"))
    asked = [(name, synopsis) for name, synopsis, _ in products if len(synopsis.split()) >= 4][: args.queries]
    corpus = [{"_id": name, "title": "", "text": text} for name, _, text in products]
    queries = [{"_id": f"q{at}", "text": synopsis} for at, (_, synopsis) in enumerate(asked)]
    judged = "".join(f"q{at}\t{name}\t1\n" for at, (name, _) in enumerate(asked))
    atomic_write_text(folder / "products.csv", table.getvalue())
    for name, rows in (("corpus", corpus), ("queries", queries)):
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        atomic_write_text(folder / "queries" / f"{name}.jsonl", lines)
    atomic_write_text(folder / "queries" / "qrels" / "test.tsv", f"query-id\tcorpus-id\tscore\n{judged}")
    print(f"{len(products):,} products and {len(queries)} queries in {folder}")


def paragraphs(lines: str) -> str:
    """Return a description, whose lines begin with a space and whose empty lines are a dot, with a line per paragraph."""
    blocks = "\n".join(line[1:].strip() for line in lines.strip("\n").split("\n")).split("\n.\n")
    return "\n".join(" ".join(block.split()) for block in blocks if block.strip()).strip()


if __name__ == "__main__":
    run_main(main)
