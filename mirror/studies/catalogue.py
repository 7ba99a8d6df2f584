"""Every study by the name that run_study.py takes."""

from __future__ import annotations

from mirror.errors import InputError, nearest
from mirror.studies import grids_ablations as ablations
from mirror.studies import grids_results as results
from mirror.studies.cells import Study


STUDIES = {
    "table1": results.TABLE1,
    "table2": results.TABLE2,
    "table3": results.TABLE3,
    "table4": results.TABLE4,
    "figure4": results.FIGURE4,
    "table5": results.TABLE5,
    "table6": results.TABLE6,
    "figure5": ablations.FIGURE5,
    "table7": ablations.TABLE7,
    "figure7": results.FIGURE7,
    "table8": ablations.TABLE8,
    "figure8": ablations.FIGURE8,
    "table9": ablations.TABLE9,
    "table10": ablations.TABLE10,
    "table12": ablations.TABLE12,
    "table13": ablations.TABLE13,
    "table14": ablations.TABLE14,
    "table21": ablations.TABLE21,
    "cls_vs_mean": ablations.CLS_VS_MEAN,
    "selection": ablations.SELECTION,
}


def find_study(name: str) -> Study:
    """The study of that name.

    Raises:
        InputError: there is none; suggests the nearest.
    """
    if name not in STUDIES:
        raise InputError(f"unknown study '{name}'{nearest(name, STUDIES)}; --list prints them all")
    return STUDIES[name]


def listing() -> str:
    """A line a study."""
    return "\n".join(f"  {name:<12} {study.title}" for name, study in STUDIES.items())
