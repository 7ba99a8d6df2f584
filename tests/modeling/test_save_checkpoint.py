"""One checkpoint, the same vectors in every library: transformers, sentence-transformers old and new, servers, mteb, ours."""

from __future__ import annotations

import json
import subprocess
import venv
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, LayerNorm, Normalize
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerFast

from mirror.common.errors import InputError
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.pooling import pool
from mirror.modeling.save_checkpoint import save_encoder, stored_pooling, verify_encoder
from tests.architectures import CONFIGS


# What `Pooling.__init__` took in sentence-transformers 2.2; until 5.4 it was called with every key of the file.
PARAMETERS_OF_OLD_POOLING = {
    *("word_embedding_dimension", "pooling_mode", "pooling_mode_cls_token", "pooling_mode_max_tokens"),
    *("pooling_mode_mean_tokens", "pooling_mode_mean_sqrt_len_tokens"),
}
TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning to the king of the old city"]


def saved(folder, bert_folder: str, pooling: str) -> Encoder:
    if pooling == "pooler":
        torch.manual_seed(3)
        model = AutoModel.from_pretrained(bert_folder)  # its pooler is drawn at random, which is all this needs
        tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    else:
        model, tokenizer = load_backbone(bert_folder, pooling)
    save_encoder(folder, model, tokenizer, pooling, max_seq_length=12, settings={"level": "sentence"})
    return Encoder(model.eval(), tokenizer, pooling, 12)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_every_reader_gives_the_same_vectors(bert_folder, tmp_path, pooling):
    encoder = saved(tmp_path, bert_folder, pooling)
    expected = encoder.encode(TEXTS)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path), device="cpu").encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(Encoder.from_pretrained(str(tmp_path)).encode(TEXTS), expected, atol=1e-5)

    model, tokenizer = AutoModel.from_pretrained(tmp_path).eval(), AutoTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=12, return_tensors="pt")
    with torch.no_grad():
        by_hand = pool(model(**batch), batch["attention_mask"], pooling)
    np.testing.assert_allclose(by_hand.numpy(), expected, atol=1e-5)
    special = ["the [MASK] sees [SEP] the dog", "[CLS] rain", "[PAD] [UNK]"]
    assert min(verify_encoder(tmp_path, encoder, [*TEXTS, *special]).values()) > 0.9999
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".bin", ".pt", ".pkl")]


def test_pooling_is_written_in_both_spellings(bert_folder, tmp_path):
    saved(tmp_path, bert_folder, "cls")
    config = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    assert config["pooling_mode"] == "cls" and config["word_embedding_dimension"] == 32
    assert config.keys() <= PARAMETERS_OF_OLD_POOLING
    old = {key for key, value in config.items() if key.startswith("pooling_mode_") and value}
    assert old == {"pooling_mode_cls_token"}
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 12
    assert json.loads((tmp_path / "mirror_config.json").read_text())["settings"] == {"level": "sentence"}


@pytest.mark.parametrize("pooling", ["mean_padded", "first_last_mean"])
def test_what_others_cannot_be_told_is_said_aloud_and_ours_still_knows(bert_folder, tmp_path, pooling, caplog):
    encoder = saved(tmp_path, bert_folder, pooling)
    assert f"other libraries have no pooling '{pooling}' and will use 'mean'" in caplog.text
    cosines = verify_encoder(tmp_path, encoder, TEXTS)
    assert cosines["transformers AutoModel and pool()"] > 0.9999
    assert list(cosines) == ["transformers AutoModel and pool()"]  # nothing is claimed of a reader without the pooling


def test_a_reader_that_cannot_load_the_folder_is_named(bert_folder, tmp_path):
    encoder = saved(tmp_path, bert_folder, "cls")
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(InputError, match="cannot be read back: TypeError: Pooling"):
        verify_encoder(tmp_path, encoder, TEXTS)


