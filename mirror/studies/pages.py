"""Pages of studies: what the paper concludes beside what one or more base models show, and an overview of the verdicts.

    python run_study.py table3 --model_name_or_path mirror/assets/mini-mlm --output_dir out/mini-mlm/table3
    python run_study.py table3 --model_name_or_path bert-base-uncased --output_dir out/bert/table3
    python -m mirror.studies.pages out/*/table3 --output_dir docs/studies

Writes a page of each study with a figure for each base model, and keeps the scores in `O/results/`: a page has the base models
of the folders and those that earlier runs kept there. Without folders all pages are written anew from what is kept. Where
`--output_dir` has a README.md, the overview goes between its lines `<!-- verdicts -->` and `<!-- end of verdicts -->`. What a
page says after the heading "Remarks" stays, and each page says of a base model what `O/results/BASE.md` says.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirror.common.atomic_files import atomic_write_text, make_output_folder
from mirror.common.cli import Parser
from mirror.common.errors import InputError, run_main
from mirror.studies.bases import KEPT, Base, keep, with_kept
from mirror.studies.catalogue import STUDIES
from mirror.studies.cells import Study
from mirror.studies.claims import (
    AGREES,
    DISAGREES,
    NOT_SHOWN,
    count,
    format_difference,
    judged_claims,
    printed_difference,
    verdict,
)
from mirror.studies.figures import draw
from mirror.studies.report import format_scores
from mirror.studies.table import shown_columns


REMARKS = "## Remarks\n"
FIGURES = (".png", ".svg")
BEGIN, END = "<!-- verdicts -->\n", "<!-- end of verdicts -->\n"
NOT_TESTABLE, NOT_IN_PAPER = "not testable here", "not in the paper"


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    by_study = with_kept([Path(folder) for folder in args.folders], Path(args.output_dir))
    if not by_study:
        raise InputError(f"{args.output_dir} has no {KEPT}/ to make pages from; name output folders of run_study.py")
    readme = Path(args.output_dir) / "README.md"
    if readme.exists():
        split_readme(readme)
    output_dir = make_output_folder(args.output_dir)
    for bases in by_study.values():
        for base in bases:
            keep(base, output_dir)
            for suffix in FIGURES:
                path = output_dir / f"{base.file_stem}{suffix}"
                draw(base.study, base.scores, base.records, base.facts["published"], path)
        study = bases[0].study
        path = output_dir / f"{study.name}.md"
        atomic_write_text(path, format_page(study, bases, output_dir) + remarks_of(path))
    if readme.exists():
        before, after = split_readme(readme)
        atomic_write_text(readme, f"{before}\n{format_overview(output_dir)}\n{after}")


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = Parser(__doc__)
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="FOLDER",
        help="output folders of run_study.py, of one or more studies and models (default: none, all kept scores)",
    )
    parser.add_argument("--output_dir", required=True, metavar="O", help="folder of the pages")
    return parser.parse_args(argv)


def format_page(study: Study, bases: Sequence[Base], pages: Path) -> str:
    """Format a page: the paper's conclusion, ours, the verdict, each difference, and each base model's table.

    Args:
        pages: the folder of the pages, with what they say of each base model.
    """
    parts = [f"# {study.title}\n"]
    if study.paper:
        parts.append(f"**The paper.** {study.paper}\n")
    if study.claims:
        parts += [f"**Here.** {summary(study, bases)}\n", f"**Verdict.** {format_verdict(study, bases)}\n"]
        parts.append(format_differences(study, bases))
    else:
        parts.append(f"**Verdict.** {NOT_IN_PAPER}\n")
    for base in bases:
        figure = f"![{study.title}, {base.name}]({base.file_stem}.png)\n"
        parts += [f"## {base.name}\n", *described(base, pages), f"    {base.facts['command']}\n", figure]
        rows = {record["row"] for record in base.records}
        done = replace(study, cells=tuple(cell for cell in study.cells if cell.row in rows))
        parts += [format_scores(done, base.records, base.scores, base.facts["published"]), base.facts["notes"]]
    return "\n".join(parts)


def described(base: Base, pages: Path) -> list[str]:
    """Return what `O/results/BASE.md` says of a base model, if there is such a file."""
    path = pages / KEPT / f"{base.name}.md"
    return [path.read_text(encoding="utf-8").strip() + "\n"] if path.exists() else []


def summary(study: Study, bases: Sequence[Base]) -> str:
    """Return for each base model its first difference with the interval, and how many differences are shown."""
    sentences = []
    for base in bases:
        judged = judged_claims(study, base.scores)
        for claim, (gain, _) in list(judged.items())[:1]:
            judgements = [judgement for _, judgement in judged.values()]
            kinds = [(AGREES, "as in the paper"), (NOT_SHOWN, "not shown"), (DISAGREES, "the other way round")]
            found = [f"{judgements.count(kind)} {words}" for kind, words in kinds if kind in judgements]
            all_of_them = f"; of {len(judged)} differences {', '.join(found)}" if len(judged) > 1 else ""
            sentences.append(f"{base.name}: {claim} by {format_difference(gain)}{all_of_them}.")
    return " ".join(sentences) or "No two rows that the paper compares have scores."


def format_verdict(study: Study, bases: Sequence[Base]) -> str:
    """Return the verdict over all base models: agrees, agrees in part, does not agree, or not testable here."""
    judgements = [judgement for base in bases for _, judgement in judged_claims(study, base.scores).values()]
    if not judgements:
        notes = {line.removeprefix("- ") for base in bases for line in base.facts["notes"].splitlines()}
        lacking = sorted(note for note in notes if note.startswith("Left out of"))
        return f"{NOT_TESTABLE}: {' '.join(lacking) or 'no scores'}"
    return f"{verdict(judgements)} ({count(judgements)})"


def format_differences(study: Study, bases: Sequence[Base]) -> str:
    """Format a Markdown table with a line for each of the paper's conclusions and two columns for each base model."""
    judged = [judged_claims(study, base.scores) for base in bases]
    header = "| difference | in the paper | " + " | ".join(f"{base.name} | " for base in bases) + " |"
    lines = [header, "| --- | ---: |" + " ---: | --- |" * len(bases)]
    for claim in study.claims:
        if not any(claim in of_base for of_base in judged):
            continue
        printed = [
            printed_difference(study, claim, shown_columns(study, base.scores), base.facts["published"])
            for base in bases
        ]
        theirs = next((f"{value:+.4f}" for value in printed if value is not None), "")
        cells = []
        for of_base in judged:
            gain, judgement = of_base.get(claim, (None, ""))
            cells += [format_difference(gain) if gain else "", judgement]
        lines.append(f"| {claim} | {theirs} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", "95% intervals over seeds.", ""]) if len(lines) > 2 else ""


