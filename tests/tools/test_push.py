"""Pushes with the real client to a Hub server on the loopback interface: uploaded files, and failed pushes."""

from __future__ import annotations

import json
import logging
import platform
import re
import shutil
import socket
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import yaml
from huggingface_hub import constants
from huggingface_hub.utils import _http
from packaging.requirements import Requirement
from transformers import TrainingArguments
from transformers.utils import hub as transformers_hub

import run_mirror
from mirror import MirrorConfig, MirrorTrainer
from mirror.common.errors import InputError, run_main
from mirror.common.files import MANIFEST, is_complete
from mirror.modeling.encoder import Encoder
from mirror.tools import push
from mirror.training import hub
from mirror.training.record import collect_settings
from tests.hub_server import HubServer


TOKEN = "hf_" + "Secret" * 5
FILE_ON_THE_HUB = "/{repo_id}/resolve/{revision}/{filename}"
USER, HOST = "jane-doe-7", "workstation-of-jane"


@pytest.fixture
def server(monkeypatch):
    """A Hub server that the client of this process uses, with a token and without delays between retries."""
    with HubServer() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", running.url + FILE_ON_THE_HUB)
        monkeypatch.setattr(transformers_hub, "_hf_api", None)  # made at its first use, with the address of then
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
    """Run run_mirror.py on a tiny model into tmp_path/out, with further flags."""

    def run(flags: str = "") -> Path:
        fixed = f"--model_name_or_path {bert_folder} --train_file {corpus} --output_dir {tmp_path}/out --pooling cls"
        fixed += " --per_device_train_batch_size 40 --max_seq_length 24 --max_steps 2 --disable_tqdm true"
        monkeypatch.setattr(sys, "argv", ["run_mirror.py", *fixed.split(), *flags.split()])
        run_mirror.main()
        return tmp_path / "out"

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
    with caplog.at_level(logging.INFO):
        out = train(f"--push_to_hub --hub_model_id me/mine --hub_private_repo true --hub_token {TOKEN}")
    repo = server.repos["me/mine"]
    assert repo["private"] and repo["commits"] == ["Mirror encoder"]
    assert repo["files"] == encoder_files(out)
    assert {"model.safetensors", "README.md", "modules.json", "1_Pooling/config.json"} <= repo["files"].keys()
    assert b'SentenceTransformer("me/mine")' in repo["files"]["README.md"]
    assert server.tokens == {f"Bearer {TOKEN}"}
    assert_no_token(out, caplog.text, *capfd.readouterr())
    assert caplog.messages[-1] == f"Pushed to {server.url}/me/mine"
    assert not any("HTTP" in line for line in caplog.messages)


def prompted_base(bert_folder: str, folder: Path) -> Path:
    """A checkpoint of sentence-transformers with a default prompt and vectors of length 1."""
    from sentence_transformers import SentenceTransformer, models

    words = models.Transformer(bert_folder, max_seq_length=24)
    modules = [words, models.Pooling(words.get_embedding_dimension(), "mean"), models.Normalize()]
    base = SentenceTransformer(modules=modules, prompts={"query": "find: "}, default_prompt_name="query", device="cpu")
    base.save(str(folder), create_model_card=False)
    return folder


