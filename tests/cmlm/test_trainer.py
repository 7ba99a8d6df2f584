"""Tests of training in every stage: what is learned, and that accumulation, processes, resuming and precision change nothing.

    torchrun --nproc_per_node=2 -m tests.cmlm.test_trainer MODEL FOLDER

is the command of each of two processes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset, IterableDataset
from safetensors.torch import load_file

from mirror.cmlm.options import DOCUMENT_STAGES, STAGES
from mirror.cmlm.trainer import CMLMConfig, CMLMTrainer
from mirror.common.distributed import shutdown
from mirror.common.errors import InputError
from mirror.data.corpus import as_corpus
from tests.processes import run_two_processes


def rows_of(sentences: list[str]) -> dict[str, Dataset]:
    """Documents of six sentences, pairs of one sentence with the next, and hypotheses that tell their label."""
    documents = ["\n".join(sentences[start : start + 6]) for start in range(0, len(sentences), 6)]
    pairs = {"text": sentences[:-1], "text_pair": sentences[1:]}
    labels = [len(text) % 3 for text in sentences]
    hypotheses = [("red green blue", "king queen doctor", "milk coffee bread")[label] for label in labels]
    return {
        "cmlm": Dataset.from_dict({"text": documents}),
        "bitext": Dataset.from_dict(pairs),
        "nli": Dataset.from_dict({"text": sentences, "text_pair": hypotheses, "label": labels}),
    }


DEFAULTS = {"bf16": False, "per_device_train_batch_size": 8, "disable_tqdm": True, "seed": 5, "learning_rate": 1e-3}
DEFAULTS |= {"num_projections": 3, "max_seq_length": 16}


def make_trainer(
    folder: str, rows: dict[str, Dataset], output_dir, streaming: bool = False, dropout: float = 0.0, **flags
) -> CMLMTrainer:
    config = CMLMConfig(output_dir=str(output_dir), **DEFAULTS | flags)
    main = rows["cmlm" if config.stage in DOCUMENT_STAGES else config.stage]
    trainer = CMLMTrainer(
        model=folder,
        args=config,
        train_dataset=main.to_iterable_dataset() if streaming else main,
        bitext_dataset=rows["bitext"] if config.stage == "cmlm_bitext" else None,
    )
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = dropout
    return trainer


@pytest.fixture
def make(bert_folder, sentences, tmp_path) -> Callable[..., CMLMTrainer]:
    """Return `make_trainer` with a small model, rows and a new output folder for each call."""
    numbers, own = itertools.count(), rows_of(sentences)
    return lambda rows=own, **flags: make_trainer(bert_folder, rows, tmp_path / str(next(numbers)), **flags)


def weights(trainer: CMLMTrainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def first_gradient(trainer: CMLMTrainer) -> dict[str, torch.Tensor]:
    """Gradient of the first optimizer step, accumulated as the Trainer does, before clipping."""
    caught: dict[str, torch.Tensor] = {}

    def catch(optimizer, args, kwargs):
        caught.update({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})

    trainer.create_optimizer_and_scheduler(num_training_steps=1)
    trainer.optimizer.register_step_pre_hook(catch)
    trainer.train()
    assert max(gradient.abs().max() for gradient in caught.values()) > 1e-3
    return caught


def assert_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], rtol=1e-3, atol=1e-5) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.allclose(other[name], value, rtol=rtol, atol=atol), name


def train_losses(trainer: CMLMTrainer, name: str = "loss") -> list[float]:
    trainer.train()
    return [entry[name] for entry in trainer.state.log_history if name in entry]


# ---- What is learned ---------------------------------------------------------------------------------------------------


def key_value_documents() -> dict[str, Dataset]:
    """Documents of two sentences of one word each. Ten first words, ten second ones: s1 tells which."""
    words = "cat dog bird fish tree house river mountain city road car train plane red green blue small large old new".split()
    keys = np.random.default_rng(0).integers(10, size=1200)
    texts = [f"{words[key]}\n{words[10 + key]}" for key in keys]
    return {"cmlm": Dataset.from_dict({"text": texts})}


def test_what_s1_tells_is_learned_in_sixty_steps(make):
    """s2 is one word, always to be predicted; without s1 no model gets below about log(10) = 2.3, its entropy."""
    flags = {"max_steps": 60, "logging_steps": 10, "per_device_train_batch_size": 32, "learning_rate": 5e-3}
    flags |= {"swap_probability": 0.0, "mlm_probability": 1.0}
    assert train_losses(make(key_value_documents(), **flags))[-1] < 0.5
    assert train_losses(make(key_value_documents(), num_projections=0, **flags))[-1] > 1.8


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_changes_its_weights_and_lowers_its_losses(make, stage):
    trainer = make(stage=stage, max_steps=30, logging_steps=5, learning_rate=2e-3)
    before = weights(trainer)
    trainer.train()
    moved = {name for name, value in weights(trainer).items() if not torch.equal(value, before[name])}
    inside = {name for name in before if name.startswith("mlm.bert.") or "decoder.weight" in name}
    head = {name for name in before if name.startswith(("mlm.cls.", "projection."))}
    assert inside <= moved
    assert (head <= moved) == ("cmlm" in stage)
    assert ("nli.weight" in moved) == (stage == "nli")
    for part in stage.split("_"):
        losses = [entry[f"loss_{part}"] for entry in trainer.state.log_history if f"loss_{part}" in entry]
        assert len(losses) == 6 and losses[-1] < losses[0]


@pytest.mark.parametrize("mini_batch_size", [None, 3])
def test_the_weight_of_the_bitext_loss(make, mini_batch_size):
    flags = {"max_steps": 1, "logging_steps": 1, "mini_batch_size": mini_batch_size}
    trainer = make(stage="cmlm_bitext", bitext_weight=0.2, **flags)
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["loss"] == pytest.approx(log["loss_cmlm"] + 0.2 * log["loss_bitext"], rel=1e-3)


def test_quickthought_picks_the_neighbor_by_inner_products(make):
    """Logeswaran & Lee 2018: a softmax over the batch, here of both neighbors; the flags of the bitext loss do not apply."""
    flags = {"stage": "quickthought", "max_steps": 1, "logging_steps": 1}
    trainer = make(margin=0.7, scale=3.0, **flags)
    batch = trainer.data_collator([trainer.train_dataset[place] for place in range(8)])["pairs"]
    with torch.no_grad():
        first, second = trainer.model.sentence_vectors(batch).chunk(2)
    scores, own = first @ second.T, torch.arange(8)
    expected = torch.nn.functional.cross_entropy(scores, own) + torch.nn.functional.cross_entropy(scores.T, own)
    assert train_losses(trainer, "loss_quickthought")[0] == pytest.approx(expected.item(), rel=1e-3)
    assert train_losses(make(streaming=True, **flags), "loss_quickthought")[0] > 0


def test_the_configuration_of_a_trainer_stays_as_it_is(bert_folder, sentences, tmp_path):
    config = CMLMConfig(output_dir=str(tmp_path / "out"), language="en", bf16=False)
    trainer = CMLMTrainer(model=bert_folder, args=config, train_dataset=rows_of(sentences)["cmlm"])
    assert (config.max_seq_length, config.pooling, config.language) == (None, None, ["en"])
    assert (trainer.args.max_seq_length, trainer.args.pooling) == (49, "mean")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("documents.txt", "train_dataset: documents.txt is a name; .*read_documents reads files"),
        (["A cat. It runs.", None], r"index 1 of 'text' is None \(NoneType\), not a text"),
        (Dataset.from_dict({"body": ["A cat. It runs."]}), "train_dataset has no column 'text'; it has body"),
    ],
)
def test_rows_that_are_none_are_one_line(bert_folder, tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        CMLMTrainer(model=bert_folder, args=CMLMConfig(output_dir=str(tmp_path / "out")), train_dataset=rows)


@pytest.mark.parametrize(("stage", "column"), [("bitext", "text_pair"), ("nli", "label")])
def test_a_stage_names_the_column_that_its_rows_lack(bert_folder, sentences, tmp_path, stage, column):
    rows = rows_of(sentences)[stage].remove_columns(column)
    config = CMLMConfig(output_dir=str(tmp_path), stage=stage, **DEFAULTS)
    with pytest.raises(InputError, match=f"train_dataset has no column '{column}'; it has text"):
        CMLMTrainer(bert_folder, config, train_dataset=rows)
    with pytest.raises(InputError, match="eval_dataset does not apply to encoders"):
        CMLMTrainer(bert_folder, config, train_dataset=rows_of(sentences)[stage], eval_dataset=rows)


def test_rows_without_a_gold_label_are_left_out(bert_folder, sentences, tmp_path):
    """SNLI on the Hub marks them by -1."""
    rows = rows_of(sentences)["nli"]
    rows = Dataset.from_dict(rows.to_dict() | {"label": [-1, *rows["label"][1:]]})
    config = CMLMConfig(output_dir=str(tmp_path), stage="nli", **DEFAULTS)
    trainer = CMLMTrainer(bert_folder, config, train_dataset=rows)
    assert trainer.corpus_report == {"nli": len(rows) - 1}


def test_documents_in_a_corpus_or_a_list_are_those_of_a_dataset(bert_folder, sentences, tmp_path):
    documents = rows_of(sentences)["cmlm"]
    rows = (documents, documents["text"][:], pd.DataFrame({"text": documents["text"][:]}), as_corpus(documents))
    trainers = [
        CMLMTrainer(bert_folder, CMLMConfig(output_dir=str(tmp_path / str(n)), **DEFAULTS), train_dataset=each)
        for n, each in enumerate(rows)
    ]
    expected = [trainers[0].train_dataset[index] for index in range(8)]
    for trainer in trainers[1:]:
        assert [trainer.train_dataset[index] for index in range(8)] == expected


def test_the_default_length_is_what_the_model_has_room_for(make, caplog):
    with caplog.at_level("INFO"):
        trainer = make(max_seq_length=None)
    assert trainer.args.max_seq_length == trainer.settings["max_seq_length"] == 61
    assert "--max_seq_length 61: the model has 64 positions, 3 of them before the text" in caplog.text


# ---- What changes nothing ----------------------------------------------------------------------------------------------


def test_accumulation_divides_the_loss_and_the_gradient(make):
    """Two micro-batches with the same rows must give the gradient of one of them, although there are labels."""
    flags = {"stage": "cmlm_bitext", "max_steps": 1, "logging_steps": 1, "max_grad_norm": 0.0}
    once, twice = make(**flags), make(gradient_accumulation_steps=2, **flags)
    twice.train_dataset = [once.train_dataset[place] for place in range(8)] * 2
    assert_close(first_gradient(once), first_gradient(twice))
    assert twice.state.log_history[0]["loss"] == pytest.approx(once.state.log_history[0]["loss"], rel=1e-3)


@pytest.mark.parametrize("stage", ["cmlm", "cmlm_bitext", "bitext", "quickthought"])
def test_mini_batches_give_the_gradient_of_the_whole(make, stage):
    flags = {"stage": stage, "max_steps": 1, "logging_steps": 1, "max_grad_norm": 0.0}
    whole, pieces = make(**flags), make(mini_batch_size=3, **flags)
    assert_close(first_gradient(whole), first_gradient(pieces))
    assert pieces.state.log_history[0]["loss"] == pytest.approx(whole.state.log_history[0]["loss"], rel=1e-3)


@pytest.mark.parametrize("flag", [{"bf16": True}, {"fp16": True, "mini_batch_size": 3}], ids=str)
def test_low_precision_trains_close_to_float32(make, flag):
    flags = {"stage": "cmlm_bitext", "max_steps": 5, "logging_steps": 5, "learning_rate": 1e-4}
    exact, rough = (train_losses(make(**flags | extra))[0] for extra in ({}, flag))
    assert rough == pytest.approx(exact, rel=0.03)


def test_gradient_checkpointing_gives_the_same_gradient(make):
    flags = {"max_steps": 1, "dropout": 0.1}
    plain, saving = make(**flags), make(gradient_checkpointing=True, **flags)
    torch.manual_seed(0)
    expected = first_gradient(plain)
    torch.manual_seed(0)
    assert_close(expected, first_gradient(saving), rtol=1e-4)
    assert saving.model.encoder.is_gradient_checkpointing


@pytest.mark.parametrize(("stage", "optimizer"), [("cmlm_bitext", "adamw"), ("cmlm", "lamb")])
def test_resumed_is_uninterrupted_to_the_last_bit(make, stage, optimizer):
    """Dropout on, into the second epoch, with a schedule that depends on the step."""
    flags = {"stage": stage, "optimizer": optimizer, "dropout": 0.1, "max_steps": 14}
    whole, again = (make(save_strategy="steps", save_steps=5, **flags) for _ in range(2))
    assert len(whole.train_dataset) // 8 < 14  # more than one epoch
    whole.train()
    again.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-5")
    assert again.state.global_step == 14
    assert_close(weights(whole), weights(again), rtol=0, atol=0)
    if optimizer == "lamb":  # with the paper's settings
        group = again.optimizer.optimizer.param_groups[0]
        assert (group["betas"], group["weight_decouple"]) == ((0.9, 0.999), False)


def test_workers_change_nothing(make):
    alone, helped = (make(stage="cmlm_bitext", max_steps=12, dataloader_num_workers=count) for count in (0, 2))
    alone.train()
    helped.train()
    assert_close(weights(alone), weights(helped), rtol=0, atol=0)


def test_only_a_save_by_the_user_pushes(make, monkeypatch):
    """As in `Trainer.save_model`, which CMLMTrainer replaces."""
    trainer, pushed = make(), []
    monkeypatch.setattr(trainer.args, "push_to_hub", True)
    monkeypatch.setattr(trainer, "push_to_hub", lambda **options: pushed.append(options))
    trainer.save_model(_internal_call=True)
    assert not pushed
    trainer.save_model()
    assert [options["commit_message"] for options in pushed] == ["Model save"]


def test_a_stream_that_breaks_in_its_first_rows_is_one_line(bert_folder, sentences, tmp_path):
    def rows():
        yield {"text": ". ".join(sentences[:4])}
        raise OSError("the file is cut")

    config = CMLMConfig(output_dir=str(tmp_path), max_steps=1, **DEFAULTS)
    with pytest.raises(InputError, match="^a.txt: the file is cut$"):
        CMLMTrainer(bert_folder, config, IterableDataset.from_generator(rows), data_settings={"train_file": ["a.txt"]})


TWO = {"optim": "sgd", "learning_rate": 0.05, "max_steps": 5, "max_grad_norm": 0.0, "stage": "cmlm_bitext"}
CACHED = {"mini_batch_size": 3, "gradient_checkpointing": True}
VARIANTS = {"plain": {}, "cached": CACHED, "stream": {"streaming": True}}


@pytest.mark.slow
@pytest.mark.parametrize("names", [["cached"], ["plain", "stream"]])
def test_two_processes_are_one_with_the_joint_batch(make, bert_folder, sentences, tmp_path, names):
    """The two have different numbers of masked tokens, and their texts are each other's negatives."""
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    run_two_processes("-m", "tests.cmlm.test_trainer", bert_folder, str(tmp_path), *names)
    for name in names:
        one = make(**TWO | VARIANTS[name])
        before = weights(one)
        one.train()
        moved = max((value - before[key]).abs().max() for key, value in weights(one).items()).item()
        assert moved > 1e-3
        two = {f"mlm.bert.{key}": value for key, value in load_file(tmp_path / name / "model.safetensors").items()}
        two = {key: value for key, value in two.items() if ".pooler." not in key}  # the base's, not trained
        two |= load_file(tmp_path / name / "cmlm" / "model.safetensors")
        assert len(two) > 40
        assert_close({key: weights(one)[key] for key in two}, two, rtol=1e-4, atol=moved * 1e-3)


def main(model_folder: str, folder: str, *names: str) -> None:
    """Run these of `VARIANTS`, each process with half of each batch."""
    rows = rows_of((Path(folder) / "texts.txt").read_text().splitlines())
    for name in names:
        flags = TWO | {"per_device_train_batch_size": 4} | VARIANTS[name]
        trainer = make_trainer(model_folder, rows, Path(folder) / name, **flags)
        trainer.train()
        trainer.save_model()
    shutdown(trainer.accelerator)


if __name__ == "__main__":
    main(*sys.argv[1:])
