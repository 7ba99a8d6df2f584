"""Measure how well the order of mirror-compare without labels predicts the order on tasks with labels.

    python benchmarks/compare_worth.py A B C D --texts my_texts.txt --tasks docs_search my_queries --output_dir out/worth

Scores each encoder by the tests without labels and by the tasks, and prints Spearman's rank correlation of both for each
task. Give at least eight encoders: with fewer, chance alone gives high correlations.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scipy.stats import spearmanr

from mirror.common.cli import Parser, configure_logging, hide_dataset_progress, positive
from mirror.common.errors import run_main
from mirror.common.files import atomic_write_text, make_output_folder
from mirror.evaluation.encoding import EncodeSettings, make_encode
from mirror.evaluation.own_text import make_row_tests
from mirror.evaluation.results import short_names
from mirror.evaluation.run import make_plan
from mirror.modeling.encoder import Encoder
from mirror.tools.compare import by_own_text, by_tasks, read_rows


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL[:POOLING]", help="Paths of encoders, with a pooling to override theirs.")
    add("--texts", required=True, metavar="FILE", help="Path to the texts of the tests without labels.")
    add("--text_column", nargs="+", metavar="T", help="Column with the text (default: 'text', or the only column).")
    add("--tasks", nargs="+", required=True, metavar="T", help="Tasks with labels.")
    add("--data_dir", metavar="D", help="Path to the data of built-in tasks.")
    add("--output_dir", required=True, metavar="OUT", help="Path to the output folder.")
    add("--max_texts", type=positive, default=2000, metavar="N", help="Number of texts to use.")
    args = parser.parse_args()
    configure_logging()
    hide_dataset_progress()
    output_dir = make_output_folder(args.output_dir)
    tests, tasks = make_row_tests(read_rows(args)), make_plan(args.tasks, args.data_dir).tasks
    rows = []
    for model, name in zip(args.models, short_names(args.models), strict=True):
        path, colon, pooling = model.rpartition(":")
        encoder = Encoder.from_pretrained(path if colon else model, pooling if colon else None)
        encode = make_encode(encoder, EncodeSettings(cache_dir=str(output_dir / "embeddings")))
        own = by_own_text(name, encode, tests)
        labeled, _ = by_tasks(name, encode, encoder, tasks)
        rows.append({"name": name, "own_text": own.score} | own.scores | {"tasks": labeled.scores})
        sys.stdout.write(
            f"{name}\t{own.score:.4f}\t" + "\t".join(f"{each:.4f}" for each in labeled.scores.values()) + "\n"
        )
    kinds = ["own_text", *(test.kind for test in tests)]
    found: dict[str, dict[str, float]] = {}
    for task in tasks:
        labeled = [row["tasks"][task.name] for row in rows]
        found[task.name] = {kind: float(spearmanr([r[kind] for r in rows], labeled).statistic) for kind in kinds}
        shown = ", ".join(f"{kind} {value:.3f}" for kind, value in found[task.name].items())
        sys.stdout.write(f"{task.name}: {shown}\n")
    record = {"encoders": rows, "rank_correlation": found}
    atomic_write_text(Path(output_dir) / "results.json", json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    run_main(main)
