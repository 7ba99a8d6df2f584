"""What the server of mirror.tools.demo refuses: other hosts and pages, damaged, large and late requests, and floods."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time

import numpy as np
import pytest

from mirror.tools import demo


pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import uvicorn
from fastapi.testclient import TestClient

from mirror.tools import demo_models, demo_server


ADDRESS = "http://127.0.0.1:7860"


class Sums:
    """A fake encoder: vectors that depend on the characters of a text."""

    pooling = "mean"

    def encode(self, texts):
        return np.array([[1.0, len(text) % 7, sum(map(ord, text)) % 11] for text in texts], dtype=np.float32)


@pytest.fixture(scope="module")
def models():
    texts = [f"text {number}" for number in range(20)]
    return [demo_models.ComparedModel(name, Sums(), texts) for name in ("before", "after")]


@pytest.fixture
def client(models) -> TestClient:
    return TestClient(demo_server.create_app(*models, 4), base_url=ADDRESS)


def test_only_names_of_this_machine_are_answered(client):
    for host in ("127.0.0.1:7860", "localhost:9000", "localhost"):
        assert client.get("/api/corpus", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.7:7860", ""):
        refused = client.get("/api/corpus", headers={"Host": host})
        assert refused.status_code == 400 and "texts" not in refused.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"null",
        b'{"query": "  "}',
        b'{"query": 7}',
        b'{"query": ["a"]}',
        b'{"quarry": "a"}',
        b'{"query": "\\ud800"}',
        b'{"query": "\xff"}',
        json.dumps({"query": "a" * (demo_server.MAX_CHARACTERS + 1)}).encode(),
        b"[" * 20_000,
    ],
)
def test_what_is_no_question_gets_one_line(client, content):
    refused = client.post("/api/search", content=content, headers={"Content-Type": "application/json"})
    assert refused.status_code in (400, 422), refused.text
    message = refused.json().get("error") or refused.json()["detail"]
    assert isinstance(message, str) and len(message.splitlines()) == 1 and len(message) < 200


def test_the_longest_question_is_answered(client):
    assert client.post("/api/search", json={"query": "猫" * demo_server.MAX_CHARACTERS}).status_code == 200


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_what_another_site_may_post_unasked_is_refused(client, kind):
    """Browsers let any page post these types to any address; JSON needs the server's consent, which it never gives."""
    question = json.dumps({"query": "the cat"}).encode()
    refused = client.post("/api/search", content=question, headers={"Content-Type": kind} if kind else {})
    assert refused.status_code == 415 and "matches" not in refused.text
    asked = client.options(
        "/api/search", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert not [name for name in asked.headers if name.startswith("access-control")] and asked.status_code >= 400


def test_a_large_body_is_refused_even_in_pieces(client):
    headers = {"Content-Type": "application/json"}
    whole = b'{"query": "' + b"a" * demo_server.MAX_BODY_BYTES + b'"}'
    chunks = (b"a" * 1024 for _ in range(demo_server.MAX_BODY_BYTES // 1024 + 1))  # sent without a Content-Length
    for content in (whole, chunks):
        assert client.post("/api/search", content=content, headers=headers).status_code == 413


def test_questions_in_a_flood_are_put_off(models, monkeypatch):
    monkeypatch.setattr(demo_server, "REQUESTS_PER_SECOND", 0.01)  # no refill during the test, even on a slow machine
    client = TestClient(demo_server.create_app(*models, 4), base_url=ADDRESS)
    answers = [client.post("/api/search", json={"query": "a"}) for _ in range(demo_server.MAX_BURST + 1)]
    assert [answer.status_code for answer in answers] == [200] * demo_server.MAX_BURST + [429]
    assert answers[-1].json()["error"].startswith("too many requests")
    assert 80 < int(answers[-1].headers["Retry-After"]) <= 100
    assert client.get("/").status_code == 200


def test_requests_of_other_pages_are_refused_and_do_not_count(models, monkeypatch):
    monkeypatch.setattr(demo_server, "REQUESTS_PER_SECOND", 0.01)
    monkeypatch.setattr(demo_server, "MAX_BURST", 1)
    client = TestClient(demo_server.create_app(*models, 4), base_url=ADDRESS)
    json_type = {"Content-Type": "application/json"}
    for headers in (
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"},  # another port of this machine
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
    ):
        refused = client.post("/api/search", content=b'{"query": "a"}', headers=json_type | headers)
        assert refused.status_code == 403 and refused.json() == {"error": "requests of other pages are refused"}
        assert client.get("/api/corpus", headers=headers).status_code == 403
        assert client.get("/", headers=headers).status_code == 200  # a link to the page
    for _ in range(3):
        assert client.post("/api/search", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    own = {"Sec-Fetch-Site": "same-origin", "Origin": ADDRESS}
    statuses = [client.post("/api/search", json={"query": "a"}, headers=own).status_code for _ in range(2)]
    assert statuses == [200, 429]


@pytest.fixture
def port(models, monkeypatch):
    """The port of a server that waits 0.3 s for a request."""
    monkeypatch.setattr(demo_server, "REQUEST_SECONDS", 0.3)
    with demo.open_socket(0) as listening:
        server = uvicorn.Server(demo.server_config(demo_server.create_app(*models, 4)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: local",
        b"POST /api/cosine HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\nGET /icon",
    ],
    ids=["nothing", "half of the headers", "half of the body", "half of a second request"],
)
def test_a_request_that_does_not_arrive_is_hung_up_on(port, start):
    """Otherwise such connections use up the descriptors of the server, and nobody else is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(start)
        began = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass
        assert time.monotonic() - began < 5


def test_a_slow_answer_is_not_hung_up_on(port, models, monkeypatch):
    def slowly(texts, encode=models[1].encoder.encode):
        time.sleep(1)
        return encode(texts)

    monkeypatch.setattr(models[1].encoder, "encode", slowly)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    body = json.dumps({"first": "a cat", "second": "a dog"})
    connection.request("POST", "/api/cosine", body, {"Content-Type": "application/json"})
    assert connection.getresponse().status == 200
    connection.close()


def test_the_token_bucket_refills():
    now = [100.0]
    bucket = demo_server.TokenBucket(rate=2, burst=3, clock=lambda: now[0])
    assert [bucket.wait() for _ in range(4)] == [0, 0, 0, 0.5]
    now[0] += 0.5
    assert [bucket.wait(), bucket.wait()] == [0, 0.5]
    now[0] += 1000
    assert [bucket.wait() for _ in range(4)] == [0, 0, 0, 0.5]


@pytest.mark.parametrize(
    "path",
    [
        "/docs",
        "/redoc",
        "/openapi.json",
        "/../demo_server.py",
        "/..%2fdemo_server.py",
        "/%2e%2e/demo_server.py",
        "/api/x",
    ],
)
def test_other_paths_are_not_found(client, path):
    assert client.get(path).status_code == 404
