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

from mirror.common.cli import Parser, add_prompt, add_timeout, add_trust, configure_logging, positive
from mirror.common.errors import InputError, run_main


logger = logging.getLogger(__name__)


def main() -> None:
    # ---- Arguments -------------------------------------------------------------------------------------------------
    args = parse_arguments()
    configure_logging()

    # Imported here so that --help and errors in the flags are immediate.
    from mirror.evaluation.run import Progress, all_tasks, default_data_dir, is_own, listing, make_plan
    from mirror.evaluation.task import Options, preparation

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
    split = [name for name in args.tasks if name.startswith("bel") or (is_own(name) and not Path(name).is_file())]
    if split and args.remove_components and args.fit_on == "per_language":
        raise InputError(f"--remove_components: {split[0]} encodes its texts in parts; give some as --fit_on")
    if args.second_model_name_or_path and not any(task.task.takes_second_encode for task in plan.tasks):
        raise InputError("--second_model_name_or_path is for the tasks bli_..., and none of them is in --tasks")
    of_tasks = {"bli": "bli_", "bel": "bel_", "isotropy": "isotropy", "senteval": "transfer_"}
    for flag, value in vars(options).items():
        kind = of_tasks.get(flag.partition("_")[0])
        if value and kind and not any(task.name.startswith(kind) for task in plan.tasks):
            raise InputError(f"--{flag} is for the tasks {kind}..., and none of them is in --tasks")

    # Imported here so that errors in the names of tasks and in their data come early.
    from mirror.common import trust
    from mirror.common.distributed import join_processes
    from mirror.common.files import lock_output_dir, make_output_folder
    from mirror.evaluation import results
    from mirror.evaluation.encoding import EncodeSettings, describe, fingerprint, make_encode
    from mirror.evaluation.plots import draw_all
    from mirror.evaluation.published import find_rows
    from mirror.modeling.encoder import Encode, Encoder
    from mirror.modeling.read_checkpoint import check_name
    from mirror.training.finish import after_scoring

    trust.grant(args.allow_pickle, args.trust_remote_code)

    # ---- Scoring ---------------------------------------------------------------------------------------------------
    models = args.models or [args.model_name_or_path]
    for model in models:  # a typo in the last name is reported before the first encoder is scored
        check_name(model)
    find_rows([], args.published)
    output_dir = make_output_folder(args.output_dir)
    paths = results.result_paths(models, output_dir)
    state = join_processes(args.ddp_timeout)
    if state.is_main_process:
        lock_output_dir(output_dir)
    settings = EncodeSettings(
        batch_size=args.batch_size,
        cache_dir=None if args.no_cache else args.cache_dir or str(output_dir / "embeddings"),
        truncate_dim=args.truncate_dim,
        remove_components=args.remove_components,
        fit_on=args.fit_on,
    )

    def load(name: str) -> tuple[Encoder, str, Encode]:
        """Return a model's encoder, its fingerprint, and its `encode` with these settings."""
        encoder = Encoder.from_pretrained(
            name, args.pooling, args.max_seq_length, args.dtype, state.device, args.prompt, args.prompt_name
        )
        logger.info("Loaded %s: pooling %s, %d tokens, %s", name, encoder.pooling, encoder.max_seq_length, args.dtype)
        sha256 = fingerprint(encoder)
        return encoder, sha256, make_encode(encoder, settings, sha256)

    second_encode, second = None, {}
    if name := args.second_model_name_or_path:
        encoder, sha256, second_encode = load(name)
        second = {"second_model_name_or_path": name, "second_pooling": encoder.pooling, "second_model_sha256": sha256}
    records, unfinished = [], []
    for name, label in zip(models, results.short_names(models), strict=True):
        encoder, sha256, encode = load(name)
        described = describe(name, encoder, args.dtype, settings) | second
        place = output_dir / f"_unfinished-{results.file_name(label)}.json"
        progress = Progress(place, described | {"model_sha256": sha256}, state.is_main_process)
        state.wait_for_everyone()  # all have read before the first one writes
        records.append(described | plan.run(encode, encoder, progress, second_encode))
        unfinished.append(progress)

    # ---- Results ---------------------------------------------------------------------------------------------------
    if state.is_main_process:
        columns, table = results.comparison(records, find_rows(records, args.published))
        written = results.write_results(records, columns, table, output_dir)
        for progress in unfinished:
            progress.finish()
        written += draw_all(records, columns, table, [task.task for task in plan.tasks], output_dir)
        sys.stdout.write(results.format_text(columns, table) + "\n")
        logger.info("Saved results to %s:\n%s", output_dir, results.list_files(written, output_dir))
        logger.info(after_scoring(models, paths, args.pooling))
    state.wait_for_everyone()
    state.destroy_process_group()


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument_group("Models and tasks").add_argument
    add("--model_name_or_path", metavar="M", help="Hub id or path of the model to score")
    add("--models", nargs="+", metavar="M", help="Hub ids or paths of several models, shown side by side")
    add("--second_model_name_or_path", metavar="M",
        help="Encoder of the target language of bli_..., where --model_name_or_path is that of the source language "
        "(default: one encoder for both)")  # fmt: skip
    add("--tasks", nargs="+", metavar="T",
        help="Names of tasks and groups (--list_tasks prints them), mteb:NAME, or paths of your own: a folder with corpus, "
        "queries and qrels (FOLDER:SPLIT for another split than test), or a table of pairs, triplets or classes")  # fmt: skip
    add("--data_dir", metavar="D", help="Path to the evaluation data (default: $MIRROR_DATA_DIR, or 'data')")
    add("--output_dir", metavar="R", help="Path to the output folder for the results")
    add("--list_tasks", action="store_true", help="Whether to print all tasks and groups and exit")
    add("--skip_missing", action="store_true", help="Whether to skip tasks without data. results.json lists them")
    add("--published", metavar="SYSTEM", help="Published system to show, or none (default: that of the same name)")
    encoding = parser.add_argument_group("Encoding")
    add = encoding.add_argument
    add("--pooling", help="Pooling mode, which a plain masked LM needs (default: the checkpoint's)")
    add_prompt(encoding)
    add("--max_seq_length", type=positive, metavar="N", help="Number of tokens of a text (default: the checkpoint's)")
    add("--batch_size", type=positive, default=64, metavar="B", help="Number of texts per forward pass")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="Precision of the model")
    add_timeout(encoding)
    add("--cache_dir", metavar="C", help="Path to cached embeddings (default: embeddings/ in --output_dir)")
    add("--no_cache", action="store_true", help="Whether to compute embeddings without the cache")
    add("--truncate_dim", type=positive, metavar="D", help="Number of first dimensions to score (default: all)")
    add("--remove_components", type=positive, metavar="N", help="Number of first principal components to remove")
    add("--fit_on", default="per_language", metavar="FILE",
        help="Path to texts, one per line, to fit the components on (default: those of each language separately)")  # fmt: skip
    add = parser.add_argument_group("Single tasks").add_argument
    add("--bli_vocabulary", metavar="FILE", help="Path to more words for BLI; {language} is the target language")
    add("--bli_self_learning", action="store_true", help="Whether to refine the maps of BLI by self-learning")
    add("--bel_add_mentions", action="store_true", help="Whether to add training and dev mentions to dictionaries")
    add("--isotropy_texts", metavar="FILE", help="Path to texts for the task isotropy, one per line")
    add("--senteval_dir", metavar="D", help="Path to SentEval's files in another language")
    add_trust(parser.add_argument_group("Untrusted models"))
    args = parser.parse_args()
    if not args.list_tasks:
        for flag in ("tasks", "output_dir"):
            if not getattr(args, flag):
                parser.error(f"--{flag} is missing")
        if bool(args.models) == bool(args.model_name_or_path):
            parser.error("give either --model_name_or_path or --models")
        if args.second_model_name_or_path and args.models:
            parser.error("--second_model_name_or_path needs --model_name_or_path; leave --models out")
    for flag, path in (("fit_on", args.fit_on), ("isotropy_texts", args.isotropy_texts)):
        if path and path != parser.get_default(flag) and not Path(path).is_file():
            raise InputError(f"--{flag} {path}: no such file")
    if args.fit_on != parser.get_default("fit_on") and not args.remove_components:
        parser.error("--fit_on is for --remove_components; give both or none")
    return args


if __name__ == "__main__":
    run_main(main)
