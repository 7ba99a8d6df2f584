"""The end of every training script: save, verify with every reader, write record and model card, push, exit."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

from mirror.common.distributed import shutdown
from mirror.common.errors import InputError
from mirror.modeling.checkpoint import verify_encoder
from mirror.tools.card_scores import scores_of_run, write_scores
from mirror.tools.model_card import write_card
from mirror.training.encoder_trainer import EncoderTrainer
from mirror.training.resumable import SAVE_ERRORS, raise_save_error
from mirror.training.run_record import FILE, RunRecord, run_facts


logger = logging.getLogger(__name__)


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
    if trainer.was_complete and (Path(args.output_dir) / FILE).exists():
        logger.info("%s holds a complete run of %d steps: nothing to do", args.output_dir, trainer.state.global_step)
        shutdown(trainer.accelerator)
        return
    try:
        trainer.save_model(_internal_call=True)  # does not push: the model card is not written yet
        trainer.save_state()
    except SAVE_ERRORS as error:
        raise_save_error(error, args.output_dir, args.output_dir)
    if trainer.is_world_process_zero():
        encoder = trainer.encoder(training=False)
        cosines, difference = {}, None
        try:
            cosines = verify_encoder(args.output_dir, encoder, trainer.sample_texts())
        except InputError as error:  # the run is kept all the same
            difference = error
        RunRecord(
            method=trainer.method,
            metrics=metrics,
            run=run_facts(args, trainer.base_model, trainer.dataset_name, trainer.summary),
            corpus=trainer.corpus_report,
            settings=trainer.settings,
            cosine_after_reload=cosines,
        ).save(args.output_dir)
        data_dir = getattr(args, "data_dir", None)  # only for --eval_tasks, which CMLM does not have
        write_scores(args.output_dir, scores_of_run(trainer.state, args.load_best_model_at_end, data_dir))
        write_card(args.output_dir)
        if difference:
            raise InputError(f"{difference}; the encoder, its record and its card are saved, but not pushed")
        logger.info(
            "saved in %s (%s pooling); embeddings verified with %s",
            args.output_dir, encoder.pooling, " and ".join(cosines),
        )  # fmt: skip
        logger.info(next_steps(args.output_dir, trainer.base_model))
    if args.push_to_hub:
        trainer.push_to_hub(commit_message=commit_message)
    shutdown(trainer.accelerator)


def next_steps(folder: str, base_model: str) -> str:
    """What to do with the encoder, as commands to copy."""
    folder, base = shlex.quote(folder), shlex.quote(base_model)
    return "\n".join(
        (
            "next:",
            f"  python -m mirror.tools.search {folder} my_texts.txt 'a query'   # search your texts",
            f"  python -m mirror.tools.demo {folder} --before {base}   # before and after, in a browser",
            f"  python run_eval.py --model_name_or_path {folder} --tasks docs_search --output_dir {folder}-scores   # score it",
            f"  python -m mirror.tools.push {folder} --hub_model_id your-name/your-encoder   # share it",
        )
    )
