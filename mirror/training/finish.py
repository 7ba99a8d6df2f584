"""The end of a run: save, verify, write record and card, push, and the next commands."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from transformers.trainer import TRAINER_STATE_NAME

from mirror.common.distributed import shutdown
from mirror.common.errors import InputError, one_line
from mirror.common.files import replace_files
from mirror.common.reuse import MANIFEST, is_complete, listed_files, write_manifest
from mirror.evaluation.own_text import describe_scores
from mirror.modeling.save_checkpoint import verify_encoder
from mirror.training.card import CARD, FIGURE, SCORES_FILE, scores_of_run, write_card, write_scores
from mirror.training.record import FILE, LOCAL_BASE, RunRecord, keep_folders_private, note_local_base
from mirror.training.resumable import raise_save_error
from mirror.training.selection import describe_outcome


if TYPE_CHECKING:
    from mirror.training.resumable import ResumableTrainer

logger = logging.getLogger(__name__)

ASIDE = "_encoder"  # the underscore keeps it out of pushes
COMMIT_MESSAGES = {"mirror": "Mirror encoder", "cmlm": "CMLM encoder"}
COMMANDS = {"run_mirror.py": "mirror-train", "run_eval.py": "mirror-eval"}


def finish(trainer: ResumableTrainer) -> None:
    """Write the final checkpoint with record, scores and card, push it if asked, and shut down all processes.

    Call it on every process, and nothing afterwards. A library that computes other embeddings from the saved checkpoint
    loses nothing of the run: the error is raised after everything is written.

    Args:
        trainer: an `EncoderTrainer` after `train`. Its `record()` returns a `RunRecord`, to which this adds the cosines.

    Raises:
        InputError: the disk is full, a library computes other embeddings from the saved checkpoint, or the push failed.
    """
    args, folder = trainer.args, Path(trainer.args.output_dir)
    if trainer.was_complete and is_complete(folder):
        logger.info("%s holds a complete run of %d steps: nothing to do", folder, trainer.state.global_step)
        shutdown(trainer.accelerator)
        return
    save_aside(trainer, folder / ASIDE)
    encoder = trainer.encoder(training=False)
    if trainer.is_fsdp_enabled and not trainer.is_world_process_zero():
        encoder.encode(trainer.sample_texts())  # each process has a part of the weights that the first one needs below
    if trainer.is_world_process_zero():
        record, failure = trainer.record(), None
        try:
            record.cosine_after_reload = verify_encoder(folder / ASIDE, encoder, trainer.sample_texts())
        except Exception as error:  # whatever a library raises, the run is kept
            failure = error
        # Only Mirror-BERT has --eval_tasks, and with them a data folder.
        scores = scores_of_run(trainer.state, args.load_best_model_at_end, getattr(args, "data_dir", None))
        name = trainer.hub_model_id or record.settings.get("hub_model_id") or folder.resolve().name
        put_into_place(folder, record, scores, trainer.base_model, name)
        if failure:
            reason = one_line(failure).replace(str(folder / ASIDE), str(folder))
            raise InputError(f"{reason}; the encoder, its record and its card are saved, but not pushed") from failure
        libraries = " and ".join(record.cosine_after_reload)
        logger.info("Saved to %s (%s pooling), embeddings verified with %s", folder, encoder.pooling, libraries)
        if record.own_text:
            logger.info(describe_scores(record.own_text, record.own_text_together))
        if record.kept:
            logger.info(describe_outcome(record.kept))
        logger.info(after_training(args.output_dir, trainer.base_model))
    if args.push_to_hub:
        trainer.push_to_hub(commit_message=COMMIT_MESSAGES[trainer.method])
    shutdown(trainer.accelerator)


def save_aside(trainer: ResumableTrainer, aside: Path) -> None:
    """Save the encoder and the trainer's state in the folder `aside`, so that the output folder stays whole meanwhile.

    A full disk is an `InputError`, and nothing half-written is left.
    """
    try:
        if trainer.args.should_save:
            shutil.rmtree(aside, ignore_errors=True)  # a save that was killed may have left it
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(aside), _internal_call=True)  # otherwise Trainer pushes before the card is written
        if trainer.args.should_save:
            trainer.state.save_to_json(str(aside / TRAINER_STATE_NAME))
            keep_folders_private(aside / TRAINER_STATE_NAME)
    except Exception as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise_save_error(error, trainer.args.output_dir, trainer.args.output_dir)


def put_into_place(folder: Path, record: RunRecord, scores: dict, base_model: str, name: str) -> None:
    """Complete the encoder that `save_aside` saved and move it into the output folder, its manifest last.

    After an error the encoder stays aside, because a run without checkpoints has no other copy.
    """
    aside = folder / ASIDE
    try:
        record.save(aside)
        write_scores(aside, scores)
        write_card(aside, name)
        note_local_base(aside, base_model)
        # mirror-card rewrites the first three of these, and the note is not pushed with the manifest.
        write_manifest(aside, left_out=(CARD, SCORES_FILE, FIGURE, LOCAL_BASE))
        shutil.rmtree(folder / "onnx", ignore_errors=True)  # exported from other weights
        # A layer or a setting of an earlier run would be taken for one of this run.
        for earlier in (listed_files(folder) - listed_files(aside)) | {SCORES_FILE, FIGURE, LOCAL_BASE}:
            (folder / earlier).unlink(missing_ok=True)
        replace_files(aside, folder, last=MANIFEST)
    except Exception as error:
        raise_save_error(error, folder, folder)


def after_training(folder: str, base_model: str) -> str:
    """Return the next commands for a new encoder, which the run made of `base_model`."""
    if Path(base_model).is_relative_to(Path.cwd()):
        base_model = str(Path(base_model).relative_to(Path.cwd()))
    folder, base = shlex.quote(folder), shlex.quote(base_model)
    return _listing(
        {
            f"python -m mirror.tools.search {folder} my_texts.txt 'a query'": "search your texts",
            f"python -m mirror.tools.demo {folder} --before {base}": "before and after, in a browser",
            f"{_script('run_eval.py')} --model_name_or_path {folder} --tasks docs_search --output_dir {folder}-scores": "score it",
            f"python -m mirror.tools.push {folder} --hub_model_id your-name/your-encoder": "share it",
        }
    )


def after_scoring(models: Sequence[str], results: Sequence[Path]) -> str:
    """Return the next commands for the last of the models (folders or Hub ids), with the `results.json` of each."""
    model = shlex.quote(models[-1])
    steps = {f"python -m mirror.tools.search {model} my_texts.txt 'a query'": "search your texts"}
    is_run = [(Path(name) / FILE).exists() for name in models]
    if is_run[-1]:  # its card can show the scores, those of the base model too if that is the other model
        scores = shlex.join(map(str, results if is_run == [False, True] else results[-1:]))
        steps[f"python -m mirror.tools.card {model} --results {scores}"] = "put the scores on its card"
        steps[f"python -m mirror.tools.push {model} --hub_model_id your-name/your-encoder"] = "share it"
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
    """Return how a script is called here: from a checkout, or as an installed command."""
    return f"python {name}" if sys.argv[0].endswith(".py") else COMMANDS[name]


def _listing(steps: dict[str, str]) -> str:
    return "\n".join(["next:", *(f"  {command}   # {purpose}" for command, purpose in steps.items())])
