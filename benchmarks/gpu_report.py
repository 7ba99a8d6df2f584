"""Reports what a GPU does with this project: first whether its results are right, then how fast it is. Under ten minutes.

    make gpu-report
    python benchmarks/gpu_report.py --output_dir out/gpu
    python benchmarks/gpu_report.py --processes 2   # what several GPUs do with NCCL: the list in docs/scaling.md

Proofs: packed rows give the padded result on six architectures in three precisions, the ways of packed attention agree, an
overflow in float16 skips one step, and a resumed run is the run that was not interrupted. Measurements: training on 10,000
made-up sentences with models of the size of BERT-base and ModernBERT-base (random weights), at 200 sentences a step and, with
gradient caching, at 4,096, beside the method of the released Mirror-BERT code and sentence-transformers, with its own training
without padding where flash-attn is installed; and a decoder of 0.6 billion weights by low-rank updates. The report is written after each part, so an early end loses no result. A part that fails is a row with its
reason. Without a GPU the same program runs on the CPU at toy size, which proves the program and measures nothing.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import train_speed
from benchmarks.side_by_side import make_parser, markdown, prepare, run_child, write_report
from mirror.common.errors import one_line, run_main


PROOFS = ("packed-equals-padded", "attention-ways", "fp16-overflow", "resume")
MODELS = {"BERT-base": (12, 768), "ModernBERT-base": (22, 768), "Qwen3-0.6B": (28, 1024)}  # layers and width
DECODER = "Qwen3-0.6B"  # trained by low-rank updates only
SENTENCES = 10_000
WHOLE = ("ours", "ours-padded", "sentence-transformers", "sentence-transformers-flash", "original-way")
CACHED = ("ours-cached", "sentence-transformers-cached", "sentence-transformers-flash-cached", "original-way")
COMPILED = ("ours-compiled", "ours-cached-compiled")
PRECISION = "bf16"
PROFILE = "profile"  # not a way to train, but where a step of "ours" goes
PEERS = ("sentence-transformers-flash", "sentence-transformers")  # the first that was measured


def main() -> None:
    args = parse_arguments()
    if args.child:
        run_child_parts(args)
        return
    deadline = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as work:
        flags = [*sys.argv[1:], "--work", work]
        facts = prepare(__file__, flags)
        names = ["processes"] if args.processes > 1 else [*PROOFS, *measurements(facts["gpu"])]
        results: dict[str, dict] = {}
        while len(results) < len(names):
            for name, found in attempt(names[len(results) :], flags, deadline):
                outcome = found.get("failed") or f"{found['part_seconds']:.1f} s"
                print(f"{name}: {outcome}", file=sys.stderr)
                results[name] = found
                report = write(args, facts, results)
    print(report)


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=10, help="Number of minutes after which every part is stopped")
    add("--processes", type=int, default=1, help="Number of processes to check instead, if more than 1")
    parser.set_defaults(rounds=1, output_dir="out/gpu-report")
    return parser.parse_args(argv)


def measurements(gpu: bool) -> list[str]:
    """Return `model/batch/variant` of every run that is timed, and of the card's limit for each model.

    What takes minutes to compile is last.
    """
    whole, cached = batches(gpu)
    encoders = [model for model in MODELS if model != DECODER]
    runs = [(model, whole, way) for model in encoders for way in ("matmul", *WHOLE)]
    runs += [(encoders[0], whole, PROFILE)]
    runs += [(DECODER, whole, way) for way in ("matmul", "ours-lora")]
    runs += [(model, cached, way) for model in encoders for way in CACHED]
    runs += [(model, batch, way) for way, batch in zip(COMPILED, (whole, cached), strict=False) for model in encoders]
    return [f"{model}/{batch}/{way}-{PRECISION}" for model, batch, way in runs]


def batches(gpu: bool) -> tuple[int, int]:
    return (200, 4096) if gpu else (8, 16)


def attempt(names: list[str], flags: list[str], deadline: float) -> Iterator[tuple[str, dict]]:
    """Yield parts with their results, until one ends the subprocess that measures them: one, because imports take a third."""
    if time.monotonic() >= deadline:
        yield from ((name, {"failed": "left out: the --minutes are over"}) for name in names)
        return
    with tempfile.TemporaryDirectory() as folder:
        results, errors = Path(folder) / "results", Path(folder) / "stderr"
        command = [sys.executable, __file__, *flags, "--child", " ".join(names), "--child_result", str(results)]
        with results.open("w+", encoding="utf-8") as lines, errors.open("w+", encoding="utf-8") as stderr:
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
            try:
                for name in names:
                    while not (line := lines.readline()) and child.poll() is None and time.monotonic() < deadline:
                        time.sleep(0.1)
                    if not (line := line or lines.readline()):
                        yield name, {"failed": why_it_ended(child, errors)}
                        return
                    yield name, json.loads(line)
            finally:
                child.kill()
                child.wait()


def why_it_ended(child: subprocess.Popen, errors: Path) -> str:
    if child.poll() is None:
        return "not done when the --minutes were over"
    messages = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"]
    return f"exit status {child.returncode}: {one_line(messages[-1], 200)}"


# ---- The report ------------------------------------------------------------------------------------------------------


def write(args: Namespace, facts: dict, results: dict[str, dict]) -> str:
    """Write `gpu_report.json` and `gpu_report.md`, and return the text of the latter."""
    timed = {name: found for name, found in results.items() if "/" in name}
    title = facts["machine"]
    if not facts["gpu"]:
        title = f"No GPU here: toy sizes on {title}; the times say nothing"
    text = f"{title}\n\n{proofs_table({name: found for name, found in results.items() if name not in timed})}"
    if timed:
        text += f"\n{speed_table(timed, facts)}\n{LEGEND}"
    write_report(args.output_dir, __file__, text, {"facts": facts, "results": results})
    return text


def proofs_table(results: dict[str, dict]) -> str:
    rows = []
    for name, found in results.items():
        shown = found.get("rows") or [{"check": name, "outcome": "FAILED", "detail": found["failed"]}]
        rows += [(row["check"], row["outcome"], row["detail"].replace("|", "\\|")) for row in shown]
    return markdown(("check", "outcome", "detail"), rows)


def speed_table(results: dict[str, dict], facts: dict) -> str:
    header = ("model", "batch", "variant", "s for 10,000", "sentences/s", "tokens/s", "of the matmul limit", "peak GB")
    rows = []
    for name, found in results.items():
        model, batch, variant = name.split("/")
        if variant.startswith("matmul"):
            limit = f"{found['gflops'] / 1000:.3g} TFLOP/s" if "gflops" in found else found["failed"]
            rows.append((model, "", f"plain products, {PRECISION}", "", "", "", limit, "", ""))
            continue
        if "failed" in found or variant.startswith(PROFILE):
            rows.append((model, batch, variant, (found.get("failed") or found["text"]).replace("|", "\\|"), *[""] * 5))
            continue
        speed, tokens = int(batch) / found["step_seconds"], facts["tokens"][model]
        times = f"{SENTENCES / speed:.2f}", f"{speed:,.0f}", f"{2 * tokens * speed:,.0f}"
        limit = results.get(f"{model}/{batches(facts['gpu'])[0]}/matmul-{PRECISION}", {})
        share = train_speed.share_of_limit(2 * tokens * speed, limit) if "gflops" in limit else ""
        cache = "-cached" if "-cached" in variant else ""
        peers = (results.get(f"{model}/{batch}/{peer}{cache}-{PRECISION}", {}) for peer in PEERS)
        peer = next((each["step_seconds"] for each in peers if "step_seconds" in each), None)
        ratio = f"{peer / found['step_seconds']:.2f}x" if peer else ""
        rows.append((model, batch, variant, *times, share, f"{found['peak_gb']:.2f}", ratio))
    return markdown((*header, "faster than the peer"), rows)


LEGEND = (
    "The time is that of the steps after start-up and warm-up, for 10,000 sentences, two views of each. Tokens count without "
    "padding. The limit is what plain products of the shapes of the model's linear layers reach on this card. A cached step "
    "makes one forward pass more, which is not counted. Low-rank updates need no gradient of most weights, which is counted all the "
    "same. The peer is sentence-transformers, with flash-attn and its own training without padding where that is installed.\n"
)


# ---- In a measuring subprocess ---------------------------------------------------------------------------------------


def run_child_parts(args: Namespace) -> None:
    """Measure the parts named by `--child`, and append each result to `args.child_result` as a line of JSON."""
    if args.child == "prepare":
        run_child(args, measure)
        return
    with open(args.child_result, "a", encoding="utf-8") as file:
        for name in args.child.split():
            start = time.perf_counter()
            try:
                found = measure(name, args)
            except Exception as error:
                found = {"failed": f"{type(error).__name__}: {one_line(error, 200)}"}
            file.write(json.dumps(found | {"part_seconds": time.perf_counter() - start}) + "\n")
            file.flush()


def measure(name: str, args: Namespace) -> dict:
    if name == "prepare":
        return make_inputs(args)
    import torch

    gc.collect()  # the models of the part before
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    if name == "processes":
        from benchmarks.gpu_proofs import several_processes

        return {"rows": several_processes(args.processes, Path(args.work))}
    if name in PROOFS:
        from benchmarks.gpu_proofs import PROOFS as functions

        return {"rows": functions[name]()}
    if "-flash" in name and find_spec("flash_attn") is None:
        return {"failed": "flash-attn is not installed"}
    model, batch, variant = name.split("/")
    plan = training_arguments(args, model, int(batch))
    if variant.startswith(PROFILE):
        return profile_step(f"ours-{PRECISION}", plan)
    return train_speed.measure(variant, plan, stop=True)


def profile_step(variant: str, plan: Namespace) -> dict:
    """Return how long the GPU computes in a step, and which operators cost the CPU most, under PyTorch's profiler."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import profile, schedule

    with profile(schedule=schedule(wait=1, warmup=1, active=2, repeat=1)) as profiler:
        hook = register_optimizer_step_post_hook(lambda *_: profiler.step())
        try:
            train_speed.measure(variant, plan, stop=True)
        finally:
            hook.remove()
    events = [event for event in profiler.key_averages() if not event.is_user_annotation]  # such as a whole step
    device = sum(event.self_device_time_total for event in events) / 2000  # microseconds of two steps
    launches = sum(event.count for event in events if "LaunchKernel" in event.key) // 2
    longest = sorted(events, key=lambda event: -event.self_cpu_time_total)[:6]
    on_cpu = ", ".join(f"{event.key} {event.self_cpu_time_total / 2000:.1f} ms" for event in longest)
    return {"text": f"{device:.1f} ms of kernels and {launches} launches a step; on the CPU, most in {on_cpu}"}


