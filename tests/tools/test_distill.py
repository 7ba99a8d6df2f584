"""Students of an encoder: what they start from, what they are trained to be, and what is said of them."""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import softmax
from scipy.stats import entropy
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Normalize
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss
from transformers import AutoModel, BertConfig, BertModel

from mirror import MirrorConfig
from mirror.common.errors import InputError
from mirror.common.files import is_complete
from mirror.common.vectors import unit_length
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import save_encoder
from mirror.tools import distill
from mirror.training.card import name_on_unedited_card
from mirror.training.distillation import (
    SIDES,
    DistillationTrainer,
    distillation,
    drop_layers,
    parse_student,
    piece,
    save_student,
)
from mirror.training.record import RunRecord
from tests.architectures import CONFIGS, tiny
from tests.decoders import DECODERS, tiny_decoder
from tests.evaluation.folder import write_tsv


PROMPTS = {"prompts": {"query": "find ", "document": ""}, "default_prompt_name": None}


@pytest.fixture(scope="module")
def teacher(bert_folder, tmp_path_factory) -> str:
    """An encoder with prompts and vectors of unit length."""
    folder = tmp_path_factory.mktemp("teacher") / "teacher"
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(folder, model, tokenizer, "mean", 24, head=[Normalize()], prompts=PROMPTS)
    return str(folder)


@pytest.mark.parametrize(
    ("text", "student"),
    [
        ("layers:3", ("layers", 3)),
        ("static", ("static", None)),
        ("static:256", ("static", 256)),
        ("dimensions:128", ("dimensions", 128)),
    ],
)
def test_the_flag(text, student):
    assert parse_student(text) == student


NO_STUDENT = "|layers|layers:|layers:0|layers:x|layers:3:last|layers:²|static:0|static:9:last|dimensions|dimensions:-1|dimensions:8:last|Static|tokens:3"


@pytest.mark.parametrize("text", NO_STUDENT.split("|"))
def test_a_flag_that_names_no_student(text):
    with pytest.raises(InputError, match=f"--student {text}: give layers:N, static, static:N or"):
        parse_student(text)


@pytest.mark.parametrize(
    ("count", "number", "kept"),
    [(6, 3, [0, 2, 5]), (12, 4, [0, 4, 7, 11]), (6, 5, [0, 1, 2, 4, 5]), (6, 2, [0, 5]), (6, 1, [0])],
)
def test_the_layers_that_are_kept(count, number, kept):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}
    model = BertModel(BertConfig(num_hidden_layers=count, **sizes))
    layers = list(model.encoder.layer)
    drop_layers(model, number, "name")
    assert list(model.encoder.layer) == [layers[at] for at in kept] and model.config.num_hidden_layers == number


@pytest.mark.parametrize("name", [*CONFIGS, *DECODERS])
def test_the_configuration_says_which_layers_are_left(name):
    """A model that is built from it and gets the weights computes the same: layers of two kinds stay of their kinds."""
    model = (tiny if name in CONFIGS else tiny_decoder)(name).eval()
    if model.config.model_type == "albert":  # which has one layer, several times
        with pytest.raises(InputError, match="has no list of layers of its own"):
            drop_layers(model, 2, name)
        return
    model.config.use_cache = False  # as in `load_backbone`
    drop_layers(model, 2, name)
    again = type(model)(type(model.config)(**model.config.to_dict())).eval()
    assert not any(again.load_state_dict(model.state_dict()))
    ids = torch.arange(5, 45)[None]
    with torch.no_grad():
        found, expected = (each(input_ids=ids).last_hidden_state for each in (again, model))
    torch.testing.assert_close(found, expected)


def test_a_student_of_fewer_layers_is_its_teacher_up_to_there(teacher, sentences, tmp_path):
    assert save_student(tmp_path, "layers", 1, teacher, Encoder.from_pretrained(teacher), sentences) is None
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    model = AutoModel.from_pretrained(teacher).eval()
    model.encoder.layer = model.encoder.layer[:1]
    batch = theirs.tokenizer(sentences[:9], padding=True, return_tensors="pt")
    mask = batch["attention_mask"][..., None]
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    expected = unit_length(((hidden * mask).sum(1) / mask.sum(1)).numpy())
    np.testing.assert_allclose(theirs.encode(sentences[:9]), expected, atol=1e-5)
    assert theirs.prompts["query"] == "find " and theirs.max_seq_length == 24


