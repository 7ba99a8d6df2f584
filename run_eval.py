"""Score one or several encoders on the tasks of the Mirror-BERT and CMLM papers, offline.

    python run_eval.py --model_name_or_path out/mirror --tasks sts simlex999 --data_dir data --output_dir out/scores
    python run_eval.py --models bert-base-uncased out/mirror --pooling cls --tasks sts docs_search \\
        --output_dir out/scores
    python run_eval.py --list_tasks --data_dir data

A model is a Hub id or a folder: a checkpoint of this project, a sentence-transformers checkpoint, or a plain masked
LM with --pooling. `accelerate launch run_eval.py ...` encodes on all devices. Writes results.json, results.md,
results.csv, results.tex and plots (PNG, SVG, PDF).
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from mirror.common.cli import Parser, add_prompt, add_timeout, add_trust, positive
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging


logger = logging.getLogger("run_eval")


def main() -> None:
    # ---- Arguments -------------------------------------------------------------------------------------------------
    args = parse_arguments()
    configure_logging()
    check_files(args)

    # Imported here so that --help and errors in the flags are immediate.
    from mirror.evaluation.catalogue import Options, all_tasks, listing
    from mirror.evaluation.run import default_data_dir, make_plan, preparation

    # ---- Tasks -----------------------------------------------------------------------------------------------------
    data_dir = Path(args.data_dir) if args.data_dir else default_data_dir()
    options = Options(**{name: getattr(args, name) for name in Options.__dataclass_fields__})
    if args.list_tasks:
        sys.stdout.write(listing(all_tasks(data_dir, options), data_dir) + "\n")
        return
    plan = make_plan(args.tasks, data_dir, args.skip_missing, options)
    if not plan.tasks:
        command = preparation(args.tasks, data_dir)
        raise InputError(f"{data_dir} has data for none of --tasks {' '.join(args.tasks)}; make it with: {command}")
    for task in plan.tasks:
        if task.task.trains and (args.truncate_dim or args.remove_components):
            raise InputError(f"task {task.name} trains the encoder; leave out --truncate_dim and --remove_components")
    if args.second_model_name_or_path and not any(task.task.takes_second_encode for task in plan.tasks):
        raise InputError("--second_model_name_or_path is for the tasks bli_..., and none of them is in --tasks")

    # Imported here so that errors in the names of tasks and in their data come early.
    from mirror.common import loading_policy
    from mirror.common.atomic_files import make_output_folder
    from mirror.common.distributed import join_processes
    from mirror.evaluation.encoding import EncodeSettings, describe, make_encode
    from mirror.evaluation.pictures import draw_all, draw_translations
    from mirror.evaluation.progress import Progress
    from mirror.evaluation.published import find_rows
    from mirror.evaluation.results import file_name, list_files, result_paths, write_results
    from mirror.evaluation.table import comparison, format_text, short_names
    from mirror.modeling.embedding_cache import fingerprint
    from mirror.modeling.encoder import Encoder
    from mirror.tools.next_steps import after_scoring

    loading_policy.grant(args.allow_pickle, args.trust_remote_code)

    # ---- Scoring ---------------------------------------------------------------------------------------------------
    output_dir = make_output_folder(args.output_dir)
    state = join_processes(args.ddp_timeout)
    settings = EncodeSettings(
        batch_size=args.batch_size,
        cache_dir=None if args.no_cache else args.cache_dir or str(output_dir / "embeddings"),
        truncate_dim=args.truncate_dim,
        remove_components=args.remove_components,
        fit_on=args.fit_on,
    )

    def load(name: str) -> Encoder:
        encoder = Encoder.from_pretrained(
            name, args.pooling, args.max_seq_length, args.dtype, state.device, args.prompt, args.prompt_name
        )
        logger.info("%s: pooling %s, %d tokens, %s", name, encoder.pooling, encoder.max_seq_length, args.dtype)
        return encoder

    second_encode, second = None, {}
    if name := args.second_model_name_or_path:
        encoder = load(name)
        second = {"second_model_name_or_path": name, "second_pooling": encoder.pooling}
        second["second_model_sha256"] = fingerprint(encoder)
        second_encode = make_encode(encoder, settings, second["second_model_sha256"])
    models = args.models or [args.model_name_or_path]
    records, unfinished, pictures = [], [], []
    for name, label in zip(models, short_names(models), strict=True):
        encoder = load(name)
        model_sha256 = fingerprint(encoder)
        encode = make_encode(encoder, settings, model_sha256)
        described = describe(name, encoder, args.dtype, settings) | second
        place = output_dir / f"_unfinished-{file_name(label)}.json"
        progress = Progress(place, described | {"model_sha256": model_sha256}, state.is_main_process)
        state.wait_for_everyone()  # all have read before the first one writes
        records.append(described | plan.run(encode, encoder, progress, second_encode))
        unfinished.append(progress)
        pictures += draw_translations(encode, plan.tasks, label, output_dir)

    # ---- Results ---------------------------------------------------------------------------------------------------
    if state.is_main_process:
        columns, table = comparison(records, find_rows(records, args.published))
        written = write_results(records, columns, table, output_dir)
        for progress in unfinished:
            progress.finish()
        written += draw_all(records, columns, table, output_dir) + pictures
        sys.stdout.write(format_text(columns, table) + "\n")
        logger.info("written to %s:\n%s", output_dir, list_files(written, output_dir))
        logger.info(after_scoring(models, result_paths(models, output_dir)))
    state.wait_for_everyone()
    state.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument_group("Models and tasks").add_argument
    add("--model_name_or_path", metavar="M", help="a Hub id or a folder")
    add(
        "--second_model_name_or_path",
        metavar="M",
        help="encoder of the target language of bli_..., where --model_name_or_path is that of the source language "
        "(default: one encoder for both)",
    )
    add("--models", nargs="+", metavar="M", help="several models, shown side by side")
    add("--tasks", nargs="+", metavar="T", help="names of tasks and groups; --list_tasks prints all names")
    add("--data_dir", metavar="D", help="folder of evaluation data (default: $MIRROR_DATA_DIR, or 'data')")
    add("--output_dir", metavar="R", help="output folder for the results")
    add(
        "--list_tasks",
        action="store_true",
        help="print all tasks and groups and whether their data is available, then exit",
    )
    add("--skip_missing", action="store_true", help="skip tasks without data; results.json lists them")
    add(
        "--published",
        metavar="SYSTEM",
        help="published system to compare with, or 'none' (default: the most similar name)",
    )
    encoding = parser.add_argument_group("Encoding")
    add = encoding.add_argument
    add("--pooling", help="required for a plain masked LM (default: the checkpoint's)")
    add_prompt(encoding)
    add("--max_seq_length", type=positive, metavar="N", help="in tokens (default: the checkpoint's)")
    add("--batch_size", type=positive, default=64, metavar="B", help="texts per forward pass")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="precision of the model")
    add_timeout(encoding)
    add("--cache_dir", metavar="C", help="folder of cached embeddings (default: embeddings/ in the output folder)")
    add("--no_cache", action="store_true", help="do not cache embeddings")
    add("--truncate_dim", type=positive, metavar="D", help="score only the first D dimensions (default: all)")
    add(
        "--remove_components",
        type=positive,
        metavar="N",
        help="remove the first N principal components (CMLM section 5.1)",
    )
    add(
        "--fit_on",
        default="per_language",
        metavar="FILE",
        help="file of texts, one per line, to fit the principal components on (default: each language separately)",
    )
    add = parser.add_argument_group("Single tasks").add_argument
    add(
        "--bli_vocabulary",
        metavar="FILE",
        help="words to add to the candidates of BLI, one per line; {language} in the path is the target language",
    )
    add("--bli_self_learning", action="store_true", help="refine the maps of BLI by self-learning")
    add(
        "--bel_add_mentions",
        action="store_true",
        help="add training and dev mentions to the dictionaries of entity linking",
    )
    add("--isotropy_texts", metavar="FILE", help="texts for the task isotropy, one per line")
    add("--senteval_dir", metavar="D", help="folder with SentEval's files in another language, for the transfer tasks")
    add_trust(parser.add_argument_group("Models of others"))
    args = parser.parse_args()
    if not args.list_tasks:
        for flag in ("tasks", "output_dir"):
            if not getattr(args, flag):
                parser.error(f"--{flag} is missing")
        if bool(args.models) == bool(args.model_name_or_path):
            parser.error("give either --model_name_or_path or --models")
        if args.second_model_name_or_path and args.models:
            parser.error("--second_model_name_or_path needs --model_name_or_path; leave --models out")
    return args


def check_files(args: argparse.Namespace) -> None:
    """
    Raises:
        InputError: a file that a flag names does not exist.
    """
    fit_on = None if args.fit_on == "per_language" else args.fit_on
    for flag, path in (("fit_on", fit_on), ("isotropy_texts", args.isotropy_texts)):
        if path and not Path(path).is_file():
            raise InputError(f"--{flag} {path}: no such file")


if __name__ == "__main__":
    run_main(main)
