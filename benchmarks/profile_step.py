"""Profiles the steps of a training run: their phases, and the operators within them.

    python benchmarks/profile_step.py --train_file my_texts.txt

Phases are timed over the last --steps steps of a run of run_mirror.py: forward pass and loss, backward pass, optimizer, and the
rest (data, Trainer, logging). Operators are from a second run of three steps under torch.profiler, which slows it down.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from functools import wraps
from pathlib import Path
from unittest.mock import patch


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.side_by_side import markdown
from mirror.common.errors import run_main


# Kinds of operators, by parts of their names. The first match counts.
KINDS = {
    "attention": ("attention",),
    "matrix products": ("mm", "matmul", "linear", "mkldnn"),
    "optimizer": ("adam",),
    "dropout masks": ("random_", "bernoulli"),
    "softmax": ("softmax",),
    "layer norm": ("layer_norm",),
    "GELU": ("gelu",),
    "embedding tables": ("embedding", "index_select", "index_put", "index_add"),
    "copies and casts": ("copy_", "cat", "clone", "contiguous"),
}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--train_file", required=True, help="Path to texts, one per line")
    add("--model_name_or_path", help="Model to train. Default: a new BERT with random weights")
    add("--layers", type=int, default=6, help="Number of layers of that BERT. Default: 6")
    add("--width", type=int, default=384, help="Hidden size of that BERT. Default: 384")
    add("--batch_size", type=int, default=200, help="Number of texts in a batch. Default: 200")
    add("--warmup_steps", type=int, default=3, help="Number of steps before the timed ones. Default: 3")
    add("--steps", type=int, default=10, help="Number of steps that are timed. Default: 10")
    args = parser.parse_args()

    from benchmarks.stand_in import distinct_lines, machine, make_model

    with tempfile.TemporaryDirectory() as work:
        texts = distinct_lines(args.train_file, args.batch_size * (args.warmup_steps + args.steps))
        (Path(work) / "corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        if not args.model_name_or_path:
            args.model_name_or_path = str(Path(work) / "model")
            make_model(Path(args.model_name_or_path), texts, args.layers, args.width)
        phases = time_phases(args, work)
        operators = time_operators(args, work)
    seconds = sum(phases.values()) / args.steps
    print(f"{args.batch_size} texts per step, {args.steps} steps, {seconds:.2f} s per step; {machine()}\n")
    print(shares(phases, "of a step"))
    print(shares(operators, "of the operators' own time"))


def time_phases(args: Namespace, work: str) -> dict[str, float]:
    """Return the seconds of each phase, summed over the steps after the warm-up."""
    from accelerate import Accelerator
    from torch.optim import AdamW

    from benchmarks.stand_in import StepClock
    from mirror.training.trainer import MirrorTrainer

    spent: Counter[str] = Counter()

    def timed(phase: str, original):
        @wraps(original)  # keeps the attributes that torch sets on a step function with hooks
        def run(*arguments, **options):
            start = time.perf_counter()
            result = original(*arguments, **options)
            if clock.count >= args.warmup_steps:
                spent[phase] += time.perf_counter() - start
            return result

        return run

    with (
        StepClock(args.warmup_steps, args.steps) as clock,
        patch.object(MirrorTrainer, "compute_loss", timed("forward and loss", MirrorTrainer.compute_loss)),
        patch.object(Accelerator, "backward", timed("backward", Accelerator.backward)),
        patch.object(AdamW, "step", timed("optimizer", AdamW.step)),
    ):
        train(args, work, args.warmup_steps + args.steps)
    return spent | {"the rest": clock.step_seconds() * args.steps - sum(spent.values())}


def time_operators(args: Namespace, work: str) -> dict[str, float]:
    """Return the seconds of each kind of operator in three steps. Nested operators count for themselves alone."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        train(args, work, 3)
    spent: Counter[str] = Counter()
    for event in profiler.key_averages():
        if event.key.startswith("aten::"):
            kinds = (kind for kind, parts in KINDS.items() if any(part in event.key for part in parts))
            spent[next(kinds, "element by element")] += event.self_cpu_time_total / 1e6
    return dict(spent.most_common())


def train(args: Namespace, work: str, steps: int) -> None:
    import run_mirror

    sys.argv = [
        *("run_mirror.py", "--model_name_or_path", args.model_name_or_path, "--train_file", f"{work}/corpus.txt"),
        *("--output_dir", f"{work}/out", "--force", "--per_device_train_batch_size", str(args.batch_size)),
        *("--pooling", "cls", "--max_steps", str(steps), "--disable_tqdm", "true", "--validation_samples", "0"),
    ]
    run_mirror.main()


def shares(seconds: dict[str, float], of_what: str) -> str:
    total = sum(seconds.values())
    return markdown(("", of_what), [(name, f"{value / total:.1%}") for name, value in seconds.items()])


if __name__ == "__main__":
    run_main(main)
