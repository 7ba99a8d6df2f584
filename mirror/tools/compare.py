"""Rank encoders on your own text, or on your own queries: which one should you take?

    mirror-compare intfloat/e5-small-v2 sentence-transformers/all-MiniLM-L6-v2 out/mirror --texts my_texts.txt
    mirror-compare A B C --texts docs.csv --text_column body --tasks my_queries --output_dir out/compare
    python -m mirror.tools.compare A B --tasks my_queries my_pairs.csv docs_search

Without labels, each text has to be found among all texts, by some of its words and by its first half, and each section of a folder
of documents by its heading. With --tasks, which are tasks of run_eval.py or files of your own, these rank the encoders. BM25 takes
part. Prints a table, the differences with 95% intervals, and what to do next. OUT gets compare.md, compare.svg and results.json.
"""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirror.common.cli import Parser, add_trust, configure_logging, hide_dataset_progress, positive
from mirror.common.errors import InputError, run_main


if TYPE_CHECKING:
    from datasets import Dataset

    from mirror.evaluation.metrics import Sample
    from mirror.evaluation.own_text import OwnTextTest
    from mirror.evaluation.run import PreparedTask
    from mirror.modeling.encoder import Encode, Encoder

logger = logging.getLogger(__name__)

LEXICAL = "BM25"
TIMED_TEXTS = 512
FACTS = {  # header and format of each column
    "dimension": ("dimension", "{:,}"),
    "size_mb": ("size, MB", "{:,.0f}"),
    "max_seq_length": ("maximum length", "{:,}"),
    "texts_per_second": ("texts per second", "{:,.0f}"),
    "unknown_tokens": ("unknown tokens", "{:.1%}"),
    "cut_tokens": ("cut tokens", "{:.1%}"),
}


