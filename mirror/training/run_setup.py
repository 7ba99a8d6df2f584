"""Checks before a run, and its texts: held out, made into views, reported."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from datasets import Dataset, IterableDataset, disable_progress_bars
from transformers import PreTrainedTokenizerBase, TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks
from transformers.utils import logging as transformers_logging

from mirror.assets import is_embedded
from mirror.common.errors import InputError, one_line
from mirror.common.files import lock_output_dir, make_output_folder
from mirror.data.batches import LengthGroupedRows
from mirror.data.cleaning import Corpus, corpus_report, format_report, hold_out
from mirror.data.files import reading
from mirror.data.source import source_name
from mirror.data.views import StreamedTwoViewDataset, TwoViewDataset, TwoViews
from mirror.modeling.backbone import check_texts_are_known
from mirror.modeling.read_checkpoint import load_config
from mirror.training.checkpoints import AUTO, find_checkpoint
from mirror.training.config import BaseConfig, MirrorConfig
from mirror.training.finish import put_interrupted_into_place
from mirror.training.record import FILE
from mirror.training.selection import HeldOutScores


logger = logging.getLogger(__name__)


def preflight(args: BaseConfig, model_name_or_path: str) -> str | None:
    """Set the libraries' verbosity, lock the output folder, and check everything that can be checked without data.

    Returns the checkpoint to resume from, if `--resume_from_checkpoint` asks for one.
    """
    transformers_logging.set_verbosity(args.get_process_log_level())
    if args.disable_tqdm or args.local_process_index != 0:
        disable_progress_bars()
        transformers_logging.disable_progress_bar()
    if is_embedded(model_name_or_path):
        logger.info("model: the embedded mini-mlm, small, to try things out. Use --model_name_or_path for another")
    make_writable(args.output_dir)
    if args.process_index == 0:
        lock_output_dir(args.output_dir)
        put_interrupted_into_place(args.output_dir)
    checkpoint = find_checkpoint(args.resume_from_checkpoint, args.output_dir)
    is_own = checkpoint is not None and Path(checkpoint).resolve().parent == Path(args.output_dir).resolve()
    if not is_own and not args.force:
        check_no_other_run(args.output_dir, args.resume_from_checkpoint == AUTO)
    try:
        for callback in get_reporting_integration_callbacks(args.report_to):
            callback()  # created once, to test that it works
    except (ValueError, RuntimeError, ImportError) as error:
        what = f"--report_to {' '.join(args.report_to)}: {one_line(error).rstrip('.')}"
        raise InputError(f"{what}; or use --report_to none") from error
    load_config(model_name_or_path, masked=not isinstance(args, MirrorConfig))
    return checkpoint


def make_writable(output_dir: str, flag: str = "--output_dir") -> None:
    """Create the folder of a flag and test that files can be written there."""
    folder = make_output_folder(output_dir, flag)
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as probe:  # os.access does not know of full disks
            probe.write(b"0" * 4096)
    except OSError as error:
        raise InputError(f"{flag} {output_dir}: nothing can be written there ({error.strerror})") from error


def check_no_other_run(output_dir: str, started_again: bool = False) -> None:
    """Refuse to overwrite another run. After `--resume_from_checkpoint auto` (`started_again`) checkpoints are its own."""
    folder = Path(output_dir)
    checkpoints = [] if started_again else folder.glob("checkpoint-*")
    if any(trace.exists() for trace in (folder / "config.json", folder / FILE, *checkpoints)):
        fix = "continue it with --resume_from_checkpoint true, or overwrite it with --force"
        raise InputError(f"--output_dir {output_dir} holds another run; {fix}")


def check_batch_fits(rows: Dataset | IterableDataset, args: TrainingArguments) -> None:
    """Refuse a corpus that does not fill one step, a stream without --max_steps, and several GPUs in one process."""
    if args.n_gpu > 1:
        fix = "start one for each with accelerate launch, or choose one with CUDA_VISIBLE_DEVICES"
        raise InputError(f"one process sees {args.n_gpu} GPUs; {fix}")
    global_batch = args.train_batch_size * args.world_size
    if isinstance(rows, IterableDataset):
        if args.max_steps <= 0:
            raise InputError("a stream has no known length; set the number of steps with --max_steps")
        count, kind = sum(1 for _ in rows.take(global_batch)), "texts of the stream"
    else:
        count, kind = len(rows), "distinct texts"
    if count < global_batch:
        raise InputError(
            f"{count:,} {kind} do not fill one batch of {global_batch}; "
            f"lower --per_device_train_batch_size (now {args.per_device_train_batch_size}) or give more text"
        )


def prepare_texts(
    corpus: Corpus, tokenizer: PreTrainedTokenizerBase, prompts: tuple[str, str], args: MirrorConfig
) -> tuple[Corpus, TwoViews | LengthGroupedRows, HeldOutScores | None, dict]:
    """Hold some texts out, make two views of the others, each with its prompt, and log a report.

    Returns the corpus without held-out texts, its views, tests on the others if any, and the report.
    """
    if args.train_batch_size * (args.world_size if args.gather_negatives else 1) < 2:
        raise InputError("--per_device_train_batch_size 1: a text without other texts has no negatives; use 2 or more")
    views = args.view_settings(tokenizer, *prompts)
    with args.main_process_first(desc="two views of each text"):  # the first process of a machine writes the cache
        if not args.force:
            check_texts_are_known(corpus.sample_texts(200), tokenizer)
        with reading(source_name(corpus.source)):
            corpus, rows = hold_out(corpus, args.validation_samples)
            if not (is_stream := isinstance(corpus.rows, IterableDataset)):
                args.fit_batch(len(corpus.rows))
            check_batch_fits(corpus.rows, args)
        if not is_stream:
            args.fit_length(len(corpus.rows))
            # A last batch of one text has the loss 0. Several processes fill it with rows from the start.
            is_one_left = args.world_size == 1 and len(corpus.rows) % args.train_batch_size == 1
            if is_one_left and not args.dataloader_drop_last:
                why = "the last batch of an epoch has one text and no negatives; dropped"
                logger.warning("--dataloader_drop_last false: %s", why)
                args.dataloader_drop_last = True
        held_out = None if rows is None else HeldOutScores(rows, args)
        if held_out is None and args.select_by:
            advice = "the corpus is small; name a number of --validation_samples"
            raise InputError(f"--select_by {args.select_by}: {advice}")
        if held_out is None:
            small = "the corpus is small; --validation_samples 50 holds out 50"
            reason = "--validation_samples 0" if args.validation_samples == 0 else small
            logger.info("on your text: no texts are held out to test on (%s)", reason)
        grouped = args.train_sampling_strategy == "group_by_length"
        if grouped and is_stream:
            by_length = "--train_sampling_strategy group_by_length"
            raise InputError(f"{by_length} needs all texts at once; leave out --streaming or it")
        step_rows = args.train_batch_size * args.world_size
        if is_stream:
            dataset = StreamedTwoViewDataset(corpus.rows, tokenizer, views, step_rows)
        else:
            read_rows = args.max_steps * step_rows * args.gradient_accumulation_steps  # below 0 of whole epochs
            few = not grouped and 0 < 2 * read_rows < len(corpus.rows)
            dataset = TwoViewDataset(corpus.rows, tokenizer, views, args.preprocessing_num_workers, few)
    report = corpus_report(corpus, dataset, args.train_batch_size)
    logger.info("corpus\n%s", format_report(report))
    if grouped:
        dataset = LengthGroupedRows(dataset, step_rows * args.gradient_accumulation_steps, args.seed)
    return corpus, dataset, held_out, report
