"""Runs every Python block of docs/integrations.md with the real packages. A block is skipped where its package is absent."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path

import pytest

import run_encode
from mirror.common.vectors import top_k, unit_length
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import save_encoder
from tests.documents import blocks


PAGE = "docs/integrations.md"
BLOCKS = [block for block in blocks(PAGE) if block.language == "python"]
# What text-embeddings-inference parses (router/src/lib.rs): `ModelConfig`, `PoolConfig` and `STConfig`.
READ_BY_TEI = {
    "config.json": {"architectures": list, "model_type": str, "max_position_embeddings": int, "pad_token_id": int},
    "1_Pooling/config.json": dict.fromkeys(
        [f"pooling_mode_{name}" for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")], bool
    ),
    "sentence_bert_config.json": {"max_seq_length": int},
    "config_sentence_transformers.json": {"prompts": dict},
}


def packages(code: str) -> list[str]:
    """Return the modules that a block imports."""
    nodes = list(ast.walk(ast.parse(code)))
    found = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return found + [node.module for node in nodes if isinstance(node, ast.ImportFrom)]


@pytest.fixture(scope="module")
def desk(bert_folder, sentences, tmp_path_factory) -> tuple[Path, list[str]]:
    """A folder in which the page's commands have run, and the ids of the ten nearest texts of its question by this project."""
    folder = tmp_path_factory.mktemp("desk")
    model, tokenizer = load_backbone(bert_folder, "mean")
    prompts = {"prompts": {"query": "find the ", "document": "a book of "}}
    save_encoder(folder / "out/mirror", model, tokenizer, "mean", 24, prompts=prompts)
    rows = [{"sku": f"p-{number}", "title": text} for number, text in enumerate(sentences)]
    (folder / "products.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (command,) = [block for block in blocks(PAGE) if "mirror-encode" in block.text]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", [*command.text.split(), "--prompt_name", "document"])
        run_encode.main()
    encoder = Encoder.from_pretrained(str(folder / "out/mirror"))
    vectors = [unit_length(each) for each in (encoder.encode_query(["red shoes"]), encoder.encode_document(sentences))]
    _, places = top_k(*vectors, 10)
    plain = unit_length(encoder.encode(["red shoes"])), unit_length(encoder.encode(sentences))
    assert places[0].tolist() != top_k(*plain, 10)[1][0].tolist()  # the prompts matter
    return folder, [f"p-{place}" for place in places[0]]


@pytest.mark.slow
@pytest.mark.parametrize("block", BLOCKS[1:], ids=[packages(block.text)[0].partition(".")[0] for block in BLOCKS[1:]])
def test_a_snippet_finds_what_we_find(block, desk, monkeypatch):
    for module in packages(block.text):
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"{module.partition('.')[0]} is not installed")
        pytest.importorskip(module)
    folder, expected = desk
    monkeypatch.chdir(folder)
    names: dict = {}
    exec(compile(BLOCKS[0].text, PAGE, "exec"), names)
    exec(compile(block.text, str(block), "exec"), names)
    if "bertopic" in block.text:
        assert len(names["topics"]) == 240
    else:
        assert names["found"] == expected


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_a_checkpoint_has_the_fields_that_text_embeddings_inference_reads(bert_folder, tmp_path, pooling):
    model, tokenizer = load_backbone(bert_folder, pooling)
    save_encoder(tmp_path, model, tokenizer, pooling, 24)
    for file, fields in READ_BY_TEI.items():
        content = json.loads((tmp_path / file).read_text())
        assert {name: type(content[name]) for name in fields} == fields
    of_pooling = json.loads((tmp_path / "1_Pooling/config.json").read_text())
    assert [name for name in READ_BY_TEI["1_Pooling/config.json"] if of_pooling[name]] == [
        {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}[pooling]
    ]
    assert (tmp_path / "tokenizer.json").exists() and (tmp_path / "model.safetensors").exists()


def test_written_requests_are_json():
    requests = [json.loads(block.text) for block in blocks(PAGE) if block.language == "json"]
    assert len(requests) == 3