@pytest.mark.parametrize("width", [None, 8])
def test_a_static_student_is_the_mean_of_the_vectors_of_its_tokens(teacher, sentences, tokenizer, tmp_path, width):
    encoder = Encoder.from_pretrained(teacher)
    components = save_student(tmp_path, "static", width, teacher, encoder, sentences)
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    alone = SentenceTransformer(teacher, device="cpu").encode(words)  # (V, D): of WordPiece, a word is one token
    alone[[at for at, word in enumerate(words) if word.startswith("##")]] = np.nan
    counts = np.zeros(len(words))
    for text in sentences:
        np.add.at(counts, tokenizer(text, add_special_tokens=False)["input_ids"], 1)
    weight = 1e-3 / (1e-3 + counts / counts.sum())
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    table = theirs[0].embedding.weight.detach().numpy() / weight[:, None]
    if width is None:  # centered by the mean of all tokens, so the difference of two tokens is that of their vectors
        cat, dog = tokenizer.convert_tokens_to_ids(["cat", "dog"])
        np.testing.assert_allclose(table[cat] - table[dog], alone[cat] - alone[dog], atol=1e-4)
    else:
        assert components.shape == (8, 32)
        np.testing.assert_allclose(components @ components.T, np.eye(8), atol=1e-5)
    assert not theirs[0].embedding.weight[tokenizer.all_special_ids].any()
    texts = [*sentences[:9], " ".join(sentences[:40])]  # longer than the teacher reads
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    expected = unit_length(np.stack([theirs[0].embedding.weight.detach().numpy()[row].mean(0) for row in ids]))
    np.testing.assert_allclose(theirs.encode(texts), expected, atol=1e-5)
    np.testing.assert_allclose(Encoder.from_pretrained(str(tmp_path)).encode(texts), expected, atol=1e-5)


def test_a_student_of_fewer_dimensions_is_the_best_projection(teacher, sentences, tmp_path):
    vectors = SentenceTransformer(teacher, device="cpu").encode(sentences)
    save_student(tmp_path, "dimensions", 8, teacher, Encoder.from_pretrained(teacher), sentences)
    found = SentenceTransformer(str(tmp_path), device="cpu").encode(sentences)
    _, _, rows = np.linalg.svd(vectors, full_matrices=False)
    projected = unit_length(vectors @ rows[:8].T)
    assert found.shape == (240, 8)
    np.testing.assert_allclose(found @ found.T, projected @ projected.T, atol=1e-4)


def test_the_loss(monkeypatch):
    monkeypatch.setattr("mirror.training.distillation.TEMPERATURE", 0.1)
    generator = torch.Generator().manual_seed(0)
    vectors, targets = torch.randn(2, 6, 5, generator=generator)
    targets = torch.nn.functional.normalize(targets)
    library = EmbedDistillLoss(SentenceTransformer(modules=[Normalize()], device="cpu"), distance_metric="cosine")
    rest = ~np.eye(6, dtype=bool)
    for components, mine in ((None, vectors), (torch.eye(5)[:3], vectors[:, :3])):
        near = targets if components is None else targets[:, :3]
        expected = library.compute_loss_from_embeddings([mine], [near]).item()
        shares = [
            softmax((each @ each.T / 0.1)[rest].reshape(6, 5), axis=1)
            for each in (targets.numpy(), unit_length(mine.numpy()))
        ]
        expected += entropy(*shares, axis=1).mean()
        assert distillation(mine, targets, components).item() == pytest.approx(expected, rel=1e-4)


def test_the_pieces_of_texts(sentences):
    pieces = list(map(piece, sentences))
    assert all(each in text for each, text in zip(pieces, sentences, strict=True))
    assert pieces == list(map(piece, sentences))  # a function of the text
    shares = [len(each.split()) / len(text.split()) for each, text in zip(pieces, sentences, strict=True)]
    assert min(shares) < 0.2 and max(shares) == 1 and piece("") == "" and piece("...") == "..."


