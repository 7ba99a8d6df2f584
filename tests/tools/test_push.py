"""Pushes with the real client to a Hub server on the loopback interface: uploaded files, and failed pushes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import _http

import run_mirror
from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.tools import push
from mirror.training import hub
from tests.hub_server import HubServer


ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_" + "Secret" * 5


@pytest.fixture
def server(monkeypatch):
    """A Hub server that the client of this process uses, with a token and without delays between retries."""
    with HubServer() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(_http.time, "sleep", lambda seconds: None)
        monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 5.0)
        yield running
        huggingface_hub.close_session()


@pytest.fixture(scope="module")
def corpus(sentences, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "texts.txt"
    path.write_text("\n".join(sentences))
    return str(path)


@pytest.fixture
def train(bert_folder, corpus, tmp_path, monkeypatch):
    """run_mirror.py on a tiny model into tmp_path/out."""
    out = tmp_path / "out"

    def run(*flags) -> Path:
        defaults = ["--model_name_or_path", bert_folder, "--train_file", corpus, "--output_dir", out]
        defaults += ["--per_device_train_batch_size", 40, "--max_seq_length", 24, "--max_steps", 2, "--pooling", "cls"]
        monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, [*defaults, "--disable_tqdm", "true", *flags])])
        run_mirror.main()
        return out

    return run


def push_later(monkeypatch, *argv) -> None:
    monkeypatch.setattr(sys, "argv", ["mirror.tools.push", *map(str, argv)])
    push.main()


def encoder_files(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    of_the_run = ("checkpoint-", "runs/", ".", "_", "manifest.json")
    return {name: content for name, content in files.items() if not name.startswith(of_the_run)}


def assert_no_token(folder: Path, *texts: str) -> None:
    for path in folder.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path
    assert not any(TOKEN in text or "X-Signature" in text for text in texts)


def test_the_uploaded_files_are_those_on_disk(train, server, caplog, capfd):
    out = train("--push_to_hub", "--hub_model_id", "me/mine", "--hub_private_repo", "true", "--hub_token", TOKEN)
    repo = server.repos["me/mine"]
    assert repo["private"] and repo["commits"] == ["Mirror encoder"]
    assert repo["files"] == encoder_files(out)
    assert {"model.safetensors", "README.md", "modules.json", "1_Pooling/config.json"} <= repo["files"].keys()
    assert b'SentenceTransformer("me/mine")' in repo["files"]["README.md"]
    assert server.tokens == {f"Bearer {TOKEN}"}
    assert_no_token(out, caplog.text, *capfd.readouterr())


@pytest.mark.parametrize(
    ("strategy", "beside"),
    [("every_save", None), ("checkpoint", "last-checkpoint"), ("all_checkpoints", "checkpoint-1")],
)
def test_strategies(train, server, tmp_path, strategy, beside):
    flags = ["--push_to_hub", "--hub_strategy", strategy, "--save_strategy", "steps", "--save_steps", "1"]
    out = train(*flags, "--hub_model_id", "me/mine", "--hub_always_push", "true", "--hub_token", TOKEN)
    repo = server.repos["me/mine"]
    assert repo["commits"][0] == "Training in progress, step 1" and repo["commits"][-1] == "Mirror encoder"
    at_top = {name: content for name, content in repo["files"].items() if "checkpoint" not in name.split("/")[0]}
    assert at_top == encoder_files(out)
    folders = {name.split("/")[0] for name in repo["files"]} - {name.split("/")[0] for name in at_top}
    expected = {"checkpoint-1", "checkpoint-2"} if strategy == "all_checkpoints" else {beside} - {None}
    assert folders == expected
    if beside:
        newest = out / ("checkpoint-2" if beside == "last-checkpoint" else beside)
        for path in newest.iterdir():
            if path.is_file():
                assert repo["files"][f"{beside}/{path.name}"] == path.read_bytes()
        assert f"{beside}/optimizer.pt" in repo["files"]
    assert not any("training_args" in name for name in repo["files"])
    assert_no_token(out)
    assert not any(TOKEN.encode() in content for content in repo["files"].values())


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        ({"create": 401}, "the server answered 401"),
        ({"preupload": 403}, "the server answered 403"),
        ({"commit": 409}, "the server answered 409"),
        ({"commit": 500}, "the server answered 500"),
        ({"upload": 503}, "the server answered 503"),
        ({"create": "hang"}, "Timeout"),
    ],
)
def test_a_failed_push_keeps_the_encoder_and_names_the_command_to_retry(
    train, server, tmp_path, monkeypatch, caplog, capfd, fail, reason
):
    server.fail = fail
    monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 0.3 if "hang" in fail.values() else 5.0)
    huggingface_hub.close_session()
    with pytest.raises(InputError) as caught:
        train("--push_to_hub", "--hub_model_id", "me/mine", "--hub_private_repo", "true")
    line, out = str(caught.value), tmp_path / "out"
    assert reason in line and "\n" not in line
    assert line.endswith(f"later: python -m mirror.tools.push {out} --hub_model_id me/mine")
    assert_no_token(out, line, caplog.text, *capfd.readouterr())
    assert Encoder.from_pretrained(str(out)).encode(["a cat"]).shape == (1, 32)
    if "create" in fail:
        assert "--push_to_hub: " in caplog.text and "training continues" in caplog.text

    server.fail = {}
    monkeypatch.setattr(hub, "TIMEOUT_SECONDS", 5.0)
    huggingface_hub.close_session()
    push_later(monkeypatch, out, "--hub_model_id", "me/mine")
    assert server.repos["me/mine"]["files"] == encoder_files(out)
    assert server.repos["me/mine"]["private"]  # as set for the run
    assert capfd.readouterr().out.startswith(f"{server.url}/me/mine/commit/")


def test_a_failed_push_during_training_does_not_stop_the_run(train, server, caplog):
    server.fail = {"commit": 403}
    with pytest.raises(InputError, match="the encoder is saved in"), caplog.at_level(logging.WARNING):
        train("--push_to_hub", "--hub_strategy", "every_save", "--save_strategy", "steps", "--save_steps", "1")
    assert "checkpoint-1 was not pushed: the server answered 403" in caplog.text


def test_pushing_twice_and_without_a_namespace(train, server, monkeypatch, capsys):
    out = train()
    for _ in range(2):
        push_later(monkeypatch, out)
    assert list(server.repos) == ["someone/out"] and not server.repos["someone/out"]["private"]
    assert server.calls.count("upload") == 1  # files on the server are not uploaded again


def test_input_errors_are_one_line_before_any_request(train, server, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="--hub_model_id 'a/b/c' is not a repository id; give user/name"):
        train("--push_to_hub", "--hub_model_id", "a/b/c")
    with pytest.raises(InputError, match=r"no config.json; give the --output_dir of a finished run"):
        push_later(monkeypatch, tmp_path)
    out = train("--force")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "absent"))
    with pytest.raises(InputError, match="no token for the Hub: set HF_TOKEN or run `hf auth login`"):
        push_later(monkeypatch, out)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        push_later(monkeypatch, out)
    assert server.calls == []


def test_without_a_network_the_error_is_one_line_and_the_exit_status_2(train):
    out = train()
    with HubServer() as gone:
        url = gone.url
    settings = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "mirror.tools.push", str(out), "--hub_model_id", "me/mine"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and TOKEN not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: pushing {out} to me/mine failed: ConnectError")
    assert json.loads((out / "train_results.json").read_text())["settings"]["level"] == "sentence"
