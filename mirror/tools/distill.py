"""Shrink an encoder: train a student on the teacher's vectors of your own texts.

    mirror-distill out/adapted --texts docs/ --student layers:3 --output_dir out/small
    mirror-distill out/adapted --texts texts.txt --student static --output_dir out/static --tasks docs_search
    python -m mirror.tools.distill out/adapted --texts texts.txt --student dimensions:128 --output_dir out/short

layers:3 keeps 3 layers of the teacher, static has one vector for each token and no layers, and dimensions:128 keeps the
first principal components. The student's vectors are trained to be the teacher's. Texts or whole documents are
held out. Teacher and student are compared by them, on --tasks, in speed and in size, on stdout and the student's card.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.common.cli import Parser, add_trust, configure_logging, positive
from mirror.common.errors import InputError, run_main


if TYPE_CHECKING:
    from mirror.evaluation.own_text import OwnTextTest
    from mirror.evaluation.run import PreparedTask
    from mirror.modeling.encoder import Encoder

logger = logging.getLogger(__name__)

# Per kind of student: steps and learning rate. Chosen on docs_search_dev.
SETTINGS = {"layers": (1000, 3e-4), "static": (1000, 5e-3), "dimensions": (200, 2e-5)}
ROWS = 64  # of a batch, each a text and a piece of it
FACTS = ("texts_per_second", "size_mb", "dimension")


def main() -> None:
    args = parse_arguments()
    configure_logging()

    # Imported here so that --help and errors in the flags are immediate.
    from mirror.common import trust
    from mirror.common.files import listed_files, write_manifest
    from mirror.data.cleaning import hold_out
    from mirror.data.corpus import load_corpus
    from mirror.data.source import CorpusSource
    from mirror.evaluation.own_text import make_tests
    from mirror.evaluation.run import make_plan
    from mirror.modeling.encoder import Encoder
    from mirror.training.card import write_card
    from mirror.training.config import MirrorConfig
    from mirror.training.distillation import SIDES, DistillationTrainer, parse_student, save_student
    from mirror.training.record import RunRecord
    from mirror.training.resumable import after_last_step
    from mirror.training.run_setup import preflight

    trust.grant(args.allow_pickle, args.trust_remote_code)
    kind, number = parse_student(args.student)
    tasks = make_plan(args.tasks, args.data_dir).tasks if args.tasks else []
    teacher, (steps, rate) = Encoder.from_pretrained(args.model), SETTINGS[kind]
    config = MirrorConfig(
        output_dir=args.output_dir,
        max_steps=args.max_steps or steps,
        learning_rate=rate if args.learning_rate is None else args.learning_rate,
        max_seq_length=teacher.max_seq_length,
        pair_prompts=[*SIDES] if any(teacher.role_prompts.values()) else None,
        **{"lr_scheduler_type": "linear", "warmup_steps": 0.05, "force": args.force, "logging_steps": 100},
        resume_from_checkpoint=args.resume_from_checkpoint,
        **{"augmentation": "none", "dropout_rate": 0.0, "validation_samples": 0, "lora_rank": 0, "report_to": "none"},
    )
    checkpoint = preflight(config, args.model)
    source = CorpusSource(train_file=[args.texts], text_column=args.text_column, max_train_samples=args.max_texts)
    corpus, held_out = hold_out(load_corpus(source, pairs=["none"]))
    texts = corpus.rows["text"][:]
    if len(texts) < 2:
        raise InputError(f"--texts {args.texts}: one text; give many, or at least 2")
    config.per_device_train_batch_size = min(ROWS, len(texts))
    with tempfile.TemporaryDirectory() as folder:
        components = save_student(Path(folder), kind, number, args.model, teacher, texts)
        trainer = DistillationTrainer(folder, config, texts, teacher, args.model, args.student, components)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.corpus = replace(trainer.corpus, source=source)  # so that the next commands name the user's texts
    trainer.finish()
    with after_last_step(f"{args.output_dir} is not compared with its teacher"):
        try:
            tests = make_tests(held_out["text"][:] if held_out else [])
        except InputError as error:  # too few texts, or too short ones
            logger.info("on your text: %s", error)
            tests = []
        both = [measure(each, tests, tasks, texts) for each in (teacher, Encoder.from_pretrained(args.output_dir))]
        measured = {name: [each[name] for each in both] for name in both[0]}
        sys.stdout.write("measure\tteacher\tstudent\n")
        sys.stdout.writelines(f"{name}\t{was:,.4g}\t{now:,.4g}\n" for name, (was, now) in measured.items())
        folder = Path(args.output_dir)
        replace(RunRecord.load(folder), distilled=measured).save(folder)
        write_manifest(folder, only=listed_files(folder))
        write_card(folder)


def measure(
    encoder: Encoder, tests: Sequence[OwnTextTest], tasks: Sequence[PreparedTask], texts: Sequence[str]
) -> dict[str, float]:
    """Return what an encoder scores and costs: mean reciprocal ranks of the tests, scores of the tasks, and facts."""
    from mirror.tools.compare import by_own_text, by_tasks, facts_of

    encode, runs = encoder.by_role(), [facts_of(encoder, texts[:2000], 64) for _ in range(3)]
    scores = by_own_text("", encode, tests).scores | by_tasks("", encode, encoder, tasks)[0].scores
    facts = max(runs, key=lambda run: run["texts_per_second"])
    return scores | {name: facts[name] for name in FACTS}


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("model", metavar="MODEL", help="Hub id or path of the teacher.")
    add("--texts", metavar="FILE|FOLDER", required=True, help="Path to your texts: a file, folder or glob in quotes.")
    student = "Student: layers:N (evenly spread ones), static (of N dimensions: static:N), or dimensions:N."
    add("--student", metavar="KIND", required=True, help=student)
    add("--output_dir", metavar="OUT", required=True, help="Path to the folder for the student.")
    add("--text_column", nargs="+", metavar="T", help="Columns of the text (default: 'text', or the only column).")
    add("--tasks", nargs="+", metavar="T", help="Tasks of run_eval.py to score both on (default: none).")
    add("--data_dir", metavar="D", help="Path to the data of the tasks (default: $MIRROR_DATA_DIR, or 'data').")
    add("--max_texts", type=positive, default=100_000, metavar="N", help="Number of texts to use, from the start.")
    steps, rates = (", ".join(f"{of[at]:g} for {kind}" for kind, of in SETTINGS.items()) for at in (0, 1))
    add("--max_steps", type=positive, metavar="N", help=f"Number of training steps (default: {steps}).")
    add("--learning_rate", type=float, metavar="X", help=f"Learning rate of AdamW (default: {rates}).")
    checkpoint = "Path to a checkpoint, or 'auto' for the newest one in --output_dir (default: a new run)."
    add("--resume_from_checkpoint", metavar="C", help=checkpoint)
    add("--force", action="store_true", help="Whether to overwrite another run in --output_dir.")
    add_trust(parser)
    return parser.parse_args()


if __name__ == "__main__":
    run_main(main)
