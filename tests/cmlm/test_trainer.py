"""Training in every stage: what is learnt, and that accumulation, processes, resuming and precision change nothing.

    torchrun --nproc_per_node=2 -m tests.cmlm.test_trainer MODEL FOLDER

is what each of two processes runs.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset, IterableDataset
from safetensors.torch import load_file

from mirror.cmlm.checkpoint import load_cmlm, load_parts, parts_of, save_cmlm
from mirror.cmlm.config import CMLMConfig
from mirror.cmlm.options import DOCUMENT_STAGES, STAGES
from mirror.cmlm.trainer import CMLMTrainer
from mirror.common import loading_policy
from mirror.common.distributed import shutdown
from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from tests.two_at_once import run_two_processes


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


def make_trainer(folder: str, rows: dict[str, Dataset], output_dir, streaming: bool = False, **flags) -> CMLMTrainer:
    """The defaults are float32, batch 8, no dropout, stage cmlm."""
    defaults = {
        "bf16": False,
        "per_device_train_batch_size": 8,
        "disable_tqdm": True,
        "seed": 5,
        "learning_rate": 1e-3,
        "num_projections": 3,
        "max_seq_length": 16,
    }
    flags = defaults | flags
    dropout = flags.pop("dropout", 0.0)
    config = CMLMConfig(output_dir=str(output_dir), **flags)
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
        torch.testing.assert_close(
            other[name], value, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}"
        )


def train_losses(trainer: CMLMTrainer, name: str = "loss") -> list[float]:
    trainer.train()
    return [entry[name] for entry in trainer.state.log_history if name in entry]


# ---- What is learnt ----------------------------------------------------------------------------------------------------


def key_value_documents(shuffled: bool) -> dict[str, Dataset]:
    """Documents of two sentences of one word each. Ten first words, ten second ones: s1 tells which, or, shuffled, not."""
    words = "cat dog bird fish tree house river mountain city road car train plane red green blue small large old new".split()
    rng = np.random.default_rng(0)
    keys = rng.integers(10, size=1200)
    values = rng.permutation(keys) if shuffled else keys
    texts = [f"{words[key]}\n{words[10 + value]}" for key, value in zip(keys, values, strict=True)]
    return {"cmlm": Dataset.from_dict({"text": texts})}


def test_what_s1_tells_is_learnt_in_sixty_steps(bert_folder, tmp_path):
    """s2 is one word, always to be predicted; without s1 no model gets below about log(10) = 2.3, its entropy."""
    flags = {
        "max_steps": 60,
        "logging_steps": 10,
        "per_device_train_batch_size": 32,
        "learning_rate": 5e-3,
        "swap_probability": 0.0,
        "mlm_probability": 1.0,
    }
    conditioned = train_losses(make_trainer(bert_folder, key_value_documents(False), tmp_path / "a", **flags))
    independent = train_losses(make_trainer(bert_folder, key_value_documents(True), tmp_path / "b", **flags))
    unconditioned = train_losses(
        make_trainer(bert_folder, key_value_documents(False), tmp_path / "c", num_projections=0, **flags)
    )
    assert conditioned[-1] < 0.5
    assert independent[-1] > 1.8 and unconditioned[-1] > 1.8


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_moves_its_weights_and_lowers_its_losses(bert_folder, sentences, tmp_path, stage):
    trainer = make_trainer(
        *(bert_folder, rows_of(sentences), tmp_path), stage=stage, max_steps=30, logging_steps=5, learning_rate=2e-3
    )
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


def test_the_bitext_loss_weighs_as_told(bert_folder, sentences, tmp_path):
    trainer = make_trainer(
        *(bert_folder, rows_of(sentences), tmp_path),
        stage="cmlm_bitext",
        bitext_weight=0.2,
        max_steps=1,
        logging_steps=1,
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["loss"] == pytest.approx(log["loss_cmlm"] + 0.2 * log["loss_bitext"], rel=1e-3)


def test_quickthought_picks_the_neighbour_by_inner_products(bert_folder, sentences, tmp_path):
    """Logeswaran & Lee 2018: a softmax over the batch, here of both neighbours; the flags of the bitext loss do not apply."""
    flags = {"stage": "quickthought", "max_steps": 1, "logging_steps": 1}
    trainer = make_trainer(bert_folder, rows_of(sentences), tmp_path / "a", margin=0.7, scale=3.0, **flags)
    batch = trainer.data_collator([trainer.train_dataset[place] for place in range(8)])["pairs"]
    with torch.no_grad():
        first, second = trainer.model.sentence_vectors(batch).chunk(2)
    scores, own = first @ second.T, torch.arange(8)
    expected = torch.nn.functional.cross_entropy(scores, own) + torch.nn.functional.cross_entropy(scores.T, own)
    assert train_losses(trainer, "loss_quickthought")[0] == pytest.approx(expected.item(), rel=1e-3)
    streamed = make_trainer(bert_folder, rows_of(sentences), tmp_path / "b", streaming=True, **flags)
    assert train_losses(streamed, "loss_quickthought")[0] > 0


def test_lamb_trains_with_the_papers_settings(bert_folder, sentences, tmp_path):
    trainer = make_trainer(
        *(bert_folder, rows_of(sentences), tmp_path),
        optimizer="lamb",
        max_steps=20,
        logging_steps=5,
        learning_rate=1e-2,
    )
    losses = train_losses(trainer)
    assert type(trainer.optimizer.optimizer).__name__ == "Lamb"
    group = trainer.optimizer.optimizer.param_groups[0]
    assert (group["betas"], group["weight_decouple"]) == ((0.9, 0.999), False)
    assert losses[-1] < losses[0]


# ---- What changes nothing ----------------------------------------------------------------------------------------------


def test_accumulation_divides_the_loss_and_the_gradient(bert_folder, sentences, tmp_path):
    """Two micro-batches that hold the same rows must give the gradient of one of them, although there are labels."""
    flags = {"stage": "cmlm_bitext", "max_steps": 1, "logging_steps": 1, "max_grad_norm": 0.0}
    once = make_trainer(bert_folder, rows_of(sentences), tmp_path / "a", **flags)
    twice = make_trainer(bert_folder, rows_of(sentences), tmp_path / "b", gradient_accumulation_steps=2, **flags)
    rows = [once.train_dataset[place] for place in range(8)]
    twice.train_dataset = FixedRows(rows * 2)
    assert_close(first_gradient(once), first_gradient(twice))
    assert twice.state.log_history[0]["loss"] == pytest.approx(once.state.log_history[0]["loss"], rel=1e-3)


class FixedRows(torch.utils.data.Dataset):
    def __init__(self, rows: list[dict]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> dict:
        return self.rows[place]

    def set_epoch(self, epoch: int) -> None:
        """The same in each."""


@pytest.mark.parametrize("stage", ["cmlm", "cmlm_bitext", "bitext", "quickthought"])
def test_mini_batches_give_the_gradient_of_the_whole(bert_folder, sentences, tmp_path, stage):
    flags = {"stage": stage, "max_steps": 1, "logging_steps": 1, "max_grad_norm": 0.0}
    whole = make_trainer(bert_folder, rows_of(sentences), tmp_path / "a", **flags)
    pieces = make_trainer(bert_folder, rows_of(sentences), tmp_path / "b", mini_batch_size=3, **flags)
    assert_close(first_gradient(whole), first_gradient(pieces))
    assert pieces.state.log_history[0]["loss"] == pytest.approx(whole.state.log_history[0]["loss"], rel=1e-3)


@pytest.mark.parametrize("flag", [{"bf16": True}, {"fp16": True}, {"fp16": True, "mini_batch_size": 3}], ids=str)
def test_low_precision_trains_close_to_float32(bert_folder, sentences, tmp_path, flag):
    flags = {"stage": "cmlm_bitext", "max_steps": 5, "logging_steps": 5, "learning_rate": 1e-4}
    exact = train_losses(make_trainer(bert_folder, rows_of(sentences), tmp_path / "a", **flags))
    rough = train_losses(make_trainer(bert_folder, rows_of(sentences), tmp_path / "b", **flags | flag))
    assert rough[0] == pytest.approx(exact[0], rel=0.03)


def test_gradient_checkpointing_gives_the_same_gradient(bert_folder, sentences, tmp_path):
    flags = {"max_steps": 1, "dropout": 0.1}
    plain = first_gradient(make_trainer(bert_folder, rows_of(sentences), tmp_path / "a", **flags))
    saving = make_trainer(bert_folder, rows_of(sentences), tmp_path / "b", gradient_checkpointing=True, **flags)
    assert_close(plain, first_gradient(saving), rtol=1e-4)
    assert saving.model.encoder.is_gradient_checkpointing


@pytest.mark.parametrize(("stage", "optimizer"), [("cmlm_bitext", "adamw"), ("cmlm", "lamb")])
def test_resumed_is_uninterrupted_to_the_last_bit(bert_folder, sentences, tmp_path, stage, optimizer):
    """Dropout on, into the second epoch, with a schedule that depends on the step."""
    flags = {
        "stage": stage,
        "optimizer": optimizer,
        "dropout": 0.1,
        "max_steps": 14,
        "save_strategy": "steps",
        "save_steps": 5,
    }
    whole = make_trainer(bert_folder, rows_of(sentences), tmp_path / "whole", **flags)
    assert len(whole.train_dataset) // 8 < 14  # more than one epoch
    whole.train()
    again = make_trainer(bert_folder, rows_of(sentences), tmp_path / "again", **flags)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert again.state.global_step == 14
    resumed = weights(again)
    for name, value in weights(whole).items():
        assert torch.equal(value, resumed[name]), name


def test_workers_change_nothing(bert_folder, sentences, tmp_path):
    flags = {"stage": "cmlm_bitext", "max_steps": 12}
    alone = make_trainer(bert_folder, rows_of(sentences), tmp_path / "a", **flags)
    alone.train()
    helped = make_trainer(bert_folder, rows_of(sentences), tmp_path / "b", dataloader_num_workers=2, **flags)
    helped.train()
    for name, value in weights(alone).items():
        assert torch.equal(value, weights(helped)[name]), name


def test_a_checkpoint_on_the_way_is_a_whole_encoder(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, rows_of(sentences), tmp_path, max_steps=4, save_strategy="steps", save_steps=4)
    trainer.train()
    read = Encoder.from_pretrained(str(tmp_path / "checkpoint-4"))
    assert (read.pooling, read.max_seq_length) == ("mean", 16)
    np.testing.assert_allclose(read.encode(["a cat"]), trainer.encoder().encode(["a cat"]), atol=1e-5)


def test_a_stream_that_breaks_in_its_first_rows_is_one_line(bert_folder, sentences, tmp_path):
    def rows():
        yield {"text": ". ".join(sentences[:4])}
        raise OSError("the file is cut")

    documents = IterableDataset.from_generator(rows)
    config = CMLMConfig(output_dir=str(tmp_path), max_steps=1, max_seq_length=16, num_projections=4, bf16=False)
    with pytest.raises(InputError, match="^a.txt: the file is cut$"):
        CMLMTrainer(bert_folder, config, documents, data_settings={"train_file": ["a.txt"]})


def test_the_first_loss_that_is_not_finite_stops_the_run(bert_folder, sentences, tmp_path):
    trainer = make_trainer(bert_folder, rows_of(sentences), tmp_path)
    trainer.model.get_input_embeddings().weight.data.fill_(float("nan"))
    with pytest.raises(InputError, match=r"the loss is nan at step 1; try --bf16 instead of --fp16"):
        trainer.train()


TWO = {"optim": "sgd", "learning_rate": 0.05, "max_steps": 5, "max_grad_norm": 0.0, "stage": "cmlm_bitext"}


VARIANTS = {
    "plain": {},
    "cached": {"mini_batch_size": 3, "gradient_checkpointing": True},
    "stream": {"streaming": True},
}


def test_two_processes_are_one_with_the_joint_batch(bert_folder, sentences, tmp_path):
    """The two hold different numbers of masked tokens, and their texts are each other's negatives."""
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    run_two_processes("-m", "tests.cmlm.test_trainer", bert_folder, str(tmp_path))
    for name, extra in VARIANTS.items():
        one = make_trainer(bert_folder, rows_of(sentences), tmp_path / "one", **TWO | extra)
        before = weights(one)
        one.train()
        moved = max((value - before[key]).abs().max() for key, value in weights(one).items()).item()
        assert moved > 1e-3
        two = {f"mlm.bert.{key}": value for key, value in load_file(tmp_path / name / "model.safetensors").items()}
        two = {key: value for key, value in two.items() if ".pooler." not in key}  # the base's, not trained
        two |= load_file(tmp_path / name / "cmlm" / "model.safetensors")
        assert len(two) > 40
        assert_close({key: weights(one)[key] for key in two}, two, rtol=1e-4, atol=moved * 1e-3)


