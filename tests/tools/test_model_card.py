"""The model card: facts of the run, code, metadata and scores, and no private data."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard

import run_mirror
from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.tools import model_card
from mirror.tools.card_facts import beyond_facts, describe_loss, describe_views, mirror_facts
from mirror.tools.card_scores import read_scores
from mirror.tools.model_card import render_card
from mirror.training.config import MirrorConfig
from mirror.training.run_record import RunRecord, card_of, collect_settings, languages_in, license_in
from tests.evaluation.folder import write_tsv


ROOT = Path(__file__).resolve().parents[2]
TEXTS = ["the cat sees the small dog", "rain", "a doctor writes a letter in the morning to the king of the old city"]


def train(monkeypatch, *flags) -> None:
    defaults = [
        "--per_device_train_batch_size",
        40,
        "--max_seq_length",
        24,
        "--max_steps",
        2,
        "--disable_tqdm",
        "true",
    ]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, [*defaults, *flags])])
    run_mirror.main()


def refresh(monkeypatch, *argv) -> None:
    monkeypatch.setattr(sys, "argv", ["mirror.tools.model_card", *map(str, argv)])
    model_card.main()


@pytest.fixture(scope="module")
def trained(bert_folder, sentences, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("card")
    (folder / "texts.txt").write_text("\n".join(sentences + sentences[:7]) + "\n\n")
    words = sorted({word for sentence in sentences for word in sentence.split()})
    rows = [(words[n % 90], words[(n * 7 + 3) % 90], round(4 * ((n * 13) % 65) / 64, 3)) for n in range(65)]
    write_tsv(folder / "data/wordsim/rg65.tsv", ("word1", "word2", "score"), rows)
    flags = ["--model_name_or_path", bert_folder, "--train_file", folder / "texts.txt", "--output_dir", folder / "out"]
    flags += ["--eval_tasks", "rg65", "--data_dir", folder / "data", "--drophead_rate", 0.2]
    with pytest.MonkeyPatch.context() as patch:
        train(patch, *flags)
    return folder / "out"


def results_file(path: Path, score: float, **changes) -> Path:
    histogram = {"bin_edges": [-1, 0, 1], "positive": [1, 3], "negative": [3, 1]}
    task = {"main_score": score, "metric": "accuracy@1", "data_sha256": "d", "histogram": histogram} | changes
    record = {"model_name_or_path": str(path), "pooling": "mean", "max_seq_length": 24, "dtype": "float32"}
    path.write_text(json.dumps(record | {"tasks": {"docs_search": task}}))
    return path


def test_the_card_describes_the_run(trained):
    text = (trained / "README.md").read_text()
    for fact in (
        "drophead 0.2",
        "nt_xent, temperature 0.04",
        "| texts | 240 distinct |",
        "| duplicates | 7 dropped |",
        "40 texts per step, on 1 process(es)",
        "80 anchors x 79 candidates per step",
        "| seed | 42 |",
        "transformers 5.",
        "- sentence-transformers: ",
        "python -m mirror.tools.search out texts.txt",
    ):
        assert fact in text, fact
    assert not [mark for mark in ("{{", "{%", " None ", "\n\n\n") if mark in text]


def test_scores_before_and_after_are_those_in_the_log(trained):
    history = json.loads((trained / "trainer_state.json").read_text())["log_history"]
    logged = {entry["step"]: entry["eval_rg65"] for entry in history if "eval_rg65" in entry}
    assert set(logged) == {0, 2} and logged[0] != logged[2]
    assert f"| rg65 | spearman_cosine | {logged[0]:.4f} | {logged[2]:.4f} |" in (trained / "README.md").read_text()
    (result,) = ModelCard.load(trained / "README.md").data.eval_results
    assert (result.dataset_name, result.dataset_type, result.metric_type) == ("RG-65", "rg65", "spearman_cosine")
    assert result.metric_value == pytest.approx(logged[2], abs=1e-6)


def test_the_metadata_is_valid_for_the_hub(trained):
    data = ModelCard.load(trained / "README.md").data
    assert (data.library_name, data.pipeline_tag, data.base_model) == (
        "sentence-transformers",
        "sentence-similarity",
        None,
    )
    tags = "sentence-transformers sentence-similarity feature-extraction dense generated_from_trainer"
    assert data.tags == [*tags.split(), "dataset_size:240", "loss:nt_xent", "mirror-bert"]
    assert (
        json.loads((trained / "config_sentence_transformers.json").read_text())["model_type"] == "SentenceTransformer"
    )


def test_the_tags_are_those_of_sentence_transformers(trained):
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(trained)).model_card_data.tags
    assert set(theirs) <= set(ModelCard.load(trained / "README.md").data.tags)


@pytest.mark.parametrize(
    ("stated", "expected"), [("en", ["en"]), (["de", "zh-Hant", 5], ["de", "zh-Hant"]), (None, [])]
)
def test_the_languages_are_those_on_the_card_of_the_base_model(stated, expected):
    assert languages_in({"language": stated}) == expected


def test_languages_that_the_base_model_does_not_name_are_given_by_a_flag(trained, monkeypatch):
    kept = {name: (trained / name).read_bytes() for name in ("README.md", "train_results.json")}
    assert ModelCard.load(trained / "README.md").data.language is None
    refresh(monkeypatch, trained, "--language", "en", "de")
    refresh(monkeypatch, trained)  # they stay
    assert ModelCard.load(trained / "README.md").data.language == ["en", "de"]
    with pytest.raises(InputError, match="--language English: not a language code"):
        refresh(monkeypatch, trained, "--language", "English")
    for name, content in kept.items():
        (trained / name).write_bytes(content)


@pytest.mark.parametrize(("epoch", "shown"), [(0.9996001, "1"), (2, "2"), (1 / 3, "0.33"), (0.8, "0.8")])
def test_epochs_are_rounded(trained, epoch, shown):
    record = RunRecord.load(trained)
    record.metrics["epoch"] = epoch
    assert mirror_facts(record)["epochs"] == shown


@pytest.mark.parametrize(
    ("method", "key", "doi"),
    [("mirror", "liu-etal-2021-fast", "main.109"), ("cmlm", "yang-etal-2021-universal", "main.502")],
)
def test_the_paper_is_cited_in_bibtex(method, key, doi):
    template = (model_card.TEMPLATES / f"{method}.md.jinja").read_text(encoding="utf-8")
    (entry,) = re.findall(r"```bibtex\n(.*?)\n```", template, re.DOTALL)
    assert entry.startswith(f"@inproceedings{{{key},") and entry.count("{") == entry.count("}")
    fields = dict(re.findall(r'^    (\w+) = "(.*)",?$', entry, re.MULTILINE))
    assert fields["doi"].endswith(doi)
    assert fields["title"] in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "mean_padded", "first_last_mean"])
def test_the_code_on_the_card_computes_the_embeddings(trained, tmp_path, monkeypatch, pooling):
    for path in trained.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling/config.json").write_bytes((trained / "1_Pooling/config.json").read_bytes())
    stored = json.loads((tmp_path / "mirror_config.json").read_text()) | {"pooling": pooling}
    (tmp_path / "mirror_config.json").write_text(json.dumps(stored))
    refresh(monkeypatch, tmp_path)
    code = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.DOTALL)[1]
    code = code.replace(f'"{tmp_path.name}"', repr(str(tmp_path)))
    code = code.replace('["a text", "another text"]', repr(TEXTS))
    names: dict = {}
    exec(code, names)
    np.testing.assert_allclose(
        names["vectors"].numpy(), Encoder.from_pretrained(str(tmp_path)).encode(TEXTS), atol=1e-5
    )


def test_nothing_private_is_on_the_card(trained, bert_folder, sentences):
    for name in ("README.md", "scores.json", "train_results.json", "mirror_config.json"):
        text = (trained / name).read_text()
        assert str(trained.parent) not in text and str(Path(bert_folder).parent) not in text
        assert not any(sentence in text for sentence in sentences)


def test_results_of_run_eval_refresh_the_card(trained, tmp_path, monkeypatch):
    kept = {name: (trained / name).read_bytes() for name in ("README.md", "scores.json")}
    before, after = results_file(tmp_path / "b.json", 0.1), results_file(tmp_path / "a.json", 0.25)
    refresh(monkeypatch, trained, "--results", before, after)
    text = (trained / "README.md").read_text()
    assert "| docs_search | accuracy@1 | 0.1000 | 0.2500 |" in text and str(tmp_path) not in text
    assert "![Cosines of true and random pairs](cosines.png)" in text
    assert (trained / "cosines.png").read_bytes().startswith(b"\x89PNG")
    refresh(monkeypatch, trained, "--hub_model_id", "me/mine")  # scores stay
    data = ModelCard.load(trained / "README.md").data
    assert data.model_name == "me/mine" and data.eval_results[0].metric_value == 0.25
    assert 'SentenceTransformer("me/mine")' in (trained / "README.md").read_text()
    refresh(monkeypatch, trained, "--results", after)
    assert "| docs_search | accuracy@1 | 0.2500 |" in (trained / "README.md").read_text()
    assert "before" not in read_scores(trained)
    for name, content in kept.items():
        (trained / name).write_bytes(content)
    (trained / "cosines.png").unlink()


def test_each_column_states_how_it_was_scored(trained, tmp_path, monkeypatch):
    kept = {name: (trained / name).read_bytes() for name in ("README.md", "scores.json")}
    before, after = results_file(tmp_path / "b.json", 0.1), results_file(tmp_path / "a.json", 0.25)
    refresh(monkeypatch, trained, "--results", before, after)
    assert "Evaluated with pooling mean, max_seq_length 24, dtype float32.\n" in (trained / "README.md").read_text()
    before.write_text(json.dumps(json.loads(before.read_text()) | {"max_seq_length": 256, "prompt": "query: "}))
    refresh(monkeypatch, trained, "--results", before, after)
    text = (trained / "README.md").read_text()
    assert (
        'evaluated with pooling mean, max_seq_length 256, dtype float32, prompt "query: "; after training, with'
        in text
    )
    assert "after training, with pooling mean, max_seq_length 24, dtype float32.\n" in text
    for name, content in kept.items():
        (trained / name).write_bytes(content)
    (trained / "cosines.png").unlink()


def test_what_cannot_be_shown_is_one_line(trained, tmp_path, monkeypatch):
    good, other = results_file(tmp_path / "a.json", 0.2), results_file(tmp_path / "b.json", 0.2, data_sha256="e")
    (tmp_path / "c.json").write_text("{}")
    pooled = tmp_path / "d.json"
    pooled.write_text(good.read_text().replace('"mean"', '"cls"'))
    card_before = (trained / "README.md").read_bytes()
    for argv, message in (
        ([tmp_path], "no readable train_results.json; give the --output_dir of a finished run"),
        ([trained, "--results", tmp_path / "c.json"], "c.json: not a results.json of run_eval.py"),
        ([trained, "--results", other, good], "docs_search was scored on different data"),
        ([trained, "--results", pooled], "scored with pooling 'cls', but .* uses 'mean'"),
        ([trained, "--results", good, good, good], "--results takes one file, or two"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            refresh(monkeypatch, *argv)
        assert "\n" not in str(caught.value)
    assert (trained / "README.md").read_bytes() == card_before


def test_the_licence_is_that_of_the_base_model(bert_folder, tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: gentle\nlicense_link: LICENSE\n---\n")
    expected = {"license": "other", "license_name": "gentle", "license_link": "LICENSE"}
    assert license_in(card_of(str(tmp_path))) == expected
    assert license_in(card_of(bert_folder)) == {}
    assert license_in(card_of("no/such-model")) == {}


def test_what_others_wrote_is_no_markdown(trained):
    before = RunRecord.load(trained)
    hostile = "gentle](http://example.org)\n# <b>Mine</b>"
    run = before.run | {
        "base_model": before.run["base_model"] | {"license": {"license": "other", "license_name": hostile}}
    }
    replace(before, run=run).save(trained)
    text = ModelCard(render_card(trained)).text
    before.save(trained)
    assert "Licence of the base model: gentle__http_//example.org__# ".replace("#", "_") in text
    assert "# <b>" not in text and "](http://example" not in text


@pytest.mark.parametrize(
    ("flags", "views", "loss"),
    [
        ({}, "span of 5 characters masked in the second view", "nt_xent, temperature 0.04"),
        ({"augmentation": "delete"}, "augmentation delete with rate 0.1 in the second view", "nt_xent, temperature 0.04"),
        ({"augment_both_views": True}, "span of 5 characters masked in both views", "nt_xent, temperature 0.04"),
        ({"augmentation": "none", "loss": "multi_similarity"}, "no text augmentation", "multi_similarity"),
        ({"learnable_temperature": True, "loss": "one_way"}, "span of 5 characters masked in the second view",
         "one_way, temperature 0.04 initially, then learned"),
    ],
)  # fmt: skip
def test_descriptions_of_views_and_loss(flags, views, loss, tmp_path):
    settings = MirrorConfig(output_dir=str(tmp_path), **flags).to_dict()
    assert describe_views(settings) == views and describe_loss(settings) == loss


def test_later_options_are_rows_of_the_card_where_they_were_used(tmp_path):
    def facts(**flags):
        return beyond_facts(collect_settings(MirrorConfig(output_dir=str(tmp_path), **flags)))

    assert facts() == {}
    assert facts(projection_head="mlp", negative_queue=500, noise_negatives=200, batching="length") == {
        "projection head": "a linear layer and tanh, in training only",
        "further negatives": "500 earlier texts, by a copy of the encoder with momentum 0.995 and 200 Gaussian vectors",
        "batches": "texts of similar length",
    }
    assert facts(false_negative_weighting=0.9, hardness=9.0, matryoshka_dims=[128, 64]) == {
        "negatives left out": "cosine above 0.9",
        "hardness": "9.0 times the cosine of a negative",
        "shorter vectors": "trained too: the first 128, 64 dimensions (`truncate_dim`)",
    }


def test_the_licence_of_a_base_model_writes_no_markdown(trained, monkeypatch):
    record = json.loads((trained / "train_results.json").read_text())
    kept = (trained / "train_results.json").read_bytes(), (trained / "README.md").read_bytes()
    injected = "x\n\n# Free money\n[click](http://a.b) <script>"
    record["run"]["license"] = record["run"]["base_model"]["license"] = {"license": "other", "license_name": injected}
    (trained / "train_results.json").write_text(json.dumps(record))
    refresh(monkeypatch, trained)
    text = ModelCard.load(trained / "README.md").text
    for part in ("# Free money", "[click]", "<script>"):
        assert part not in text
    assert "Licence of the base model: x__# Free".replace("#", "_") in text
    (trained / "train_results.json").write_bytes(kept[0])
    (trained / "README.md").write_bytes(kept[1])
