"""The end of every training script: save, verify with every reader, write record and model card, push, exit."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from mirror.common.atomic_files import replace_files
from mirror.common.distributed import shutdown
from mirror.common.errors import InputError, one_line
from mirror.evaluation.own_text import describe_scores
from mirror.modeling.checkpoint import verify_encoder
from mirror.tools.card_scores import FIGURE, SCORES_FILE, scores_of_run, write_scores
from mirror.tools.model_card import write_card
from mirror.tools.next_steps import after_training
from mirror.training.disk_space import raise_save_error
from mirror.training.encoder_trainer import EncoderTrainer
from mirror.training.keep import describe_outcome
from mirror.training.manifest import MANIFEST, is_complete, listed_files, write_manifest
from mirror.training.run_record import LOCAL_BASE, RunRecord, keep_folders_private, note_local_base, run_facts


logger = logging.getLogger(__name__)

ASIDE = "_encoder"  # the underscore keeps it from being pushed


def finish_run(trainer: EncoderTrainer, metrics: dict, commit_message: str) -> None:
    """Write the final checkpoint with record, scores and model card, push it if asked, and shut down all processes.

    Call nothing afterwards.

    Args:
        metrics: what `trainer.train` returned.
        commit_message: commit message of the push, with `--push_to_hub`.

    Raises:
        InputError: the disk is full, a reader computes different embeddings from the saved checkpoint (after everything
            is written, and before a push), or the push failed.
    """
    args = trainer.args
    folder, aside = Path(args.output_dir), Path(args.output_dir) / ASIDE
    if trainer.was_complete and is_complete(folder):
        logger.info("%s holds a complete run of %d steps: nothing to do", args.output_dir, trainer.state.global_step)
        shutdown(trainer.accelerator)
        return
    save_aside(trainer, aside)
    encoder = trainer.encoder(training=False)
    if trainer.is_fsdp_enabled and not trainer.is_world_process_zero():
        encoder.encode(trainer.sample_texts())  # as the first process does below: each has a part of the weights
    if trainer.is_world_process_zero():
        own_text = getattr(trainer, "own_text_scores", None)  # CMLM has no such test
        cosines, difference = {}, None
        try:
            cosines = verify_encoder(aside, encoder, trainer.sample_texts())
        except Exception as error:  # whatever a reader says, the run is kept
            difference = error
        record = RunRecord(
            method=trainer.method,
            metrics=metrics,
            run=run_facts(args, trainer.base_model, trainer.dataset_name, trainer.summary),
            corpus=trainer.corpus_report,
            settings=trainer.settings,
            cosine_after_reload=cosines,
            own_text=own_text,
            own_text_together=getattr(trainer, "own_text_together", None),
            held_out_views=getattr(trainer, "held_out_views", None),
            kept=getattr(trainer, "kept", None),
        )
        data_dir = getattr(args, "data_dir", None)  # only for --eval_tasks, which CMLM does not have
        scores = scores_of_run(trainer.state, args.load_best_model_at_end, data_dir)
        name = trainer.hub_model_id or record.settings.get("hub_model_id") or folder.resolve().name
        put_into_place(aside, folder, record, scores, trainer.base_model, name)
        if difference:
            reason = one_line(difference).replace(str(aside), str(folder))
            raise InputError(
                f"{reason}; the encoder, its record and its card are saved, but not pushed"
            ) from difference
        logger.info(
            "saved in %s (%s pooling); embeddings verified with %s",
            args.output_dir, encoder.pooling, " and ".join(cosines),
        )  # fmt: skip
        if own_text:
            logger.info(describe_scores(own_text, record.own_text_together))
        if record.kept:
            logger.info(describe_outcome(record.kept))
        logger.info(after_training(args.output_dir, trainer.base_model))
    if args.push_to_hub:
        trainer.push_to_hub(commit_message=commit_message)
    shutdown(trainer.accelerator)


def save_aside(trainer: EncoderTrainer, aside: Path) -> None:
    """Save the encoder and the state of the trainer in a folder of its own: what the output folder holds stays whole.

    Raises:
        InputError: the disk is full; nothing half-written is left.
    """
    try:
        if trainer.args.should_save:
            shutil.rmtree(aside, ignore_errors=True)  # of a save that was killed
        trainer.accelerator.wait_for_everyone()
        trainer.save_model(str(aside), _internal_call=True)  # does not push: the model card is not written yet
        if trainer.args.should_save:
            trainer.state.save_to_json(str(aside / TRAINER_STATE_NAME))
            keep_folders_private(aside / TRAINER_STATE_NAME)
    except Exception as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise_save_error(error, trainer.args.output_dir, trainer.args.output_dir)


def put_into_place(aside: Path, folder: Path, record: RunRecord, scores: dict, base_model: str, name: str) -> None:
    """Complete the saved encoder and move it into the output folder; its manifest comes last, like that of a checkpoint.

    Args:
        name: of the model, on its card.

    Raises:
        InputError: the disk is full.
    """
    try:
        record.save(aside)
        write_scores(aside, scores)
        write_card(aside, name)
        note_local_base(aside, base_model)
        # mirror-card writes the first three again, and the note is not pushed with the manifest.
        write_manifest(aside, left_out=("README.md", SCORES_FILE, FIGURE, LOCAL_BASE))
        shutil.rmtree(folder / "onnx", ignore_errors=True)  # an export of other weights
        earlier = listed_files(folder) - listed_files(
            aside
        )  # a layer or a setting of it would be taken for this run's
        for name in sorted(earlier | {SCORES_FILE, FIGURE, LOCAL_BASE}):
            (folder / name).unlink(missing_ok=True)
        replace_files(aside, folder, last=MANIFEST)
    except Exception as error:  # the encoder stays in its own folder, for a run without checkpoints
        raise_save_error(error, folder, folder)
