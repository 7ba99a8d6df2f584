"""Tatoeba: retrieve the translation of a sentence from all sentences by cosine (XTREME, LASER, CMLM Table 5).

The correct answer is the sentence in the same row; a duplicate in another row does not count, as in LASER. Each
language is encoded in a separate call (see `components.py`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from mirror.common.nearest_neighbors import top_k, unit_length
from mirror.evaluation.task import DataFile, Task
from mirror.modeling.encoder import Encode


# The 36 languages of XTREME, over which the papers average.
XTREME = (
    "afr ara ben bul cmn deu ell est eus fin fra heb hin hun ind ita jav jpn kat kaz kor mal mar nld pes por rus spa "
    "swh tam tel tgl tha tur urd vie"
).split()
XTREME_ROWS = {"jav": 205, "kat": 746, "kaz": 575, "mal": 687, "swh": 390, "tam": 307, "tel": 234, "tha": 548}
FULL_ROWS = 1000


def tasks(data_dir: Path) -> list[Task]:
    """Return tasks for XTREME's languages and for every other language in the data folder."""
    found = {path.name.removesuffix("-eng.tsv") for path in (data_dir / "tatoeba").glob("*-eng.tsv")}
    return [_task(language) for language in sorted(found.union(XTREME))]


def score(file: DataFile, encode: Encode, data_dir: Path) -> dict:
    """Compute the accuracy into English, the direction reported in the papers, and out of English."""
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
    """Compute the fraction of queries (N, D) whose nearest entry (N, D) has the same row index.

    Args:
        queries, entries: (N, D) of unit length.
    """
    _, nearest = top_k(queries, entries, 1)
    return float((nearest[:, 0] == np.arange(len(queries))).mean())


def _task(language: str) -> Task:
    in_xtreme = language in XTREME
    rows = (XTREME_ROWS.get(language, FULL_ROWS),) if in_xtreme else ()
    file = DataFile(f"tatoeba/{language}-eng.tsv", ("source", "english"), rows)
    return Task(
        name=f"tatoeba_{language}",
        metric="accuracy",
        protocol=f"{language} -> eng, nearest by cosine among all English sentences of the file",
        files=(file,),
        score=partial(score, file),
        groups=("tatoeba", "tatoeba_xtreme") if in_xtreme else ("tatoeba",),
        published="MTEB Tatoeba (its field `accuracy`); CMLM Table 5" if in_xtreme else "",
    )
