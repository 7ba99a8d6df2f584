"""All studies by the name used on the command line of run_study.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mirror.common.errors import InputError, did_you_mean
from mirror.studies import grids_ablations as ablations
from mirror.studies import grids_beyond as beyond
from mirror.studies import grids_cmlm as cmlm
from mirror.studies import grids_results as results
from mirror.studies.cells import Study
from mirror.studies.grids_own_text import OWN_TEXT


STUDIES = {
    "table1": results.TABLE1,
    "table2": results.TABLE2,
    "table3": results.TABLE3,
    "table4": results.TABLE4,
    "figure4": results.FIGURE4,
    "table5": results.TABLE5,
    "table6": results.TABLE6,
    "table6_joint": results.TABLE6_JOINT,
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
    "table21_words": ablations.TABLE21_WORDS,
    "table21_phrases": ablations.TABLE21_PHRASES,
    "cls_vs_mean": ablations.CLS_VS_MEAN,
    "selection": ablations.SELECTION,
    "own_text": OWN_TEXT,
    "beyond": beyond.BEYOND,
    "beyond_together": beyond.BEYOND_TOGETHER,
    "cmlm_table1": cmlm.TABLE1,
    "cmlm_table2": cmlm.TABLE2,
    "cmlm_table3": cmlm.TABLE3,
    "cmlm_table4": cmlm.TABLE4,
    "cmlm_table5": cmlm.TABLE5,
    "cmlm_table6": cmlm.TABLE6,
    "cmlm_table7": cmlm.TABLE7,
    "cmlm_figure2": cmlm.FIGURE2,
    "cmlm_figure3": cmlm.FIGURE3,
}


def find_study(name: str, rows: Sequence[str] = ()) -> Study:
    """Return the study of that name.

    Args:
        rows: rows of its table to which it is restricted; empty: all.

    Raises:
        InputError: an unknown name or row; the message suggests the most similar one.
    """
    if name not in STUDIES:
        raise InputError(f"unknown study '{name}'{did_you_mean(name, STUDIES)}; --list prints all names")
    study = replace(STUDIES[name], name=name)
    known = list(dict.fromkeys(cell.row for cell in study.cells))
    for row in rows:
        if row not in known:
            raise InputError(
                f"{name} has no row '{row}'{did_you_mean(row, known)} (rows: {', '.join(map(repr, known))})"
            )
    return replace(study, cells=tuple(cell for cell in study.cells if cell.row in rows)) if rows else study


def listing() -> str:
    """Return the text of `--list`, one line per study."""
    return "\n".join(f"  {name:<15} {study.title}" for name, study in STUDIES.items())
