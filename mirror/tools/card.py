"""Rewrite the model card of a finished run, with scores, another name or languages.

    python -m mirror.tools.card out/mirror --results before/results.json after/results.json
    python -m mirror.tools.card out/mirror --hub_model_id me/my-encoder --language en

--results takes the scores of run_eval.py: of the checkpoint, or of its base model and of the checkpoint. --language names the
languages of the texts if the base model's card does not. The card is built only from files in the folder and contains no
training text, token or path.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mirror.common.cli import Parser
from mirror.common.errors import InputError, run_main
from mirror.common.files import is_complete, listed_files, write_manifest
from mirror.training.record import LANGUAGE, RunRecord


HISTOGRAM_TASKS = ("qqp_cosine", "docs_search")  # their results contain a histogram; the first one scored is drawn
EVAL_SETTINGS = ("pooling", "max_seq_length", "dtype", "prompt", "truncate_dim", "remove_components")


def scores_of_results(paths: Sequence[str], folder: Path) -> dict:
    """Return the scores in `results.json` files of run_eval.py, and draw the cosine histogram of a task into `folder`.

    `paths` are the results of the checkpoint in `folder`, or those of its base model and of the checkpoint. Returns the
    content of `scores.json` (`mirror.training.card.scores_of_run`), with `picture` if a histogram was drawn. Files that do not
    fit together, or not to the checkpoint, are an `InputError`.
    """
    from mirror.modeling.save_checkpoint import stored_pooling  # imports torch, which --help must not
    from mirror.training.card import FIGURE

    records, pooling = {}, stored_pooling(folder)
    for label, path in zip(("before", "after")[-len(paths) :], paths, strict=True):
        try:
            records[label] = record = json.loads(Path(path).read_text(encoding="utf-8"))
            for task in record["tasks"].values():
                float(task["main_score"]), str(task["metric"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            message = f"--results {path}: not a results.json of run_eval.py ({type(error).__name__})"
            raise InputError(message) from error
    if (scored := record.get("pooling")) != pooling:
        message = f"but {folder} uses '{pooling}'; score the checkpoint without --pooling"
        raise InputError(f"--results {paths[-1]}: scored with pooling '{scored}', {message}")
    if "before" in records and Path(str(records["before"].get("model_name_or_path"))).resolve() == folder.resolve():
        raise InputError(f"--results {paths[0]}: scores of {folder} itself; name the base model's file first")
    tasks = {label: record["tasks"] for label, record in records.items()}
    shared = [task for task in tasks["after"] if all(task in scored for scored in tasks.values())]
    if not shared:
        raise InputError(f"--results: {' and '.join(paths)} have no task in common")
    for task in shared:
        if len({scored[task].get("data_sha256") for scored in tasks.values()}) > 1:
            raise InputError(f"--results: {task} was scored on different data in {' and '.join(paths)}")
    scores: dict = {
        label: {task: {"score": scored[task]["main_score"], "metric": scored[task]["metric"]} for task in shared}
        for label, scored in tasks.items()
    }
    scores["how"] = {}
    for label, record in records.items():
        used = {key: record[key] for key in EVAL_SETTINGS if key in record}
        used |= {"prompt": json.dumps(used["prompt"])} if "prompt" in used else {}
        scores["how"][label] = ", ".join(f"{key} {value}" for key, value in used.items())
    if drawn := [task for task in shared if task in HISTOGRAM_TASKS]:
        from mirror.evaluation.plots import cosine_histograms

        histograms = {label: scored[drawn[0]]["histogram"] for label, scored in tasks.items()}
        cosine_histograms(folder / FIGURE, histograms, drawn[0])
        scores["picture"] = FIGURE
    return scores


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("folder", metavar="OUT", help="Path to the --output_dir of a finished run.")
    results = "Path to the results.json of run_eval.py for the checkpoint, or two paths, the base model's first"
    add("--results", nargs="+", metavar="F", help=f"{results} (default: none).")
    add("--hub_model_id", metavar="ID", help="Name of the model on the card (default: that of the run).")
    languages = "Languages of the texts, such as en de (default: those on the base model's card)."
    add("--language", nargs="+", metavar="CODE", help=languages)
    args = parser.parse_args()
    record = RunRecord.load(args.folder)
    if unknown := [code for code in args.language or [] if not LANGUAGE.fullmatch(code)]:
        parser.error(f"--language {unknown[0]}: not a language code; use codes such as en, de or multilingual")
    if len(args.results or ()) > 2:
        parser.error("--results takes one file, or two: before and after training")
    from mirror.training.card import write_card, write_scores  # imported late to keep --help fast

    if args.results:
        write_scores(args.folder, scores_of_results(args.results, Path(args.folder)))
    if args.language:
        was_complete = is_complete(args.folder)
        replace(record, run=record.run | {"language": args.language}).save(args.folder)
        if was_complete:
            write_manifest(args.folder, only=listed_files(args.folder))
    write_card(args.folder, args.hub_model_id)


if __name__ == "__main__":
    run_main(main)
