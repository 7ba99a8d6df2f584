"""Profile of a training run: the stages of the command, the phases of its steps, and the operators within them.

    python benchmarks/profile_step.py --train_file my_texts.txt

Stages cover one complete run of run_mirror.py, imports included. Phases are timed over its last --steps steps: forward pass and
loss, backward pass, optimiser, and the rest (data, Trainer, logging). Operators are from a second run of three steps under
torch.profiler, which slows it down.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import patch


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.side_by_side import markdown
from mirror.common.errors import run_main


# The functions of each stage, each under the module or class where the run looks its name up.
STAGES = {
    "model": {"mirror.training.trainer": ("load_base", "configure_noise_and_packing")},
    "corpus, views and tokens": {
        "mirror.data.corpus": ("load_training_corpus",),
        "mirror.training.trainer": ("prepare_texts",),
    },
    "steps": {"mirror.training.trainer.MirrorTrainer": ("train",)},
    "saving": {"mirror.training.trainer.MirrorTrainer": ("save_model",)},
    "verification, records and card": {
        "mirror.tools.finish_run": ("verify_encoder", "write_scores", "write_card"),
        "mirror.training.run_record.RunRecord": ("save",),
    },
}
# Kinds of operators, by parts of their names; the first match counts.
KINDS = {
    "attention": ("attention",),
    "matrix products": ("mm", "matmul", "linear", "mkldnn"),
    "optimiser": ("adam",),
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
    add("--train_file", required=True, help="texts, one per line")
    add("--model_name_or_path", help="default: a new BERT with random weights, of --layers and --width")
    add("--layers", type=int, default=6)
    add("--width", type=int, default=384)
    add("--batch_size", type=int, default=200)
    add("--warmup_steps", type=int, default=3, help="steps before the timing starts (default: 3)")
    add("--steps", type=int, default=10, help="steps timed (default: 10)")
    args = parser.parse_args()

    start = time.perf_counter()
    import mirror.tools.finish_run
    import mirror.training.trainer  # noqa: F401

    imports = time.perf_counter() - start
    from benchmarks.stand_in import distinct_lines, machine, make_model

    with tempfile.TemporaryDirectory() as work:
        texts = distinct_lines(args.train_file, args.batch_size * (args.warmup_steps + args.steps))
        corpus = Path(work) / "corpus.txt"
        corpus.write_text("\n".join(texts) + "\n", encoding="utf-8")
        model = args.model_name_or_path or str(Path(work) / "model")
        if not args.model_name_or_path:
            make_model(Path(model), texts, args.layers, args.width)
        stages, phases, seconds = time_run(args, model, corpus, work)
        operators = time_operators(args, model, corpus, work)
    print(f"{args.batch_size} texts per step, {args.steps} steps, {seconds:.2f} s per step; {machine()}\n")
    print(
        markdown(("", "seconds"), [(name, f"{value:.1f}") for name, value in {"imports": imports, **stages}.items()])
    )
    print(shares(phases, "of a step"))
    print(shares(operators, "of the operators' own time"))


def time_run(args: Namespace, model: str, corpus: Path, work: str) -> tuple[dict[str, float], dict[str, float], float]:
    """Time one run.

    Returns:
        Seconds of each stage; seconds of each phase, summed over the steps after the warm-up; seconds of one such step.
    """
    from accelerate import Accelerator
    from torch.optim import AdamW

    from benchmarks.stand_in import step_clock
    from mirror.training.trainer import MirrorTrainer

    stages = Counter(dict.fromkeys(STAGES, 0.0))
    phases: Counter[str] = Counter()
    whole_run = [
        (stage, resolve_name(owner), name)
        for stage, owners in STAGES.items()
        for owner, names in owners.items()
        for name in names
    ]
    each_step = [
        ("forward and loss", MirrorTrainer, "compute_loss"),
        ("backward", Accelerator, "backward"),
        ("optimiser", AdamW, "step"),
    ]
    with (
        step_clock(args.warmup_steps, args.steps) as clock,
        stopwatches(stages, whole_run),
        stopwatches(phases, each_step, lambda: clock.count >= args.warmup_steps),
    ):
        start = time.perf_counter()
        run_training(args, model, corpus, work, args.warmup_steps + args.steps)
        whole = time.perf_counter() - start
    steps = clock.step_seconds() * args.steps
    stages["the rest"] = whole - sum(stages.values())
    phases["the rest"] = steps - sum(phases.values())
    return dict(stages), dict(phases), clock.step_seconds()


@contextmanager
def stopwatches(
    spent: Counter[str], calls: list[tuple[str, object, str]], running: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Inside the `with` block, add the seconds of each call of `owner.name` to `spent[what]` while `running()` is true.

    Args:
        calls: `(what, owner, name)`.
    """

    def timed(what: str, original: Callable) -> Callable:
        @wraps(original)  # keeps the attributes that torch sets on a step function with hooks
        def run(*arguments, **options):
            start = time.perf_counter()
            result = original(*arguments, **options)
            if running():
                spent[what] += time.perf_counter() - start
            return result

        return run

    with ExitStack() as patches:
        for what, owner, name in calls:
            patches.enter_context(patch.object(owner, name, timed(what, getattr(owner, name))))
        yield


def time_operators(args: Namespace, model: str, corpus: Path, work: str) -> dict[str, float]:
    """Seconds of each kind of operator in three steps; time in nested operators counts for those alone."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run_training(args, model, corpus, work, 3)
    return seconds_of_kinds(profiler)


def seconds_of_kinds(profiler) -> dict[str, float]:
    """Seconds of each kind of operator that a torch profiler saw, the longest first."""
    spent: Counter[str] = Counter()
    for event in profiler.key_averages():
        if event.key.startswith("aten::"):
            spent[kind_of(event.key)] += event.self_cpu_time_total / 1e6
    return dict(spent.most_common())


def kind_of(operator: str) -> str:
    return next(
        (kind for kind, parts in KINDS.items() if any(part in operator for part in parts)), "element by element"
    )


def run_training(args: Namespace, model: str, corpus: Path, work: str, steps: int) -> None:
    import run_mirror

    sys.argv = [
        *("run_mirror.py", "--model_name_or_path", model, "--train_file", str(corpus), "--pooling", "cls"),
        *("--output_dir", f"{work}/out", "--force", "--per_device_train_batch_size", str(args.batch_size)),
        *("--max_steps", str(steps), "--disable_tqdm", "true", "--validation_samples", "0"),
    ]
    run_mirror.main()


def shares(seconds: dict[str, float], of_what: str) -> str:
    total = sum(seconds.values())
    return markdown(("", of_what), [(name, f"{value / total:.1%}") for name, value in seconds.items()])


if __name__ == "__main__":
    run_main(main)
