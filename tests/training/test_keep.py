"""`--keep`: a run that loses too much of a second score stops and goes back; what is saved is within the bound."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.training import selection
from mirror.training.config import MirrorConfig
from mirror.training.record import RunRecord
from mirror.training.selection import CosinesOfBase, make_kept_score
from run_mirror import main
from tests.evaluation.folder import write_tsv
from tests.tiny_trainer import At, make_trainer, weights


FLAGS = {"eval_steps": 2, "max_steps": 10, "validation_samples": 0}


@pytest.fixture
def scored(monkeypatch):
    """Give the score of `--keep` at each evaluation in turn."""

    def set_scores(*scores: float) -> None:
        values = iter(scores)
        monkeypatch.setattr(selection, "make_kept_score", lambda *_: lambda encoder: {"keep": next(values)})

    return set_scores


@pytest.mark.parametrize("limit", [1, 3], ids=["resumed from the best step", "resumed from the step where it stopped"])
def test_a_run_that_loses_too_much_stops_and_goes_back(bert_folder, sentences, tmp_path, scored, limit):
    scored(0.8, 0.81, 0.795, 0.7)
    flags = FLAGS | {"keep": "mine", "save_total_limit": limit}
    trainer = make_trainer(bert_folder, sentences, tmp_path, **flags)
    seen = {}
    trainer.add_callback(At(4, lambda: seen.update(weights(trainer))))
    trainer.train()
    assert trainer.state.global_step == 6
    assert trainer.measured["kept"] == {
        "score": "mine", "before": 0.8, "after": 0.795, "allowed_loss": 0.01, "step": 4, "lost_at": 6, "lost": 0.7,
    }  # fmt: skip
    assert all(torch.equal(value, seen[name]) for name, value in weights(trainer).items())

    scored(*((0.795, 0.7) if limit == 1 else ()))
    again = make_trainer(bert_folder, sentences, tmp_path, **flags)
    again.train(resume_from_checkpoint=True)
    assert again.was_complete == (limit > 1) and again.measured["kept"] == trainer.measured["kept"]
    assert all(torch.equal(value, seen[name]) for name, value in weights(again).items())


def test_a_run_within_the_bound_goes_to_its_end(bert_folder, sentences, tmp_path, scored):
    scored(0.8, 0.79, 0.793, 0.9, 0.81, 0.792)
    trainer = make_trainer(bert_folder, sentences, tmp_path, keep="mine", **FLAGS)
    trainer.train()
    assert trainer.state.global_step == 10
    assert (
        trainer.measured["kept"]["step"],
        trainer.measured["kept"]["after"],
        trainer.measured["kept"]["lost_at"],
    ) == (10, 0.792, None)


def test_select_by_chooses_among_the_steps_within_the_bound(bert_folder, sentences, tmp_path, scored):
    scored(0.8, 0.8, 0.8, 0.7)
    flags = FLAGS | {"validation_samples": 60, "select_by": "own_text", "learning_rate": 1e-2}
    texts = [f"{text} {sentences[number - 1]}" for number, text in enumerate(sentences)]  # of six words and more
    trainer = make_trainer(bert_folder, texts, tmp_path, keep="mine", **flags)
    trainer.train()
    curve = {row["step"]: row["eval_own_text"] for row in trainer.state.log_history if "eval_own_text" in row}
    assert list(curve) == [0, 2, 4, 6]
    assert trainer.measured["kept"]["step"] == max((2, 4), key=curve.get) == trainer.state.best_global_step


def test_where_no_step_is_within_the_bound_nothing_is_saved(bert_folder, sentences, tmp_path, monkeypatch, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    flags = ["--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt", "--max_steps", 6]
    flags += ["--output_dir", tmp_path / "out", "--per_device_train_batch_size", 20, "--learning_rate", 0.4]
    flags += ["--keep", tmp_path / "texts.txt", "--eval_steps", 2]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, flags)])
    with pytest.raises(
        InputError, match=r"--keep .*: 1.000 -> .* at step 2, .* no encoder is saved: try --learning_rate 0.1"
    ):
        main()
    assert not (tmp_path / "out" / "config.json").exists() and not (tmp_path / "out" / "train_results.json").exists()


def test_a_run_records_what_was_kept(bert_folder, sentences, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    flags = ["--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt", "--max_steps", 4]
    flags += ["--output_dir", tmp_path / "out", "--per_device_train_batch_size", 20, "--learning_rate", 1e-5]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, flags), "--keep", str(tmp_path / "texts.txt")])
    main()
    kept = RunRecord.load(tmp_path / "out").kept
    assert (kept["score"], kept["step"], kept["lost_at"]) == ("texts.txt", 4, None)
    assert 0.99 < kept["after"] < kept["before"] <= 1
    assert "| guarded: texts.txt | " in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.slow
def test_a_run_that_is_interrupted_ends_with_the_same_bits(bert_folder, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:50]))
    flags = FLAGS | {"keep": str(tmp_path / "texts.txt"), "keep_within": 0.5, "learning_rate": 1e-4}
    whole = make_trainer(bert_folder, sentences, tmp_path / "whole", **flags)
    whole.train()

    class Interrupted(Exception):
        pass

    def stop() -> None:
        raise Interrupted

    first = make_trainer(bert_folder, sentences, tmp_path / "two legs", **flags)
    first.add_callback(At(5, stop))
    with pytest.raises(Interrupted):
        first.train()
    second = make_trainer(bert_folder, sentences, tmp_path / "two legs", **flags)
    second.train(resume_from_checkpoint=True)
    assert second.measured == whole.measured and whole.measured["kept"]["step"] == 10
    assert all(torch.equal(value, weights(second)[name]) for name, value in weights(whole).items())


def test_the_order_of_the_cosines_is_what_is_compared():
    generator = np.random.default_rng(0)
    vectors = {f"text {row}": generator.normal(size=8).astype(np.float32) for row in range(40)}
    rotation, _ = np.linalg.qr(generator.normal(size=(8, 8)))

    class Rotated:
        encode = staticmethod(lambda texts: np.stack([vectors[text] @ rotation for text in texts]).astype(np.float32))

    class Other:
        encode = staticmethod(lambda texts: generator.normal(size=(len(texts), 8)).astype(np.float32))

    score = CosinesOfBase([*vectors])
    score.remember(lambda texts: np.stack([vectors[text] for text in texts]))
    assert score(Rotated)["keep"] == pytest.approx(1, abs=1e-4)
    assert abs(score(Other)["keep"]) < 0.2


def test_what_can_be_kept(bert_folder, sentences, tmp_path):
    encoder = Encoder.from_pretrained(bert_folder, pooling="mean")
    rows = [(sentences[n], sentences[n + 1], n / 30) for n in range(30)]
    path = write_tsv(tmp_path / "pairs.tsv", ("question", "answer", "score"), rows)
    write_tsv(
        tmp_path / "wordsim" / "rg65.tsv",
        ("word1", "word2", "score"),
        [("cat", f"dog {n}", n / 20) for n in range(65)],
    )
    assert -1 <= make_kept_score(str(path), None)(encoder)["keep"] <= 1
    assert -1 <= make_kept_score("rg65", str(tmp_path))(encoder)["keep"] <= 1
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    assert isinstance(make_kept_score(str(tmp_path / "texts.txt"), None), CosinesOfBase)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ("absent.tsv", "absent.tsv: no such file"),
        ("few.txt", "few.txt: 3 distinct texts, at least 20 are needed"),
        ("unscored.tsv", "unscored.tsv has no column 'text'; it has a, b"),
        ("one.tsv", "one.tsv has columns a, score; a task needs two columns of texts and score"),
        ("words.tsv", "words.tsv, line 2: the score is 'high', not a number"),
        ("wordd", "unknown task"),
        ("word", "--keep word is a group of .* tasks|is missing"),
    ],
)
def test_what_cannot_be_kept_is_said_before_training(tmp_path, monkeypatch, keep, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "few.txt").write_text("a\nb\nc\n")
    write_tsv(tmp_path / "unscored.tsv", ("a", "b"), [("x", "y")])
    write_tsv(tmp_path / "one.tsv", ("a", "score"), [("x", 1)])
    write_tsv(tmp_path / "words.tsv", ("a", "b", "score"), [("x", "y", "high")])
    with pytest.raises(InputError, match=message) as error:
        make_kept_score(keep, str(tmp_path))
    assert "\n" not in str(error.value)


def test_flags_out_of_range_and_runs_too_short_are_refused(bert_folder, sentences, tmp_path, scored):
    with pytest.raises(InputError, match="--keep_within must be 0 or more, got -1"):
        MirrorConfig(keep_within=-1)
    scored(0.8)
    trainer = make_trainer(bert_folder, sentences, tmp_path, keep="mine", **FLAGS | {"eval_steps": 50})
    with pytest.raises(InputError, match="--keep mine: --eval_steps 50 is more than the 10 steps of the run"):
        trainer.train()


def test_a_file_of_texts_may_lose_more_than_a_score_by_default(tmp_path):
    for name in ("texts.txt", "pairs.tsv"):
        (tmp_path / name).write_text("a\tb\tscore\nx\ty\t1\n")
    bounds = [
        MirrorConfig(keep=str(keep)).keep_within
        for keep in ("stsb_dev", tmp_path / "pairs.tsv", tmp_path / "texts.txt")
    ]
    assert bounds == [0.01, 0.01, 0.05]
