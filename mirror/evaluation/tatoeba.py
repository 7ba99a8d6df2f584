"""Tatoeba: find the translation of a sentence among the translations of all, by cosine (XTREME, LASER, CMLM Table 5).

Row n of a file translates itself, so the right answer is the same row; a repeated sentence elsewhere does not count,
as in LASER. Each language is encoded in a call of its own (see `components.py`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from mirror.evaluation.search import top_k, unit_length
from mirror.evaluation.task import DataFile, Encode, Task


# The 36 languages of XTREME, over which the papers average.
XTREME = (
    "afr ara ben bul cmn deu ell est eus fin fra heb hin hun ind ita jav jpn kat kaz kor mal mar nld pes por rus spa "
    "swh tam tel tgl tha tur urd vie"
).split()
XTREME_ROWS = {"jav": 205, "kat": 746, "kaz": 575, "mal": 687, "swh": 390, "tam": 307, "tel": 234, "tha": 548}
FULL_ROWS = 1000


def tasks(data_dir: Path) -> list[Task]:
    """XTREME's languages, and any other for which the folder has a file."""
    found = {path.name.removesuffix("-eng.tsv") for path in (data_dir / "tatoeba").glob("*-eng.tsv")}
    return [_task(language) for language in sorted(found.union(XTREME))]


def score(file: DataFile, encode: Encode, data_dir: Path) -> dict:
    """Accuracy into English, which is what the papers print, and out of it."""
    columns = file.read(data_dir)
    source, english = (unit_length(encode(columns[name])) for name in ("source", "english"))  # (N, D) each
    to_english = retrieval_accuracy(source, english)
    return {
        "main_score": to_english,
        "num_examples": len(source),
        "accuracy_to_english": to_english,
        "accuracy_from_english": retrieval_accuracy(english, source),
    }


def retrieval_accuracy(queries: np.ndarray, entries: np.ndarray) -> float:
    """Share of rows of (N, D) whose nearest row of (N, D) has the same number; vectors of unit length."""
    _, nearest = top_k(queries, entries, 1)
    return float((nearest[:, 0] == np.arange(len(queries))).mean())


def _task(language: str) -> Task:
    in_xtreme = language in XTREME
    rows = (XTREME_ROWS.get(language, FULL_ROWS),) if in_xtreme else ()
    file = DataFile(f"tatoeba/{language}-eng.tsv", ("source", "english"), rows)
    return Task(
        name=f"tatoeba_{language}",
        metric="accuracy",
        protocol=f"{language} -> eng, nearest by cosine among the file's own English side",
        files=(file,),
        score=partial(score, file),
        groups=("tatoeba", "tatoeba_xtreme") if in_xtreme else ("tatoeba",),
        published="MTEB Tatoeba (its field `accuracy`); CMLM Table 5" if in_xtreme else "",
    )
