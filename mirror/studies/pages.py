"""Reports: table.md of a study run, and pages that show what one or more base models make of a study.

    python run_study.py table3 --model_name_or_path mirror/assets/mini-mlm --output_dir out/mini-mlm/table3
    python run_study.py table3 --model_name_or_path bert-base-uncased --output_dir out/bert/table3
    python -m mirror.studies.pages out/*/table3 --output_dir docs/studies

Writes a page and a figure of each study, and keeps the scores of each base model in `O/results/BASE.json`. A page shows the base models
of the folders and those that earlier runs kept. Without folders, all pages are written anew from what is kept. If `--output_dir` has
a README.md, the overview goes between its lines `<!-- verdicts -->` and `<!-- end of verdicts -->`. The text of a page below the heading
"Remarks" stays, and each page repeats `O/results/BASE.md`, which describes the base model.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirror.common.cli import Parser
from mirror.common.errors import InputError, run_main
from mirror.common.files import atomic_write_text, make_output_folder
from mirror.studies import scores
from mirror.studies.cell import RESULT
from mirror.studies.figures import draw
from mirror.studies.scores import Base
from mirror.studies.study import STUDIES, Study, find_study


FACTS = "study.json"  # in an output folder: what a page needs besides the cells
KEPT = "results"  # folder of the scores that the pages keep
REMARKS = "## Remarks\n"
BEGIN, END = "<!-- verdicts -->\n", "<!-- end of verdicts -->\n"


# ---- Report of one base model ----------------------------------------------------------------------------------------


def format_report(base: Base) -> str:
    """Format the scores of finished cells, and the paper's conclusions with a verdict."""
    differences = scores.format_differences(base.study, {"here, 95% interval over seeds": base})
    judgements = [judgement for _, judgement in base.judged.values()]
    return format_scores(base) + (f"\n{differences}\nVerdict: {scores.verdict(judgements)}.\n" if judgements else "")


def format_scores(base: Base) -> str:
    """Format the scores of finished cells as one or more Markdown tables."""
    if base.study.figure == "own_text":
        return scores.format_runs(base.study, base.records)
    return scores.format_table(base.study, base.scores, base.facts["published"])


# ---- Scores that the pages keep --------------------------------------------------------------------------------------


def read_folder(folder: Path) -> Base:
    """Read the finished cells in an output folder of run_study.py, in the order of the study's table.

    Raises:
        InputError: the folder has no study.json.
    """
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder}: no {FACTS}; run_study.py writes it as soon as a cell is finished") from error
    study = find_study(facts["study"])
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"*/{RESULT}"))]
    records = [each for each in records if each["row"] in study.rows]
    return Base(study, sorted(records, key=lambda each: study.rows.index(each["row"])), facts)


