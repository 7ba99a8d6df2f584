"""Reproduce a table or figure of the Mirror-BERT or CMLM paper: train and score every cell of its grid.

    python run_study.py --list
    python run_study.py table3 --model_name_or_path bert-base-uncased --data_dir data \\
        --corpus_dir data/mirror_corpus --output_dir out/table3
    python run_study.py table12 --model_name_or_path roberta-base ... --num_processes 2 -- --bf16 --max_steps 20

Writes table.md with a verdict on what the paper concludes, results.csv, a figure and one folder per cell, and updates the table
after each cell. Finished cells are not run again: after an interruption or a failure, run the same command again. Flags after --
are passed to run_mirror.py, or to run_cmlm.py.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import signal
import sys
from pathlib import Path

from mirror.common.cli import Parser, configure_logging, positive
from mirror.common.errors import InputError, run_main


logger = logging.getLogger("run_study")


def main() -> None:
    # ---- Arguments -------------------------------------------------------------------------------------------------
    own, extra = split_at_dashes(sys.argv[1:])
    args = parse_arguments(own)
    if args.cell:
        from studies.cell import run_cell

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the study too, which ends this process
        run_cell(Path(args.cell))
        return
    configure_logging()

    # Imported here so that --help and errors in the flags are immediate.
    from studies.study import SEEDS, STUDIES, find_study

    if args.list:
        sys.stdout.write("".join(f"  {name:<15} {study.title}\n" for name, study in STUDIES.items()))
        return
    study = find_study(args.study, args.rows, args.parts)

    from mirror.common.files import lock_output_dir
    from mirror.evaluation.run import default_data_dir
    from mirror.training.run_setup import make_writable
    from studies.cell import remove_stages
    from studies.figures import draw
    from studies.jobs import make_jobs
    from studies.pages import format_report
    from studies.runner import StudyRun
    from studies.setup import Setup, paper_models

    # ---- Cells -----------------------------------------------------------------------------------------------------
    data_dir = Path(args.data_dir) if args.data_dir else default_data_dir()
    output_dir = Path(args.output_dir or f"out/studies/{args.study}")
    setup = Setup(
        model=args.model_name_or_path,
        data_dir=data_dir,
        corpus_dirs=tuple(map(Path, args.corpus_dir or [data_dir / "mirror_corpus"])),
        output_dir=output_dir,
        stages_dir=Path(args.stages_dir or output_dir / "stages"),
        seeds=tuple(dict.fromkeys(args.seeds or SEEDS[: study.seeds])),
        max_train_samples=args.max_train_samples,
        extra=parse_extra_flags(extra),
        language_models=study.models | (paper_models(study) if args.paper_models else {}) | dict(args.language_models),
        skip_missing=args.skip_missing or args.dry_run,  # a dry run lists what is missing
        modern=args.modern,
        bli_vocabulary=args.bli_vocabulary,
    )
    jobs, left_out = make_jobs(study, setup)
    if jobs and not args.dry_run:  # before it is read what is done already, which another process may change
        make_writable(str(output_dir))
        lock_output_dir(output_dir)
    command, cache = f"python run_study.py {shlex.join(sys.argv[1:])}", Path(args.cache) if args.cache else None
    run = StudyRun(study, setup, jobs, left_out, command, args.num_processes, cache)
    now = run.waiting[: args.max_cells]
    if cache and jobs and not args.dry_run:
        make_writable(str(cache), "--cache")
        if not args.keep_models:  # a shared cell has no weights
            run.take_from_cache(now)
    now = [job for job in now if job in run.waiting]
    for line in left_out:
        logger.info(line)
    logger.info("%s\n%d cells: %d done, %d to run now, which takes %s", study.title, len(jobs), len(run.done), len(now),
                run.estimate(now))  # fmt: skip
    if args.dry_run:
        sys.stdout.write("".join(f"  {'    ' if job in run.waiting else 'done'} {job.name}\n" for job in jobs))
        return
    if not jobs:
        raise InputError(f"no cell of {args.study} can be run: {'; '.join(left_out)}")

    # ---- Runs, table, figure ---------------------------------------------------------------------------------------
    failed = run.run(now, args.keep_models)
    if run.done:
        base = run.write_table()
        sys.stdout.write(format_report(base))
        draw([base], output_dir / "figure")
        logger.info("Saved table.md, results.csv and figure.png, .svg and .pdf to %s", output_dir)
    if study.is_cmlm and not (run.waiting or args.keep_models or args.stages_dir or args.rows or args.parts):
        remove_stages(setup.stages_dir)
    if failed:
        raise InputError(f"{len(failed)} of {len(now)} cells failed: {', '.join(failed)}; run the same command again")


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument_group("Study").add_argument
    add("study", nargs="?", metavar="STUDY", help="Study to reproduce; --list prints all.")
    add("--list", action="store_true", help="Print all studies and exit.")
    add("--model_name_or_path", metavar="M", help="Masked LM to start from: a Hub id or a folder. (default: none)")
    add("--language_models", nargs="+", type=assignment, default=[], metavar="PART=M",
        help="Other models for parts of a study, for example fra=camembert-base in table1, fr=... in table6. "
        "(default: none)")  # fmt: skip
    add("--paper_models", action="store_true",
        help="Whether to use the model that the paper has for each part (its Table 15), for example the BERT of each "
        "language in table1.")  # fmt: skip
    add("--modern", action="store_true",
        help="Whether to use this project's defaults (mean without padding, no repeated texts, the tokenizer's own mask) "
        "instead of the published recipe of the model and level.")  # fmt: skip
    add("--bli_vocabulary", metavar="FILE",
        help="Path to a word list to add to the candidates of BLI, as in run_eval.py. (default: none)")  # fmt: skip
    add("--seeds", nargs="+", type=positive, metavar="S", help="Random seeds. (default: the first three of 33, 44, 55, "
        "..., 132, or all ten in the studies whose cells take less than a minute on the embedded model)")  # fmt: skip
    add("--rows", nargs="+", default=[], metavar="ROW",
        help='Rows of the table to run, for example "before, cls" "Mirror" in table3. (default: all)')  # fmt: skip
    add("--parts", nargs="+", default=[], metavar="PART",
        help="Parts of the table to run, for example word in figure5. (default: all)")  # fmt: skip
    add = parser.add_argument_group("Data").add_argument
    add("--data_dir", metavar="D", help="Path to the evaluation data. (default: $MIRROR_DATA_DIR, or 'data')")
    add("--corpus_dir", nargs="+", metavar="C",
        help="Paths to folders of training corpora. (default: mirror_corpus/ in the data folder)")  # fmt: skip
    add = parser.add_argument_group("Output and work").add_argument
    add("--output_dir", metavar="O", help="Path to the output folder. (default: out/studies/STUDY)")
    add("--max_train_samples", type=positive, metavar="N",
        help="Number of distinct texts to train every cell on, the first ones. (default: all)")  # fmt: skip
    add("--max_cells", type=positive, metavar="N",
        help="Largest number of cells to run; run the same command again for the rest. (default: all)")  # fmt: skip
    add("--num_processes", type=positive, default=1, metavar="N",
        help="Number of cells to run in parallel, each on one GPU if there are any. (default: 1)")  # fmt: skip
    add("--cache", metavar="C", help="Path to a folder of finished cells that studies share: a cell with the same settings, "
        "model, corpora, evaluation data and library versions is taken from there, unless --keep_models. (default: none)")  # fmt: skip
    add("--keep_models", action="store_true", help="Whether to keep the weights of each cell, not only the scores.")
    add("--stages_dir", metavar="S", help="Path to a folder for the models of CMLM's stages, kept, which several studies can "
        "share. (default: stages/ in the output folder, deleted after the last cell of all rows unless --keep_models)")  # fmt: skip
    help = "Whether to leave out cells without a corpus and tasks without data."
    add("--skip_missing", action="store_true", help=help)
    add("--dry_run", action="store_true",
        help="Whether to only print the cells and, if some are done, the estimated duration of the others.")  # fmt: skip
    help = "Path to a job.json: run this cell alone, as run_study.py itself does. (default: none)"
    add("--cell", metavar="JOB", help=help)
    args = parser.parse_args(argv)
    if not (args.list or args.cell):
        for name, value in (("STUDY", args.study), ("--model_name_or_path", args.model_name_or_path)):
            if not value:
                parser.error(f"{name} is missing")
    return args


def split_at_dashes(argv: list[str]) -> tuple[list[str], list[str]]:
    """Split a command line at `--` into the arguments before and after it."""
    position = argv.index("--") if "--" in argv else len(argv)
    return argv[:position], argv[position + 1 :]


def parse_extra_flags(argv: list[str]) -> dict[str, list[str]]:
    """Parse `--a 1 2 --b` or `--a=1` into names and values.

    Raises:
        InputError: the first argument is not a flag.
    """
    flags: dict[str, list[str]] = {}
    for item in argv:
        if item.startswith("--"):
            name, _, value = item.removeprefix("--").partition("=")
            name = name.replace("-", "_")  # the scripts take both spellings
            flags[name] = [value] if value else []
        elif flags:
            flags[name].append(item)
        else:
            raise InputError(f"only flags of run_mirror.py or run_cmlm.py may follow --; '{item}' is not a flag")
    return flags


def assignment(text: str) -> tuple[str, str]:
    """Parse `PART=MODEL` into a pair."""
    part, sign, model = text.partition("=")
    if not (part and sign and model):
        raise argparse.ArgumentTypeError(f"{text!r} is not PART=MODEL")
    return part, model


if __name__ == "__main__":
    run_main(main)