def training_arguments(args: Namespace, model: str, batch: int) -> Namespace:
    """Return the arguments of train_speed.py: at 200 sentences one epoch, the first tenth of it as warm-up."""
    gpu = batch in batches(True)
    steps, warmup = (SENTENCES // batch * 9 // 10, SENTENCES // batch // 10) if gpu and batch == 200 else (3, 2)
    flags = ["--model_name_or_path", str(Path(args.work) / model), "--batch_size", str(batch)]
    flags += ["--steps", str(steps), "--warmup_steps", str(warmup), "--work", str(Path(args.work) / str(batch))]
    return train_speed.parse_arguments([*flags, "--mini_batch_size", "512" if gpu else "8"])


def make_inputs(args: Namespace) -> dict:
    """Write the models and, for each batch, the sentences that its steps need."""
    import torch

    from benchmarks.stand_in import distinct_sentences, machine, make_model

    gpu = torch.cuda.is_available()
    plans = {batch: training_arguments(args, DECODER, batch) for batch in batches(gpu)}
    counts = {batch: batch * (plan.warmup_steps + plan.steps) for batch, plan in plans.items()}
    texts = distinct_sentences(max(counts.values()))
    for batch, count in counts.items():
        folder = Path(args.work) / str(batch)
        folder.mkdir()
        (folder / "corpus.txt").write_text("\n".join(texts[:count]) + "\n", encoding="utf-8")
    tokens = {}
    for model in MODELS:
        folder = Path(args.work) / model
        kind = "modernbert" if model.startswith("Modern") else "qwen3" if model == DECODER else "bert"
        make_model(folder, texts[:20_000], *(MODELS[model] if gpu else (2, 64)), kind)
        tokens[model] = train_speed.mean_tokens(str(folder), texts[:2000], max_length=50)
    return {"gpu": gpu, "machine": machine(), "tokens": tokens}


if __name__ == "__main__":
    run_main(main)
