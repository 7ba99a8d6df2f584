"""Reports: table.md of a study run, and pages that show what one or more base models make of a study.

    python run_study.py table3 --model_name_or_path mirror/assets/mini-mlm --output_dir out/mini-mlm/table3
    python run_study.py table3 --model_name_or_path bert-base-uncased --output_dir out/bert/table3
    python -m studies.pages out/*/table3 --output_dir docs/studies

Writes a page and a figure of each study, and keeps the scores of each base model in `O/results/BASE.json`. A page shows the base models
of the folders and those that earlier runs kept. Without folders, all pages are written anew from what is kept. If `--output_dir` has
a README.md, the overview goes between its lines `<!-- verdicts -->` and `<!-- end of verdicts -->`. The text of a page below the heading
"Remarks" stays, and each page repeats `O/results/BASE.md`, which describes the base model. The studies that nothing here can test share the page
`untested.md`, which says why.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mirror.common.cli import Parser
from mirror.common.errors import InputError, library_errors, run_main
from mirror.common.files import atomic_write_text, make_output_folder
from studies import conclusions, scores
from studies.cell import RESULT
from studies.conclusions import format_differences, judgements_of, verdict
from studies.figures import draw
from studies.scores import Base
from studies.study import STUDIES, Study, family_of, find_study


FACTS = "study.json"  # in an output folder: what a page needs besides the cells
KEPT = "results"  # folder of the scores that the pages keep
UNTESTED = "untested"  # page of the studies that nothing here can test
REMARKS = "## Remarks\n"
FAMILIES = {"bert": "BERT", "roberta": "RoBERTa"}
PAPERS_MODELS = ("bert-base-uncased", "roberta-base")
BEGIN, END = "<!-- verdicts -->\n", "<!-- end of verdicts -->\n"


# ---- Report of one base model ----------------------------------------------------------------------------------------


def format_report(base: Base) -> str:
    """Format the scores of finished cells, and the paper's conclusions with a verdict."""
    differences = format_differences(base.study, {"here, 95% interval over seeds": base})
    found = verdict(judgements_of(base).values())
    return format_scores(base) + (f"\n{differences}\nVerdict: {found}.\n" if found else "")


def format_scores(base: Base) -> str:
    """Format the scores of finished cells as one or more Markdown tables."""
    if base.study.figure == "own_text":
        return scores.format_runs(base.study, base.records)
    table = scores.format_table(base.study, base.scores, base.facts["published"])
    agreement = scores.format_agreement(base.study, base.records) if base.study.figure == "trade" else ""
    return f"{table}\n{agreement}" if agreement else table


# ---- Scores that the pages keep --------------------------------------------------------------------------------------


def read_folder(folder: Path) -> Base:
    """Read the finished cells in an output folder of run_study.py, in the order of the study's table."""
    if not (folder / FACTS).is_file():
        raise InputError(f"{folder}: no {FACTS}; run_study.py writes it as soon as a cell is finished")
    facts = _read(folder / FACTS)
    if "model_type" not in facts:
        earlier = "written by an earlier version; run the command of table.md again, which keeps finished cells"
        raise InputError(f"{folder / FACTS}: {earlier}")
    study = find_study(facts["study"])
    records = [_read(path) for path in sorted(folder.glob(f"*/{RESULT}"))]
    records = [each for each in records if each["row"] in study.rows]
    return Base(study, sorted(records, key=lambda each: study.rows.index(each["row"])), facts)


def _read(path: Path) -> dict:
    with library_errors(f"{path} is damaged; run the command of its table.md again, or delete it"):
        return json.loads(path.read_text(encoding="utf-8"))


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
        content = _read(path)
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
        bases = [kept[base][name] for base in sorted(kept) if name in kept[base]]
        if bases:
            page, path = format_page(find_study(name), bases, pages), pages / f"{name}.md"
            draw(bases, pages / f"{name}.svg")
            _, heading, remarks = (path.read_text(encoding="utf-8") if path.exists() else "").partition(REMARKS)
            atomic_write_text(path, page + (f"\n{heading}{remarks}" if heading else ""))
    if untested := untested_studies(kept):
        sections = (f"#{format_page(find_study(name), (), pages)}" for name in untested)
        atomic_write_text(pages / f"{UNTESTED}.md", "# Studies that nothing here can test\n\n" + "\n".join(sections))
    if readme.exists():
        atomic_write_text(readme, f"{before}{BEGIN}\n{format_overview(kept, pages)}\n{END}{after}")


def untested_studies(kept: Mapping[str, Mapping[str, Base]]) -> list[str]:
    """Return the names of the studies that have no scores and say why."""
    return [
        name for name, study in STUDIES.items() if study.untested and not any(name in each for each in kept.values())
    ]