def test_the_stored_pooling_and_a_file_that_does_not_say(bert_folder, tmp_path):
    saved(tmp_path, bert_folder, "cls")
    assert stored_pooling(tmp_path) == "cls"
    (tmp_path / "mirror_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"mirror_config.json: KeyError: 'pooling'"):
        stored_pooling(tmp_path)
    (tmp_path / "mirror_config.json").unlink()
    assert stored_pooling(tmp_path) == "cls"


def test_layers_after_the_pooling_are_saved_and_read(bert_folder, tmp_path):
    model, tokenizer = load_backbone(bert_folder, "mean")
    layer = Dense(32, 8, activation_function=nn.Identity())
    prompts = {"prompts": {"query": "find: "}, "default_prompt_name": None}
    for _ in range(2):  # the second time into a folder that is there
        save_encoder(tmp_path, model, tokenizer, "mean", 12, head=[layer, Normalize()], prompts=prompts)
    plain = Encoder(model.eval(), tokenizer, "mean", 12).encode(TEXTS)
    expected = nn.functional.normalize(layer.linear(torch.from_numpy(plain)), dim=1).detach()
    read = SentenceTransformer(str(tmp_path), device="cpu")
    np.testing.assert_allclose(read.encode(TEXTS), expected.numpy(), atol=1e-5)
    assert [module["path"] for module in json.loads((tmp_path / "modules.json").read_text())] == [
        *("", "1_Pooling", "2_Dense", "3_Normalize")
    ]
    config = json.loads((tmp_path / "config_sentence_transformers.json").read_text())
    assert (config["prompts"], config["similarity_fn_name"]) == ({"query": "find: "}, "cosine")
    assert config["__version__"].keys() == {"sentence_transformers", "transformers", "pytorch"}


def test_a_reader_that_disagrees_is_an_error(bert_folder, tmp_path):
    encoder = saved(tmp_path, bert_folder, "cls")
    config = json.loads((tmp_path / "1_Pooling" / "config.json").read_text())
    config |= {"pooling_mode": "mean", "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="reads differently in sentence-transformers: lowest cosine"):
        verify_encoder(tmp_path, encoder, TEXTS)


def test_the_pooler_of_the_base_is_saved_again_and_one_that_is_missing_is_the_identity(
    bert_folder, tokenizer, tmp_path
):
    model, _ = load_backbone(bert_folder, "mean")  # saved as a masked LM: without a pooler
    assert model.pooler is None and not any("pooler" in name for name, _ in model.named_parameters())
    save_encoder(tmp_path / "new", model, tokenizer, "mean", 12)
    read = AutoModel.from_pretrained(tmp_path / "new")
    assert torch.equal(read.pooler.dense.weight, torch.eye(32)) and not read.pooler.dense.bias.any()
    with torch.no_grad():
        read.pooler.dense.weight.mul_(3)
    read.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    save_encoder(tmp_path / "again", load_backbone(str(tmp_path / "base"), "mean")[0], tokenizer, "mean", 12)
    assert torch.equal(AutoModel.from_pretrained(tmp_path / "again").pooler.dense.weight, 3 * torch.eye(32))


@pytest.fixture(params=["cls", "mean"])
def checkpoint(request, bert_folder, tmp_path) -> Path:
    model = AutoModel.from_pretrained(bert_folder, add_pooling_layer=False)
    tokenizer = AutoTokenizer.from_pretrained(bert_folder)
    save_encoder(tmp_path, model, tokenizer, request.param, max_seq_length=12)
    return tmp_path


def read(folder: Path, name: str) -> dict:
    return json.loads((folder / name).read_text())


def server_settings(folder: Path) -> dict:
    """What text-embeddings-inference (router/src/lib.rs) takes from a folder; what it would refuse is an error here too."""
    config, pooling = read(folder, "config.json"), read(folder, "1_Pooling/config.json")
    assert isinstance(config["architectures"], list)
    assert not any(name.endswith("Classification") for name in config["architectures"])
    assert isinstance(config["model_type"], str) and isinstance(config["max_position_embeddings"], int)
    kinds = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    flags = {kind: pooling[f"pooling_mode_{kind}"] for kind in kinds}
    assert all(isinstance(flag, bool) for flag in flags.values())
    mode = "cls" if flags["cls_token"] else "mean" if flags["mean_tokens"] else None
    assert mode, "refused: pooling is neither cls nor mean"
    return {"pooling": mode, "max_input_length": read(folder, "sentence_bert_config.json")["max_seq_length"]}


def test_a_server_pools_and_cuts_as_we_do(checkpoint):
    encoder = Encoder.from_pretrained(str(checkpoint))
    settings = server_settings(checkpoint)
    assert settings == {"pooling": encoder.pooling, "max_input_length": 12}
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings["max_input_length"])
    model = AutoModel.from_pretrained(checkpoint).eval()
    expected = encoder.encode(TEXTS)
    assert np.abs(expected[0] - expected[2]).max() > 1e-3
    for text, vector in zip(TEXTS, expected, strict=True):
        ids = tokenizer.encode(text).ids
        assert len(ids) <= 12
        with torch.no_grad():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0]  # (T, D)
        pooled = hidden[0] if settings["pooling"] == "cls" else hidden.mean(0)
        np.testing.assert_allclose(pooled.numpy(), vector, atol=1e-5)