def test_each_row_is_compared_with_its_own_target(teacher, sentences, tmp_path):
    """The loss of an encoder that is its own teacher is 0, whatever the order of the rows."""
    config = MirrorConfig(
        output_dir=str(tmp_path), augmentation="none", dropout_rate=0.0, validation_samples=0, learning_rate=0.0,
        per_device_train_batch_size=40, max_steps=3, max_seq_length=24, bf16=False, logging_steps=1, disable_tqdm=True,
        pair_prompts=[*SIDES],
    )  # fmt: skip
    trainer = DistillationTrainer(teacher, config, sentences, Encoder.from_pretrained(teacher), teacher, "all of it")
    trainer.train()
    assert max(entry["loss"] for entry in trainer.state.log_history if "loss" in entry) < 1e-5
    trainer.targets = trainer.targets.roll(1, dims=1)
    trainer.train()
    assert min(entry["loss"] for entry in trainer.state.log_history if "loss" in entry) > 0.01


def run(monkeypatch, *argv) -> None:
    monkeypatch.setattr(sys, "argv", ["mirror.tools.distill", *map(str, argv)])
    distill.main()


@pytest.mark.parametrize(
    "student",
    [
        "layers:1",
        "static",
        pytest.param("static:8", marks=pytest.mark.slow),
        pytest.param("dimensions:8", marks=pytest.mark.slow),
    ],
)
def test_a_student_learns_and_its_card_compares_it(teacher, sentences, tmp_path, monkeypatch, capsys, caplog, student):
    texts = sentences + [f"{first} {second}" for first, second in zip(sentences, reversed(sentences), strict=True)] * 2
    texts += [f"{first} {second}" for first, second in zip(sentences, sentences[7:], strict=False)]
    write_tsv(tmp_path / "texts.tsv", ("number", "body"), enumerate(texts))
    rows = [("dev", sentences[n % 240], sentences[(n * 7 + 1) % 240], (n * 29) % 251 / 50) for n in range(1500)]
    write_tsv(tmp_path / "sts/stsb_dev.tsv", ("subset", "sentence1", "sentence2", "score"), rows)
    out = tmp_path / "out"
    flags = ["--texts", tmp_path / "texts.tsv", "--text_column", "body", "--student", student, "--output_dir", out]
    flags += ["--max_steps", 8]
    caplog.set_level("INFO", "mirror")
    rate = 1e-4 if student.startswith("dimensions") else 1e-3  # it starts from the best projection
    run(monkeypatch, teacher, *flags, "--learning_rate", rate, "--tasks", "stsb_dev", "--data_dir", tmp_path)

    assert f"search {out} {tmp_path / 'texts.tsv'} 'a query' --text_column body " in caplog.text
    _, _, table = capsys.readouterr().out.partition("measure\t")  # after the log of transformers
    lines = [line.split("\t") for line in f"measure\t{table}".splitlines()]
    assert lines[0] == ["measure", "teacher", "student"]
    names = [line[0] for line in lines[1:]]
    assert names[0] == "words" and names[-4:] == ["stsb_dev", "texts_per_second", "size_mb", "dimension"]
    record = RunRecord.load(out)
    assert list(record.distilled) == names and record.run["base_model"]["name"] == "teacher"
    assert record.distilled["dimension"] == [32, 8 if student.endswith(":8") else 32]
    card = (out / "README.md").read_text()
    assert "its teacher, `teacher`" in card and "| texts_per_second |" in card and "- distilled" in card
    assert f"--student {student}`" in card and is_complete(out)
    assert "Mirror-BERT" not in card and "tmp" not in card and name_on_unedited_card(out) == "out"

    ours = Encoder.from_pretrained(str(out))
    theirs = SentenceTransformer(str(out), device="cpu").encode(sentences[:9])
    np.testing.assert_allclose(theirs, ours.encode(sentences[:9]), atol=1e-5)
    assert ours.role_prompts["query"] == "find " and np.allclose(np.linalg.norm(theirs, axis=1), 1, atol=1e-5)
    start = Encoder.from_pretrained(teacher)
    components = save_student(tmp_path / "start", *parse_student(student), teacher, start, texts)
    components, targets = (
        each if each is None else torch.from_numpy(each) for each in (components, start.encode(sentences))
    )
    before, after = (
        distillation(torch.from_numpy(each.encode(sentences)), targets, components).item()
        for each in (Encoder.from_pretrained(str(tmp_path / "start")), ours)
    )
    assert after < before * (1.1 if student.startswith("dimensions") else 0.95)
    with pytest.raises(InputError, match="holds another run"):
        run(monkeypatch, teacher, *flags)


