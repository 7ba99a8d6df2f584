"""Averages with the base model: the weights that are saved, what `auto` chooses by, and what is refused."""

from __future__ import annotations

import json
import sys
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from mirror.common.errors import InputError
from mirror.evaluation.run import make_plan
from mirror.modeling.encoder import Encoder
from mirror.training.config import MirrorConfig
from mirror.training.record import RunRecord
from mirror.training.selection import WEIGHTS, Merge
from run_mirror import main
from tests.evaluation.folder import write_tsv
from tests.tiny_trainer import make_trainer, run_whole_and_resumed, weights


FLAGS = {"max_steps": 3, "learning_rate": 1e-2}


def trained(bert_folder, sentences, folder, **flags):
    trainer = make_trainer(bert_folder, sentences, folder, **FLAGS | flags)
    before = weights(trainer)
    trainer.train()
    return trainer, before


def run_script(bert_folder, sentences, folder, monkeypatch, *flags) -> None:
    (folder / "texts.txt").write_text("\n".join(sentences))
    argv = ["--model_name_or_path", bert_folder, "--train_file", folder / "texts.txt", "--max_seq_length", 24]
    argv += ["--output_dir", folder / "out", "--per_device_train_batch_size", 20, "--max_steps", 3]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, [*argv, "--learning_rate", 1e-2, *flags])])
    main()


def test_a_weight_is_the_share_of_the_trained_weights(bert_folder, sentences, tmp_path):
    plain, before = trained(bert_folder, sentences, tmp_path / "plain")
    merged, _ = trained(bert_folder, sentences, tmp_path / "merged", merge="0.25")
    after = weights(plain)
    assert max((after[name] - before[name]).abs().max() for name in after) > 1e-3
    for name, weight in weights(merged).items():
        torch.testing.assert_close(weight, before[name] + 0.25 * (after[name] - before[name]), rtol=0, atol=1e-6)
    assert merged.measured["merged"] == {"weight": 0.25, "curve": []}


def test_it_is_merged_alike_after_a_resume(bert_folder, sentences, tmp_path):
    whole, again = run_whole_and_resumed(bert_folder, sentences, tmp_path, merge="0.5")
    assert whole.measured["merged"] == again.measured["merged"]
    assert all(torch.equal(value, weights(again)[name]) for name, value in weights(whole).items())


def test_auto_saves_the_weight_that_is_best_on_held_out_texts(bert_folder, sentences, tmp_path, monkeypatch):
    run_script(bert_folder, sentences, tmp_path, monkeypatch, "--validation_samples", 100, "--merge", "auto")
    record = RunRecord.load(tmp_path / "out")
    curve = record.merged["curve"]
    assert [point["weight"] for point in curve] == list(WEIGHTS)
    best = max(point["own_text"] for point in curve)
    assert min(point["own_text"] for point in curve) < best
    assert next(point for point in curve if point["own_text"] == best)["weight"] == record.merged["weight"]
    together = record.own_text_together or {"after": record.own_text[0]["mrr_after"]}
    assert together["after"] == pytest.approx(best)  # what is reported is what is saved
    assert (tmp_path / "out" / "merge.svg").exists()
    assert f"| merged | {record.merged['weight']:g} of these weights" in (tmp_path / "out" / "README.md").read_text()
    saved = load_file(tmp_path / "out" / "model.safetensors")
    encoder = Encoder.from_pretrained(str(tmp_path / "out"))
    assert all(torch.equal(saved[name], value) for name, value in encoder.model.named_parameters() if name in saved)


