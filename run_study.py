"""Reproduce a table or figure of the Mirror-BERT or CMLM paper: train and score every cell of its grid.

    python run_study.py --list
    python run_study.py table3 --model_name_or_path bert-base-uncased --data_dir data \\
        --corpus_dir data/mirror_corpus --output_dir out/table3
    python run_study.py table12 --model_name_or_path roberta-base ... --num_processes 2 -- --bf16 --max_steps 20

Writes table.md with a verdict on what the paper concludes, results.csv, a figure and one folder per cell; the table after
each cell. Finished cells are not run again: after an interruption or a failure, run the same command again. Flags after --
are passed to run_mirror.py, or to run_cmlm.py.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import shlex
import sys
from pathlib import Path

from mirror.common.cli import Parser, positive
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging
from mirror.studies.processes import CONTEXT, prepare_environment


logger = logging.getLogger("run_study")

# What the scripts of a cell import when they run: imported once, before the cells' processes are forked.
WARM = (
    "fontTools.subset",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "matplotlib.backends.backend_svg",
    "mirror.cmlm.arguments",
    "mirror.cmlm.stages",
    "mirror.cmlm.trainer",
    "mirror.data.corpus",
    "mirror.evaluation.encoding",
    "mirror.evaluation.pictures",
    "mirror.evaluation.progress",
    "mirror.tools.finish_run",
    "mirror.tools.next_steps",
    "mirror.training.arguments",
    "mirror.training.preflight",
    "mirror.training.trainer",
    "sentence_transformers",
)


def main() -> None:
    # ---- Arguments -------------------------------------------------------------------------------------------------
    own, extra = split_at_dashes(sys.argv[1:])
    args = parse_arguments(own)
    configure_logging()
    prepare_environment(args.num_processes)

    # Imported here so that --help and errors in the flags are immediate.
    from mirror.common.atomic_files import make_output_folder
    from mirror.evaluation.run import default_data_dir
    from mirror.studies.catalogue import find_study, listing
    from mirror.studies.chains import is_chain_study, make_chain_jobs
    from mirror.studies.execution import estimated_seconds, finished, run_jobs
    from mirror.studies.plan import make_jobs
    from mirror.studies.progress import Progress, format_duration
    from mirror.studies.setup import Setup, paper_models
    from mirror.studies.shared_cells import take
    from mirror.studies.stage_runs import remove_stages
    from mirror.training.preflight import make_writable

    if args.list:
        sys.stdout.write(listing() + "\n")
        return

    # ---- Cells -----------------------------------------------------------------------------------------------------
    study = find_study(args.study, args.rows)
    data_dir = Path(args.data_dir) if args.data_dir else default_data_dir()
    setup = Setup(
        model=args.model_name_or_path,
        data_dir=data_dir,
        corpus_dirs=tuple(map(Path, args.corpus_dir or [data_dir / "mirror_corpus"])),
        output_dir=Path(args.output_dir or f"out/studies/{args.study}"),
        seeds=tuple(dict.fromkeys(args.seeds)),
        max_train_samples=args.max_train_samples,
        extra=parse_extra_flags(extra),
        language_models=dict(study.models)
        | (paper_models(study) if args.paper_models else {})
        | dict(args.language_models),
        skip_missing=args.skip_missing or args.dry_run,  # a dry run lists what is missing
        modern=args.modern,
        bli_vocabulary=args.bli_vocabulary,
    )
    stages_dir = Path(args.stages_dir or setup.output_dir / "stages")
    is_chain = is_chain_study(study)
    jobs, left_out = make_chain_jobs(study, setup, stages_dir) if is_chain else make_jobs(study, setup)
    records = {job.name: finished(job) for job in jobs}
    waiting = [job for job in jobs if records[job.name] is None]
    now = waiting[: args.max_cells]
    for line in left_out:
        logger.info(line)
    done = [record for record in records.values() if record]
    seconds, basis = estimated_seconds(now, done, args.num_processes)
    logger.info("%s\n%d cells: %d done, %d to run now with %s training steps, about %s (%s)", study.title, len(jobs),
                len(done), len(now), f"{sum(job.steps for job in now):,}", format_duration(seconds), basis)  # fmt: skip
    if args.dry_run:
        sys.stdout.write("".join(f"  {'done' if records[job.name] else '    '} {job.name}\n" for job in jobs))
        return
    if not jobs:
        raise InputError(f"no cell of {args.study} can be run: {'; '.join(left_out)}")

    # ---- Runs, table, figure ---------------------------------------------------------------------------------------
    output_dir = make_output_folder(str(setup.output_dir))
    cache = Path(args.cache) if args.cache else None
    if cache:
        make_writable(str(cache), "--cache")
    if cache and not args.keep_models:  # a shared cell has no weights
        now = [job for job in now if not take(job, cache)]
        records = {job.name: finished(job) for job in jobs}
    command = "python run_study.py " + shlex.join(sys.argv[1:])
    progress = Progress(study, setup, records, list(now), left_out, command, args.num_processes, cache)
    if now and CONTEXT.get_start_method() == "fork":
        for module in WARM:
            importlib.import_module(module)
    try:
        failures = run_jobs(now, args.num_processes, args.keep_models, progress.ended)
    except SystemExit:
        logger.warning("stopped; %d of %d cells are done; run the same command again for the rest",
                       len(progress.done), len(jobs))  # fmt: skip
        raise
    if progress.done:
        sys.stdout.write(progress.write_table())
        progress.write_figure()
        logger.info("table.md, results.csv and figure.png, .svg and .pdf are in %s", output_dir)
    if is_chain and len(progress.done) == len(jobs) and not (args.keep_models or args.stages_dir or args.rows):
        remove_stages(stages_dir)
    if failures:
        raise InputError(
            f"{len(failures)} of {len(now)} cells failed: {', '.join(failures)}; run the same command again"
        )


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument_group("Study").add_argument
    add("study", nargs="?", metavar="STUDY", help="study to reproduce; --list prints all")
    add("--list", action="store_true", help="print all studies and exit")
    add("--model_name_or_path", metavar="M", help="masked LM to start from: a Hub id or a folder")
    add("--language_models", nargs="+", type=assignment, default=[], metavar="PART=M",
        help="other models for parts of a study, for example fra=camembert-base in table1, fr=... in table6")  # fmt: skip
    add("--paper_models", action="store_true",
        help="the model that the paper has for each part (its Table 15), for example the BERT of each "
        "language in table1")  # fmt: skip
    add("--modern", action="store_true",
        help="this project's defaults (mean without padding, no repeated texts, the tokenizer's own mask) instead of "
        "the published recipe of the model and level")  # fmt: skip
    add("--bli_vocabulary", metavar="FILE", help="word list to add to the candidates of BLI, as in run_eval.py")
    add(
        "--seeds", nargs="+", type=positive, default=[33, 44, 55], metavar="S", help="random seeds (default: 33 44 55)"
    )
    add("--rows", nargs="+", default=[], metavar="ROW",
        help='only these rows of the table, for example "before" "Mirror" in table3 (default: all)')  # fmt: skip
    add = parser.add_argument_group("Data").add_argument
    add("--data_dir", metavar="D", help="folder of evaluation data (default: $MIRROR_DATA_DIR, or 'data')")
    add(
        "--corpus_dir",
        nargs="+",
        metavar="C",
        help="folders of training corpora (default: mirror_corpus/ in the data folder)",
    )
    add = parser.add_argument_group("Output and work").add_argument
    add("--output_dir", metavar="O", help="output folder (default: out/studies/STUDY)")
    add(
        "--max_train_samples",
        type=positive,
        metavar="N",
        help="train every cell on the first N distinct texts (default: all)",
    )
    add(
        "--max_cells",
        type=positive,
        metavar="N",
        help="run at most N cells; run the same command again for the rest (default: all)",
    )
    add(
        "--num_processes",
        type=positive,
        default=1,
        metavar="N",
        help="cells in parallel, each on one GPU if there are any (default: 1)",
    )
    add("--cache", metavar="C", help="folder of finished cells that studies share: a cell with the same settings, model, "
        "corpora and evaluation data is taken from there, unless --keep_models (default: none)")  # fmt: skip
    add("--keep_models", action="store_true", help="keep the weights of each cell (default: only the scores)")
    add("--stages_dir", metavar="S", help="folder for the models of CMLM's stages, kept, which several studies can share "
        "(default: stages/ in the output folder, deleted after the last cell of all rows unless --keep_models)")  # fmt: skip
    add("--skip_missing", action="store_true", help="leave out cells without a corpus and tasks without data")
    add(
        "--dry_run",
        action="store_true",
        help="print the cells, their training steps and the estimated duration; run and write nothing",
    )
    args = parser.parse_args(argv)
    if not args.list:
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
