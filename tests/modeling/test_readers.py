"""Readers that are not ours, on a saved checkpoint: a server that follows text-embeddings-inference's rules, short vectors, mteb,
and the oldest sentence-transformers that runs beside our pins."""

from __future__ import annotations

import json
import subprocess
import venv
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers import AutoModel, AutoTokenizer

from mirror.evaluation.encoding import EncodeSettings, make_encode
from mirror.modeling.checkpoint import save_encoder
from mirror.modeling.encoder import Encoder
from tests.architectures import tiny


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning to the king of the old city"]


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


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "xlm_roberta", "distilbert", "modernbert", "nomic_bert", "mpnet"]
)
def test_a_server_can_read_every_family(family, tokenizer, tmp_path):
    save_encoder(tmp_path, tiny(family), tokenizer, "mean", max_seq_length=12)
    config = read(tmp_path, "config.json")
    assert server_settings(tmp_path)["pooling"] == "mean"
    assert config["architectures"] and (tmp_path / "tokenizer.json").exists()


def test_short_vectors_are_the_first_dimensions_in_every_reader(checkpoint):
    encoder = Encoder.from_pretrained(str(checkpoint))
    ours = make_encode(encoder, EncodeSettings(truncate_dim=8))(TEXTS)
    assert ours.shape == (3, 8)
    np.testing.assert_allclose(ours, encoder.encode(TEXTS)[:, :8], atol=1e-6)
    theirs = SentenceTransformer(str(checkpoint), device="cpu", truncate_dim=8).encode(TEXTS)
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


@pytest.mark.parametrize("checkpoint", ["cls"], indirect=True)
def test_mteb_gives_the_same_vectors(checkpoint):
    mteb = pytest.importorskip("mteb")
    from datasets import Dataset
    from mteb.models import SentenceTransformerEncoderWrapper
    from torch.utils.data import DataLoader

    model = SentenceTransformerEncoderWrapper(str(checkpoint), device="cpu")
    rows = DataLoader(Dataset.from_dict({"text": TEXTS}), batch_size=2)
    task = mteb.get_task("STSBenchmark").metadata
    theirs = model.encode(rows, task_metadata=task, hf_split="test", hf_subset="default")
    ours = Encoder.from_pretrained(str(checkpoint)).encode(TEXTS)
    np.testing.assert_allclose(np.asarray(theirs), ours, atol=1e-5)
    cosines = model.similarity(theirs, theirs).numpy()
    assert cosines[0, 0] == pytest.approx(1, abs=1e-5) and cosines[0, 1] < 0.999


# The oldest that loads here: 2.2 asks huggingface_hub for a function that is gone. Dense layers it reads from a pickle only, and no
# pickle is written.
OLD = ("sentence-transformers==2.3.0", "transformers==4.41.2")
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
def old_python(tmp_path_factory) -> Path:
    """An environment with this one's packages, torch among them, behind its own older sentence-transformers."""
    folder = tmp_path_factory.mktemp("old") / "venv"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (here,) = {str(Path(module.__file__).parents[1]) for module in (torch, np)}
    (site / "pins.pth").write_text(here)
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *OLD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode and "onnection" in done.stderr + done.stdout:
        pytest.skip(f"no package index to install {' '.join(OLD)} from")
    assert done.returncode == 0, done.stderr[-2000:]
    return python


@pytest.mark.slow
def test_an_old_sentence_transformers_gives_the_same_vectors(old_python, bert_folder, tokenizer, tmp_path):
    folders = {}
    for pooling in ("cls", "mean", "max"):
        model = AutoModel.from_pretrained(bert_folder, add_pooling_layer=False)
        save_encoder(tmp_path / pooling, model, tokenizer, pooling, max_seq_length=12)
        folders[pooling] = Encoder(model.eval(), tokenizer, pooling, 12)
    command = [old_python, "-W", "ignore", "-c", ENCODE, "|".join(TEXTS), *(tmp_path / name for name in folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == OLD[0].partition("==")[2]
    for pooling, encoder in folders.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{pooling}.npy"), encoder.encode(TEXTS), atol=1e-4)
