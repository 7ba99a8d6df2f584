"""The checks and records around a run: its output folder, its start-up lines, its results."""

from __future__ import annotations

import json
import logging
import platform
import random
import tempfile
from collections.abc import Callable
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path

import torch
from datasets import Dataset, IterableDataset, disable_progress_bars
from huggingface_hub import ModelCard
from transformers import PreTrainedModel, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks
from transformers.trainer_utils import IntervalStrategy, SaveStrategy
from transformers.utils import logging as transformers_logging

from mirror.arguments import MirrorArguments
from mirror.data import Corpus, DataSettings, clean, load_corpus
from mirror.docstrings import collect, training_texts
from mirror.encoder import Encoder
from mirror.errors import InputError
from mirror.files import write_whole
from mirror.interruption import SEAL, is_whole, last_whole_checkpoint
from mirror.memory import estimate_step_bytes
from mirror.selection import CRITERION
from mirror.trust import model_file


Scorer = Callable[[Encoder], dict[str, float]]

logger = logging.getLogger(__name__)

PACKAGES = ("torch", "transformers", "datasets", "accelerate", "sentence-transformers", "numpy")
ALWAYS_KEPT = (
    "learning_rate",
    "num_train_epochs",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "seed",
)
NOT_KEPT = ("output_dir", "data_dir", "hub_token", "force", "label_names", "use_cpu", "disable_tqdm", "config")


def load_training_corpus(settings: DataSettings) -> Corpus:
    """What the flags name; without any, the docstrings of the packages on this machine."""
    if settings.train_file or settings.dataset_name:
        return load_corpus(settings)
    logger.info("no --train_file or --dataset_name: reading the docstrings of this machine's Python packages")
    texts = training_texts(collect())
    random.Random(0).shuffle(texts)  # so that --max_train_samples takes some of every package
    return clean(((text,) for text in texts), limit=settings.max_train_samples)


def check_output_dir(output_dir: str, resuming: bool, force: bool) -> None:
    """Refuse to write over another run, and a place where nothing can be written, before anything is computed.

    Raises:
        InputError
    """
    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--output_dir {output_dir} is a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output_dir {output_dir}: {error.strerror}") from error
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as probe:  # os.access knows nothing of full disks
            probe.write(b"0" * 4096)
    except OSError as error:
        raise InputError(f"--output_dir {output_dir}: nothing can be written there ({error.strerror})") from error
    traces = [folder / "config.json", folder / "train_results.json", *folder.glob("checkpoint-*")]
    if not resuming and not force and any(trace.exists() for trace in traces):
        raise InputError(
            f"--output_dir {output_dir} holds another run; continue it with --resume_from_checkpoint true, "
            "or write over it with --force"
        )


