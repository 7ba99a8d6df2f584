"""The end of a run: save, verify, write record and card, push, and the next commands."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer import TRAINER_STATE_NAME

from mirror.common.distributed import shutdown
from mirror.common.errors import InputError, one_line, reason
from mirror.common.files import MANIFEST, is_complete, listed_files, replace_files, write_manifest
from mirror.evaluation.own_text import describe_scores
from mirror.evaluation.plots import merge_curve
from mirror.modeling.save_checkpoint import EXPORTS, verify_encoder
from mirror.training.card import CARD, FIGURE, SCORES_FILE, scores_of_run, write_card, write_scores
from mirror.training.checkpoints import raise_save_error
from mirror.training.record import FILE, LOCAL_BASE, keep_folders_private, note_local_base
from mirror.training.resumable import after_last_step
from mirror.training.selection import describe_outcome


if TYPE_CHECKING:
    from mirror.training.resumable import ResumableTrainer

logger = logging.getLogger(__name__)

ASIDE = "_encoder"  # the underscore keeps it out of pushes
# Not in the manifest: mirror-card rewrites the first three, and the note is not pushed.
MERGE_FIGURE = "merge.svg"
CHANGEABLE = (CARD, SCORES_FILE, FIGURE, MERGE_FIGURE, LOCAL_BASE)
COMMIT_MESSAGES = {"mirror": "Mirror encoder", "cmlm": "CMLM encoder", "distilled": "Distilled encoder"}
COMMANDS = {"run_mirror.py": "mirror-train", "run_eval.py": "mirror-eval"}  # mirror.tools.x is mirror-x


def finish(trainer: ResumableTrainer) -> None:
    """Write the final checkpoint, then its record, scores and card, push it if asked, and shut down all processes.

    Call it on every process, and nothing afterwards. The weights come first, whole and with a manifest. What fails after that is
    a warning that names what is missing, except a verification or a push, whose `InputError` is raised at the end.
    """
    args, folder = trainer.args, Path(trainer.args.output_dir)
    if trainer.was_complete and is_complete(folder) and all((folder / name).exists() for name in (FILE, CARD)):
        logger.info("%s holds a complete run of %d steps: nothing to do", folder, trainer.state.global_step)
    else:
        save_weights(trainer, folder)
        if trainer.is_fsdp_enabled and not trainer.is_world_process_zero():
            trainer.encoder(training=False).encode(trainer.sample_texts())  # with its part of the weights
        if trainer.is_world_process_zero():
            describe(trainer, folder)
    if args.push_to_hub:
        trainer.push_to_hub(commit_message=COMMIT_MESSAGES[trainer.method])
    shutdown(trainer.accelerator)


def save_weights(trainer: ResumableTrainer, folder: Path) -> None:
    """Save encoder and trainer's state aside, and move them into the folder when they are whole, or leave nothing."""
    aside = folder / ASIDE
    weights = trainer.gathered_weights()
    if trainer.args.should_save:
        if aside.exists() and trainer.totals.checkpoint:  # an earlier part of this run was killed here
            shutil.rmtree(aside, ignore_errors=True)
        elif aside.exists():
            numbers = (number for number in count(1) if not (folder / f"{ASIDE}-{number}").exists())
            kept = aside.rename(folder / f"{ASIDE}-{next(numbers)}")
            logger.warning("%s is what an earlier run could not finish; delete it if you do not need it", kept)

        def write() -> None:
            shutil.rmtree(aside, ignore_errors=True)
            trainer.save_encoder(str(aside), weights)
            trainer.state.save_to_json(str(aside / TRAINER_STATE_NAME))
            keep_folders_private(aside / TRAINER_STATE_NAME)
            write_manifest(aside)

        try:
            _try_twice(write)
        except Exception as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise_save_error(error, folder, folder)
        try:
            _try_twice(partial(put_into_place, folder))
        except Exception as error:
            raise InputError(
                f"the encoder is whole in {aside}, but cannot be moved to {folder}: {reason(error)}; "
                "fix that and start any run there, which moves it first"
            ) from error
    trainer.accelerator.wait_for_everyone()


def put_into_place(folder: Path) -> None:
    """Move a whole encoder into the output folder, its manifest last, so that an interrupted move can be repeated."""
    aside = folder / ASIDE
    for export in EXPORTS:  # of other weights
        shutil.rmtree(folder / export, ignore_errors=True)
    # A layer, a setting or a card of an earlier run would be taken for one of this run.
    for earlier in (listed_files(folder) - listed_files(aside)) | {FILE, *CHANGEABLE}:
        if not (folder / earlier).is_dir():
            (folder / earlier).unlink(missing_ok=True)
    replace_files(aside, folder, last=MANIFEST)


def put_interrupted_into_place(folder: str | Path) -> None:
    """Complete the final save of a run that was interrupted while it moved its encoder."""
    if (Path(folder) / ASIDE / MANIFEST).is_file():
        put_into_place(Path(folder))
        logger.warning("%s: moved the encoder of an interrupted run into place", folder)