@pytest.mark.parametrize(
    ("scores", "least", "weight"),
    [
        ({0.2: (0.1, 0.9), 0.4: (0.2, 0.9), 0.6: (0.3, 0.8), 0.8: (0.4, 0.7), 1.0: (0.5, 0.6)}, 0.75, 0.6),
        ({0.2: (0.1, 0.5), 0.4: (0.2, 0.4), 0.6: (0.3, 0.3), 0.8: (0.4, 0.2), 1.0: (0.5, 0.1)}, 0.75, 0.2),
        ({0.2: (0.3, 0.9), 0.4: (0.3, 0.9), 0.6: (0.2, 0.9), 0.8: (0.1, 0.9), 1.0: (0.1, 0.9)}, 0.75, 0.2),
    ],
    ids=["the best within the limit", "none within it: the smallest change", "equal: the smaller change"],
)
def test_auto_takes_the_best_weight_within_the_limit(scores, least, weight):
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    merge = Merge(model)
    torch.nn.init.ones_(model.weight)

    def score() -> dict[str, float]:  # the weight itself says which average is in the model
        own_text, keep = scores[round(model.weight.item(), 3)]
        return {"own_text": own_text, "keep": keep}

    found = merge.choose("auto", score, least)
    assert found["weight"] == weight == pytest.approx(model.weight.item()) and len(found["curve"]) == 5


def test_the_score_of_keep_is_that_of_the_average(bert_folder, sentences, tmp_path):
    (tmp_path / "kept.txt").write_text("\n".join(sentences[:60]))
    flags = {"keep": str(tmp_path / "kept.txt"), "keep_within": 1.0, "eval_steps": 3, "validation_samples": 100}
    trainer, _ = trained(bert_folder, sentences, tmp_path / "out", merge="0.2", **flags)
    before, of_step, of_average = [row["eval_keep"] for row in trainer.state.log_history if "eval_keep" in row]
    assert before == pytest.approx(1) and of_step + 0.01 < of_average  # a fifth of the way loses less
    assert trainer.measured["kept"]["after"] == of_average


@pytest.mark.parametrize("value", ["1.5", "0", "0.0", "-0.5", "half", ".", ""])
def test_what_is_no_weight_is_refused(value):
    with pytest.raises(InputError, match="--merge must be none, auto or a weight above 0 and at most 1"):
        MirrorConfig(merge=value)


@pytest.mark.parametrize("value", ["0.5", ".25", "1", "1.0", "auto", "none"])
def test_what_is_a_weight_is_taken(value):
    assert MirrorConfig(merge=value).merge == value


def test_auto_without_a_test_is_refused(bert_folder, sentences, tmp_path):
    with pytest.raises(InputError, match="--merge auto: no test fits the texts that are held out; give a weight"):
        make_trainer(bert_folder, sentences, tmp_path, merge="auto", validation_samples=0)


def test_the_scores_on_the_card_are_those_of_the_average(bert_folder, sentences, tmp_path, monkeypatch):
    pairs = [(first, second, n % 6) for n, (first, second) in enumerate(pairwise(sentences[:80]))]
    pairs = write_tsv(tmp_path / "mine.tsv", ("sentence1", "sentence2", "score"), pairs)
    run_script(bert_folder, sentences, tmp_path, monkeypatch, "--merge", 0.3, "--eval_tasks", pairs)
    (task,) = make_plan([str(pairs)], None).tasks
    encoder = Encoder.from_pretrained(str(tmp_path / "out"))
    expected = task.score(encoder.by_role(), encoder)["main_score"]
    state = json.loads((tmp_path / "out" / "trainer_state.json").read_text())
    *_, of_step, of_average = [row for row in state["log_history"] if any(key.startswith("eval_") for key in row)]
    name = next(key for key in of_average if key.startswith("eval_"))
    assert of_step["step"] == of_average["step"] == 3 and abs(of_step[name] - of_average[name]) > 1e-3
    assert of_average[name] == pytest.approx(expected, abs=1e-6)


def test_low_rank_updates_are_not_merged(bert_folder, sentences, tmp_path):
    pytest.importorskip("peft")
    with pytest.raises(InputError, match="--merge does not work with --lora_rank"):
        make_trainer(bert_folder, sentences, tmp_path, merge="0.5", lora_rank=2)