@pytest.mark.parametrize(
    "prompted", [pytest.param(False, id="plain", marks=pytest.mark.slow), pytest.param(True, id="prompted")]
)
def test_the_code_on_a_pushed_card_loads_the_pushed_encoder(
    train, server, bert_folder, tmp_path, monkeypatch, prompted
):
    base = f"--model_name_or_path {prompted_base(bert_folder, tmp_path / 'base')} --pooling mean" if prompted else ""
    out = train(f"--push_to_hub --hub_model_id me/mine {base}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    card = server.repos["me/mine"]["files"]["README.md"].decode()
    expected = Encoder.from_pretrained(str(out)).encode(["a text", "another text"])
    snippets = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(snippets) == 2
    shutil.move(out, tmp_path / "elsewhere")
    for code in snippets:
        names: dict = {}
        exec(code, names)
        np.testing.assert_allclose(np.asarray(names["vectors"]), expected, atol=1e-5)
    assert "resolve" in server.calls


def test_nothing_of_this_machine_is_pushed_or_logged(train, server, corpus, tmp_path, monkeypatch, caplog, capfd):
    home = tmp_path / "home" / USER
    (home / "corpus").mkdir(parents=True)
    lines = Path(corpus).read_text().splitlines()
    lines = [f"{line} {other}" for line, other in pairwise(lines)]  # as long as the tests need
    for name, part in (("a", lines[:120]), ("b", lines[120:])):
        (home / "corpus" / f"{name}.txt").write_text("\n".join(part))
    for variable in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(variable, USER)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    monkeypatch.setattr(platform, "node", lambda: HOST)
    train(
        f"--train_file {home}/corpus/*.txt --output_dir {home}/out --max_steps 4 --validation_samples 60 --eval_strategy steps"
        " --eval_steps 2 --load_best_model_at_end true --metric_for_best_model own_text --save_strategy steps"
        f" --save_steps 2 --push_to_hub --hub_model_id me/mine --hub_strategy all_checkpoints --hub_token {TOKEN}"
    )
    files = server.repos["me/mine"]["files"]
    assert json.loads(files["checkpoint-2/trainer_state.json"])["best_model_checkpoint"] == "checkpoint-2"
    assert json.loads(files["mirror_config.json"])["settings"]["train_file"] == ["*.txt"]
    for name, content in files.items():
        for secret in (USER, HOST, TOKEN, str(tmp_path)):
            assert secret.encode() not in content and secret not in name, (name, secret)
    logged = "".join((caplog.text, *capfd.readouterr()))
    assert not any(secret in logged for secret in (HOST, TOKEN, "X-Signature"))
    for name, content in files.items():
        if name.startswith("checkpoint-2/"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(content)
    assert is_complete(tmp_path / "checkpoint-2")  # training resumes from what is downloaded


def test_a_retry_is_one_line_without_the_address(train, server, monkeypatch):
    out, lines = train(), []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    server.fail = {"upload": 503}
    logging.getLogger("huggingface_hub").addHandler(handler)
    try:
        with pytest.raises(InputError, match="the server answered 503"):
            push_later(monkeypatch, out, "--hub_model_id", "me/mine")
    finally:
        logging.getLogger("huggingface_hub").removeHandler(handler)
    assert lines[0] == "the Hub: HTTP Error 503. Retrying in 1s [Retry 1/5]."
    assert len(lines) == 5 and not any("http" in line for line in lines)


@pytest.mark.parametrize(
    ("strategy", "beside"),
    [
        pytest.param("every_save", None, marks=pytest.mark.slow),
        ("checkpoint", "last-checkpoint"),
        pytest.param("all_checkpoints", "checkpoint-1", marks=pytest.mark.slow),
    ],
)
def test_strategies(train, server, tmp_path, strategy, beside):
    flags = f"--push_to_hub --hub_strategy {strategy} --save_strategy steps --save_steps 1 --hub_always_push true"
    out = train(f"{flags} --hub_model_id me/mine --hub_token {TOKEN}")
    repo = server.repos["me/mine"]
    assert repo["commits"][0] == "Training in progress, step 1" and repo["commits"][-1] == "Mirror encoder"
    at_top = {name: content for name, content in repo["files"].items() if "checkpoint" not in name.split("/")[0]}
    assert at_top == encoder_files(out)
    folders = {name.split("/")[0] for name in repo["files"].keys() - at_top.keys()}
    assert folders == ({"checkpoint-1", "checkpoint-2"} if strategy == "all_checkpoints" else {beside} - {None})
    if beside:
        newest = out / ("checkpoint-2" if beside == "last-checkpoint" else beside)
        for path in newest.iterdir():
            if path.is_file() and path.name != MANIFEST:
                assert repo["files"][f"{beside}/{path.name}"] == path.read_bytes()
        assert f"{beside}/optimizer.pt" in repo["files"]
    assert not any("training_args" in name for name in repo["files"])
    assert_no_token(out)
    assert not any(TOKEN.encode() in content for content in repo["files"].values())


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        ({"create": 401}, "the server answered 401"),
        pytest.param({"preupload": 403}, "the server answered 403", marks=pytest.mark.slow),
        ({"commit": 500}, "the server answered 500"),
        pytest.param({"upload": 503}, "the server answered 503", marks=pytest.mark.slow),
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
        train("--push_to_hub --hub_model_id me/mine --hub_private_repo true")
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
    assert capfd.readouterr().out == f"{server.url}/me/mine\n"


def test_a_failed_push_during_training_does_not_stop_the_run(train, server, monkeypatch, caplog):
    def gone(state_file: Path):
        raise FileNotFoundError(state_file)

    flags = "--push_to_hub --hub_strategy every_save --save_strategy steps --save_steps 1"
    server.fail = {"commit": 403}
    with pytest.raises(InputError, match="the encoder is saved in"), caplog.at_level(logging.WARNING):
        train(flags)
    assert "checkpoint-1 was not pushed: the server answered 403" in caplog.text
    server.fail = {}
    monkeypatch.setattr(hub, "keep_folders_private", gone)  # a newer checkpoint replaced it before its turn
    caplog.clear()
    train(f"{flags} --force")
    assert "checkpoint-1 was not pushed: " in caplog.text and "training continues" in caplog.text
    assert server.repos["someone/out"]["commits"] == ["Mirror encoder"]


def test_a_run_of_the_python_api_is_pushed_twice_without_a_namespace(
    train, server, bert_folder, sentences, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    flags = {"pooling": "cls", "per_device_train_batch_size": 40, "max_steps": 1, "disable_tqdm": True}
    config = MirrorConfig(output_dir=str(out), **flags)
    trainer = MirrorTrainer(model=bert_folder, args=config, train_dataset=sentences)
    trainer.train()
    trainer.finish()
    expected = encoder_files(out)
    (out / "embeddings").mkdir()
    for name in ("run.json", "results.json", "results.md", "embeddings/0.npy"):  # of run_eval.py
        (out / name).write_text(str(out))
    for _ in range(2):
        push_later(monkeypatch, out)
    assert server.repos["someone/out"]["files"].keys() == expected.keys()
    assert list(server.repos) == ["someone/out"] and not server.repos["someone/out"]["private"]
    assert server.calls.count("upload") == 1  # files on the server are not uploaded again
    assert b'SentenceTransformer("someone/out")' in server.repos["someone/out"]["files"]["README.md"]
    train("--force --push_to_hub --hub_model_id other")
    assert b'SentenceTransformer("someone/other")' in server.repos["someone/other"]["files"]["README.md"]


def test_the_demo_is_written_as_a_space(train, server, corpus, tmp_path, monkeypatch, capsys):
    out, texts = train(), tmp_path / "public.jsonl"
    texts.write_text("\n".join(json.dumps({"text": f"a MODEL\nand {n} dogs"}) for n in range(3000)))
    flags = ["--hub_model_id", "me/mine", "--space", "me/demo", "--texts", texts]
    with pytest.raises(InputError, match="names no base model on the Hub; give the Hub id of one with --before"):
        push_later(monkeypatch, out, *flags)
    with pytest.raises(InputError, match="--space and --texts go together"):
        push_later(monkeypatch, out, "--space", "me/demo")
    with pytest.raises(InputError, match="absent.txt: no such file"):
        push_later(monkeypatch, out, "--space", "me/demo", "--texts", "absent.txt", "--before", "me/base")
    assert server.calls == []
    capsys.readouterr()
    push_later(monkeypatch, out, *flags, "--before", "me/base")
    assert capsys.readouterr().out == f"{server.url}/me/mine\n{server.url}/spaces/me/demo\n"
    space = server.repos["me/demo"]
    assert space["sdk"] == "gradio" and space["commits"] == ["Demo"] and not space["private"]
    assert space["files"].keys() == {"README.md", "app.py", "requirements.txt", "texts.txt"}
    card = yaml.safe_load(space["files"]["README.md"].decode().split("---")[1])
    assert card == {"title": "demo", "sdk": "gradio", "app_file": "app.py", "models": ["me/mine", "me/base"]}
    lines = space["files"]["texts.txt"].decode().splitlines()
    assert len(lines) == 2000 and lines[7] == "a MODEL and 7 dogs"
    requirement = Requirement(space["files"]["requirements.txt"].decode().strip())
    assert requirement.name == "mirror-encoders" and requirement.extras == {"demo"}

    # The app compares these two models on these texts.
    asked = {}
    page = SimpleNamespace(launch=lambda **options: asked.update(options))
    build = lambda before, after, texts: asked.update(before=before, after=after, texts=texts) or page  # noqa: E731
    monkeypatch.setattr("mirror.tools.demo_app.build_demo", build)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_bytes(space["files"]["texts.txt"])
    exec(space["files"]["app.py"].decode(), {})
    assert (asked["before"], asked["after"], asked["texts"]) == ("me/base", "me/mine", lines) and "theme" in asked
    server.fail = {"commit": 500}
    with pytest.raises(InputError, match="pushing .* failed: the server answered 500"):
        push_later(monkeypatch, out, *flags, "--before", "me/base")


def test_a_folder_with_the_name_of_a_repository_does_not_shorten_it(tmp_path, monkeypatch):
    (tmp_path / "me" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    settings = collect_settings(TrainingArguments(output_dir="out", hub_model_id="me/mine"), train_file=["me/*"])
    assert settings["hub_model_id"] == "me/mine" and settings["train_file"] == ["*"]


def test_input_errors_are_one_line_before_any_request(train, server, tmp_path, monkeypatch, capsys):
    with pytest.raises(InputError, match="--hub_model_id 'a/b/c' is not a repository id; give user/name"):
        train("--push_to_hub --hub_model_id a/b/c")
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
    with HubServer() as gone:
        monkeypatch.setattr(constants, "ENDPOINT", gone.url)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(sys, "argv", ["mirror.tools.push", str(out), "--hub_model_id", "me/mine"])
    with pytest.raises(SystemExit, match="2"):
        run_main(push.main)
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: pushing {out} to me/mine failed: ConnectError") and TOKEN not in error
