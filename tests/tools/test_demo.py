"""python -m mirror.tools.demo without a browser: the numbers on the page, the exported page, and one-line errors."""

from __future__ import annotations

import base64
import json
import re
import shutil
import socket
import sys
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import cosine_similarity

from mirror.assets import EMBEDDED_MODEL
from mirror.common.errors import InputError
from mirror.modeling.backbone import load_backbone
from mirror.modeling.checkpoint import save_encoder
from mirror.modeling.encoder import Encoder
from mirror.tools import demo
from mirror.training.hub import NOT_PUSHED
from mirror.training.run_record import RunRecord, note_local_base


pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from fastapi.testclient import TestClient

from mirror.tools import demo_export, demo_models, demo_page, demo_server


ADDRESS = "http://127.0.0.1:7860"


@pytest.fixture(scope="module")
def folder(bert_folder, sentences, tmp_path_factory) -> Path:
    """A folder with `out`, a run whose base model is a local folder, and `texts.txt` with fifty texts."""
    folder = tmp_path_factory.mktemp("demo")
    save_run(folder / "out", bert_folder)
    (folder / "texts.txt").write_text("\n".join(sentences[:50]))
    return folder


def save_run(folder: Path, base: str) -> None:
    model, tokenizer = load_backbone(base, "mean")
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    save_encoder(folder, model, tokenizer, "mean", max_seq_length=24)
    save_record(folder, Path(base).name, hub_id=None)


def save_record(folder: Path, base_name: str, hub_id: str | None) -> None:
    run = {"base_model": {"name": base_name, "hub_id": hub_id}}
    RunRecord("mirror", metrics={}, run=run, corpus={}, settings={}, cosine_after_reload={}).save(folder)


def call(monkeypatch, *argv) -> None:
    monkeypatch.setattr(sys, "argv", ["mirror.tools.demo", *map(str, argv)])
    demo.main()


@pytest.fixture(scope="module")
def models(folder, bert_folder):
    with pytest.MonkeyPatch.context() as patch:
        flags = ["--texts", folder / "texts.txt", "--before", bert_folder]
        patch.setattr(sys, "argv", ["mirror.tools.demo", str(folder / "out"), *map(str, flags)])
        return demo.load_models(demo.parse_arguments())


@pytest.fixture
def client(models) -> TestClient:
    return TestClient(demo_server.create_app(*models, 4), base_url=ADDRESS)


@pytest.fixture(scope="module")
def vectors(folder, bert_folder):
    """A function from the side ("before", "after") and texts to the embeddings of `Encoder`."""
    before = Encoder.from_pretrained(bert_folder, "mean", max_seq_length=24)
    encoders = {"before": before, "after": Encoder.from_pretrained(str(folder / "out"))}
    return lambda side, texts: encoders[side].encode(texts).astype(float)


def cosines(vector, matrix):
    return matrix @ vector / np.linalg.norm(matrix, axis=1) / np.linalg.norm(vector)


# ---- The numbers on the page ----


def test_cosines_are_those_of_the_encoder(client, vectors):
    first, second = "the cat sees a red bird", "a small dog walks to the river"
    answer = client.post("/api/cosine", json={"first": f" {first}\n", "second": second}).json()
    for side in ("before", "after"):
        left, right = vectors(side, [first, second])
        assert answer[side]["cosine"] == pytest.approx(cosines(left, right[None])[0], abs=1e-5)
    assert abs(answer["before"]["cosine"] - answer["after"]["cosine"]) > 0.01
    same = client.post("/api/cosine", json={"first": first, "second": first}).json()
    assert all(same[side]["cosine"] == pytest.approx(1) and same[side]["above"] == 1 for side in same)


def test_matches_are_the_nearest_texts_of_each_model(client, sentences, vectors):
    query = "the king reads an old letter"
    answer = client.post("/api/search", json={"query": query}).json()
    for side in ("before", "after"):
        expected = cosines(vectors(side, [query])[0], vectors(side, sentences[:50]))
        best = np.argsort(-expected)[:4]
        assert [match["text"] for match in answer[side]["matches"]] == [sentences[row] for row in best]
        assert [match["cosine"] for match in answer[side]["matches"]] == pytest.approx(expected[best], abs=1e-5)
    found = [[match["text"] for match in answer[side]["matches"]] for side in answer]
    assert found[0] != found[1]
    own = client.post("/api/search", json={"query": found[1][0]}).json()["after"]["matches"]
    assert len(own) == 4 and found[1][0] not in [match["text"] for match in own]  # the query itself tells nothing


def test_the_map_shows_two_principal_components(client, sentences, vectors):
    corpus = client.get("/api/corpus").json()
    assert corpus["texts"] == sentences[:50] and corpus["num_texts"] == 50 and corpus["pooling"] == "mean"
    answer = client.post("/api/search", json={"query": sentences[7]}).json()
    for side in ("before", "after"):
        unit = vectors(side, sentences[:50])
        unit /= np.linalg.norm(unit, axis=1)[:, None]
        plane = PCA(2).fit(unit)
        points = np.array(corpus[side]["points"])
        np.testing.assert_allclose(pdist(points), pdist(plane.transform(unit)), atol=1e-3)  # turned, not deformed
        assert corpus[side]["variance"] == pytest.approx(plane.explained_variance_ratio_.sum(), abs=1e-4)
        assert answer[side]["point"] == pytest.approx(
            points[7], abs=1e-3
        )  # the query is equal to text 7, so it has the same position
        match = answer[side]["matches"][0]
        assert match["point"] == list(points[sentences.index(match["text"])])