def format_page(study: Study, bases: Sequence[Base], pages: Path) -> str:
    """Format a page: the paper's conclusion, our verdicts, each difference, the figure, and each base model's table."""
    parts = [f"# {study.title}\n", *([f"**The paper.** {study.paper}\n"] if study.paper else [])]
    found = {base.name: verdict(judgements_of(base).values()) for base in bases}
    verdicts = [f"{name}: {each}" for name, each in found.items() if each]
    if not study.claims:
        verdicts = ["not in the paper"]
    elif not verdicts:
        notes = {line.removeprefix("- ") for base in bases for line in base.facts["notes"].splitlines()}
        reasons = " ".join(sorted(note for note in notes if note.startswith("Left out of")))
        verdicts = [f"not tested here: {reasons or study.untested or 'no scores'}"]
    parts.append(f"**Verdict.** {'; '.join(verdicts)}\n")
    if table := format_differences(study, {base.name: base for base in bases}):
        seeds = {base.name: len({each["seed"] for each in base.records} - {None}) for base in bases}
        over = ", ".join(f"{number} of {name}" for name, number in seeds.items())
        parts.append(f"{table}\n" + (f"95% intervals over seeds: {over}.\n" if over else ""))
    if bases:
        parts.append(f"![{study.title}]({study.name}.svg)\n")
    for base in bases:
        described = pages / KEPT / f"{base.name}.md"
        description = [described.read_text(encoding="utf-8").strip() + "\n"] if described.exists() else []
        if study.claims:
            about = f"what the paper says of {FAMILIES[family_of(base.facts['model_type'])]} (model type `{base.facts['model_type']}`)"
            description.append(f"It is judged by {about}.\n")
        parts += [f"## {base.name}\n", *description, f"    {base.facts['command']}\n"]
        rows = {record["row"] for record in base.records}
        done = replace(study, cells=tuple(cell for cell in study.cells if cell.row in rows))
        parts += [format_scores(replace(base, study=done)), base.facts["notes"]]
    return "\n".join(parts).rstrip("\n") + "\n"


def format_overview(kept: Mapping[str, Mapping[str, Base]], folder: Path) -> str:
    """Format what agrees and what does not, and a table of all pages. `kept`: name of a base model -> study -> results."""

    untested = untested_studies(kept)

    def links(studies: set[str]) -> str:
        named = [name for name in STUDIES if name in studies]
        return ", ".join(f"[{name}]({UNTESTED if name in untested else name}.md)" for name in named) or "nothing"

    # A base without a study of the papers has nothing to be judged by.
    bases, facts = sorted(base for base in kept if any(STUDIES[name].claims for name in kept[base])), []
    judged = {(name, base): judgements_of(kept[base][name]).values() for base in bases for name in kept[base]}
    found = {key: verdict(judgements) for key, judgements in judged.items()}
    against = {key for key, each in found.items() if each.startswith((conclusions.MIXED, conclusions.CONTRADICTED))}
    for base in bases:
        counts = Counter(each for (_, of), judgements in judged.items() if of == base for each in judgements)
        del counts[conclusions.ONE_SEED]  # which no interval can judge
        kinds = Counter(each.partition(" (")[0] for (_, of), each in found.items() if each and of == base)
        differences = ", ".join(f"{counts[kind]} {kind}" for kind in conclusions.JUDGEMENTS)
        verdicts = ", ".join(f"{kind} {kinds[kind]}" for kind in sorted(kinds))
        facts.append(f"**{base}**: of {counts.total()} differences {differences}. Studies: {verdicts}.")
    agreeing = {name for (name, _), each in found.items() if each} - {name for name, _ in against}
    facts.append(f"Agrees, or is not contradicted, on every base model: {links(agreeing)}.")
    facts += [f"Mixed or contradicted on {base}: {links({n for n, of in against if of == base})}." for base in bases]
    if absent := [model for model in PAPERS_MODELS if model not in kept]:
        facts.append(f"The paper's own models have **not been run here**: {', '.join(absent)}.")
    lines = [["", "the paper", *bases]]
    for name, study in STUDIES.items():
        shown = [found.get((name, base)) or "not run" for base in bases]
        if set(shown) == {"not run"}:
            reason = f"not tested here: {study.untested}" if study.untested else "not in the paper"
            shown = [reason] + [""] * (len(bases) - 1)
        lines += [[links({name}), study.paper, *shown]] if name in untested or (folder / f"{name}.md").exists() else []
    return "".join(f"- {fact}\n" for fact in facts) + f"\n{scores.markdown(lines, range(len(lines[0])))}"


if __name__ == "__main__":
    run_main(main)
