"""Exported models compute the checkpoint's embeddings, and their cosines and scores are on the card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from transformers import AutoTokenizer

from mirror.common.errors import InputError
from mirror.common.vectors import unit_length
from mirror.evaluation.run import make_plan
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import save_encoder
from mirror.tools import onnx
from mirror.tools.onnx import RUNTIMES
from mirror.training.card import write_card
from tests.evaluation.folder import write_tsv
from tests.tools.test_finish import train


def run(monkeypatch, *argv) -> None:
    monkeypatch.setattr(sys, "argv", ["mirror.tools.onnx", *map(str, argv)])
    onnx.main()


def save(folder, bert_folder: str, pooling: str) -> None:
    model, tokenizer = load_backbone(bert_folder, pooling)
    save_encoder(folder, model, tokenizer, pooling, max_seq_length=24)


def test_the_onnx_models_compute_the_same_embeddings(bert_folder, sentences, tmp_path, monkeypatch, capsys):
    _, _, onnxruntime = (pytest.importorskip(package) for package in ("onnx", "onnxscript", "onnxruntime"))
    out = tmp_path / "out"
    save(out, bert_folder, "mean")
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:20]))
    rows = [("dev", sentences[n % 240], sentences[(n * 7 + 1) % 240], (n * 29) % 251 / 50) for n in range(1500)]
    write_tsv(tmp_path / "sts/stsb_dev.tsv", ("subset", "sentence1", "sentence2", "score"), rows)
    flags = ["--int8", "--texts", tmp_path / "texts.txt", "--data_dir", tmp_path]
    with pytest.raises(InputError, match="the 8-bit model loses .*, and --max_loss is 0; leave out --int8"):
        run(monkeypatch, out, "--onnx", *flags, "--max_loss", "0")
    assert not (out / "onnx").exists() and not (out / "_onnx").exists()
    run(monkeypatch, out, "--onnx", *flags, "--max_loss", "0.1")
    report = json.loads((out / "onnx" / "export.json").read_text())
    assert report["model.onnx"]["lowest_cosine"] > 0.9999 and report["model.onnx"]["texts"] == 20
    assert 0.9 < report["model_quantized.onnx"]["lowest_cosine"] < report["model.onnx"]["lowest_cosine"]
    assert "lowest cosine" in capsys.readouterr().out and not (out / "_onnx").exists()

    # Scores on STS-B dev, with and without 8-bit weights.
    scores = report["model_quantized.onnx"]["scores"]["stsb_dev"]
    (task,) = make_plan(["stsb_dev"], tmp_path).tasks
    assert scores["checkpoint"] == task.score(Encoder.from_pretrained(str(out)).encode)["main_score"]
    assert 0 < abs(scores["copy"] - scores["checkpoint"]) < 0.05

    # The 8-bit vector of a text does not depend on the other texts.
    encoder = Encoder.from_pretrained(str(out), device="cpu")
    encode = onnx.runtime_encode(RUNTIMES["onnx"], out / "onnx" / "model_quantized.onnx", encoder, batch_size=1)
    np.testing.assert_array_equal(encode(sentences[:5])[:1], encode(sentences[:1]))

    # A padded batch whose size and length differ from those of the export.
    texts = [sentences[0], "rain", sentences[5]]
    batch = AutoTokenizer.from_pretrained(out)(texts, padding=True, return_tensors="np")
    session = onnxruntime.InferenceSession(str(out / "onnx" / "model.onnx"), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]
    (hidden,) = session.run(None, {name: batch[name].astype(np.int64) for name in names})
    mask = batch["attention_mask"][..., None]
    assert mask.min() == 0
    expected = Encoder.from_pretrained(str(out)).encode(texts)
    np.testing.assert_allclose((hidden * mask).sum(1) / mask.sum(1), expected, atol=1e-4)

    save(out, bert_folder, "mean")
    assert not (out / "onnx").exists()  # saving other weights deletes the outdated ONNX models


def test_the_openvino_models_compute_the_same_embeddings(bert_folder, sentences, tmp_path, monkeypatch, capsys):
    _, _, openvino, _ = (pytest.importorskip(package) for package in RUNTIMES["openvino"].needs)
    out = tmp_path / "out"
    save(out, bert_folder, "mean")
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:60]))
    run(monkeypatch, out, "--openvino", "--int8", "--texts", tmp_path / "texts.txt", "--data_dir", tmp_path)
    folder = out / "openvino"
    report = json.loads((folder / "export.json").read_text())
    full, small = report["openvino_model.xml"], report["openvino_model_qint8_quantized.xml"]
    assert full["lowest_cosine"] > 0.9999 > small["lowest_cosine"] > 0.9 and small["rank_correlation"] > 0.98
    assert {path.name for path in folder.iterdir()} == {"export.json", *report} | {
        name.replace(".xml", ".bin") for name in report
    }
    assert (folder / "openvino_model_qint8_quantized.bin").stat().st_size < (
        folder / "openvino_model.bin"
    ).stat().st_size
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 2 and all("lowest cosine" in line for line in printed) and not (out / "onnx").exists()

    # The backbone that another program runs, on a padded batch.
    texts = [sentences[0], "rain", sentences[5]]
    batch = AutoTokenizer.from_pretrained(out)(texts, padding=True, return_tensors="np")
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(folder / "openvino_model.xml", "CPU", hint)
    hidden = model({name: batch[name].astype(np.int64) for name in batch})["last_hidden_state"]
    mask = batch["attention_mask"][..., None]
    expected = Encoder.from_pretrained(str(out)).encode(texts)
    np.testing.assert_allclose((hidden * mask).sum(1) / mask.sum(1), expected, atol=1e-4)
    save(out, bert_folder, "mean")
    assert not folder.exists()  # exported from other weights


# For an environment with an older transformers beside the packages: PYTHON_OF_OPTIMUM=path/to/python.
READ = """\
import sys, numpy as np
from sentence_transformers import SentenceTransformer
out, backend, file, texts = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
model = SentenceTransformer(out, backend=backend, device="cpu", model_kwargs={"file_name": file})
np.save(f"{out}/found.npy", model.encode(texts))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "lowest"),
    [(name, file, (0.999, 0.9)[at]) for name in RUNTIMES for at, file in enumerate(RUNTIMES[name].files)],
)
def test_sentence_transformers_reads_the_folder_by_its_backend(
    bert_folder, sentences, tmp_path, monkeypatch, name, file, lowest
):
    """Its backends rest on packages that require transformers 4, so they run in another environment."""
    if not (python := os.environ.get("PYTHON_OF_OPTIMUM")):
        pytest.skip("set PYTHON_OF_OPTIMUM to a Python with sentence-transformers[onnx,openvino] and transformers 4")
    for package in RUNTIMES[name].needs:
        pytest.importorskip(package)
    out = tmp_path / "out"
    save(out, bert_folder, "mean")
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    flags = ["--int8", "--texts", tmp_path / "texts.txt", "--data_dir", tmp_path, "--max_loss", "0.1"]
    run(monkeypatch, out, f"--{name}", *flags)
    done = subprocess.run([python, "-c", READ, out, name, file, *sentences[:9]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, expected = np.load(out / "found.npy"), Encoder.from_pretrained(str(out)).encode(sentences[:9])
    cosines = (unit_length(found) * unit_length(expected)).sum(axis=1)
    assert cosines.min() > lowest


def test_tasks_that_cannot_be_scored(tmp_path, monkeypatch, capsys):
    assert onnx.tasks_to_score(None, str(tmp_path)) == []
    assert "stsb_dev.tsv is missing: the 8-bit model is not scored on stsb_dev" in capsys.readouterr().err
    with pytest.raises(InputError, match="unknown task 'stsb_dve'"):
        onnx.tasks_to_score(["stsb_dve"], str(tmp_path))
    with pytest.raises(InputError, match="--eval_tasks amazon_zero_shot_tuned trains the encoder"):
        onnx.tasks_to_score(["amazon_zero_shot_tuned"], str(tmp_path))
    for flag, value in (("--eval_tasks", "stsb_dev"), ("--data_dir", "data")):
        with pytest.raises(
            InputError, match="--eval_tasks and --data_dir are for scores of the 8-bit model; add --int8"
        ):
            run(monkeypatch, tmp_path, "--onnx", flag, value)


def without_onnx(monkeypatch) -> None:
    for package in RUNTIMES["onnx"].needs:
        monkeypatch.setitem(sys.modules, package, ModuleType(package))


def test_what_cannot_be_exported_is_one_line(bert_folder, tmp_path, monkeypatch):
    save(tmp_path / "out", bert_folder, "mean_padded")
    without_onnx(monkeypatch)
    with pytest.raises(
        InputError, match="uses pooling 'mean_padded', which runtimes of exported models do not support"
    ):
        run(monkeypatch, tmp_path / "out", "--onnx")
    with pytest.raises(InputError, match=r"no modules.json; give the --output_dir of a finished run"):
        run(monkeypatch, tmp_path, "--onnx")
    with pytest.raises(InputError, match="give --onnx, --openvino or both"):
        run(monkeypatch, tmp_path / "out")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r'--onnx needs .*: pip install "mirror-encoders\[onnx\]"'):
        run(monkeypatch, tmp_path, "--onnx")


def test_the_card_shows_the_export_and_keeps_its_name_unless_somebody_edited_it(
    bert_folder, sentences, tmp_path, monkeypatch, capsys
):
    def export(folder, *_):
        scores = {"stsb_dev": {"checkpoint": 0.75, "copy": 0.7375}}
        report = {"model.onnx": {"lowest_cosine": 0.99999, "mean_cosine": 1.0, "texts": 9}}
        report["model_quantized.onnx"] = report["model.onnx"] | {"scores": scores}
        (folder / "onnx").mkdir(exist_ok=True)
        (folder / "onnx" / "export.json").write_text(json.dumps(report))
        return {}

    monkeypatch.setattr(onnx, "export", export)
    without_onnx(monkeypatch)
    out = tmp_path / "out"
    train(monkeypatch, bert_folder, sentences, out)
    write_card(out, "me/mine")
    run(monkeypatch, out, "--onnx", "--texts", tmp_path / "texts.txt")
    card = (out / "README.md").read_text()
    assert "# me/mine" in card and "- ONNX Runtime, model.onnx, on 9 texts: 0.999990\n" in card
    assert "with 8-bit weights:\n\n- stsb_dev: 0.7375, checkpoint 0.7500 (-0.0125)" in card
    (out / "README.md").write_text(card + "\nMine.\n")
    run(monkeypatch, out, "--onnx", "--texts", tmp_path / "texts.txt")
    assert (out / "README.md").read_text().endswith("Mine.\n")
    assert "README.md was edited, so it stays as it is" in capsys.readouterr().err
