"""The benchmarks run, count correctly and report their results. No time is asserted: timings need an idle machine."""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import encode_speed, memory, profile_encode, profile_step, soak, train_speed, transfer_speed
from benchmarks.side_by_side import markdown, prepare, ratio, run_in_subprocess, run_interleaved, spread, write_report
from benchmarks.stand_in import distinct_lines, made_up_sentences, make_model, matmul_limit, peak_memory, step_clock
from mirror.common.errors import InputError
from mirror.evaluation import transfer
from mirror.modeling.encoder import Encoder


ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import json, sys
child, result = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--child", "--child_result"))
if child == "bad":
    sys.exit("error: no luck")
json.dump({"child": child, "flags": sys.argv[1:3]}, open(result, "w"))
"""


@pytest.fixture
def script(tmp_path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


@pytest.fixture
def corpus(sentences, tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join([*sentences[:3], "", sentences[0], *sentences[3:40]]))
    return path


def test_variants_are_interleaved_one_subprocess_each(script, capsys):
    found = run_interleaved(script, ["a", "bad", "b"], 2, ["--x", "1"])
    assert {name: len(runs) for name, runs in found.items()} == {"a": 2, "bad": 0, "b": 2}
    assert found["b"][1]["child"] == "b" and found["b"][1]["flags"] == ["--x", "1"]
    assert found["a"][0]["process_seconds"] > 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[1].split(":")[0] for line in lines] == [" a", " bad", " b"] * 2
    assert "failed, exit status 1: error: no luck" in lines[1]


def test_a_failing_preparation_is_one_line_for_the_user(script):
    with pytest.raises(RuntimeError, match="exit status 1: error: no luck"):
        run_in_subprocess(script, "bad", [])
    Path(script).write_text("import sys; sys.exit('error: no luck')")
    with pytest.raises(InputError, match="^no luck$"):
        prepare(script, [])


def test_numbers_are_reported_as_median_and_range(tmp_path, capsys):
    assert spread([3.0, 1.0, 1.5]) == "1.5 (1-3)"
    assert spread([5512.3, 99.94, 1200]) == "1,200 (99.9-5,512)"
    assert ratio([{"s": 6.0}], [{"s": 2.0}, {"s": 9.0}, {"s": 3.0}], "s") == "2.00x"
    assert ratio([], [{"s": 2.0}], "s") == "-"
    table = markdown(("a", "b"), [("x", "1")])
    assert table == "| a | b |\n| --- | ---: |\n| x | 1 |\n"
    write_report(str(tmp_path / "out"), "speed", "Title; more", table, {"x": [{"s": 1}]}, {"x": [1.0, 2.0]}, "s")
    assert capsys.readouterr().out == f"Title; more\n\n{table}\n"
    assert (tmp_path / "out" / "speed.md").read_text() == f"Title; more\n\n{table}"
    assert json.loads((tmp_path / "out" / "speed.json").read_text()) == {"x": [{"s": 1}]}
    assert (tmp_path / "out" / "speed.png").read_bytes().startswith(b"\x89PNG")


def test_the_clock_counts_the_steps_of_any_optimiser():
    weight = torch.nn.Parameter(torch.ones(2))
    optimiser = torch.optim.SGD([weight], lr=0.1)
    with step_clock(warmup_steps=2, steps=3) as clock:
        for _ in range(5):
            optimiser.step()
    optimiser.step()
    assert clock.count == 5 and clock.step_seconds() > 0
    with step_clock(warmup_steps=2, steps=3) as clock:
        optimiser.step()
    with pytest.raises(RuntimeError, match="1 optimiser steps were made, 5 expected"):
        clock.step_seconds()


def test_peak_memory_and_matmul_limit(bert_folder):
    before = peak_memory()
    block = torch.ones(60_000_000)
    assert peak_memory() - before > 0.1 and block.sum() > 0
    limit = matmul_limit(bert_folder, tokens=20, precision="fp32", seconds=0.01)
    assert limit["flops_per_token"] == 2 * 2 * (4 * 32 * 32 + 2 * 32 * 64)  # two layers, two for multiply and add
    assert limit["gflops"] > 0


def test_the_stand_in_model_encodes(tmp_path, sentences):
    make_model(tmp_path, sentences, layers=1, width=32)
    encoder = Encoder.from_pretrained(str(tmp_path), "mean")
    assert encoder.encode(sentences[:3]).shape == (3, 32)
    assert len(encoder.tokenizer(sentences[0])["input_ids"]) < len(sentences[0])


def test_texts_are_distinct_and_sufficient(corpus, sentences):
    assert distinct_lines(str(corpus), 10) == sentences[:10]
    with pytest.raises(InputError, match="40 distinct lines, 41 are needed; lower --steps or --batch_size"):
        distinct_lines(str(corpus), 41)
    made = list(made_up_sentences(250, block=100))
    assert len(made) == 250 and made == list(made_up_sentences(250, block=100)) and len(set(made)) > 200
    assert all(3 <= len(sentence.split()) <= 30 for sentence in made)


@pytest.mark.parametrize(
    "variant", ["ours-bf16", "ours-padded-fp32", "sentence-transformers-fp32", "original-way-bf16", "matmul-fp32"]
)
def test_every_training_method_makes_the_steps(variant, bert_folder, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(train_speed, "WORKERS", 1)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    flags = ["--train_file", str(corpus), "--model_name_or_path", bert_folder, "--batch_size", "8", "--steps", "2"]
    args = train_speed.parse_arguments([*flags, "--max_length", "32", "--work", str(tmp_path)])
    facts = train_speed.measure("prepare", args)
    assert len((tmp_path / "corpus.txt").read_text().splitlines()) == 8 * (2 + 2)
    assert 5 < facts["tokens"] < 32
    found = train_speed.measure(variant, args)
    assert all(value > 0 for value in found.values())


def test_the_training_table_compares_equal_precisions():
    args = train_speed.parse_arguments(
        ["--train_file", "x", "--batch_size", "100", "--variants", "original-way-bf16", "ours-bf16", "ours-fp32"]
    )
    run = {"process_seconds": 9.0, "peak_gb": 1.0}
    results = {
        "matmul-bf16": [{"gflops": 6.0, "flops_per_token": 1e6}],
        "matmul-fp32": [{"gflops": 3.0, "flops_per_token": 1e6}],
        "original-way-bf16": [run | {"step_seconds": 4.0}],
        "ours-bf16": [run | {"step_seconds": 2.0}],
        "ours-fp32": [],
    }
    lines = train_speed.table_of(results, args, tokens=10.0).splitlines()
    cells = [cell.strip() for cell in lines[3].split("|")[1:-1]]
    # 100 texts x 2 views x 10 tokens in 2 s are 1,000 tokens a second, each 3 x 1 MFLOP: 3 of 6 GFLOP/s
    assert cells == ["ours-bf16", "2 (2-2)", "50", "1000", "50%", "9 (9-9)", "1.00", "2.00x", "-"]
    assert lines[4].split("|")[2].strip() == "failed" and lines[4].count("|") == lines[3].count("|")


def test_every_encoding_method_gives_the_same_scores(bert_folder, sentences, tmp_path):
    rows = [f"{sentences[n]}\t{sentences[n + 30]}\t{n % 6}" for n in range(30)]
    (tmp_path / "sts.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]))
    flags = ["--sts_file", str(tmp_path / "sts.tsv"), "--model_name_or_path", bert_folder, "--max_length", "32"]
    args = encode_speed.parse_arguments(flags)
    assert encode_speed.measure("prepare", args)["sentences"] == 60
    found = {name: [encode_speed.measure(name, args)] for name in encode_speed.DEFAULT_VARIANTS if "fp32" in name}
    scores = [runs[0]["spearman"] for runs in found.values()]
    assert abs(scores[0]) > 1e-3
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-3)
    assert encode_speed.table_of(found, 60).count("\n") == 5


def test_memory_of_whole_and_cached_steps_and_of_streaming(bert_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])
    flags = ["--model_name_or_path", bert_folder, "--batch_sizes", "16", "--mini_batch_size", "8", "--steps", "1"]
    args = memory.parse_arguments([*flags, "--work", str(tmp_path)])
    names = ["packed-whole-16", "packed-cached-16", "padded-whole-16", "padded-cached-16"]
    assert memory.variants_of(args) == names
    memory.measure("prepare", args)
    found = {name: [memory.measure(name, args)] for name in names[1:3]}
    assert memory.batch_table(found).count("gradient caching") == 1

    args = memory.parse_arguments([*flags, "--work", str(tmp_path), "--streaming_rows", "200"])
    memory.measure("prepare", args)
    found = {name: [memory.measure(name, args) | {"process_seconds": 1.0}] for name in memory.variants_of(args)}
    assert len(found["reading"][0]["resident_gb"]) == 10
    assert "Streaming trains at" in memory.streaming_table(found, args)


def test_the_profile_times_every_stage_and_phase_of_a_run(bert_folder, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pytest"])
    args = Namespace(batch_size=8, warmup_steps=1, steps=2)
    stages, phases, seconds = profile_step.time_run(args, bert_folder, corpus, str(tmp_path))
    assert [*stages] == [*profile_step.STAGES, "the rest"] and min(stages.values()) > 0
    assert {*phases} == {"forward and loss", "backward", "optimiser", "the rest"} and seconds > 0
    assert profile_step.kind_of("aten::addmm") == "matrix products"
    assert profile_step.kind_of("aten::mul") == "element by element"


def test_the_profile_times_every_stage_of_an_encoding(bert_folder, sentences):
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    stages = profile_encode.stages_of(lambda: encoder.encode(sentences))
    assert [*stages] == ["tokenisation", "forward passes", "the rest"] and min(stages.values()) > 0
    assert profile_step.kind_of("aten::scaled_dot_product_attention") == "attention"


def test_probes_are_compared_with_all_threads_of_blas_and_with_one(monkeypatch):
    monkeypatch.setattr(transfer, "threadpool_limits", lambda *_, **__: nullcontext(1))

    def score() -> dict:
        with transfer.threadpool_limits(1) as threads:
            return {"main_score": threads or 0}

    threads, one = transfer_speed.compare(score, rounds=2)
    assert [score for _, score in threads] == [0, 0] and [score for _, score in one] == [1, 1]
    vectors = transfer_speed.Remembered(lambda texts, show_progress: [len(text) for text in texts])
    assert vectors(["a", "bc"]) == [1, 2] and vectors(["a", "bc"]) is vectors(["a", "bc"])


@pytest.mark.parametrize("script", ["train_speed", "encode_speed", "memory"])
def test_the_waiting_process_imports_nothing_heavy(script):
    code = f"import sys, benchmarks.{script}\nassert not {{'torch', 'numpy', 'matplotlib'}} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variant", ["ours", "theirs-fp32", "ours-int8"])
def test_an_unknown_variant_is_named(variant):
    for parse, flag in ((train_speed.parse_arguments, "--train_file"), (encode_speed.parse_arguments, "--sts_file")):
        with pytest.raises(InputError, match=f"--variants {variant}: unknown; for example original-way-fp32"):
            parse([flag, "x", "--variants", variant])


def test_the_soak_distinguishes_growth_from_noise():
    flat = [soak.Counts(float(n), 500 + n % 3, 20 + n % 2, 9, 0, 1) for n in range(40)]
    assert soak.grown_counts(flat) == []
    assert soak.grown_counts([replace(counts, open_files=20 + n) for n, counts in enumerate(flat)]) == ["open_files"]
    assert soak.grown_counts([replace(counts, resident_mb=500 + n) for n, counts in enumerate(flat)]) == [
        "resident_mb"
    ]
    filling = [replace(counts, resident_mb=min(500 + 10 * n, 600)) for n, counts in enumerate(flat)]
    assert soak.grown_counts(filling) == [] and "40 rounds in 1 minutes" in soak.summary(filling)


@pytest.mark.slow
def test_the_whole_command(corpus, tmp_path):
    command = [sys.executable, "benchmarks/train_speed.py", "--train_file", str(corpus), "--batch_size", "8"]
    command += ["--steps", "1", "--warmup_steps", "1", "--rounds", "1", "--output_dir", str(tmp_path / "out")]
    command += ["--variants", "original-way-bf16", "sentence-transformers-bf16", "ours-bf16"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("-bf16 |") == 3 and "failed" not in done.stdout
    assert (tmp_path / "out" / "train_speed.png").exists()
