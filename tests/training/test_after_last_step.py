"""After the last step nothing may cost the run: its weights are in the output folder, whole, with a manifest."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import mirror
from mirror.common.errors import InputError
from mirror.common.files import MANIFEST, is_complete, write_manifest
from mirror.training.finish import ASIDE, put_interrupted_into_place
from mirror.training.record import FILE, RunRecord, facts_on_card
from tests.tiny_trainer import At, make_trainer


PACKAGE, ROOT = str(Path(mirror.__file__).parent), Path(__file__).resolve().parents[2]
# Nothing can guard the guards of the save, nor what runs beside the steps of the end.
GUARDS = {
    "_train",
    "_keep_trained",
    "after_last_step",
    "finish",
    "train",
    "save_weights",
    "gathered_weights",
    "_try_twice",
}
RAISED = {"describe", "shutdown", "_on_gloo", "world_size"}  # raised after everything is saved


class FailOnce:
    """Profiler that raises in the `number`-th function of this package, at its first call. 0 only counts them."""

    def __init__(self, number: int = 0):
        self.number, self.names, self.seen = number, [], set()

    def __call__(self, frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and code not in self.seen:
            if code.co_name in GUARDS:
                return
            self.seen.add(code)
            self.names.append(code.co_qualname)
            if len(self.names) == self.number:
                sys.setprofile(None)
                raise KeyError(f"fault in {code.co_qualname}")


def run_with_fault(bert_folder: str, texts: list[str], folder: Path, number: int = 0) -> list[str]:
    """Train two steps and finish, with the `number`-th function after the last step failing. Return all their names."""
    options = {"max_steps": 2, "validation_samples": 40, "per_device_train_batch_size": 10, "learning_rate": 1e-3}
    trainer, fault = make_trainer(bert_folder, texts, folder, **options), FailOnce(number)
    trainer.add_callback(At(2, lambda: sys.setprofile(fault)))
    try:
        trainer.train()
        trained = {name: value.clone() for name, value in trainer.model.state_dict().items()}
        trainer.finish()
    except InputError as error:  # of the verification
        assert "is saved" in str(error) or "are saved" in str(error)
    except KeyError as error:
        assert error.args[0].split()[-1] in RAISED
    finally:
        sys.setprofile(None)
    assert is_complete(folder)
    saved = load_file(folder / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in trained.items() if name in saved)
    assert AutoModel.from_pretrained(folder).config.hidden_size == 32
    return fault.names


@pytest.fixture(scope="module")
def functions(bert_folder, sentences, tmp_path_factory) -> list[str]:
    return run_with_fault(bert_folder, sentences[:120], tmp_path_factory.mktemp("counted") / "out")


def test_some_functions_that_fail_after_the_last_step(bert_folder, sentences, tmp_path, functions):
    for name in ("MirrorTrainer.log", "write_manifest", "MirrorTrainer.record"):
        number = next(n for n, each in enumerate(functions, 1) if each.endswith(name.split(".")[-1]))
        run_with_fault(bert_folder, sentences[:120], tmp_path / name, number)


@pytest.mark.slow
def test_each_function_that_fails_after_the_last_step(bert_folder, sentences, tmp_path, functions):
    assert len(functions) > 80
    wrong = []
    for number, name in enumerate(functions, 1):
        try:
            run_with_fault(bert_folder, sentences[:120], tmp_path / "out", number)
        except BaseException as error:
            wrong.append(f"{number} {name}: {error!r}"[:300])
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
    assert not wrong, "\n".join(wrong)


def train_and_finish(model: str, texts: list[str], folder: Path, **flags) -> None:
    trainer = make_trainer(model, texts, folder, **{"max_steps": 1} | flags)
    trainer.train()
    trainer.finish()


CARDS = {
    "front matter that is not a mapping": b"---\nlicense_name: Our terms: version 2\n---\n",
    "front matter that is a list": b"---\n- a\n- b\n---\n",
    "front matter that does not end": b"---\nlicense: mit\n",
    "aliases": b"---\nlicense: &a [*a]\n---\n",
    "a tab": b"---\n\tlicense: mit\n---\n",
    "not UTF-8": b"---\nlicense: mit\n---\nd\xe9j\xe0\n",
    "a null byte": b"---\nlicense: m\x00it\n---\n",
    "a folder": None,
}


@pytest.mark.parametrize("kind", CARDS)
def test_a_card_of_the_base_that_cannot_be_read_is_none(tmp_path, kind):
    if CARDS[kind] is None:
        (tmp_path / "README.md").mkdir()
    else:
        (tmp_path / "README.md").write_bytes(CARDS[kind])
    assert facts_on_card(str(tmp_path))[1] == []


def test_a_run_on_a_base_with_a_damaged_card_is_whole(bert_folder, sentences, tmp_path):
    base = Path(shutil.copytree(bert_folder, tmp_path / "base"))
    (base / "README.md").write_bytes(CARDS["not UTF-8"])
    train_and_finish(str(base), sentences[:60], tmp_path / "out")
    assert is_complete(tmp_path / "out") and (tmp_path / "out" / "README.md").is_file()
    assert RunRecord.load(tmp_path / "out").run["language"] == []


def test_a_card_with_facts_is_read(tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\nlanguage: [en, de]\n---\n")
    assert facts_on_card(str(tmp_path)) == ({"license": "mit"}, ["en", "de"])


def test_a_full_disk_while_the_card_is_written_is_a_warning(bert_folder, sentences, tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mirror.training.finish.write_card", full)
    train_and_finish(bert_folder, sentences[:60], tmp_path / "out")
    assert f"{tmp_path / 'out'} has no README.md: [Errno 28] No space left on device" in caplog.text
    assert is_complete(tmp_path / "out") and RunRecord.load(tmp_path / "out").cosine_after_reload


def best_is_step_2(bert_folder, sentences, folder, **options):
    """A trainer of four steps that loads the best checkpoint at its end, which is the first."""
    options |= {"max_steps": 4, "learning_rate": 1e-2, "eval_strategy": "steps", "eval_steps": 2}
    options |= {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True}
    options |= {"metric_for_best_model": "own", "greater_is_better": True}
    scores = iter([2.0, 1.0])
    return make_trainer(bert_folder, sentences[:80], folder, score=lambda encoder: {"own": next(scores)}, **options)


@pytest.mark.parametrize("is_gone", [False, True])
def test_the_best_step_is_saved_or_its_loss_is_said(bert_folder, sentences, tmp_path, monkeypatch, caplog, is_gone):
    monkeypatch.chdir(tmp_path)
    trainer = best_is_step_2(bert_folder, sentences, "./out", save_total_limit=1)
    if is_gone:
        trainer.add_callback(At(3, lambda: shutil.rmtree("out/checkpoint-2")))
    trainer.train()
    trainer.finish()
    step = 4 if is_gone else 2
    saved, kept = (load_file(f"out/{name}model.safetensors") for name in ("", f"checkpoint-{step}/"))
    assert all(torch.equal(saved[name], value) for name, value in kept.items())
    assert ("checkpoint-2, the best checkpoint, is gone" in caplog.text) == is_gone
    assert ("these are the weights of step 4" in caplog.text) == is_gone
    assert trainer.state.best_global_step == (None if is_gone else 2)


def test_a_log_that_fails_at_the_end_keeps_the_run_and_its_best_step(bert_folder, sentences, tmp_path, monkeypatch):
    """The summary of `Trainer` is logged before it loads the best checkpoint."""
    trainer = best_is_step_2(bert_folder, sentences, tmp_path)
    trainer.add_callback(At(4, lambda: monkeypatch.setattr(trainer.totals, "of_run", lambda *_: 1 / 0)))
    trainer.train()
    trainer.finish()
    saved, best = (load_file(folder / "model.safetensors") for folder in (tmp_path, tmp_path / "checkpoint-2"))
    assert all(torch.equal(saved[name], value) for name, value in best.items())


def test_what_an_earlier_run_could_not_finish_is_never_deleted(bert_folder, sentences, tmp_path, caplog):
    for name in (f"{ASIDE}-1", ASIDE):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text(f"weights of {name}")
    train_and_finish(bert_folder, sentences[:60], tmp_path, force=True)
    for number, name in enumerate((f"{ASIDE}-1", ASIDE), start=1):
        assert (tmp_path / f"{ASIDE}-{number}" / "model.safetensors").read_text() == f"weights of {name}"
    assert is_complete(tmp_path) and not (tmp_path / ASIDE).exists()
    assert f"{ASIDE}-2 is what an earlier run could not finish" in caplog.text


@pytest.mark.parametrize("moved", range(4))
def test_a_save_that_was_killed_while_it_moved_is_completed_by_the_next_start(tmp_path, moved):
    aside = tmp_path / ASIDE
    (aside / "1_Pooling").mkdir(parents=True)
    for name in ("1_Pooling/config.json", "config.json", "model.safetensors"):
        (aside / name).write_text(name)
    write_manifest(aside)
    (tmp_path / "README.md").write_text("of an earlier run")
    for path in [path for path in sorted(aside.iterdir()) if path.name != MANIFEST][:moved]:
        path.rename(tmp_path / path.name)
    put_interrupted_into_place(tmp_path)
    assert is_complete(tmp_path) and not aside.exists() and not (tmp_path / "README.md").exists()
    put_interrupted_into_place(tmp_path)  # once more changes nothing
    assert is_complete(tmp_path)


def test_an_encoder_that_cannot_be_moved_is_kept_aside(bert_folder, sentences, tmp_path, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with (
        monkeypatch.context() as patch,
        pytest.raises(InputError, match="^the encoder is whole in .*_encoder, but cannot"),
    ):
        patch.setattr("mirror.training.finish.replace_files", denied)
        train_and_finish(bert_folder, sentences[:60], tmp_path)
    assert is_complete(tmp_path / ASIDE)
    put_interrupted_into_place(tmp_path)
    assert is_complete(tmp_path)


def run_script(folder: Path, bert_folder: str, *flags: str | bytes, **environment: str) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "run_mirror.py",
        "--model_name_or_path",
        bert_folder,
        "--output_dir",
        str(folder / "out"),
    ]
    command += "--max_steps 1 --per_device_train_batch_size 20 --max_seq_length 24 --pooling mean".split()
    return subprocess.run([*command, *flags], cwd=ROOT, capture_output=True, env=os.environ | environment, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}], ids=str)
@pytest.mark.parametrize("name", [b"caf\xe9.txt", "\u4e2d\u6587.txt".encode()], ids=["latin", "chinese"])
def test_names_that_are_not_utf8_are_saved(bert_folder, sentences, tmp_path, name, environment):
    path = os.fsencode(tmp_path) + b"/" + name
    Path(os.fsdecode(path)).write_text("\n".join(sentences[:60]))
    done = run_script(tmp_path, bert_folder, "--train_file", path, **environment)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    assert is_complete(tmp_path / "out")
    for file in (FILE, "README.md"):
        assert (tmp_path / "out" / file).read_text(encoding="utf-8")
