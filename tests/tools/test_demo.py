"""mirror-demo without a browser: the numbers on the page, the app over HTTP with hostile input, and one-line errors."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.spatial.distance import pdist
from sklearn.decomposition import PCA

from mirror.assets import EMBEDDED_MODEL
from mirror.common.errors import InputError
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import save_encoder
from mirror.tools import demo
from mirror.training.record import RunRecord, note_local_base


pytest.importorskip("gradio")

import httpx
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError

from mirror.tools import demo_app


ATTACK = """<img src=x onerror="document.title='ran'">"""


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


class Compass:
    """Fake encoder: the vector of "30" has an angle of 30 degrees, that of any other text depends on its characters."""

    pooling = "mean"

    def __init__(self):
        self.may_answer = threading.Event()
        self.may_answer.set()

    def encode(self, texts):
        self.may_answer.wait(60)
        angles = [float(text) if re.fullmatch(r"[\d.]+", text) else sum(map(ord, text)) % 360 for text in texts]
        return np.stack([np.cos(np.radians(angles)), np.sin(np.radians(angles))], axis=1).astype(np.float32)

    encode_query = encode_document = encode


# ---- The numbers ----


@pytest.fixture(scope="module")
def encoders(folder, bert_folder) -> tuple[Encoder, Encoder]:
    return Encoder.from_pretrained(bert_folder, "mean", 24), Encoder.from_pretrained(str(folder / "out"))


@pytest.fixture(scope="module")
def models(encoders, sentences):
    return demo_app.compare_on(sentences[:50], ["before", "after"], encoders)


def unit(encoder: Encoder, texts: list[str]) -> np.ndarray:
    found = encoder.encode(texts).astype(float)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_cosines_and_matches_are_those_of_the_encoder(models, encoders, sentences):
    query, other = "the king reads an old letter", "a small dog walks to the river"
    cosines = re.findall(r"class='number'>(−?\d\.\d{3})<", demo_app.show_cosines(models, query, other))
    for model, encoder, shown in zip(models, encoders, cosines, strict=True):
        left, right = unit(encoder, [query, other])
        assert model.compare(query, other)[0] == pytest.approx(left @ right, abs=1e-5)
        assert float(shown.replace("−", "-")) == pytest.approx(left @ right, abs=6e-4)
        assert model.compare(query, query) == (pytest.approx(1), 1)
        expected = unit(encoder, sentences[:50]) @ left
        found, _ = model.search(query, 4)
        assert [row for _, row in found] == np.argsort(-expected)[:4].tolist()
        assert [cosine for cosine, _ in found] == pytest.approx(np.sort(expected)[::-1][:4], abs=1e-5)
        own, _ = model.search(sentences[7], 4)
        assert len(own) == 4 and 7 not in [row for _, row in own]  # the query itself tells nothing


def test_the_map_shows_two_principal_components_turned_to_the_other_map(models, encoders, sentences):
    for side, (model, encoder) in enumerate(zip(models, encoders, strict=True)):
        vectors = unit(encoder, sentences[:50])
        plane = PCA(2).fit(vectors)
        np.testing.assert_allclose(pdist(model.points), pdist(plane.transform(vectors)), atol=1e-3)  # not deformed
        np.testing.assert_allclose(model.search(sentences[7], 4)[1][0], model.points[7], atol=1e-3)
        figure = demo_app.draw_map(models, side, [3, 5], model.points[:1])
        assert f"{plane.explained_variance_ratio_.sum():.0%} of the variance" in figure.layout.title.text
        np.testing.assert_allclose(np.stack([figure.data[0].x, figure.data[0].y], 1), model.points, atol=1e-4)
        assert [len(trace.x) for trace in figure.data] == [len(figure.data[0].hovertext), 2, 1] == [50, 2, 1]
    before, after = models
    untouched = before.pca.transform(before.vectors)
    for angle in np.radians(range(0, 360, 5)):
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        for mirror in ([1, 1], [1, -1]):
            apart = np.linalg.norm(untouched @ turn * mirror - after.points)
            assert apart >= np.linalg.norm(before.points - after.points) - 1e-6


def test_a_cosine_is_compared_with_those_of_random_pairs():
    model = demo_app.ComparedModel("compass", Compass(), ["0", "90", "180"])  # cosines 0, 0 and -1
    assert model.compare("0", "60") == (pytest.approx(0.5), 1.0)
    assert model.compare("0", "120")[1] == pytest.approx(1 / 3, abs=0.02)
    assert model.histogram.sum() == demo_app.NUM_PAIRS and model.histogram[0] > 3000


@pytest.mark.parametrize("length", [1, 30, 900, 5000])
def test_the_page_opens_on_examples_of_any_length(length):
    texts = [f"{word} " + "x" * length for word in "abcdefghijkl"]
    models = demo_app.compare_on(texts, ["before", "after"], [Compass(), Compass()])
    samples, heading, first, second, _, query, found, *_ = demo_app.opening(models, 3)
    assert len({sample for (sample,) in samples}) == 5 and first == query == samples[0][0] != second
    assert all(any(text.startswith(sample) for text in texts) for (sample,) in samples) and "12 texts" in heading
    assert max(len(sample) for (sample,) in samples) <= demo_app.MAX_CHARACTERS and found.count("<li") == 6


def test_equal_vectors_and_more_texts_than_the_map_shows(monkeypatch):
    monkeypatch.setattr(demo_app, "MAP_TEXTS", 2)
    models = demo_app.compare_on(["7", "7.0", "7.00"], ["before", "after"], [Compass(), Compass()])
    figure = demo_app.opening(models, 3)[-1]
    assert len(figure.data[0].x) == 2
    assert re.search(r"2 texts, \d+% of the variance", figure.layout.title.text)  # of rounding errors


# ---- The app, and what hostile visitors send ----


@pytest.fixture(scope="module")
def encoder() -> Compass:
    return Compass()


@pytest.fixture(scope="module")
def address(encoder, tmp_path_factory):
    """The app at a free port, on hostile texts and model names."""
    texts = [ATTACK, "</script><script>alert(1)</script>", "${alert(1)}", "<a href='//x.y'>z</a>", "a cat"]
    page = demo_app.build_page(demo_app.compare_on(texts, ["before", ATTACK], [encoder, encoder]), 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        local = {"server_name": demo.LOOPBACK, "app_kwargs": {"middleware": demo.local_middleware()}}
        yield page.launch(quiet=True, prevent_thread_lock=True, **local, **demo_app.LAUNCH)[1].rstrip("/")
        page.close()


@pytest.fixture(scope="module")
def client(address) -> Client:
    return Client(address, verbose=False, analytics_enabled=False)


def test_texts_and_names_are_written_as_text(client, address):
    cosines = client.predict("a", "b", api_name="/on_compare")
    found, *maps = client.predict("a", api_name="/on_search")
    plots = [figure["plot"] for figure in maps]
    assert "&lt;img src=x" in found and "&lt;img src=x" in cosines and all("&lt;img" in plot for plot in plots)
    opened = httpx.get(address)
    assert not re.findall(r"<img|alert\(1\)</script>|<a ", cosines + found + "".join(plots) + opened.text)
    # Nothing is loaded from another server.
    assert not re.findall(r'<(?:script|link|iframe)[^>]+(?:src|href)="(?:https?:)?//|googleapis', opened.text)
    assert opened.headers["Content-Security-Policy"].startswith("default-src 'self' ")
    config = httpx.get(f"{address}/config").json()
    assert not config["analytics_enabled"] and not config["run_history"] and not config["stylesheets"]


def test_what_is_no_question_gets_one_line(client):
    for text in ("", " \n", None, "x" * (demo_app.MAX_CHARACTERS + 1)):
        with pytest.raises(AppError, match=r"^Type a text of 1 to 2,000 characters\. This one has [\d,]+\.$"):
            client.predict(text, api_name="/on_search")
    for text in ("猫" * demo_app.MAX_CHARACTERS, 7, ["a"], {"a": "b"}):
        assert "<li" in client.predict(text, api_name="/on_search")[0]
    assert demo_app.checked(" a\ud800 ") == "a?"


def test_an_upload_takes_the_place_of_the_texts(address, tmp_path):
    visitor, other = (Client(address, verbose=False, analytics_enabled=False) for _ in range(2))
    (tmp_path / "mine.txt").write_text(f"one\ntwo\n\nthree\none\n{ATTACK}\n", encoding="utf-8")
    (tmp_path / "mine.csv").write_text('id,text\n1,"uno, dos"\n2,tres\n', encoding="utf-8")
    for name, count, text in (("mine.txt", 4, "&lt;img"), ("mine.csv", 2, "uno, dos")):
        _, heading, *_ = visitor.predict(handle_file(tmp_path / name), api_name="/on_upload")
        assert f"{count} texts" in heading and text in visitor.predict("three", api_name="/on_search")[0]
    assert "a cat" in other.predict("three", api_name="/on_search")[0]  # each visitor has texts of their own


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("one.txt", b"one\n", "the map needs at least two texts"),
        ("empty.txt", b"", "^empty.txt is empty"),
        ("binary.txt", b"\xff\x00\x81" * 90, "^binary.txt, line 1: not a text file"),
        ("two.csv", b"a,<b>\n1,2\n", r"^two.csv has no column &#x27;text&#x27;; it has a, &lt;b&gt;$"),
        ("page.html", b"<b>", "Invalid file type"),
    ],
)
def test_a_useless_upload_gets_one_line(client, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AppError, match=message):
        client.predict(handle_file(tmp_path / name), api_name="/on_upload")


def test_large_uploads_and_bodies_are_refused(address):
    large = {"files": ("a.txt", b"a" * (demo_app.LAUNCH["max_file_size"] + 9))}
    assert httpx.post(f"{address}/gradio_api/upload", files=large).status_code == 413
    chunks = (b"a" * 65536 for _ in range(demo.MAX_BODY_BYTES // 65536 + 1))  # sent without a Content-Length
    for content in (b"a" * (demo.MAX_BODY_BYTES + 1), chunks):
        with contextlib.suppress(httpx.TransportError):  # the server may hang up on what is still sent
            assert httpx.post(f"{address}/gradio_api/queue/join", content=content).status_code == 413


def test_no_file_of_the_machine_can_be_read(address, tmp_path):
    (tmp_path / "secret.txt").write_text("secret\nother\n")
    for path in (
        tmp_path / "secret.txt",
        "/etc/passwd",
        "pyproject.toml",
        "../pyproject.toml",
        "%2e%2e/pyproject.toml",
    ):
        assert httpx.get(f"{address}/gradio_api/file={path}").status_code in (403, 404)
    for path in ("/static/..%2f..%2fblocks.py", "/assets/%2e%2e/index.html", "/docs", "/gradio_api/proxy=http://a.b"):
        assert httpx.get(f"{address}{path}").status_code in (400, 403, 404)
    forged = {"path": str(tmp_path / "secret.txt"), "meta": {"_type": "gradio.FileData"}}
    assert join(address, "on_upload", [forged]).status_code == 200
    events = httpx.get(f"{address}/gradio_api/queue/data?session_hash=one", timeout=60).text
    assert '"success":false' in events and "other" not in events


def join(address: str, name: str, data: list) -> httpx.Response:
    """Put a question into the queue, as the page does."""
    config = httpx.get(f"{address}/config").json()
    (number,) = [item["id"] for item in config["dependencies"] if item["api_name"] == name]
    body = {"data": data, "fn_index": number, "session_hash": "one"}
    return httpx.post(f"{address}/gradio_api/queue/join", json=body)


def test_only_this_servers_own_page_is_answered(address):
    with pytest.raises(OSError):  # also a local address; open if the socket were bound to all
        socket.create_connection(("127.0.0.2", int(address.rpartition(":")[2])), timeout=5)
    for host in ("127.0.0.1:7860", "localhost"):
        assert httpx.get(f"{address}/config", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.7:7860"):  # DNS rebinding
        assert httpx.get(f"{address}/config", headers={"Host": host}).status_code == 400
    for site in ("cross-site", "same-site"):
        foreign = {"Sec-Fetch-Site": site, "Origin": "http://evil.example"}
        assert httpx.get(address, headers=foreign).status_code == 200  # a link to the page
        assert httpx.get(f"{address}/config", headers=foreign).status_code == 403
        assert httpx.post(f"{address}/gradio_api/upload", files={"files": b"a"}, headers=foreign).status_code == 403
    assert httpx.get(f"{address}/config", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_a_flood_of_questions_is_put_off(address, encoder):
    encoder.may_answer.clear()
    try:
        answers = [join(address, "on_search", [None, "a"]).status_code for _ in range(30)]
    finally:
        encoder.may_answer.set()
    assert answers[:20] == [200] * 20 and answers[-1] == 503


# ---- The command ----


def test_the_base_model_is_read_from_the_record(tmp_path):
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
    (tmp_path / "my-bert").rmdir()  # moved since
    with pytest.raises(InputError, match="give its path with --before"):
        recorded("my-bert", None)
    for damaged in ("{", "{}"):
        (tmp_path / "train_results.json").write_text(damaged)
        with pytest.raises(InputError, match="no train_results.json that names the base model; give .* with --before"):
            demo.base_model(tmp_path)


def test_of_documents_the_page_has_passages(folder, bert_folder, monkeypatch, tmp_path):
    def show(before, after, texts, *_):
        raise InputError(f"shows {texts}")

    monkeypatch.setattr(demo_app, "build_demo", show)
    (tmp_path / "a.md").write_text("# Guide\n\nThe cat runs.\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--before", str(bert_folder), "--texts", str(tmp_path), "--port", str(port)]
    monkeypatch.setattr(sys, "argv", ["mirror-demo", str(folder / "out"), *flags])
    with pytest.raises(InputError, match=re.escape("shows ['The cat runs.']")):
        demo.main()


def test_what_is_wrong_is_one_line(folder, bert_folder, monkeypatch, tmp_path, capsys):
    def call(*flags):
        monkeypatch.setattr(sys, "argv", ["mirror-demo", str(folder / "out"), *map(str, flags)])
        demo.main()

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        with pytest.raises(InputError, match=rf"--port {port}: Address already in use; choose another port"):
            call("--port", port)
    texts, before = ("--port", port, "--texts", folder / "texts.txt"), ("--port", port, "--before", bert_folder)
    (tmp_path / "one.txt").write_text("a cat\n")
    pickled = Path(shutil.copytree(bert_folder, tmp_path / "pickled"))
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    for flags, message in (
        (("--port", 70000), "--port 70000: .* choose another port"),
        (texts, "trained from a local folder .* --before"),
        ((*texts, "--top_k", "0"), "not a positive number"),
        ((*texts, "--before", pickled), "--allow_pickle"),
        ((*before, "--texts", tmp_path / "absent.txt"), "absent.txt: no such file"),
        ((*before, "--texts", tmp_path / "one.txt"), "the map needs at least two texts"),
    ):
        with pytest.raises(InputError, match=message):
            call(*flags)
    monkeypatch.delitem(sys.modules, "mirror.tools.demo_app")
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(InputError, match=r'^mirror-demo needs gradio: pip install "mirror-encoders\[demo\]"$'):
        call(*texts)
    assert capsys.readouterr().out == ""