def remarks_of(path: Path) -> str:
    """Return what an existing page says under "Remarks", with the heading."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return "\n" + text[text.index(REMARKS) :] if REMARKS in text else ""


def split_readme(path: Path) -> tuple[str, str]:
    """Return what README.md says before and after the overview of the pages.

    Raises:
        InputError: README.md has no place for the overview.
    """
    text = path.read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        raise InputError(f"{path}: no lines {BEGIN.strip()} and {END.strip()}, between which the overview is written")
    return text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]


def format_overview(folder: Path) -> str:
    """Format a Markdown table of the pages in a folder, in the catalogue's order, and how many have each verdict."""
    lines, verdicts = ["| | the paper | verdict |", "| --- | --- | --- |"], []
    for name in STUDIES:
        path = folder / f"{name}.md"
        if path.exists():
            text = path.read_text(encoding="utf-8")
            verdicts.append(paragraph(text, "Verdict"))
            lines.append(f"| [{name}]({name}.md) | {paragraph(text, 'The paper')} | {verdicts[-1]} |")
    kinds = Counter(re.split(r"[:(]", text)[0].strip() for text in verdicts)
    counts = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
    return "\n".join([f"{len(verdicts)} pages: {counts}.", "", *lines, ""])


def paragraph(text: str, name: str) -> str:
    """Return the paragraph of a page that begins with `**name.**`, in one line; empty if there is none."""
    found = re.search(rf"\*\*{name}\.\*\*(.*?)(?:\n\n|\Z)", text, re.DOTALL)
    return " ".join(found.group(1).split()) if found else ""


if __name__ == "__main__":
    run_main(main)