def describe(trainer: ResumableTrainer, folder: Path) -> None:
    """Verify the saved encoder, and write record, scores and card beside it. Warn of what cannot be written."""
    args, record, scores, failure, cosines = trainer.args, None, {}, None, {}
    try:
        cosines = verify_encoder(folder, trainer.encoder(training=False), trainer.sample_texts())
    except Exception as error:  # whatever a library raises, the run is kept
        failure = error
    with after_last_step(f"{folder} has no {FILE} and no {CARD}"):
        record = trainer.record()
        record.cosine_after_reload = cosines
        record.save(folder)
        write_manifest(folder, only={*listed_files(folder), FILE})
    if record:
        with after_last_step(f"{folder} has no {SCORES_FILE}"):
            # Only Mirror-BERT has --eval_tasks, and with them a data folder.
            scores = scores_of_run(trainer.state, args.load_best_model_at_end, getattr(args, "data_dir", None))
            write_scores(folder, scores)
        if record.merged and record.merged["curve"]:
            with after_last_step(f"{folder} has no {MERGE_FIGURE}"):
                merge_curve(folder / MERGE_FIGURE, record.merged["curve"], record.merged["weight"])
        with after_last_step(f"{folder} has no {CARD}"):
            write_card(folder, trainer.hub_model_id or record.settings.get("hub_model_id") or folder.resolve().name)
    with after_last_step(f"{folder} has no {LOCAL_BASE}"):
        note_local_base(folder, trainer.base_model)
    if failure:
        saved = "the encoder, its record and its card are saved" if record else "the encoder is saved"
        raise InputError(f"{one_line(failure)}; {saved}, but not pushed") from failure
    with after_last_step("the summary of the run is missing"):
        libraries = " and ".join(cosines)
        logger.info("Saved to %s (%s pooling), embeddings verified with %s", folder, args.pooling, libraries)
        if record and record.own_text:
            logger.info(describe_scores(record.own_text, record.own_text_together))
        if record and record.kept:
            logger.info(describe_outcome(record.kept))
        if record and record.merged:
            logger.info("merged: %g of the trained weights, the rest the base model's", record.merged["weight"])
        source, texts = getattr(getattr(trainer, "corpus", None), "source", None), []
        if source and source.train_file:
            columns = source.pair_columns[-1:] if source.pair_columns else source.text_column
            texts = [source.train_file[0], *(["--text_column", *columns] if columns else [])]
        logger.info(after_training(args.output_dir, trainer.base_model, texts))


def _try_twice(act: Callable[[], None]) -> None:
    """Do something that may be repeated, once more if it fails: a network file system may fail for a moment."""
    try:
        act()
    except Exception as error:
        logger.warning("the final save failed (%s); trying once more", reason(error))
        act()


def after_training(folder: str, base_model: str, texts: Sequence[str] = ()) -> str:
    """Return the next commands for a new encoder, which the run made of `base_model` and `texts` (a file and flags)."""
    file, *flags = texts or ["my_texts.txt"]
    search = shlex.join([file, "a query", *flags])
    if Path(base_model).is_relative_to(Path.cwd()):
        base_model = str(Path(base_model).relative_to(Path.cwd()))
    folder, base = shlex.quote(folder), shlex.quote(base_model)
    return _listing(
        {
            f"{_script('search')} {folder} {search}": "search your texts",
            f"{_script('demo')} {folder} --before {base}": "before and after, in a browser",
            f"{_script('run_eval.py')} --model_name_or_path {folder} --tasks docs_search --output_dir {folder}-scores": "score it",
            f"{_script('push')} {folder} --hub_model_id your-name/your-encoder": "share it",
        }
    )


def after_scoring(models: Sequence[str], results: Sequence[Path], pooling: str | None = None) -> str:
    """Return the next commands for the last of the models (folders or Hub ids), with `results.json` of each and `--pooling`."""
    model, is_run = shlex.quote(models[-1]), [(Path(name) / FILE).exists() for name in models]
    needed = f" --pooling {pooling}" if pooling and not is_run[-1] else ""  # a run says its own
    steps = {f"{_script('search')} {model} my_texts.txt 'a query'{needed}": "search your texts"}
    if is_run[-1]:  # its card can show the scores, those of the base model too if that is the other model
        scores = shlex.join(map(str, results if is_run == [False, True] else results[-1:]))
        steps[f"{_script('card')} {model} --results {scores}"] = "put the scores on its card"
        steps[f"{_script('push')} {model} --hub_model_id your-name/your-encoder"] = "share it"
    else:
        command = f"{_script('run_mirror.py')} --model_name_or_path {model} --train_file my_texts.txt"
        steps[command] = "adapt it to your texts"
    return _listing(steps)


def after_encoding(folder: str) -> str:
    """Return the command that reads the vectors of run_encode.py."""
    rows = f'load_dataset("parquet", data_files="{folder}/*.parquet")["train"]'
    code = f"from datasets import load_dataset; print({rows})"
    return _listing({f"python -c {shlex.quote(code)}": "read the vectors"})


def _script(name: str) -> str:
    """Return how a script or a tool is called here: from a checkout, or as an installed command."""
    if sys.argv[0].endswith(".py"):
        return f"python {name}" if name.endswith(".py") else f"python -m mirror.tools.{name}"
    return COMMANDS.get(name, f"mirror-{name}")


def _listing(steps: dict[str, str]) -> str:
    return "\n".join(["next:", *(f"  {command}   # {purpose}" for command, purpose in steps.items())])