@pytest.mark.slow
def test_whole_documents_are_held_out(teacher, tmp_path, monkeypatch):
    """No passage of a document that the test asks about was trained on."""
    (tmp_path / "docs").mkdir()
    for number in range(60):
        sections = [
            f"## Part {part}\n\nfile{number} has the long passage number {part} of all\n" for part in range(10)
        ]
        (tmp_path / "docs" / f"{number}.md").write_text("\n".join(sections))
    held_out, trained = [], []
    monkeypatch.setattr("mirror.evaluation.own_text.make_tests", lambda texts: held_out.extend(texts) or [])
    start = distill.measure
    monkeypatch.setattr(distill, "measure", lambda e, t, k, texts: trained.extend(texts) or start(e, t, k, texts))
    run(monkeypatch, teacher, "--texts", tmp_path / "docs", "--student", "static", "--max_steps", "1",
        "--output_dir", tmp_path / "out")  # fmt: skip
    sides = [{text.split()[0] for text in texts} for texts in (held_out, trained)]
    assert len(held_out) >= 50 and len(trained) >= 1000  # both are measured on the texts of training
    assert not sides[0] & sides[1]


def test_an_interrupted_run_goes_on(teacher, sentences, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    flags = ["--texts", tmp_path / "texts.txt", "--student", "static", "--max_steps", 4]
    run(monkeypatch, teacher, *flags, "--output_dir", tmp_path / "whole")
    whole, seen = DistillationTrainer.contrast, []

    def stopped(self, *args):
        seen.append(self.state.global_step)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(DistillationTrainer, "contrast", stopped)
        with pytest.raises(SystemExit):
            run(monkeypatch, teacher, *flags, "--output_dir", tmp_path / "out")
    run(monkeypatch, teacher, *flags, "--output_dir", tmp_path / "out", "--resume_from_checkpoint", "auto")
    found, expected = (load_file(tmp_path / name / "model.safetensors")["embeddings"] for name in ("out", "whole"))
    assert torch.equal(found, expected) and RunRecord.load(tmp_path / "out").distilled


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ("layers:2", "--student layers:2: .*teacher has 2 layers; give fewer"),
        ("dimensions:32", "--student dimensions:32: the vectors of .*teacher have 32 dimensions; give fewer"),
        ("static:99", "--student static:99: the vectors of .*teacher have 32 dimensions; give fewer"),
        ("layer:3", "--student layer:3: give layers:N"),
    ],
)
def test_what_cannot_be_a_student_is_one_line(teacher, sentences, tmp_path, monkeypatch, student, message):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    with pytest.raises(InputError, match=message):
        run(
            monkeypatch,
            teacher,
            "--texts",
            tmp_path / "texts.txt",
            "--student",
            student,
            "--output_dir",
            tmp_path / "o",
        )


def test_a_corpus_of_one_text_is_too_small(teacher, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("a cat\n\na cat\n")
    flags = ["--texts", tmp_path / "texts.txt", "--student", "layers:1", "--output_dir", tmp_path / "out"]
    with pytest.raises(InputError, match="texts.txt: one text; give many"):
        run(monkeypatch, teacher, *flags)


def test_a_static_teacher_has_no_layers(teacher, sentences, tmp_path):
    save_student(tmp_path / "static", "static", None, teacher, Encoder.from_pretrained(teacher), sentences)
    name = str(tmp_path / "static")
    with pytest.raises(
        InputError, match=r"static \(static\) has no list of layers of its own; use static or dimensions"
    ):
        save_student(tmp_path / "out", "layers", 1, name, Encoder.from_pretrained(name), sentences)
