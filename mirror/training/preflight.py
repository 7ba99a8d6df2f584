"""What is refused before anything is computed: an output folder in use, a wrong checkpoint, a corpus that is too small."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from datasets import Dataset, IterableDataset, disable_progress_bars
from transformers import TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks
from transformers.utils import logging as transformers_logging

from mirror.assets import EMBEDDED_MODEL
from mirror.common.atomic_files import make_output_folder
from mirror.common.errors import InputError
from mirror.common.folder_lock import lock_output_dir
from mirror.modeling.backbone import load_config
from mirror.training.base_config import BaseConfig
from mirror.training.manifest import MANIFEST, is_complete, last_complete_checkpoint
from mirror.training.run_record import FILE


logger = logging.getLogger(__name__)

AUTO = "auto"


def preflight(args: BaseConfig, model_name_or_path: str) -> str | None:
    """Set the libraries' verbosity and check everything that can be checked without data.

    Returns:
        The checkpoint to resume from, if `--resume_from_checkpoint` asks for one.

    Raises:
        InputError: what is wrong with the flags, in one line.
    """
    transformers_logging.set_verbosity(args.get_process_log_level())
    if args.local_process_index != 0:
        disable_progress_bars()
    if Path(model_name_or_path).resolve() == EMBEDDED_MODEL:
        logger.info(
            "model: the embedded mini-mlm, a small one for trying things out; --model_name_or_path names another"
        )
    make_writable(args.output_dir)
    if args.process_index == 0:
        lock_output_dir(args.output_dir)
    checkpoint = find_checkpoint(args)
    if checkpoint is None and not args.force:
        check_no_other_run(args.output_dir, args.resume_from_checkpoint == AUTO)
    check_reporters(args.report_to)
    load_config(model_name_or_path)
    return checkpoint


def make_writable(output_dir: str, flag: str = "--output_dir") -> None:
    """Create the folder of a flag and see that something can be written there.

    Raises:
        InputError
    """
    folder = make_output_folder(output_dir, flag)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as probe:  # os.access does not know of full disks
            probe.write(b"0" * 4096)
    except OSError as error:
        raise InputError(f"{flag} {output_dir}: nothing can be written there ({error.strerror})") from error


def check_no_other_run(output_dir: str, started_again: bool = False) -> None:
    """Refuse to overwrite another run.

    Args:
        started_again: checkpoints, none of them complete, are of this run; a finished encoder is not.

    Raises:
        InputError
    """
    folder = Path(output_dir)
    checkpoints = [] if started_again else folder.glob("checkpoint-*")
    if any(trace.exists() for trace in (folder / "config.json", folder / FILE, *checkpoints)):
        raise InputError(
            f"--output_dir {output_dir} holds another run; continue it with --resume_from_checkpoint true, "
            "or overwrite it with --force"
        )


def check_reporters(report_to: list[str]) -> None:
    """Create the back-ends that `--report_to` names once, to see that they work.

    Raises:
        InputError: there is no such back-end, or its package is not installed.
    """
    try:
        for callback in get_reporting_integration_callbacks(report_to):
            callback()
    except (ValueError, RuntimeError, ImportError) as error:
        reason = str(error).partition(". ")[0].rstrip(".")
        raise InputError(
            f"--report_to {' '.join(report_to)}: {reason}; pip install tensorboard, or use --report_to none"
        ) from error


def find_checkpoint(args: TrainingArguments) -> str | None:
    """The folder that `--resume_from_checkpoint` means: the newest complete one of the output folder, or a path.

    None where nothing is asked for, and with "auto" where there is none yet.

    Raises:
        InputError: there is none, or it is incomplete.
    """
    asked = args.resume_from_checkpoint
    if not asked:
        return None
    if asked in (True, AUTO):
        found = last_complete_checkpoint(args.output_dir)
        if found is None and asked is True:
            raise InputError(f"--resume_from_checkpoint: no checkpoint in {args.output_dir}")
        return found
    if not Path(asked).is_dir():
        raise InputError(f"--resume_from_checkpoint: no checkpoint in {asked}")
    if not is_complete(asked):
        raise InputError(
            f"--resume_from_checkpoint {asked} is incomplete: its {MANIFEST}, or files that it lists, are missing or damaged"
        )
    return asked


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
            raise InputError("a stream has no known length; set the length of the training with --max_steps")
        count, kind = sum(1 for _ in rows.take(global_batch)), "texts of the stream"
    else:
        count, kind = len(rows), "distinct texts"
    if count < global_batch:
        raise InputError(
            f"{count:,} {kind} do not fill one batch of {global_batch}; "
            f"lower --per_device_train_batch_size (now {args.per_device_train_batch_size}) or give more text"
        )
