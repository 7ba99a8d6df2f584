"""What a study found with one base model, read from the folder of run_study.py or from the file that a page keeps of it.

`O/results/STUDY-BASE.json` beside the pages has `facts`, which is study.json, and `records`, which are the cells' cell.json.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mirror.common.atomic_files import atomic_write_text
from mirror.common.errors import InputError
from mirror.studies.catalogue import STUDIES, find_study
from mirror.studies.cells import Study
from mirror.studies.execution import RESULT
from mirror.studies.report import FACTS
from mirror.studies.table import Scores, collect


KEPT = "results"  # folder of the files that the pages keep


@dataclass(frozen=True)
class Base:
    """A study's results with one base model."""

    facts: dict  # study.json
    records: list[dict]  # the cells

    @property
    def name(self) -> str:
        return Path(self.facts["model"]).name

    @cached_property
    def study(self) -> Study:
        return find_study(self.facts["study"])

    @cached_property
    def scores(self) -> Scores:
        return collect(self.study, self.records)

    @property
    def file_stem(self) -> str:
        """Name of this base's files among those of all pages, without an ending."""
        return f"{self.facts['study']}-{self.name}"


def read_folder(folder: Path) -> Base:
    """Read the finished cells in an output folder of run_study.py, in the order of the study's table.

    Raises:
        InputError: the folder has no study.json.
    """
    try:
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{folder}: no {FACTS}; run_study.py writes it as soon as a cell is finished") from error
    rows = find_study(facts["study"]).rows
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"*/{RESULT}"))]
    records = sorted((record for record in records if record["row"] in rows), key=lambda r: rows.index(r["row"]))
    return Base(facts, records)


def with_kept(folders: Sequence[Path], pages: Path) -> dict[str, list[Base]]:
    """Return the bases of each study by name: those of the folders, and those that the folder of the pages has kept.

    Args:
        folders: output folders of run_study.py, to whose studies kept bases are added; empty: all that are kept.

    Raises:
        InputError: two folders have the same study and model, whose files would have one name.
    """
    by_study: dict[str, dict[str, Base]] = {}
    found: dict[str, Path] = {}  # by the name of the base's files
    for folder in folders:
        base = read_folder(folder)
        if base.file_stem in found:
            study = base.facts["study"]
            raise InputError(f"{folder}: {study} with {base.name} is in {found[base.file_stem]} already")
        found[base.file_stem] = folder
        by_study.setdefault(base.facts["study"], {})[base.name] = base
    for name in by_study or STUDIES:
        for path in (pages / KEPT).glob(f"{name}-*.json"):
            kept = Base(**json.loads(path.read_text(encoding="utf-8")))
            by_study.setdefault(name, {}).setdefault(kept.name, kept)
    return {name: [of_study[base] for base in sorted(of_study)] for name, of_study in by_study.items()}


def keep(base: Base, pages: Path) -> None:
    """Write the kept file of a base."""
    content = json.dumps({"facts": base.facts, "records": base.records}, indent=1, ensure_ascii=False)
    (pages / KEPT).mkdir(exist_ok=True)
    atomic_write_text(pages / KEPT / f"{base.file_stem}.json", content + "\n")