def test_the_map_before_training_lies_as_closely_as_a_turn_allows_on_the_one_after(models):
    before, after = models
    apart = np.linalg.norm(before.points - after.points)
    untouched = before.pca.transform(before.vectors)
    for degrees in range(0, 360, 5):
        turn = np.array([[np.cos(np.radians(degrees)), np.sin(np.radians(degrees))],
                         [-np.sin(np.radians(degrees)), np.cos(np.radians(degrees))]])  # fmt: skip
        for mirror in ([1, 1], [1, -1]):
            assert np.linalg.norm(untouched @ turn * mirror - after.points) >= apart - 1e-6


def test_the_page_opens_on_texts_of_the_corpus(client, models):
    corpus = client.get("/api/corpus").json()
    lengths = sorted(map(len, corpus["texts"]))
    assert len(set(corpus["examples"])) == 5 and set(corpus["examples"]) <= set(corpus["texts"])
    assert all(lengths[len(lengths) // 4] <= len(text) <= lengths[-len(lengths) // 4] for text in corpus["examples"])
    first, second = corpus["pair"]
    assert first == corpus["examples"][0] != second
    assert corpus == client.get("/api/corpus").json()
    found = [match["text"] for match in models[1].search(first, 50)["matches"]]
    assert second == found[0]
    few = demo_models.ComparedModel("compass", Compass(), ["0" * 200, "90" + "0" * 200 + "e-200"])
    shown = demo_page.corpus_map({"before": few, "after": few})
    assert shown["examples"] == shown["pair"] == []


class Compass:
    """A fake encoder: the vector of "30" has an angle of 30 degrees."""

    pooling = "mean"

    def encode(self, texts):
        angles = np.radians([float(text) for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_a_cosine_is_compared_with_those_of_random_pairs():
    model = demo_models.ComparedModel("compass", Compass(), ["0", "90", "180"])  # cosines 0, 0 and -1
    described = model.describe([0, 2])
    assert model.cosine("0", "60") == {"cosine": pytest.approx(0.5), "above": 1.0}
    assert model.cosine("0", "120")["above"] == pytest.approx(1 / 3, abs=0.02)
    assert model.cosine("0", "180.1")["above"] <= model.cosine("0", "120")["above"]
    assert sum(described["pairs"]) == demo_models.NUM_PAIRS and described["pairs"][0] > 3000
    assert len(described["points"]) == 2 and described["variance"] == pytest.approx(1)
    assert [match["text"] for match in model.search("100", 2)["matches"]] == ["90", "180"]


def test_equal_vectors_and_long_texts(monkeypatch):
    texts = ["7", "7.0", "07" + "0" * 400 + "e-400"]
    model = demo_models.ComparedModel("compass", Compass(), texts)
    assert 0 <= model.describe([0])["variance"] < 1.01  # only rounding errors
    monkeypatch.setattr(demo_page, "MAP_TEXTS", 2)
    shown = demo_page.corpus_map({"before": model, "after": model})
    assert shown == demo_page.corpus_map({"before": model, "after": model}) and shown["num_texts"] == 3
    assert len(shown["texts"]) == len(shown["before"]["points"]) == 2
    client = TestClient(demo_server.create_app(model, model, 3), base_url=ADDRESS)
    assert client.get("/api/corpus").status_code == 200
    found = client.post("/api/search", json={"query": "7"}).json()["after"]["matches"]
    assert [len(match["text"]) for match in found] == [3, demo_page.SHOWN_CHARACTERS] and found[1]["text"].endswith(
        "…"
    )
    with pytest.raises(InputError, match="the map needs at least two texts"):
        demo_models.ComparedModel("compass", Compass(), ["1"])


# ---- The HTML of the page; tests/tools/test_demo_browser.py opens it in a browser ----


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.inline = [], []

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("src", "href")]
        self.inline += [name for name, _ in attributes if name.startswith("on") or name == "style"]
        self.inline += [tag] * (tag == "style" or (tag == "script" and "src" not in dict(attributes)))


def test_the_page_is_of_local_files_under_a_strict_policy(client):
    answer = client.get("/")
    page = Page()
    page.feed(answer.text)
    assert sorted(page.links) == ["icon.svg", "page.css", "page.js"] and not page.inline
    assert 'maxlength="2000"' in answer.text and demo_server.MAX_CHARACTERS == 2000
    for path in ("/", "/page.js", "/page.css", "/api/corpus"):
        headers = client.get(path).headers
        policy = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'" and "unsafe" not in str(policy)
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"


# ---- The exported page ----


def test_the_exported_page_is_one_file_under_a_strict_policy(models):
    text = demo_export.export_page(*models, 4)
    page = Page()
    page.feed(text)
    assert [link for link in page.links if not link.startswith("data:")] == []
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    blocks = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", text, re.DOTALL)
    assert len(blocks) == 3 and all(demo_export.source(block) in policy for block in blocks)
    assert "unsafe" not in policy and "default-src 'none'" in policy and "http" not in policy.replace("http-equiv", "")


def test_quantised_vectors_have_nearly_the_same_cosines():
    vectors = np.random.default_rng(0).standard_normal((50, 384)).astype(np.float32)
    vectors[0] = 0
    model = SimpleNamespace(vectors=vectors, random_cosines=np.linspace(-1, 1, 99))
    packed = demo_export.packed(model, range(50))
    bytes_ = np.frombuffer(base64.b64decode(packed["vectors"]), np.int8).reshape(50, packed["dimensions"])
    expected, found = (cosine_similarity(values.astype(float)) for values in (vectors, bytes_))
    assert np.abs(expected - found).max() < 0.01
    assert len(packed["random_cosines"]) == 1001 and packed["random_cosines"][500] == 0


def test_no_text_can_end_the_data_of_the_exported_page():
    attack = "</script><script>alert(1)</script>"

    class Lengths(Compass):
        def encode(self, texts):
            return super().encode([str(len(text)) for text in texts])

    model = demo_models.ComparedModel(attack, Lengths(), [attack, "a", "bb"])
    text = demo_export.export_page(model, model, 1)
    data = text[text.index('id="snapshot">') :].removeprefix('id="snapshot">').split("</script>")[0]
    assert json.loads(data)["corpus"]["before"]["name"] == attack and "<" not in data


# ---- The command ----


def test_the_socket_is_this_machines_alone():
    with demo.open_socket(0) as listening:
        host, port = listening.getsockname()
        assert host == "127.0.0.1"
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(OSError):  # also a local address; open if the socket were bound to all
            socket.create_connection(("127.0.0.2", port), timeout=5)
        with pytest.raises(InputError, match=rf"--port {port}: Address already in use; choose another port"):
            demo.open_socket(port)
    with pytest.raises(InputError, match="--port 70000: .* choose another port"):
        demo.open_socket(70000)


def test_the_base_model_is_read_from_the_record(folder, tmp_path):
    def recorded(name, hub_id):
        save_record(tmp_path, name, hub_id)
        return demo.base_model(tmp_path)

    assert recorded("roberta-base", "FacebookAI/roberta-base") == "FacebookAI/roberta-base"
    assert recorded("mini-mlm", None) == str(EMBEDDED_MODEL)
    with pytest.raises(InputError, match="trained from a local folder 'my-bert'; give its path with --before"):
        recorded("my-bert", None)
    (tmp_path / "my-bert").mkdir()
    note_local_base(tmp_path, str(tmp_path / "my-bert"))
    assert recorded("my-bert", None) == str(tmp_path / "my-bert")
    assert fnmatch("_base_model.txt", NOT_PUSHED[0]) and (tmp_path / "_base_model.txt").exists()
    (tmp_path / "my-bert").rmdir()  # moved since
    with pytest.raises(InputError, match="give its path with --before"):
        recorded("my-bert", None)
    note_local_base(tmp_path / "other", "bert-base-uncased")  # not a folder: nothing to note
    assert not (tmp_path / "other").exists()
    for damaged in ("{", "{}"):
        (tmp_path / "train_results.json").write_text(damaged)
        with pytest.raises(InputError, match="no train_results.json that names the base model; give .* with --before"):
            demo.base_model(tmp_path)


def test_what_is_wrong_is_one_line(folder, bert_folder, monkeypatch, tmp_path, capsys):
    free = socket.create_server(("127.0.0.1", 0))
    port = free.getsockname()[1]
    free.close()
    common = [folder / "out", "--port", port]
    with pytest.raises(InputError, match="trained from a local folder .* --before"):
        call(monkeypatch, *common, "--texts", folder / "texts.txt")
    with pytest.raises(InputError, match="absent.txt: no such file"):
        call(monkeypatch, *common, "--before", bert_folder, "--texts", folder / "absent.txt")
    with pytest.raises(InputError, match="not a positive number"):
        call(monkeypatch, *common, "--top_k", "0")
    (tmp_path / "one.txt").write_text("a cat\n")
    with pytest.raises(InputError, match="the map needs at least two texts"):
        call(monkeypatch, *common, "--before", bert_folder, "--texts", tmp_path / "one.txt")
    pickled = Path(shutil.copytree(bert_folder, tmp_path / "pickled"))
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    with pytest.raises(InputError, match="--allow_pickle"):
        call(monkeypatch, *common, "--before", pickled, "--texts", folder / "texts.txt")
    for path in (tmp_path / "absent" / "page.html", tmp_path):
        with pytest.raises(InputError, match="--export .*: give the name of a file in an existing folder"):
            call(monkeypatch, *common, "--export", path)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(InputError, match=r'needs uvicorn: pip install "mirror-encoders\[demo\]"'):
        call(monkeypatch, *common)
    assert capsys.readouterr().out == ""
