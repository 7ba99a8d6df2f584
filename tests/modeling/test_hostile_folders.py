"""Damaged, mixed up and hostile model folders: one line that names the folder, and nothing large is allocated."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.models import Dense, Normalize
from transformers import AutoModel, AutoTokenizer

from mirror.cmlm.model import load_cmlm
from mirror.common.errors import InputError
from mirror.data.views import ViewTokenizer
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.read_checkpoint import load_config
from mirror.modeling.save_checkpoint import save_encoder


Damage = Callable[[Path], None]
WEIGHTS = "model.safetensors"
ABSENT = object()


@pytest.fixture(scope="module")
def checkpoint(bert_folder, tmp_path_factory) -> Path:
    """A checkpoint with a dense layer and unit length, read by sentence-transformers."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    torch.manual_seed(0)
    model, tokenizer = AutoModel.from_pretrained(bert_folder), AutoTokenizer.from_pretrained(bert_folder)
    head = [Dense(32, 8), Normalize()]
    save_encoder(folder, model, tokenizer, "mean", 24, head=head, prompts={"prompts": {"query": "find "}})
    return folder


def set_json(name: str, *keys: str | int, to: object) -> Damage:
    """Set one value of a JSON file, or without keys its whole content. Remove it if `to` is `ABSENT`."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        place = content
        for key in keys[:-1]:
            place = place[key]
        if keys:
            place[keys[-1]] = to
        if to is ABSENT:
            del place[keys[-1]]
        (folder / name).write_text(json.dumps(content if keys else to))

    return damage


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def content(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data)


def cut(name: str, keep: float) -> Damage:
    return lambda folder: (folder / name).write_bytes(
        (folder / name).read_bytes()[: int(keep * (folder / name).stat().st_size)]
    )


def folder_instead(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def other_weights(name: str, change: Callable[[dict], None]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / name)
        change(tensors)
        save_file(tensors, folder / name, metadata={"format": "pt"})

    return damage


def more_tokens(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens([f"new{number}" for number in range(50)])
    tokenizer.save_pretrained(folder)


def query(tensors: dict) -> str:
    """The name of a weight, with or without the prefix of a masked LM."""
    return next(name for name in tensors if name.endswith("encoder.layer.0.attention.self.query.weight"))


def normalizer(count: int, pattern: str, content: str, kind: str = "String", nested: bool = False) -> Damage:
    step = {"type": "Replace", "pattern": {kind: pattern}, "content": content}
    steps = [step] * count
    for _ in range(count if nested else 0):
        steps = [{"type": "Sequence", "normalizers": steps}]
    return set_json("tokenizer.json", "normalizer", to={"type": "Sequence", "normalizers": steps})


def large_module(kind: str, **sizes: int) -> Damage:
    """Add a module with a configuration and without weights."""

    def damage(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        place = {"idx": 4, "name": "4", "path": f"4_{kind}", "type": f"sentence_transformers.models.{kind}"}
        (folder / "modules.json").write_text(json.dumps([*modules, place]))
        (folder / f"4_{kind}").mkdir()
        (folder / f"4_{kind}" / "config.json").write_text(json.dumps(sizes))

    return damage


HOSTILE: dict[str, Damage] = {
    "no weights": remove(WEIGHTS),
    "empty weights": content(WEIGHTS, b""),
    "weights cut in the header": cut(WEIGHTS, 0.01),
    "weights cut in the tensors": cut(WEIGHTS, 0.7),
    "weights that are none": content(WEIGHTS, b"\xff" * 400),
    "weights are a folder": folder_instead(WEIGHTS),
    "a weight is missing": other_weights(WEIGHTS, lambda tensors: tensors.pop(query(tensors))),
    "a weight of another shape": other_weights(WEIGHTS, lambda tensors: tensors.update({query(tensors): torch.zeros(32, 31)})),
    "more tokens than embeddings": more_tokens,
    "no tokenizer": remove("tokenizer.json"),
    "tokenizer is a list": set_json("tokenizer.json", to=[]),
    "tokenizer is a number": set_json("tokenizer.json", to=3),
    "tokenizer cut": cut("tokenizer.json", 0.5),
    "tokenizer with a word for an id": set_json("tokenizer.json", "model", "vocab", "fish", to="x"),
    "tokenizer with an id beyond the embeddings": set_json("tokenizer.json", "model", "vocab", "b", to=10**6),
    "tokenizer with an unknown decoder": set_json("tokenizer.json", "decoder", to={"type": "None"}),
    "tokenizer settings are nothing": set_json("tokenizer_config.json", to=None),
    "mask token is a list": set_json("tokenizer_config.json", "mask_token", to=[]),
    "config cut": cut("config.json", 0.5),
    "config is a list": set_json("config.json", to=[]),
    "config is a folder": folder_instead("config.json"),
    "no model type": set_json("config.json", "model_type", to=ABSENT),
    "model type of nobody": set_json("config.json", "model_type", to="nobody"),
    "model type is a mapping": set_json("config.json", "model_type", to={"a": 1}),
    "quantized": set_json("config.json", "quantization_config", to={"quant_method": "bitsandbytes", "load_in_4bit": True}),
    "quantized without a method": set_json("config.json", "quantization_config", to=[]),
    "another width": set_json("config.json", "hidden_size", to=64),
    "heads that do not divide": set_json("config.json", "num_attention_heads", to=5),
    "layers are a list": set_json("config.json", "num_hidden_layers", to=[None]),
    "width is a word": set_json("config.json", "hidden_size", to="x"),
    "negative width": set_json("config.json", "hidden_size", to=-32),
    "negative vocabulary": set_json("config.json", "vocab_size", to=-1),
    "a billion positions": set_json("config.json", "max_position_embeddings", to=10**9),
    "a wide layer": set_json("config.json", "intermediate_size", to=10**8),
    "a million labels": set_json("config.json", "num_labels", to=10**6),
    "a billion layer types": set_json("config.json", "num_hidden_layers", to=10**9),
    "labels of a part": set_json("config.json", "text_config", to={"num_labels": 10**9}),
    "replacements that double": normalizer(40, "a", "aa"),
    "a replacement of nothing": normalizer(40, "x*", "y", "Regex"),
    "nested replacements": normalizer(12, "a", "a" * 10, nested=True),
    "bytes of bytes": set_json("tokenizer.json", "normalizer", to={"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 40}),
    "200,000 layers": set_json("config.json", "num_hidden_layers", to=200_000),
}  # fmt: skip
HOSTILE_CHECKPOINTS: dict[str, Damage] = {
    "our settings are a list": set_json("mirror_config.json", to=[1]),
    "our settings are a number": set_json("mirror_config.json", to=3),
    "our settings cut": cut("mirror_config.json", 0.5),
    "length is no number": set_json("mirror_config.json", "max_seq_length", to=float("nan")),
    "length of nothing": set_json("mirror_config.json", "max_seq_length", to=-1),
    "pooling is a number": set_json("mirror_config.json", "pooling", to=3),
    "pooling of nobody": set_json("mirror_config.json", "pooling", to="nobody"),
    "prompts are a list": set_json("mirror_config.json", "prompts", to=["a"]),
    "a prompt is a number": set_json("mirror_config.json", "prompts", "query", to=3),
    "default prompt is a mapping": set_json("mirror_config.json", "default_prompt_name", to={}),
    "no pooling module": remove("1_Pooling/config.json"),
    "pooling module is empty": set_json("1_Pooling/config.json", to={}),
    "pooling module cut": cut("1_Pooling/config.json", 0.5),
    "modules are nothing": set_json("modules.json", to={"a": 1}),
    "modules cut": cut("modules.json", 0.5),
    "a module without a kind": set_json("modules.json", 1, "type", to=ABSENT),
    "a module without a path": set_json("modules.json", 2, "path", to=ABSENT),
    "the path of a module is a number": set_json("modules.json", 1, "path", to=200),
    "a module outside": set_json("modules.json", 2, "path", to="../other"),
    "a module of nobody": set_json("modules.json", 1, "type", to="nobody.Module"),
    "no settings of a dense layer": remove("2_Dense/config.json"),
    "a dense layer of another width": set_json("2_Dense/config.json", "in_features", to=10**6),
    "a dense layer of a billion rows": set_json("2_Dense/config.json", "out_features", to=10**9),
    "weights of a dense layer cut": cut("2_Dense/model.safetensors", 0.5),
    "weights of a dense layer of another width": other_weights(
        "2_Dense/model.safetensors", lambda tensors: tensors.update({"linear.weight": torch.zeros(8, 31)})
    ),
    "a large dense layer without weights": large_module("Dense", in_features=8, out_features=250_000_000, bias=True),
    "a large norm without weights": large_module("LayerNorm", dimension=2_000_000_000),
    "a module that reads nothing": set_json("3_Normalize/config.json", "module_input_name", to=[]),
    "library settings are a word": set_json("config_sentence_transformers.json", to="x"),
}


def damaged(source: str | Path, target: Path, damage: Damage) -> str:
    shutil.copytree(source, target)
    damage(target)
    return str(target)


def refused(load: Callable[[], object], folder: str) -> None:
    with pytest.raises(InputError) as caught:
        load()
    line = str(caught.value)
    assert folder in line and "\n" not in line and len(line) < 600


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_masked_lm_is_one_line(bert_folder, tmp_path, kind, capfd):
    folder = damaged(bert_folder, tmp_path / "model", HOSTILE[kind])
    refused(lambda: load_backbone(folder, "mean"), folder)
    refused(lambda: load_cmlm(folder), folder)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("kind", [*HOSTILE, *HOSTILE_CHECKPOINTS])
def test_a_hostile_checkpoint_is_one_line(checkpoint, tmp_path, kind, capfd):
    folder = damaged(checkpoint, tmp_path / "model", (HOSTILE | HOSTILE_CHECKPOINTS)[kind])
    refused(lambda: Encoder.from_pretrained(folder, device="cpu"), folder)
    assert not capfd.readouterr().err


@pytest.mark.parametrize("kind", ["200,000 layers", "a wide layer", "a billion positions"])
def test_what_is_too_large_is_refused_before_it_is_allocated(checkpoint, bert_folder, tmp_path, kind, monkeypatch):
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", None)
    for source, load in ((checkpoint, Encoder.from_pretrained), (bert_folder, load_cmlm)):
        folder = damaged(source, tmp_path / Path(source).name, HOSTILE[kind])
        with pytest.raises(InputError, match=r"asks for [\d,]+ layers and [\d,]+ weights or more, but what is stored"):
            load(folder)


@pytest.mark.parametrize("name", ["/no/such/folder", "no/such/folder", "a name with blanks"])
def test_a_wrong_path_reads_alike_everywhere(name):
    lines = set()
    for load in (load_config, load_cmlm, Encoder.from_pretrained):
        with pytest.raises(InputError) as caught:
            load(name)
        lines.add(str(caught.value))
    assert lines == {f"cannot load model '{name}': there is no such folder, and it is not a Hub id"}


@pytest.mark.parametrize(
    "kind", ["a million labels", "a large dense layer without weights", "a large norm without weights"]
)
def test_limits_are_checked_before_a_library_reads_the_folder(checkpoint, tmp_path, kind, monkeypatch):
    folder = damaged(checkpoint, tmp_path / "model", (HOSTILE | HOSTILE_CHECKPOINTS)[kind])
    for library in ("transformers.PreTrainedModel.from_pretrained", "sentence_transformers.SentenceTransformer"):
        monkeypatch.setattr(library, None)
    if kind == "a million labels":
        monkeypatch.setattr("transformers.AutoConfig.from_pretrained", None)
    with pytest.raises(InputError, match=r"more than the|but what is stored has"):
        Encoder.from_pretrained(folder, device="cpu")


def test_a_rule_that_backtracks_is_one_line_where_texts_are_tokenized(checkpoint, tmp_path):
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    folder = damaged(checkpoint, tmp_path / "model", set_json("tokenizer.json", "pre_tokenizer", to=split))
    set_json("tokenizer_config.json", "tokenizer_class", to="PreTrainedTokenizerFast")(Path(folder))
    texts = ["a" * 60 + "!", "b"]
    with pytest.raises(InputError, match="model: its tokenizer fails on these texts: PanicException"):
        Encoder.from_pretrained(folder, device="cpu").encode(texts)
    with pytest.raises(InputError, match="model: its tokenizer fails on these texts: PanicException"):
        ViewTokenizer(load_backbone(folder, "mean")[1], 80)([[text] for text in texts])


def test_replacements_that_grow_are_counted(checkpoint, tmp_path):
    folder = damaged(checkpoint, tmp_path / "model", normalizer(3, "a", "a" * 10, nested=True))
    with pytest.raises(InputError, match="makes texts up to 1,000 times as long, more than the 100 times"):
        Encoder.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("replacement", [("\u2026", "..."), (" ", "\u2581"), ("``", '"')])
def test_ordinary_replacements_are_read(checkpoint, tmp_path, replacement):
    folder = damaged(checkpoint, tmp_path / "model", normalizer(3, *replacement))
    assert Encoder.from_pretrained(folder, device="cpu").encode(["a cat"]).shape == (1, 8)


@pytest.mark.parametrize(
    "head", ["BertForSequenceClassification", "BertForTokenClassification", "BertForQuestionAnswering"]
)
def test_the_head_of_another_task_is_named(bert_folder, tmp_path, head, caplog):
    folder = damaged(bert_folder, tmp_path / "model", set_json("config.json", "architectures", to=[head]))
    Encoder.from_pretrained(folder, "mean", device="cpu")
    assert f"{folder} is a {head}, such as a cross-encoder: its head is not used" in caplog.text
