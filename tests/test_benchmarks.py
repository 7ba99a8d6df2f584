"""Tests that the benchmarks run, count right and report what they found. None asserts a time: that needs an idle machine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer

from benchmarks import compare_worth, encode_speed, gpu_proofs, gpu_report, small_speed, train_speed
from mirror.common.errors import InputError


ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def corpus(sentences, tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*sentences[:3], "", sentences[0], *sentences[3:40]]))
    return path


VARIANTS = "ours-bf16 ours-padded-cached-fp32 sentence-transformers-fp32 original-way-bf16 matmul-fp32".split()


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_training_method_makes_the_steps(variant, bert_folder, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(train_speed, "WORKERS", 1)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    file = ["--train_file", str(corpus)] if "ours" in variant else []
    flags = [*file, "--model_name_or_path", bert_folder, "--batch_size", "8", "--steps", "2", "--mini_batch_size", "4"]
    args = train_speed.parse_arguments([*flags, "--max_length", "32", "--work", str(tmp_path)])
    facts = train_speed.measure("prepare", args)
    assert len((tmp_path / "corpus.txt").read_text().splitlines()) == 8 * (2 + 2)
    assert 5 < facts["tokens"] <= 32
    found = train_speed.measure(variant, args)
    assert all(value > 0 for value in found.values())


def test_every_encoding_method_gives_the_same_scores(bert_folder, sentences, tmp_path):
    rows = [f"{sentences[n]}\t{sentences[n + 30]}\t{n % 6}" for n in range(30)]
    (tmp_path / "sts.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    flags = ["--sts_file", str(tmp_path / "sts.tsv"), "--model_name_or_path", bert_folder, "--max_length", "32"]
    args = encode_speed.parse_arguments(flags)
    facts = encode_speed.measure("prepare", args)
    assert facts["sentences"] == 60
    found = {name: [encode_speed.measure(name, args)] for name in encode_speed.DEFAULT_VARIANTS if "fp32" in name}
    scores = [runs[0]["spearman"] for runs in found.values()]
    assert abs(scores[0]) > 1e-3
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-3)
    assert encode_speed.report(args, facts, found)[1].count("\n") == 5


@pytest.mark.slow
def test_the_speeds_of_students_and_exports(bert_folder, sentences, tmp_path):
    """Two ways over a column of a file in their own subprocesses. A way that fails has a row that says so."""
    (tmp_path / "texts.tsv").write_text("\n".join(["query\ttarget", *(f"a\t{text}" for text in sentences[:9])]))
    flags = [
        "--texts",
        str(tmp_path / "texts.tsv"),
        "--column",
        "target",
        "--rounds",
        "1",
        "--output_dir",
        str(tmp_path),
    ]
    SentenceTransformer(bert_folder).save(str(tmp_path / "encoder"))
    encoders = [f"{way}={tmp_path}/encoder" for way in ("ours-fp32", "sentence-transformers", "openvino")]
    command = [sys.executable, "benchmarks/small_speed.py", *flags, "--encoders", *encoders]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Encoding 9 texts") and done.stdout.count("x |") == 2
    assert f"| {encoders[2]} | failed | - |" in done.stdout


@pytest.mark.parametrize(
    ("encoder", "column"), [("ours=out", "target"), ("ours-fp32", "target"), ("ours-fp32=out", "summary")]
)
def test_a_way_or_column_that_is_not_there_is_named(encoder, column, tmp_path):
    (tmp_path / "texts.tsv").write_text("query\ttarget\na\tb\n")
    flags = ["--texts", str(tmp_path / "texts.tsv"), "--column", column, "--encoders", encoder]
    with pytest.raises(
        InputError, match=f"--encoders {encoder}: expected a way|no column summary; it has query, target"
    ):
        small_speed.measure("prepare", small_speed.parse_arguments(flags))


@pytest.mark.parametrize("parse", [train_speed.parse_arguments, encode_speed.parse_arguments])
def test_an_unknown_variant_is_named(parse):
    flags = ["--sts_file", "x"] if parse is encode_speed.parse_arguments else []
    with pytest.raises(InputError, match="--variants ours-int8: unknown; for example original-way-fp32"):
        parse([*flags, "--variants", "ours-int8"])


@pytest.mark.slow
def test_the_commands_run(corpus, tmp_path):
    command = [sys.executable, "benchmarks/train_speed.py", "--train_file", str(corpus), "--batch_size", "8"]
    command += ["--steps", "1", "--warmup_steps", "1", "--rounds", "1", "--output_dir", str(tmp_path / "out")]
    command += ["--variants", "sentence-transformers-bf16", "ours-bf16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("-bf16 |") == 2 and "failed" not in done.stdout
    assert (tmp_path / "out" / "train_speed.md").read_text() in done.stdout
    assert len(json.loads((tmp_path / "out" / "train_speed.json").read_text())) == 3
    small = "--queries 20 --entries 300 --width 8 --rounds 1 --methods torch"
    for flags in (f"search {small}", "corpus --rows 600 --streaming", "documents --rows 70"):
        command = [sys.executable, "benchmarks/scale.py", *flags.split()]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout.count("\n| ") >= 2, done.stderr


# ---- The report of a GPU, on the CPU: the program is right before a GPU runs it ----------------------------------------


def test_a_wrong_packed_row_and_what_is_no_number_are_seen(monkeypatch):
    assert gpu_proofs.row("x", 0.3, 0.2)["outcome"] == gpu_proofs.row("x", float("nan"), 0.2)["outcome"] == "WRONG"
    assert gpu_proofs.relative([torch.ones(4) * 1.1], [torch.ones(4)]) == pytest.approx(0.1)
    monkeypatch.setattr(gpu_proofs, "MODELS", {"BERT": gpu_proofs.MODELS["BERT"]})
    padded = gpu_proofs.padded_vectors
    monkeypatch.setattr(gpu_proofs, "packed_vectors", lambda model, texts: padded(model, texts[::-1]))
    assert {found["outcome"] for found in gpu_proofs.packed_equals_padded()} == {"WRONG"}


def test_the_report_is_written_after_each_part_and_proofs_come_first(tmp_path, monkeypatch):
    written = []

    def attempt(names, flags, deadline):
        for name in names:
            written.append(sorted(path.name for path in tmp_path.iterdir()))
            if len(written) == 3:
                raise KeyboardInterrupt  # the machine is taken away
            yield name, {"rows": [gpu_proofs.row(name, 0.0, 1.0)], "part_seconds": 0.0}

    monkeypatch.setattr(gpu_report, "prepare", lambda *_: {"gpu": False, "machine": "a CPU", "tokens": {}})
    monkeypatch.setattr(gpu_report, "attempt", attempt)
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--output_dir", str(tmp_path)])
    with pytest.raises(KeyboardInterrupt):
        gpu_report.main()
    assert written == [[], *[["gpu_report.json", "gpu_report.md"]] * 2]
    assert list(json.loads((tmp_path / "gpu_report.json").read_text())["results"]) == list(gpu_report.PROOFS[:2])


MEASURES_ONE_AND_DIES = """\
import json, os, sys
names = sys.argv[sys.argv.index("--child") + 1].split()
with open(sys.argv[sys.argv.index("--child_result") + 1], "a") as file:
    file.write(json.dumps({"part": names[0]}) + "\\n")