def main(model_folder: str, folder: str) -> None:
    """The runs of `VARIANTS`, each process with half of each batch."""
    rows = rows_of((Path(folder) / "texts.txt").read_text().splitlines())
    for name, extra in VARIANTS.items():
        trainer = make_trainer(
            model_folder, rows, Path(folder) / name, **TWO | {"per_device_train_batch_size": 4} | extra
        )
        trainer.train()
        trainer.save_model()
    shutdown(trainer.accelerator)


if __name__ == "__main__":
    main(*sys.argv[1:])


def test_the_default_length_is_what_the_model_has_room_for(bert_folder, sentences, tmp_path, caplog):
    with caplog.at_level("INFO"):
        trainer = make_trainer(bert_folder, rows_of(sentences), tmp_path, max_seq_length=None)
    assert trainer.args.max_seq_length == trainer.settings["max_seq_length"] == 61
    assert "--max_seq_length 61: the model has 64 positions, 3 of them before the text" in caplog.text


def test_weights_from_scratch_are_float32_whatever_the_config_says(bert_folder, tmp_path):
    folder = shutil.copytree(bert_folder, tmp_path / "half")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
    model, _ = load_cmlm(str(folder), from_scratch=True)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_parts_of_an_earlier_stage_are_looked_up_like_its_weights(bert_folder, tmp_path, monkeypatch):
    """On the Hub too, where no folder has the name of the checkpoint."""
    model, tokenizer = load_cmlm(bert_folder, num_projections=3)
    save_cmlm(tmp_path / "stage", model, tokenizer, 16, "pooled")
    asked = []

    def model_file(name: str, filename: str, subfolder: str = "") -> str | None:
        asked.append((name, filename, subfolder))
        return find(str(tmp_path / "stage") if name == "user/stage" else name, filename, subfolder)

    find = loading_policy.model_file
    monkeypatch.setattr(loading_policy, "model_file", model_file)
    other, _ = load_cmlm(bert_folder, num_projections=3)
    assert not all(torch.equal(a, b) for a, b in zip(parts_of(model).values(), parts_of(other).values(), strict=True))
    load_parts(other, "user/stage")
    assert ("user/stage", "model.safetensors", "cmlm") in asked
    assert all(torch.equal(a, b) for a, b in zip(parts_of(model).values(), parts_of(other).values(), strict=True))
