"""Each run is tested on held-out texts of its own corpus, before and after, and records both."""

from __future__ import annotations

import json
import random
import sys

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from mirror.common.errors import InputError
from mirror.common.files import write_manifest
from mirror.data.corpus import as_corpus
from mirror.evaluation.own_text import combined_score
from mirror.training.config import MirrorConfig
from mirror.training.record import RunRecord
from mirror.training.trainer import MirrorTrainer
from run_mirror import main
from tests.tiny_trainer import make_trainer, weights


def ranks_of(trainer) -> list[np.ndarray]:
    return trainer.held_out.ranks(trainer.encoder(training=False))


@pytest.fixture
def many_sentences(sentences) -> list[str]:
    """600 distinct sentences of eight words."""
    vocabulary = sorted({word for sentence in sentences for word in sentence.split()})
    generator = random.Random(0)
    return [" ".join(generator.choices(vocabulary, k=8)) for _ in range(600)]


def test_the_ranks_are_those_of_the_base_and_of_the_trained_encoder(bert_folder, many_sentences, tmp_path):
    trainer = make_trainer(bert_folder, many_sentences, tmp_path, max_steps=3, learning_rate=1e-2)
    (before, _), held_out = ranks_of(trainer), trainer.held_out.tests[0].answers
    assert len(held_out) == 60 and not {*held_out} & {*trainer.corpus.rows["text"]}
    trainer.train()
    after, _ = ranks_of(trainer)
    words, halves = trainer.measured["own_text"]
    assert (words["test"], halves["test"], words["texts"]) == ("words", "halves", 60)
    assert words["before"] == (before == 1).mean() and words["after"] == (after == 1).mean()
    assert (before != after).any()


def test_the_test_changes_nothing_of_the_training(bert_folder, many_sentences, tmp_path):
    tested = make_trainer(bert_folder, many_sentences, tmp_path / "a", max_steps=3)
    losses = tested.train().training_loss
    untested = make_trainer(
        bert_folder, tested.corpus.rows["text"][:], tmp_path / "b", max_steps=3, validation_samples=0
    )
    assert untested.train().training_loss == losses and "own_text" not in untested.measured


def test_a_run_prints_and_records_it(bert_folder, many_sentences, tmp_path, monkeypatch, caplog):
    (tmp_path / "texts.txt").write_text("\n".join(many_sentences))
    flags = ["--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt", "--max_steps", 2]
    flags += ["--output_dir", tmp_path / "out", "--per_device_train_batch_size", 20]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, flags)])
    with caplog.at_level("INFO"):
        main()
    assert "of 60 held-out texts are found by 3 of their words" in caplog.text
    assert [each["test"] for each in RunRecord.load(tmp_path / "out").own_text] == ["words", "halves"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| 60 held-out texts found by 3 of their words | " in card and "| both together, geometric mean" in card
    together = RunRecord.load(tmp_path / "out").own_text_together
    assert (
        set(together) == {"before", "after", "change", "margin"} and "both together: the geometric mean" in caplog.text
    )
    stored = json.loads((tmp_path / "out" / "train_results.json").read_text())
    del stored["own_text"]  # as runs before had it
    (tmp_path / "out" / "train_results.json").write_text(json.dumps(stored))
    assert RunRecord.load(tmp_path / "out").own_text is None


@pytest.mark.parametrize(
    ("rows", "count", "reason"),
    [
        (600, 0, "no texts are held out"),
        (600, 20, "only 20 held-out texts can be used"),
        (240, None, "no texts are held out to test on (the corpus is small; --validation_samples 50 holds"),
    ],
)
def test_without_a_test_the_run_goes_on_and_says_why(
    bert_folder, many_sentences, tmp_path, rows, count, reason, caplog
):
    with caplog.at_level("INFO"):
        trainer = make_trainer(bert_folder, many_sentences[:rows], tmp_path, max_steps=1, validation_samples=count)
    trainer.train()
    assert f"on your text: {reason}" in caplog.text and not trainer.measured.get("own_text")


def test_the_combined_score_falls_where_meaning_is_lost():
    words, halves = np.array([1, 2]), np.array([4, 4])
    assert combined_score([words, halves]) == pytest.approx((0.75 * 0.25) ** 0.5)
    assert combined_score([np.array([1, 1]), np.array([9, 9])]) < combined_score([words, halves])


def test_names_are_not_tested_and_no_checkpoint_is_chosen_by_them(bert_folder, tmp_path, caplog):
    generator = random.Random(0)
    names = sorted({"".join(generator.choices("abcdefgh", k=9)) for _ in range(200)})
    flags = {"validation_samples": 60, "force": True, "max_steps": 2}
    with caplog.at_level("INFO"):
        trainer = make_trainer(bert_folder, names, tmp_path / "plain", **flags)
        trainer.train()
    assert "on your text: names and words are not tested" in caplog.text and trainer.record().own_text is None
    with pytest.raises(InputError, match="--select_by own_text: names and words are not tested"):
        make_trainer(bert_folder, names, tmp_path / "chosen", select_by="own_text", **flags)


def test_it_chooses_the_checkpoint_and_a_complete_run_that_is_resumed_has_its_weights(
    bert_folder, many_sentences, tmp_path
):
    flags = {"select_by": "own_text", "eval_steps": 2, "save_steps": 2, "learning_rate": 3e-2, "max_steps": 8}
    flags |= {"save_total_limit": 4}
    first = make_trainer(bert_folder, many_sentences, tmp_path, **flags)
    first.train()
    curve = {row["step"]: row["eval_own_text"] for row in first.state.log_history if "eval_own_text" in row}
    assert list(curve) == [2, 4, 6, 8] and max(curve, key=curve.get) == first.state.best_global_step != 8
    assert combined_score(ranks_of(first)) == pytest.approx(max(curve.values()))
    again = make_trainer(bert_folder, many_sentences, tmp_path, **flags)
    again.train(resume_from_checkpoint=True)
    assert again.was_complete
    best, last = weights(first), load_file(tmp_path / "checkpoint-8" / "model.safetensors")
    for name, value in weights(again).items():
        assert torch.equal(value, best[name]), name
    assert any(not torch.equal(best[name], value) for name, value in last.items() if name in best)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ([f"a text with the number {number}" for number in range(240)], ".* name a number of --validation_samples"),
        # of every three, two are too short for the test of words
        (
            [f"{n} one two three four five" if n % 3 == 0 else f"{n}" for n in range(600)],
            r"only \d\d held-out texts can",
        ),
    ],
)
def test_texts_that_cannot_be_tested_on_are_no_criterion_and_the_line_says_why(bert_folder, tmp_path, texts, reason):
    with pytest.raises(InputError, match=f"--select_by own_text: {reason}"):
        make_trainer(bert_folder, texts, tmp_path, select_by="own_text", force=True)