print("boom", file=sys.stderr, flush=True)
os._exit(3 if names[1:] else 0)
"""


def test_a_part_that_kills_its_process_costs_itself_only(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(MEASURES_ONE_AND_DIES)
    monkeypatch.setattr(gpu_report, "__file__", str(script))
    names, found = ["a", "b", "c", "d", "e"], {}
    while len(found) < len(names):
        found |= gpu_report.attempt(names[len(found) :], [], deadline=time.monotonic() + 60)
    killed = {"failed": "exit status 3: boom"}
    assert found == {"a": {"part": "a"}, "b": killed, "c": {"part": "c"}, "d": killed, "e": {"part": "e"}}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_the_whole_report_on_a_cpu(processes, tmp_path, monkeypatch):
    """All proofs hold, and both models train: without `torch.compile`, which takes minutes, and what needs flash-attn."""
    monkeypatch.setattr(sys, "argv", ["gpu_report.py", "--output_dir", str(tmp_path), "--processes", str(processes)])
    monkeypatch.setattr(gpu_report, "WHOLE", ("ours",))
    monkeypatch.setattr(gpu_report, "CACHED", ("ours-cached",))
    monkeypatch.setattr(gpu_report, "COMPILED", ())
    late = {"failed": "left out: the --minutes are over"}
    assert list(gpu_report.attempt(["resume", "x"], [], deadline=0)) == [("resume", late), ("x", late)]
    gpu_report.main()
    text = (tmp_path / "gpu_report.md").read_text()
    assert text.count("| ok |") >= (20 if processes == 1 else 7)
    assert "WRONG" not in text and "FAILED" not in text and "exit status" not in text, text
    assert processes > 1 or text.count("TFLOP/s") == 3  # the limit of each model


def test_the_worth_of_an_order_without_labels(bert_folder, sentences, tmp_path, monkeypatch, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    rows = [f"{text},{sentences[at + 1]},{at % 5}" for at, text in enumerate(sentences[:60])]
    (tmp_path / "mine.csv").write_text("\n".join(["a,b,score", *rows]))
    models = [f"{bert_folder}:{pooling}" for pooling in ("mean", "cls", "first_last_mean")]
    files = f"--texts {tmp_path}/texts.txt --tasks {tmp_path}/mine.csv --output_dir {tmp_path}/out".split()
    monkeypatch.setattr(sys, "argv", ["compare_worth.py", *models, *files])
    compare_worth.main()
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [len(row["tasks"]) for row in record["encoders"]] == [1, 1, 1]
    assert set(record["rank_correlation"]["mine"]) == {"own_text", "words", "halves"}
    assert "mine: own_text " in capsys.readouterr().out
