"""Tatoeba: retrieve the translation of a sentence from all sentences by cosine (XTREME, LASER, CMLM Table 5).

The correct answer is the sentence in the same row; a duplicate in another row does not count, as in LASER. Each
language is encoded in a separate call (see `components.py`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from sklearn.decomposition import PCA

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
PICTURED = ("fra", "deu", "rus", "spa")  # CMLM Figure 3
POINTS = 300  # of each language, for a legible picture


def tasks(data_dir: Path) -> list[Task]:
    """Return tasks for XTREME's languages and for every other language in the data folder, and that of Figure 3."""
    found = {path.name.removesuffix("-eng.tsv") for path in (data_dir / "tatoeba").glob("*-eng.tsv")}
    return [*(_task(language) for language in sorted(found.union(XTREME))), _projection_task()]


def score(file: DataFile, encode: Encode, data_dir: Path) -> dict:
    """Compute the accuracy into English, the direction reported in the papers, and out of English."""
    columns = file.read(data_dir)
    source, english = (unit_length(encode(columns[name])) for name in ("source", "english"))  # (N, D) each
    to_english, from_english = retrieval_accuracy(source, english), retrieval_accuracy(english, source)
    return {
        "main_score": to_english,
        "num_examples": len(source),
        "accuracy_to_english": to_english,
        "accuracy_from_english": from_english,
        "accuracy_mean": (to_english + from_english) / 2,
    }


def score_projection(files: dict[str, DataFile], encode: Encode, data_dir: Path) -> dict:
    """Compute how far each language and English mix, and their points in the plane.

    Texts with their nearest other text in the other language are mixed; near 0, each language is a cloud of its own (weak
    alignment in CMLM section 5.1).
    """
    mixed, points = {}, {}
    for language, file in files.items():
        columns = file.read(data_dir)
        pair = np.stack([unit_length(encode(columns[name])) for name in ("source", "english")])  # (2, N, D)
        mixed[language] = nearest_in_other_language(pair)
        shown = pair[:, :POINTS]
        plane = PCA(2, svd_solver="full").fit_transform(shown.reshape(-1, shown.shape[-1]))  # (2n, 2)
        points[language] = plane.reshape(*shown.shape[:2], 2).round(4).tolist()
    return {
        "main_score": float(np.mean(list(mixed.values()))),
        "num_examples": len(files) * FULL_ROWS,
        "mixed": mixed,
        "points": points,
    }


def nearest_in_other_language(pair: np.ndarray) -> float:
    """Compute the fraction of texts whose nearest other text is in the other language; `pair` is (2, N, D), unit length."""
    entries = pair.reshape(-1, pair.shape[-1])  # (2N, D)
    _, nearest = top_k(entries, entries, 2)
    own = np.arange(len(entries))
    other = np.where(nearest[:, 0] == own, nearest[:, 1], nearest[:, 0])
    return float((other // pair.shape[1] != own // pair.shape[1]).mean())


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


def _projection_task() -> Task:
    files = {code: DataFile(f"tatoeba/{code}-eng.tsv", ("source", "english"), (FULL_ROWS,)) for code in PICTURED}
    return Task(
        name="tatoeba_projection",
        metric="other_language_nearest",
        protocol="share of sentences whose nearest other sentence, in English and one language, is in the other language; mean "
        f"of {', '.join(PICTURED)}; `points`: the first {POINTS} of each in the plane of their first two principal components",
        files=tuple(files.values()),
        score=partial(score_projection, files),
        published="CMLM Figure 3 (a plot without numbers)",
    )