# ---- Pages -----------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help="output folders of run_study.py, of one or more studies "
                        "and base models (default: none, all kept scores)")  # fmt: skip
    parser.add_argument("--output_dir", required=True, metavar="O", help="folder of the pages")
    args = parser.parse_args(sys.argv[1:])
    pages = Path(args.output_dir)
    kept: dict[str, dict[str, Base]] = {}  # name of a base model -> study -> results
    for path in sorted((pages / KEPT).glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        kept[path.stem] = {study: Base(find_study(study), **entry) for study, entry in content.items()}
    found: dict[tuple[str, str], str] = {}  # study and base model -> folder
    for folder in args.folders:
        base = read_folder(Path(folder))
        study = base.facts["study"]
        if other := found.get((study, base.name)):
            raise InputError(f"{folder}: {study} with {base.name} is in {other} already")
        found[study, base.name] = folder
        kept.setdefault(base.name, {})[study] = base
    if not kept:
        raise InputError(f"{args.output_dir} has no {KEPT}/ to make pages from; name output folders of run_study.py")
    readme = pages / "README.md"
    if readme.exists():
        before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (begin and end):
            lines = f"{BEGIN.strip()} and {END.strip()}"
            raise InputError(f"{readme}: no lines {lines}, between which the overview is written")
    make_output_folder(args.output_dir)
    for name, studies in kept.items():
        entries = []
        for study in [study for study in STUDIES if study in studies]:
            # A line for each cell, so that a new one is a new line.
            facts = json.dumps(studies[study].facts, indent=1, ensure_ascii=False)
            lines = (json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in studies[study].records)
            entries.append(f'"{study}": {{"facts": {facts},\n"records": [\n' + ",\n".join(lines) + "\n]}")
        atomic_write_text(pages / KEPT / f"{name}.json", "{\n" + ",\n".join(entries) + "\n}\n")
    changed = {study for study, _ in found} or STUDIES
    for name in [name for name in STUDIES if name in changed]:
        if bases := [kept[base][name] for base in sorted(kept) if name in kept[base]]:
            page, path = format_page(find_study(name), bases, pages), pages / f"{name}.md"
            draw(bases, pages / f"{name}.svg")
            _, heading, remarks = (path.read_text(encoding="utf-8") if path.exists() else "").partition(REMARKS)
            atomic_write_text(path, page + (f"\n{heading}{remarks}" if heading else ""))
    if readme.exists():
        atomic_write_text(readme, f"{before}{BEGIN}\n{format_overview(pages)}\n{END}{after}")


def format_page(study: Study, bases: Sequence[Base], pages: Path) -> str:
    """Format a page: the paper's conclusion, ours, the verdict, each difference, the figure, and each base model's table."""
    parts = [f"# {study.title}\n", *([f"**The paper.** {study.paper}\n"] if study.paper else [])]
    if study.claims:
        judgements = [judgement for base in bases for _, judgement in base.judged.values()]
        notes = {line.removeprefix("- ") for base in bases for line in base.facts["notes"].splitlines()}
        reasons = " ".join(sorted(note for note in notes if note.startswith("Left out of"))) or "no scores"
        sentences = []
        for base in bases:  # its first difference, and how many differences are shown
            judged = [judgement for _, judgement in base.judged.values()]
            kinds = {scores.AGREES: "as in the paper", scores.NOT_SHOWN: "not shown"}
            kinds[scores.DISAGREES] = "the other way round"
            found = [f"{judged.count(kind)} {words}" for kind, words in kinds.items() if kind in judged]
            all_of_them = f"; of {len(judged)} differences {', '.join(found)}" if len(judged) > 1 else ""
            for claim, (gain, _) in list(base.judged.items())[:1]:
                sentences.append(f"{base.name}: {claim} by {scores.format_difference(gain)}{all_of_them}.")
        here = " ".join(sentences) or "No two rows that the paper compares have scores."
        parts.append(f"**Here.** {here}\n")
        parts.append(f"**Verdict.** {scores.verdict(judgements) if judgements else f'not testable here: {reasons}'}\n")
        table = scores.format_differences(study, {base.name: base for base in bases})
        parts.append(f"{table}\n95% intervals over seeds.\n" if table else "")
    else:
        parts.append("**Verdict.** not in the paper\n")
    parts.append(f"![{study.title}]({study.name}.svg)\n")
    for base in bases:
        described = pages / KEPT / f"{base.name}.md"
        description = [described.read_text(encoding="utf-8").strip() + "\n"] if described.exists() else []
        parts += [f"## {base.name}\n", *description, f"    {base.facts['command']}\n"]
        rows = {record["row"] for record in base.records}
        done = replace(study, cells=tuple(cell for cell in study.cells if cell.row in rows))
        parts += [format_scores(replace(base, study=done)), base.facts["notes"]]
    return "\n".join(parts)


def format_overview(folder: Path) -> str:
    """Format a Markdown table of the pages in a folder, in the order of `--list`, and how many have each verdict."""
    lines, kinds = [["", "the paper", "verdict"], ["---"] * 3], Counter()
    for name in [name for name in STUDIES if (folder / f"{name}.md").exists()]:
        text = (folder / f"{name}.md").read_text(encoding="utf-8")
        # The paragraphs that begin with `**The paper.**` and `**Verdict.**`, each in one line.
        paragraphs = dict(re.findall(r"\*\*(The paper|Verdict)\.\*\*(.*?)(?:\n\n|\Z)", text, re.DOTALL)[::-1])
        paper, verdict_of_page = (" ".join(paragraphs.get(key, "").split()) for key in ("The paper", "Verdict"))
        kinds[re.split(r"[:(]", verdict_of_page)[0].strip()] += 1
        lines.append([f"[{name}]({name}.md)", paper, verdict_of_page])
    counts = ", ".join(f"{kind} {number}" for kind, number in sorted(kinds.items()))
    return f"{kinds.total()} pages: {counts}.\n\n{scores.markdown(lines)}"


if __name__ == "__main__":
    run_main(main)
