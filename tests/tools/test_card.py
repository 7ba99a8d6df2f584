"""The model card: facts of the run, code, metadata and scores, and no private data."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

import run_mirror
from mirror.common.errors import InputError
from mirror.common.files import is_complete
from mirror.modeling.encoder import Encoder
from mirror.tools import card
from mirror.training.card import render_card, training_facts
from mirror.training.config import MirrorConfig
from mirror.training.record import RunRecord, collect_settings, facts_on_card
from tests.documents import ROOT
from tests.evaluation.folder import write_tsv


TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning to the king of the old city"]


def refresh(monkeypatch, *argv) -> str:
    """Return the card that mirror-card wrote."""
    monkeypatch.setattr(sys, "argv", ["mirror.tools.card", *map(str, argv)])
    card.main()
    return (Path(argv[0]) / "README.md").read_text()


@pytest.fixture(scope="module")
def whole_run(bert_folder, sentences, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    (folder / "texts.txt").write_text("\n".join(sentences + sentences[:7]) + "\n\n")
    words = sorted({word for sentence in sentences for word in sentence.split()})
    rows = [(words[n % 90], words[(n * 7 + 3) % 90], round(4 * ((n * 13) % 65) / 64, 3)) for n in range(65)]
    write_tsv(folder / "data/wordsim/rg65.tsv", ("word1", "word2", "score"), rows)
    flags = ["--model_name_or_path", bert_folder, "--train_file", folder / "texts.txt", "--output_dir", folder / "out"]
    flags += ["--eval_tasks", "rg65", "--data_dir", folder / "data", "--drophead_rate", 0.2, "--max_steps", 2]
    flags += ["--per_device_train_batch_size", 40, "--max_seq_length", 24, "--disable_tqdm", "true"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["run_mirror.py", *map(str, flags)])
        run_mirror.main()
    return folder / "out"


@pytest.fixture
def trained(whole_run, tmp_path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(whole_run, tmp_path / "out"))


def results_file(path: Path, score: float, **changes) -> Path:
    histogram = {"bin_edges": [-1, 0, 1], "positive": [1, 3], "negative": [3, 1]}
    task = {"main_score": score, "metric": "accuracy@1", "data_sha256": "d", "histogram": histogram} | changes
    record = {"model_name_or_path": str(path), "pooling": "mean", "max_seq_length": 24, "dtype": "float32"}
    path.write_text(json.dumps(record | {"tasks": {"docs_search": task}}))
    return path


def test_the_card_describes_the_run(whole_run):
    text = (whole_run / "README.md").read_text()
    for fact in (
        *("drophead 0.2", "nt_xent, temperature 0.04", "| seed | 42 |", "| epochs | 0.33 |", "transformers 5."),
        *("| texts | 240 distinct |", "| duplicates | 7 dropped |", "40 texts per step, on 1 process(es)"),
        *("40 texts per step on 1 process(es)", "- sentence-transformers: "),
        *("python -m mirror.tools.search out texts.txt", "Evaluated with the settings of the run."),
    ):
        assert fact in text, fact
    assert not [mark for mark in ("{{", "{%", " None ", "\n\n\n") if mark in text]


def test_scores_before_and_after_are_those_in_the_log(whole_run):
    history = json.loads((whole_run / "trainer_state.json").read_text())["log_history"]
    logged = {entry["step"]: entry["eval_rg65"] for entry in history if "eval_rg65" in entry}
    assert set(logged) == {0, 2} and logged[0] != logged[2]
    assert f"| rg65 | spearman_cosine | {logged[0]:.4f} | {logged[2]:.4f} |" in (whole_run / "README.md").read_text()
    (result,) = ModelCard.load(whole_run / "README.md").data.eval_results
    assert (result.dataset_name, result.dataset_type, result.metric_type) == ("RG-65", "rg65", "spearman_cosine")
    assert result.metric_value == pytest.approx(logged[2], abs=1e-6)


def test_the_metadata_is_valid_for_the_hub(whole_run):
    from sentence_transformers import SentenceTransformer

    data = ModelCard.load(whole_run / "README.md").data
    found = (data.library_name, data.pipeline_tag, data.base_model)
    assert found == ("sentence-transformers", "sentence-similarity", None)
    tags = "sentence-transformers sentence-similarity feature-extraction dense generated_from_trainer"
    assert data.tags == [*tags.split(), "dataset_size:240", "loss:nt_xent", "mirror-bert"]
    assert set(SentenceTransformer(str(whole_run)).model_card_data.tags) <= set(data.tags)


def test_languages_that_the_base_model_does_not_name_are_given_by_a_flag(trained, monkeypatch):
    assert ModelCard.load(trained / "README.md").data.language is None
    refresh(monkeypatch, trained, "--language", "en", "de")
    refresh(monkeypatch, trained)  # they stay
    assert ModelCard.load(trained / "README.md").data.language == ["en", "de"] and is_complete(trained)
    with pytest.raises(InputError, match="--language English: not a language code"):
        refresh(monkeypatch, trained, "--language", "English")


def test_the_card_has_the_width_of_shorter_vectors(trained):
    path = trained / "mirror_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": 16}))
    assert "vectors of 16 dimensions" in render_card(trained)


def test_the_paper_is_cited_in_bibtex():
    template = (ROOT / "mirror/training/templates/card.md.jinja").read_text(encoding="utf-8")
    entries = re.findall(r"^@inproceedings.*?^}", template, re.DOTALL | re.MULTILINE)
    for entry, key, doi in zip(
        entries, ("yang-etal-2021-universal", "liu-etal-2021-fast"), ("main.502", "main.109"), strict=True
    ):
        assert entry.startswith(f"@inproceedings{{{key},") and entry.count("{") == entry.count("}")
        fields = dict(re.findall(r'^    (\w+) = "(.*)",?$', entry, re.MULTILINE))
        assert fields["doi"].endswith(doi)
        assert fields["title"] in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "mean_padded", "first_last_mean"])
def test_the_code_on_the_card_computes_the_embeddings(trained, monkeypatch, pooling):
    stored = json.loads((trained / "mirror_config.json").read_text()) | {"pooling": pooling}
    (trained / "mirror_config.json").write_text(json.dumps(stored))
    code = re.findall(r"```python\n(.*?)```", refresh(monkeypatch, trained), re.DOTALL)[1]
    code = code.replace('"out"', repr(str(trained))).replace('["a text", "another text"]', repr(TEXTS))
    names: dict = {}
    exec(code, names)
    expected = Encoder.from_pretrained(str(trained)).encode(TEXTS)
    np.testing.assert_allclose(names["vectors"].numpy(), expected, atol=1e-5)


def test_nothing_private_is_on_the_card(whole_run, bert_folder, sentences):
    for name in ("README.md", "scores.json", "train_results.json", "mirror_config.json"):
        text = (whole_run / name).read_text()
        assert str(whole_run.parent) not in text and str(Path(bert_folder).parent) not in text
        assert not any(sentence in text for sentence in sentences)


def test_results_of_run_eval_refresh_the_card(trained, tmp_path, monkeypatch):
    before, after = results_file(tmp_path / "b.json", 0.1), results_file(tmp_path / "a.json", 0.25)
    text = refresh(monkeypatch, trained, "--results", before, after)
    assert "| docs_search | accuracy@1 | 0.1000 | 0.2500 |" in text and str(tmp_path) not in text
    assert "Evaluated with pooling mean, max_seq_length 24, dtype float32.\n" in text
    assert "![Cosines of true and random pairs](cosines.png)" in text
    assert (trained / "cosines.png").read_bytes().startswith(b"\x89PNG")
    assert 'SentenceTransformer("me/mine")' in refresh(monkeypatch, trained, "--hub_model_id", "me/mine")
    data = ModelCard.load(trained / "README.md").data  # the scores stay
    assert data.model_name == "me/mine" and data.eval_results[0].metric_value == 0.25

    before.write_text(json.dumps(json.loads(before.read_text()) | {"max_seq_length": 256, "prompt": "query: "}))
    text = refresh(monkeypatch, trained, "--results", before, after)
    assert 'with pooling mean, max_seq_length 256, dtype float32, prompt "query: "; after training, with' in text
    assert "after training, with pooling mean, max_seq_length 24, dtype float32.\n" in text
    assert "| docs_search | accuracy@1 | 0.2500 |" in refresh(monkeypatch, trained, "--results", after)
    assert "before" not in json.loads((trained / "scores.json").read_text())


def test_what_cannot_be_shown_is_one_line(whole_run, tmp_path, monkeypatch):
    good, other = results_file(tmp_path / "a.json", 0.2), results_file(tmp_path / "b.json", 0.2, data_sha256="e")
    (tmp_path / "c.json").write_text("{}")
    swapped = tmp_path / "swapped.json"
    swapped.write_text(json.dumps(json.loads(good.read_text()) | {"model_name_or_path": str(whole_run)}))
    pooled = tmp_path / "d.json"
    pooled.write_text(good.read_text().replace('"mean"', '"cls"'))
    card_before = (whole_run / "README.md").read_bytes()
    for argv, message in (
        ([tmp_path], "no readable train_results.json; give the --output_dir of a finished run"),
        ([whole_run, "--results", tmp_path / "c.json"], "c.json: not a results.json of run_eval.py"),
        ([whole_run, "--results", other, good], "docs_search was scored on different data"),
        ([whole_run, "--results", pooled], "scored with pooling 'cls', but .* uses 'mean'"),
        (
            [whole_run, "--results", swapped, good],
            "swapped.json: scores of .* itself; name the base model's file first",
        ),
        ([whole_run, "--results", good, good, good], "--results takes one file, or two"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            refresh(monkeypatch, *argv)
        assert "\n" not in str(caught.value)
    assert (whole_run / "README.md").read_bytes() == card_before


@pytest.mark.parametrize(
    ("stated", "languages"),
    [("language: en", ["en"]), ("language: [de, zh-Hant, 5]", ["de", "zh-Hant"]), ("a: b", [])],
)
def test_license_and_languages_are_those_of_the_base_model(bert_folder, tmp_path, stated, languages):
    license = {"license": "other", "license_name": "gentle", "license_link": "LICENSE"}
    lines = [f"{key}: {value}" for key, value in license.items()]
    (tmp_path / "README.md").write_text("\n".join(["---", *lines, stated, "---\n"]))
    assert facts_on_card(str(tmp_path)) == (license, languages)
    assert facts_on_card(bert_folder) == ({}, []) == facts_on_card("no/such-model")


def test_what_others_wrote_is_no_markdown(trained):
    record = RunRecord.load(trained)
    hostile = "gentle](http://example.org)\n\n# <b>Mine</b> <script>"
    base = record.run["base_model"] | {"license": {"license": "other", "license_name": hostile}}
    replace(record, run=record.run | {"base_model": base}).save(trained)
    text = ModelCard(render_card(trained)).text
    assert "License of the base model: gentle__http_//example.org____ _b_Mine" in text
    assert not [part for part in ("# <b>", "](http://example", "<script>") if part in text]


def test_objects_of_the_user_are_on_the_card_by_name(whole_run):
    def my_noise(text, rng):
        return text

    record = RunRecord.load(whole_run)
    named = collect_settings(MirrorConfig(output_dir="out"), loss=np.linalg.norm, augmentation=my_noise)
    assert (named["loss"], named["augmentation"]) == ("norm", "my_noise")
    mine = {"loss": "MyLoss", "loss_description": "a | b\nc", "augmentation": "my_noise", "augmentation_rate": None}
    facts = training_facts(replace(record, settings=record.settings | mine))
    assert facts["loss"] == r"MyLoss: a \| b c" and facts["views"].startswith("augmentation my_noise in the second")
    assert training_facts(replace(record, settings=record.settings | {"loss": "f"}))["loss"] == "f"


def test_later_options_are_rows_of_the_card_where_they_were_used(whole_run):
    record = RunRecord.load(whole_run)
    rows = {"projection head", "batches", "hardness", "shorter vectors"}
    assert not rows & training_facts(record).keys()
    used = {"projection_head": "mlp", "train_sampling_strategy": "group_by_length", "hardness": 9.0}
    facts = training_facts(replace(record, settings=record.settings | used | {"matryoshka_dims": [128, 64]}))
    assert rows <= facts.keys() and "the first 128, 64 dimensions" in facts["shorter vectors"]