# The oldest that loads here: 2.2 asks huggingface_hub for a function that is gone. Dense layers it reads from a pickle only, and no
# pickle is written. And the last of transformers 4, which much of the field still runs.
OLD = ("sentence-transformers==2.3.0", "transformers==4.41.2")
LAST_4 = ("sentence-transformers==5.2.0", "transformers==4.57.6", "datasets==3.6.0")
ENCODE = """
import sys
import numpy as np
import sentence_transformers
from sentence_transformers import SentenceTransformer
for folder in sys.argv[2:]:
    np.save(folder + ".npy", SentenceTransformer(folder, device="cpu").encode(sys.argv[1].split("|")))
print(sentence_transformers.__version__)
"""


@pytest.fixture(scope="module")
def python_with(tmp_path_factory):
    """Environments with this one's packages, torch among them, behind older libraries of their own."""

    def make(packages: tuple[str, ...]) -> Path:
        folder = tmp_path_factory.mktemp("old") / "venv"
        venv.create(folder, with_pip=True)
        python = folder / "bin" / "python"
        (site,) = folder.glob("lib/python*/site-packages")
        (here,) = {str(Path(module.__file__).parents[1]) for module in (torch, np)}
        (site / "pins.pth").write_text(here)
        command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900)
        if done.returncode and "onnection" in done.stderr + done.stdout:
            pytest.skip(f"no package index to install {' '.join(packages)} from")
        assert done.returncode == 0, done.stderr[-2000:]
        return python

    return cache(make)


def read_by(python: Path, packages: tuple[str, ...], folders: list[Path]) -> list[np.ndarray]:
    """Return the vectors of TEXTS by sentence-transformers of another environment."""
    command = [python, "-W", "ignore", "-c", ENCODE, "|".join(TEXTS), *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=folders[0].parent)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == packages[0].partition("==")[2]
    return [np.load(f"{folder}.npy") for folder in folders]


@pytest.mark.slow
@pytest.mark.parametrize("packages", [OLD, LAST_4], ids=" ".join)
def test_an_old_sentence_transformers_gives_the_same_vectors(python_with, packages, bert_folder, tokenizer, tmp_path):
    folders = {}
    for pooling in ("cls", "mean", "max"):
        model = AutoModel.from_pretrained(bert_folder, add_pooling_layer=False)
        save_encoder(tmp_path / pooling, model, tokenizer, pooling, max_seq_length=12)
        folders[tmp_path / pooling] = Encoder(model.eval(), tokenizer, pooling, 12)
    found = read_by(python_with(packages), packages, [*folders])
    for vectors, encoder in zip(found, folders.values(), strict=True):
        np.testing.assert_allclose(vectors, encoder.encode(TEXTS), atol=1e-4)


# EuroBERT and NomicBERT are not in transformers 4. The bases of Mirror-BERT and their successors are.
IN_4 = (
    "bert",
    "roberta",
    "xlm_roberta",
    "camembert",
    "distilbert",
    "electra",
    "albert",
    "modernbert",
    "mpnet",
    "deberta_v2",
)


@pytest.mark.slow
def test_the_last_transformers_4_reads_what_is_saved_here(python_with, tokenizer, tmp_path):
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    generic = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        additional_special_tokens=["cat", "dog"],
        **{name: getattr(tokenizer, name) for name in names},
    )
    folders = {}
    for name in (*IN_4, "modernbert with other angles"):
        config = CONFIGS[name.partition(" ")[0]]()
        config.vocab_size, config.pad_token_id = len(tokenizer), tokenizer.pad_token_id
        if " " in name:
            config.rope_parameters["full_attention"]["rope_theta"] = 50.0
            config.rope_parameters["sliding_attention"]["rope_theta"] = 20.0
        torch.manual_seed(0)
        AutoModel.from_config(config).save_pretrained(tmp_path / "base")
        generic.save_pretrained(tmp_path / "base")
        model, own = load_backbone(str(tmp_path / "base"), "mean")
        head = [Dense(32, 8), LayerNorm(8), Normalize()]
        prompts = {"prompts": {"query": "find the ", "document": ""}, "default_prompt_name": "query"}
        prompts |= {"include_prompt": False, "similarity_fn_name": "dot"}
        folder = tmp_path / name.replace(" ", "_")
        save_encoder(folder, model, own, "mean", 12, head=head, prompts=prompts)
        folders[folder] = Encoder.from_pretrained(str(folder), device="cpu").encode(TEXTS)
    for vectors, (folder, expected) in zip(
        read_by(python_with(LAST_4), LAST_4, [*folders]), folders.items(), strict=True
    ):
        np.testing.assert_allclose(vectors, expected, atol=1e-4, err_msg=folder.name)
