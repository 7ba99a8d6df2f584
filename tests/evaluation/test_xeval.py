"""XEVAL: SentEval's nine tasks in another language, from a folder that the user fills; one mean per language."""

from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import transfer, xeval
from mirror.evaluation.catalogue import all_groups, all_tasks
from tests.evaluation.folder import write_tsv


def write_language(folder, rows: int = 60) -> None:
    """SentEval's files, small: the label is in the text."""
    for name in ("mr", "cr", "subj", "mpqa"):
        write_tsv(
            folder / f"{name}.tsv", ("split", "text", "label"), [("all", f"{n % 2} {n}", n % 2) for n in range(rows)]
        )
    for name, splits in (("sst2", ("train", "dev", "test")), ("trec", ("train", "test"))):
        lines = [(split, f"{n % 2} {n}", n % 2) for split in splits for n in range(rows)]
        write_tsv(folder / f"{name}.tsv", ("split", "text", "label"), lines)
    lines = [(split, f"1 {n}", f"{n % 2} {n}", n % 2) for split in ("train", "test") for n in range(rows)]
    write_tsv(folder / "mrpc.tsv", ("split", "sentence1", "sentence2", "label"), lines)
    for part in ("train", "trial", "test"):
        lines = [
            ("sick", f"1 {n}", f"{n % 2} {n}", 1 + 4 * (n % 2), ("NEUTRAL", "ENTAILMENT")[n % 2]) for n in range(rows)
        ]
        write_tsv(folder / f"sickr_{part}.tsv", ("subset", "sentence1", "sentence2", "score", "entailment"), lines)


def encode(texts):
    """The label along x, and a little of the number."""
    return np.array([[1 + float(text.split()[0]), int(text.split()[1]) / 1e4] for text in texts], dtype=np.float32)


def test_the_score_of_a_language_is_the_mean_of_its_nine_tasks(tmp_path):
    write_language(tmp_path / "xeval" / "de")
    task = all_tasks(tmp_path)["xeval_de"]
    task.check(tmp_path)
    result = task.score(encode, tmp_path)
    single = {one.name: one.score(encode, tmp_path) for one in transfer.tasks(tmp_path, tmp_path / "xeval" / "de")}
    assert result["scores"] == {name.removeprefix("transfer_"): one["main_score"] for name, one in single.items()}
    assert len(result["scores"]) == 9
    assert result["main_score"] == pytest.approx(np.mean(list(result["scores"].values())))


def test_there_are_the_papers_fifteen_languages_and_english_is_senteval(tmp_path):
    tasks = all_tasks(tmp_path)
    assert all_groups(tasks)["xeval"] == [
        f"xeval_{code}" for code in "ar bg de el en es fr hi ru sw th tr ur vi zh".split()
    ]
    assert {file.path for file in tasks["xeval_en"].files} == {
        file.path for name, task in tasks.items() if name.startswith("transfer_") for file in task.files
    }


def test_a_language_that_is_not_complete_is_named(tmp_path):
    write_language(tmp_path / "xeval" / "de")
    (tmp_path / "xeval" / "de" / "cr.tsv").unlink()
    (task,) = (task for task in xeval.tasks(tmp_path) if task.name == "xeval_de")
    assert task.missing_files(tmp_path) == [str(tmp_path / "xeval/de/cr.tsv")]
    with pytest.raises(InputError, match=r"xeval/de/cr\.tsv is missing"):
        task.check(tmp_path)
