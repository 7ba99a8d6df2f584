"""An untrusted model runs no code, whatever its folder holds. Each hostile file would leave a mark if it had run."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import run_encode
import run_eval
from mirror.cmlm.model import load_mlm
from mirror.common import trust
from mirror.common.cli import TRUST
from mirror.common.config_parser import parse_flags
from mirror.common.errors import InputError
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import save_encoder
from mirror.training.arguments import ScriptArguments
from mirror.training.config import MirrorConfig


@pytest.fixture(autouse=True)
def nothing_granted():
    trust.grant()
    yield
    trust.grant()


class Mark:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.fixture
def mark(tmp_path) -> Path:
    """Return a path that exists once code of a model has run. The pickle proves that it would."""
    path = tmp_path / "ran"
    pickle.loads(pickle.dumps(Mark(path))).close()
    assert path.exists()
    path.unlink()
    return path


@pytest.fixture
def folder(bert_folder, tmp_path) -> Path:
    return Path(shutil.copytree(bert_folder, tmp_path / "model"))


def pickled(folder: Path) -> Path:
    """Replace the weights by the same weights in a .bin."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


def poisoned(folder: Path, mark: Path) -> Path:
    (folder / "model.safetensors").unlink()
    torch.save({"bert.embeddings.word_embeddings.weight": Mark(mark)}, folder / "pytorch_model.bin")
    return folder


def with_remote_code(folder: Path, mark: Path) -> Path:
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass EvilConfig: ...\nclass EvilModel: ...\n")
    auto_map = {
        "AutoConfig": "evil.EvilConfig",
        "AutoModel": "evil.EvilModel",
        "AutoModelForMaskedLM": "evil.EvilModel",
    }
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "evil", "auto_map": auto_map}))
    return folder


LOADERS = [
    lambda name: load_backbone(name, "mean"),
    lambda name: Encoder.from_pretrained(name, pooling="mean"),
    lambda name: load_mlm(name),
]


@pytest.mark.parametrize("load", LOADERS)
def test_a_pickle_is_refused_and_read_with_a_warning_when_allowed(folder, load, caplog):
    pickled(folder)
    with pytest.raises(InputError, match=r"the weights are a pickle \(\.bin\).*--allow_pickle"):
        load(str(folder))
    trust.grant(allow_pickle=True)
    load(str(folder))
    assert "reading a pickle (--allow_pickle)" in caplog.text


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(("allowed", "indexed"), [(False, False), (True, False), (False, True)])
def test_code_in_a_pickle_never_runs_also_if_an_index_of_safetensors_names_it(folder, mark, load, allowed, indexed):
    trust.grant(allow_pickle=allowed)
    poisoned(folder, mark)
    index = {"metadata": {}, "weight_map": {"bert.embeddings.word_embeddings.weight": "pytorch_model.bin"}}
    if indexed:
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError):
        load(str(folder))
    assert not mark.exists()


@pytest.mark.parametrize("load", LOADERS)
def test_code_beside_a_model_does_not_run(folder, mark, load, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers would ask
    with pytest.raises(InputError):
        load(str(with_remote_code(folder, mark)))
    assert not mark.exists()


def test_code_beside_a_model_runs_when_asked(folder, mark):
    trust.grant(trust_remote_code=True)
    with pytest.raises(Exception):  # noqa: B017  the code is no model; that it ran is what counts
        load_backbone(str(with_remote_code(folder, mark)), "mean")
    assert mark.exists()


@pytest.fixture
def sentence_transformer(bert_folder, tmp_path) -> Path:
    """Save a checkpoint without any of our own files, as sentence-transformers would."""
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(tmp_path / "st", model, tokenizer, "mean", 32)
    (tmp_path / "st" / "mirror_config.json").unlink()
    return tmp_path / "st"


def test_modules_of_a_sentence_transformer_are_no_way_in(sentence_transformer, mark):
    (sentence_transformer / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Module: ...\n")
    written = json.loads((sentence_transformer / "modules.json").read_text())
    assert Encoder.from_pretrained(str(sentence_transformer)).pooling == "mean"
    for module in ({"path": "", "type": "evil.Module"}, {"path": "../../etc", "type": written[1]["type"]}):
        modules = [*written, {"idx": 2, "name": "2", **module}]
        (sentence_transformer / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(InputError):
            Encoder.from_pretrained(str(sentence_transformer))
    assert not mark.exists()


def test_a_pickled_layer_after_the_pooling_is_refused(sentence_transformer, mark):
    modules = json.loads((sentence_transformer / "modules.json").read_text())
    modules.append({"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"})
    (sentence_transformer / "modules.json").write_text(json.dumps(modules))
    (sentence_transformer / "2_Dense").mkdir()
    shape = {"in_features": 32, "out_features": 8, "bias": False, "activation_function": "torch.nn.Identity"}
    (sentence_transformer / "2_Dense" / "config.json").write_text(json.dumps(shape))
    torch.save({"linear.weight": Mark(mark)}, sentence_transformer / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(InputError, match="2_Dense: the weights are a pickle"):
        Encoder.from_pretrained(str(sentence_transformer))
    trust.grant(allow_pickle=True)
    with pytest.raises(InputError, match="cannot load model"):
        Encoder.from_pretrained(str(sentence_transformer))
    assert not mark.exists()


@pytest.mark.parametrize("flag", sorted(TRUST))
def test_only_the_command_line_grants(flag, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"{flag}: true\n")
    with pytest.raises(InputError, match=f"a recipe cannot set '{flag}'; give it on the command line"):
        parse_flags((ScriptArguments, MirrorConfig), ["--config", str(recipe)])
    assert trust.remote_code() == {"trust_remote_code": False} and trust.weights()["use_safetensors"] is True
    parse_flags((ScriptArguments, MirrorConfig), [f"--{flag}"])
    assert (trust.weights()["use_safetensors"] is None) == (flag == "allow_pickle")
    assert trust.remote_code()["trust_remote_code"] == (flag == "trust_remote_code")


def test_a_recipe_builds_no_objects(tmp_path, mark):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"pooling: !!python/object/apply:builtins.open ['{mark}', 'w']\n")
    with pytest.raises(InputError, match="could not determine a constructor"):
        parse_flags((ScriptArguments, MirrorConfig), ["--config", str(recipe)])
    assert not mark.exists()


def test_scripts_that_score_and_encode_have_the_same_door(folder, tmp_path, monkeypatch):
    pickled(folder)
    (tmp_path / "texts.txt").write_text("a cat\na dog\n")
    common = ["--model_name_or_path", str(folder), "--pooling", "mean", "--output_dir", str(tmp_path / "out")]
    for script, flags in (
        (run_encode, ["--input_file", str(tmp_path / "texts.txt")]),
        (run_eval, ["--tasks", "isotropy", "--isotropy_texts", str(tmp_path / "texts.txt")]),
    ):
        monkeypatch.setattr(sys, "argv", ["script", *common, *flags])
        with pytest.raises(InputError, match="--allow_pickle"):
            script.main()
    monkeypatch.setattr(sys, "argv", ["s", *common, "--input_file", str(tmp_path / "texts.txt"), "--allow_pickle"])
    run_encode.main()


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "bli_../../x_en", "tatoeba_../x", "/etc/passwd", "bel_..", "sts/.."]
)
def test_a_task_name_is_no_path(name, tmp_path, bert_folder, monkeypatch):
    flags = ["--model_name_or_path", bert_folder, "--data_dir", str(tmp_path), "--output_dir", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *flags, "--tasks", name])
    with pytest.raises(InputError, match="unknown|no such file"):
        run_eval.main()