def main() -> None:
    args = parse_arguments()
    configure_logging()
    hide_dataset_progress()

    # Imported here so that --help and errors in the flags are immediate.
    from mirror.common import trust
    from mirror.common.files import atomic_write_text, make_output_folder
    from mirror.evaluation import plots
    from mirror.evaluation.encoding import EncodeSettings, make_encode
    from mirror.evaluation.own_text import make_row_tests
    from mirror.evaluation.results import short_names
    from mirror.evaluation.run import make_plan
    from mirror.modeling.encoder import Encoder
    from mirror.modeling.read_checkpoint import check_name, checkpoint_settings

    trust.grant(args.allow_pickle, args.trust_remote_code)
    models = list(dict.fromkeys(args.models))
    for model in models:  # a typo in the last name is reported before the first encoder is scored
        check_name(model)
    rows = read_rows(args) if args.texts else None
    tasks = make_plan(args.tasks, args.data_dir).tasks if args.tasks else []
    try:
        tests = [] if tasks else make_row_tests(rows)
    except InputError as error:
        raise InputError(f"--texts {args.texts}: {error}; give more texts, or queries with --tasks") from error
    texts = list(dict.fromkeys(row.get("text_pair") or row["text"] for row in rows or ()))  # without headings
    output_dir = make_output_folder(args.output_dir)
    paths = dict(zip(short_names(models), models, strict=True))
    systems, lexical = [], lexical_by_own_text(tests) if tests else None
    for name, path in paths.items():
        encoder = Encoder.from_pretrained(path, None if checkpoint_settings(path).get("pooling") else args.pooling)
        encode = make_encode(encoder, EncodeSettings(batch_size=args.batch_size))
        if tests:
            system = by_own_text(name, encode, tests)
        else:
            system, lexical = by_tasks(name, encode, encoder, tasks)
        system.facts.update(facts_of(encoder, texts, args.batch_size))
        logger.info("%s: %.3f", name, system.score)
        systems.append(system)
    order, margins, differences = rank([*systems, *([lexical] if lexical else [])])
    lines = [format_table(order, margins), "", *map(str, differences), "", advice(order, paths, args)]
    report = "\n".join(lines) + "\n"
    sys.stdout.write(report)
    atomic_write_text(output_dir / "compare.md", report)
    record = {
        "texts": len(texts),
        "tests": {test.kind: len(test.queries) for test in tests},
        "ranking": [
            {"name": each.name, "model_name_or_path": paths.get(each.name), "score": each.score}
            | {"margin": margins[each.name], "scores": each.scores, **each.facts}
            for each in order
        ],
        "differences": [vars(each) | {"told_apart": each.told_apart} for each in differences],
    }
    atomic_write_text(output_dir / "results.json", json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    scores = {each.name: (each.score, margins[each.name]) for each in order}
    plots.ranking_bars(output_dir / "compare.svg", scores, "score, with its 95% interval")
    logger.info("Saved compare.md, compare.svg and results.json to %s", output_dir)


def read_rows(args: argparse.Namespace) -> Dataset:
    """Return at most `--max_texts` of the distinct rows, evenly spread over the files. Those of documents have their headings."""
    from mirror.data.cleaning import even_places
    from mirror.data.corpus import load_corpus
    from mirror.data.source import CorpusSource

    found = load_corpus(CorpusSource(train_file=[args.texts], text_column=args.text_column)).rows
    chosen = even_places(len(found), args.max_texts)
    logger.info("Loaded %s texts from %s, %s used", f"{len(found):,}", args.texts, f"{len(chosen):,}")
    return found.select(chosen)


def facts_of(encoder: Encoder, texts: Sequence[str], batch_size: int) -> dict[str, float | int]:
    """Measure what an encoder costs, and on N texts, if any, its speed here and the tokens that it does not know or cuts."""
    from mirror.modeling.backbone import unknown_share

    weights = [*encoder.model.parameters(), *encoder.head.parameters()]
    size = round(sum(each.numel() * each.element_size() for each in weights) / 1e6, 1)
    facts = {"dimension": encoder.dimension, "size_mb": size, "max_seq_length": encoder.max_seq_length}
    if not texts:
        return facts
    ids = encoder.tokenizer([encoder.prompt + text for text in texts], verbose=False)["input_ids"]
    lengths = np.array([len(row) for row in ids])
    timed = list(texts[:TIMED_TEXTS])
    encoder.encode(timed[:16], batch_size)  # the first pass allocates memory
    start = time.perf_counter()
    encoder.encode(timed, batch_size)
    return facts | {
        "texts_per_second": round(len(timed) / (time.perf_counter() - start), 1),
        "unknown_tokens": unknown_share(ids, encoder.tokenizer),
        "cut_tokens": float(np.maximum(lengths - encoder.max_seq_length, 0).sum() / lengths.sum()),
    }


def format_table(order: Sequence[System], margins: dict[str, float | None]) -> str:
    """Format systems, best first, as a table in Markdown. A fact that a system does not have is a dash."""
    parts = list(order[0].scores) if len(order[0].scores) > 1 else []
    cells = [["encoder", "score", *parts, *(header for header, _ in FACTS.values())]]
    for system in order:
        margin = "" if margins[system.name] is None else f" ± {margins[system.name]:.3f}"
        facts = [form.format(system.facts[key]) if key in system.facts else "–" for key, (_, form) in FACTS.items()]
        scores = [f"{system.scores[part]:.3f}" for part in parts]
        cells.append([system.name.replace("|", "\\|"), f"{system.score:.3f}{margin}", *scores, *facts])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    rows = (map(str.ljust, row, widths) for row in [cells[0], rule, *cells[1:]])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def advice(order: Sequence[System], paths: dict[str, str], args: argparse.Namespace) -> str:
    """Return one sentence that says what to do next, with a command for the user's own files."""
    best = next(system.name for system in order if system.name in paths)
    program = "python run_mirror.py" if sys.argv[0].endswith(".py") else "mirror-train"
    command = [*program.split(), "--model_name_or_path", paths[best], "--train_file", args.texts or "my_texts.txt"]
    command += ["--text_column", *args.text_column] if args.text_column else []
    command += ["--output_dir", str(Path(args.output_dir) / "adapted")]
    first = ""
    if not args.tasks:  # the order without labels is right within a family of encoders, not always between families
        first = "confirm the order with some queries (--tasks), then "
    elif order[0].name != best:
        first = f"{order[0].name} scores higher: search with both, as the fusion of run_eval.py does, and "
    return f"Next: {first}adapt {best} to your texts: {shlex.join(command)}"


# ---- Systems in order: scores with intervals, and which of them the same examples tell apart ---------------------------


@dataclass
class System:
    """A system's scores by test or task, the samples that they are from, and facts for the table."""

    name: str
    scores: dict[str, float]
    samples: dict[str, Sample | None]  # None where a task cannot be resampled
    facts: dict[str, float | int] = field(default_factory=dict)
    mean: Callable = np.mean  # of several scores; the geometric mean of tests on texts

    @property
    def score(self) -> float:
        """Return the mean of all scores."""
        return float(self.mean(list(self.scores.values())))

    def draws(self) -> np.ndarray | None:
        """Compute the mean score of 1,000 resamples, (1000,). None if a task cannot be resampled."""
        if None in self.samples.values():
            return None
        return self.mean([sample.draws(seed=seed) for seed, sample in enumerate(self.samples.values())], axis=0)


@dataclass(frozen=True)
class Difference:
    """Difference between the scores of two systems. `low` and `high` are its 95% interval, None if there is none."""

    first: str
    second: str
    change: float
    low: float | None
    high: float | None

    @property
    def told_apart(self) -> bool:
        """Return whether the interval lies above 0."""
        return self.low is not None and self.low > 0

    def __str__(self) -> str:
        from mirror.evaluation.own_text import short

        change = short(self.change)
        if self.low is None:
            return f"{self.first} over {self.second} by {change} (no interval for these tasks)"
        change += f" ± {short((self.high - self.low) / 2)}"
        if self.told_apart:
            return f"{self.first} over {self.second} by {change}"
        return f"{self.first} and {self.second} are not told apart ({change})"


def by_own_text(name: str, encode: Encode, tests: Sequence[OwnTextTest]) -> System:
    """Score an encoder by tests without labels. The score of a test is its mean reciprocal rank."""
    return _by_ranks(name, tests, [test.ranks(encode) for test in tests])


def lexical_by_own_text(tests: Sequence[OwnTextTest]) -> System:
    """Score BM25 by the same tests. An answer without a word of the query ranks below all that have one."""
    from mirror.common.vectors import ranks_in_scores

    return _by_ranks(LEXICAL, tests, [ranks_in_scores(t.lexical_scores(), np.arange(len(t.answers))) for t in tests])


def _by_ranks(name: str, tests: Sequence[OwnTextTest], ranks: Sequence[np.ndarray]) -> System:
    from scipy.stats import gmean

    scores = {test.kind: float((1 / each).mean()) for test, each in zip(tests, ranks, strict=True)}
    samples = {test.kind: test.sample(1 / each) for test, each in zip(tests, ranks, strict=True)}
    return System(name, scores, samples, mean=gmean)


def by_tasks(name: str, encode: Encode, encoder: Encoder, tasks: list[PreparedTask]) -> tuple[System, System | None]:
    """Score an encoder by tasks. Also return BM25's scores, None if one of the tasks has none."""
    ours, lexical = System(name, {}, {}), System(LEXICAL, {}, {})
    for task in tasks:
        fields = task.measure(encode, encoder)
        logger.info("%s: %s %s %.4f", name, task.name, task.task.metric, fields["main_score"])
        samples = fields.get("samples", {})
        ours.scores[task.name], ours.samples[task.name] = fields["main_score"], samples.get("encoder")
        if "bm25" in fields:
            lexical.scores[task.name], lexical.samples[task.name] = fields["bm25"][task.task.metric], samples["bm25"]
    return ours, lexical if lexical.scores.keys() == ours.scores.keys() else None


def rank(systems: Sequence[System]) -> tuple[list[System], dict[str, float | None], list[Difference]]:
    """Sort systems by score, best first. Also return the margin of each score's 95% interval, and each difference to the next."""
    from mirror.evaluation.metrics import interval, margin

    order = sorted(systems, key=lambda system: -system.score)
    draws = {system.name: system.draws() for system in order}
    margins = {name: None if each is None else margin(each) for name, each in draws.items()}
    differences = []
    for better, worse in pairwise(order):
        both = draws[better.name], draws[worse.name]
        low, high = (None, None) if any(each is None for each in both) else map(float, interval(both[0] - both[1]))
        differences.append(Difference(better.name, worse.name, better.score - worse.score, low, high))
    return order, margins, differences


# ---- Arguments ---------------------------------------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="Hub ids or paths of encoders.")
    add("--texts", metavar="FILE|FOLDER", help="Path to your texts: a file, a folder or a glob in quotes.")
    add("--text_column", nargs="+", metavar="T", help="Columns of the text (default: 'text', or the only column).")
    add("--tasks", nargs="+", metavar="T", help="Rank by tasks of run_eval.py, or folders or files with labels.")
    add("--data_dir", metavar="D", help="Path to the data of built-in tasks (default: $MIRROR_DATA_DIR, or 'data').")
    add("--output_dir", metavar="OUT", default="out/compare", help="Path to the output folder.")
    add("--max_texts", type=positive, default=2000, metavar="N", help="Number of texts to use, evenly spread.")
    add("--pooling", help="Pooling of the models that do not say how they pool, such as plain masked LMs.")
    add("--batch_size", type=positive, default=64, metavar="B", help="Number of texts per forward pass.")
    add_trust(parser)
    args = parser.parse_args()
    if not args.texts and (args.text_column or not args.tasks):
        parser.error("--text_column is of --texts; give both" if args.text_column else "give --texts or --tasks")
    return args


if __name__ == "__main__":
    run_main(main)