def check_reporters(report_to: list[str]) -> None:
    """Try what `--report_to` names out, before anything is computed.

    Raises:
        InputError: there is no such back-end, or its package is not installed.
    """
    try:
        for callback in get_reporting_integration_callbacks(report_to):
            callback()
    except (ValueError, RuntimeError, ImportError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise InputError(
            f"--report_to {' '.join(report_to)}: {reason}; requirements-logging.txt has tensorboard, 'none' needs nothing"
        ) from error


def find_checkpoint(args: TrainingArguments) -> str | None:
    """The folder that `--resume_from_checkpoint` means: the newest whole one of the output folder, or a path.

    Raises:
        InputError: there is none, or it is not whole.
    """
    asked = args.resume_from_checkpoint
    if not asked:
        return None
    found = last_whole_checkpoint(args.output_dir) if asked is True else asked
    if found is None or not Path(found).is_dir():
        raise InputError(f"--resume_from_checkpoint: no checkpoint in {args.output_dir if asked is True else asked}")
    if not is_whole(found):
        raise InputError(f"--resume_from_checkpoint {found} is not whole: files are missing beside or in its {SEAL}")
    return found


def check_batch_fits(rows: Dataset | IterableDataset, args: TrainingArguments) -> None:
    """Refuse a corpus that does not fill one step: incomplete batches are dropped, so nothing would be trained.

    Raises:
        InputError
    """
    if args.n_gpu > 1:
        raise InputError(
            f"one process sees {args.n_gpu} GPUs; start one for each with accelerate launch, "
            "or choose one with CUDA_VISIBLE_DEVICES"
        )
    global_batch = args.train_batch_size * args.world_size
    if isinstance(rows, IterableDataset):
        if args.max_steps <= 0:
            raise InputError("a stream has no known length; say how long to train with --max_steps")
        count, kind = sum(1 for _ in rows.take(global_batch)), "texts of the stream"
    else:
        count, kind = len(rows), "distinct texts"
    if count < global_batch:
        raise InputError(
            f"{count:,} {kind} do not fill one batch of {global_batch}; "
            f"lower --per_device_train_batch_size (now {args.per_device_train_batch_size}) or give more text"
        )


def describe_step(args: TrainingArguments, gather_negatives: bool, loss: str, step_bytes: int) -> str:
    """One line: what is compared with what in a step, in which precision, in how much memory."""
    batch, world = args.train_batch_size, args.world_size
    views = 1 if loss == "one_way" else 2
    candidates = views * batch * (world if gather_negatives else 1)
    anchors = views * batch * world
    excluded = 0 if loss == "one_way" else 1
    precision = "bfloat16" if args.bf16 else "float16" if args.fp16 else "float32"
    return (
        f"{anchors:,} anchors x {candidates - excluded:,} candidates a step on {world} process(es), "
        f"{precision} ({args.precision_reason}), loss in float32, about {step_bytes / 1e9:.1f} GB"
    )


def step_memory(model: PreTrainedModel, args: TrainingArguments, method: MirrorArguments, row_tokens: int) -> int:
    """`mirror.memory.estimate_step_bytes` of this run; `row_tokens` is the length of a view in memory."""
    in_memory = min(method.mini_batch_size or args.train_batch_size, args.train_batch_size)
    compared = 2 * args.train_batch_size * (args.world_size if method.gather_negatives else 1)
    dtype = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else torch.float32
    return estimate_step_bytes(model, 2 * in_memory, row_tokens, compared, dtype)


def settings_of(training_args: TrainingArguments, *arguments) -> dict:
    """The configuration of a run as plain data, to be kept in the checkpoint: no secrets and no paths of this machine.

    Of transformers' own flags only those that differ from its defaults, beside the ones that always matter.
    """
    merged = {key: value for group in arguments for key, value in asdict(group).items() if value is not None}
    defaults = {item.name: item.default for item in fields(TrainingArguments)}
    for key, value in training_args.to_dict().items():
        if key in ALWAYS_KEPT or (key in defaults and value is not None and value != defaults[key]):
            merged[key] = value
    return {
        key: _without_folders(value) for key, value in sorted(merged.items()) if key not in NOT_KEPT and value != []
    }


def _without_folders(value):
    """Names of files and folders instead of where they lie."""
    if isinstance(value, list):
        return [_without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and Path(value).exists() else value


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {package: version(package) for package in PACKAGES}


def hardware() -> str:
    """What the run ran on, for the results and the card."""
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    capabilities = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.9 has no such function
    name = capabilities.get("cpu_name") or platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' * (threads > 1)} of {name}"


def run_facts(args: TrainingArguments, base_model: str, dataset: str | None, step: str | None = None) -> dict:
    """What a model card needs beside the settings: origins by their Hub ids, never by paths, and sizes of a step."""
    return {
        "base_model": {
            "name": Path(base_model).name,
            "hub_id": _hub_id(base_model),
            "license": license_of(base_model),
        },
        "dataset": _hub_id(dataset) if dataset else None,
        "processes": args.world_size,
        "effective_batch": args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        "step": step,
    }


def license_of(base_model: str) -> dict[str, str]:
    """What the card of a base model says of its licence; empty where it has none, or cannot be read."""
    path = model_file(base_model, "README.md")
    if path is None:
        return {}
    data = ModelCard.load(path, ignore_metadata_errors=True).data
    return {
        key: data.get(key) for key in ("license", "license_name", "license_link") if isinstance(data.get(key), str)
    }


def _hub_id(name_or_path: str) -> str | None:
    return None if Path(name_or_path).exists() else name_or_path


def write_train_results(
    output_dir: str, metrics: dict, corpus: dict, settings: dict, readers: dict, run: dict
) -> None:
    """Write `train_results.json`."""
    content = {
        "metrics": metrics,
        "run": run,
        "corpus": corpus,
        "settings": settings,
        "cosine_after_reload": readers,
        "hardware": hardware(),
        "versions": versions(),
    }
    write_whole(Path(output_dir) / "train_results.json", json.dumps(content, indent=2, default=str) + "\n")


def sample_texts(rows: Dataset | IterableDataset, count: int = 8) -> list[str]:
    """A few texts to compare readers on."""
    return [row["text"] for row in rows.take(count)]


def task_scorer(tasks: list[str] | None, data_dir: str | None) -> Scorer | None:
    """A function that scores an encoder on `tasks`; it checks now that they exist and that their data is there.

    Raises:
        InputError: an unknown task, or data that is missing.
    """
    if not tasks:
        return None
    from mirror.evaluation.run import prepare_tasks

    prepared = prepare_tasks(tasks, data_dir)
    return lambda encoder: {task.name: task.score(encoder.encode, encoder)["main_score"] for task in prepared}


def all_scorers(*scorers: Scorer | None) -> Scorer | None:
    """One function that returns the scores of all `scorers`; None if there are none."""
    present = [scorer for scorer in scorers if scorer]
    if not present:
        return None
    return lambda encoder: {name: score for scorer in present for name, score in scorer(encoder).items()}


def adapt_training_arguments(
    args: TrainingArguments, eval_tasks: list[str] | None, streaming: bool, select_by: str | None = None
) -> None:
    """What follows for the Trainer from flags of ours: scores choose the checkpoint; streams are not sent on."""
    if select_by:
        if args.eval_strategy == IntervalStrategy.NO:
            args.eval_strategy, args.eval_steps = IntervalStrategy.STEPS, args.eval_steps or 0.1  # of the run
        args.save_strategy, args.save_steps = (
            SaveStrategy(args.eval_strategy.value),
            args.eval_steps or args.save_steps,
        )
        args.save_total_limit = args.save_total_limit or 1  # beside the last one
        args.load_best_model_at_end, args.metric_for_best_model = True, select_by
    if (args.metric_for_best_model or "").removeprefix("eval_") == CRITERION:
        args.greater_is_better = False
    if eval_tasks:
        if args.eval_strategy == IntervalStrategy.NO:
            args.eval_strategy = IntervalStrategy.EPOCH
        if args.metric_for_best_model in (None, "loss"):
            args.metric_for_best_model, args.greater_is_better = eval_tasks[0], True
    if streaming:  # otherwise accelerate cuts the first process's batches up, and a packed row cannot be cut
        args.accelerator_config.dispatch_batches = False


def setup_logging(args: TrainingArguments) -> None:
    """Messages on stderr, once: only the first process of a machine talks below a warning."""
    talks = args.local_process_index == 0
    logging.basicConfig(format="%(message)s", level=logging.INFO if talks else logging.WARNING)
    for chatty in ("httpx", "absl"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("sentence_transformers").setLevel(
        logging.ERROR
    )  # it warns of the older spelling that we write too
    transformers_logging.set_verbosity(args.get_process_log_level())
    if not talks:
        disable_progress_bars()
