"""python -m mirror.export: ONNX copies that give the checkpoint's vectors, padded or not, and a card that says how close."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from transformers import AutoTokenizer

from mirror import export
from mirror.checkpoint import save_encoder
from mirror.encoder import Encoder, load_backbone
from mirror.errors import InputError


def run(monkeypatch, *argv) -> None:
    monkeypatch.setattr(sys, "argv", ["mirror.export", *map(str, argv)])
    export.main()


def save(folder, bert_folder: str, pooling: str) -> None:
    model, tokenizer = load_backbone(bert_folder, pooling)
    save_encoder(folder, model, tokenizer, pooling, max_seq_length=24)


@pytest.fixture
def needs_onnx():
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)


def test_the_copies_give_the_vectors(needs_onnx, bert_folder, sentences, tmp_path, monkeypatch, capsys):
    import onnxruntime

    out = tmp_path / "out"
    save(out, bert_folder, "mean")
    (tmp_path / "texts.txt").write_text("\n".join(sentences[:20]))
    run(monkeypatch, out, "--onnx", "--int8", "--texts", tmp_path / "texts.txt")
    report = json.loads((out / "onnx" / "export.json").read_text())
    assert report["model.onnx"]["lowest_cosine"] > 0.9999 and report["model.onnx"]["texts"] == 20
    assert 0.9 < report["model_quantized.onnx"]["lowest_cosine"] < report["model.onnx"]["lowest_cosine"]
    assert "lowest cosine" in capsys.readouterr().out and not (out / "_onnx").exists()

    # A padded batch of another size and length than the graph was made with.
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
    assert not (out / "onnx").exists()  # other weights, so the copy would be wrong


def test_what_cannot_be_exported_is_one_line(needs_onnx, bert_folder, tmp_path, monkeypatch):
    save(tmp_path / "out", bert_folder, "mean_padded")
    with pytest.raises(InputError, match="pools by 'mean_padded', which readers of ONNX do not know"):
        run(monkeypatch, tmp_path / "out", "--onnx")
    with pytest.raises(InputError, match=r"no modules.json; give the --output_dir of a finished run"):
        run(monkeypatch, tmp_path, "--onnx")


def test_without_onnx_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r"--onnx needs .*: pip install -r requirements-onnx.txt"):
        run(monkeypatch, tmp_path, "--onnx")


def test_the_card_says_how_close(tmp_path):
    from mirror.card import _onnx_readers

    assert _onnx_readers(tmp_path) == {}
    (tmp_path / "onnx").mkdir()
    report = {"model.onnx": {"lowest_cosine": 0.99999, "mean_cosine": 1.0, "texts": 9}}
    (tmp_path / "onnx" / "export.json").write_text(json.dumps(report))
    assert _onnx_readers(tmp_path) == {"ONNX Runtime, model.onnx, on 9 texts": 0.99999}