def test_a_finished_run_that_is_resumed_encodes_nothing(bert_folder, many_sentences, tmp_path, monkeypatch, caplog):
    (tmp_path / "texts.txt").write_text("\n".join(many_sentences))
    flags = ["--model_name_or_path", bert_folder, "--train_file", tmp_path / "texts.txt", "--max_steps", 2]
    flags += ["--output_dir", tmp_path / "out", "--per_device_train_batch_size", 20, "--save_strategy", "steps"]
    flags += ["--save_steps", 2, "--resume_from_checkpoint", "auto"]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, flags)])
    main()
    monkeypatch.setattr("mirror.evaluation.own_text.OwnTextTest.ranks", None)  # not to be called
    with caplog.at_level("INFO"):
        main()
    assert "holds a complete run of 2 steps: nothing to do" in caplog.text


def test_a_finished_run_that_goes_on_for_longer_is_measured_again(bert_folder, many_sentences, tmp_path):
    rows = Dataset.from_dict({"text": many_sentences[:-1], "text_pair": many_sentences[1:]})
    flags = {"output_dir": str(tmp_path), "per_device_train_batch_size": 20, "save_strategy": "steps", "save_steps": 2}
    flags |= {"bf16": False, "disable_tqdm": True, "report_to": "none", "force": False}
    for steps, checkpoint in ((2, None), (4, True)):
        config = MirrorConfig(max_steps=steps, **flags)
        trainer = MirrorTrainer(bert_folder, config, as_corpus(rows))
        trainer.train(resume_from_checkpoint=checkpoint)
        trainer.save_model()
        write_manifest(tmp_path)
    assert trainer.state.global_step == 4 and not trainer.was_complete
    assert trainer.record().own_text and trainer._false_negatives is not None


def test_the_best_step_by_another_score_is_forgotten(bert_folder, many_sentences, tmp_path):
    flags = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    flags |= {"load_best_model_at_end": True, "greater_is_better": True, "learning_rate": 1e-3}
    by_own = make_trainer(
        bert_folder, many_sentences, tmp_path, max_steps=2, metric_for_best_model="own_text", **flags
    )
    by_own.train()
    assert by_own.state.best_metric > 0.1
    other = make_trainer(
        *(bert_folder, many_sentences, tmp_path), score=lambda encoder: {"mine": 0.1}, max_steps=4,
        metric_for_best_model="mine", **flags,
    )  # fmt: skip
    other.train(resume_from_checkpoint=True)
    assert (other.state.best_metric, other.state.best_global_step) == (0.1, 4)
