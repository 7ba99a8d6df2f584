"""Shared parts of the corpus scripts: sampling, and a text file with a report and a JSON record of how it was made."""

from __future__ import annotations

import hashlib
import json
import random
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from mirror.common.cli import positive
from mirror.common.errors import InputError
from mirror.common.files import atomic_write_text


def add_sampling(parser: ArgumentParser, what: str) -> None:
    """Add the flags of a script that samples texts: --count, --seed and --output_file."""
    parser.add_argument("--count", type=positive, default=10_000, metavar="N", help=f"Number of {what} to sample.")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="Random seed.")
    parser.add_argument("--output_file", required=True, metavar="F", help="Path of the text file to write.")


def draw_sample(args: Namespace, texts: Sequence[str], what: str, source: str = "") -> list[str]:
    """Draw --count of the texts, uniformly and without repetition.

    Args:
        what: what the texts are, for the message.
        source: where they come from, for the message.

    Raises:
        InputError: there are fewer texts.
    """
    if len(texts) < args.count:
        where = f"{source}: " if source else ""
        raise InputError(
            f"{where}{len(texts):,} {what}, fewer than --count {args.count}; lower it, or give more input"
        )
    return random.Random(args.seed).sample(texts, args.count)


def report_of(texts: list[str]) -> dict:
    """Return statistics of a non-empty corpus. Duplicates count because they are false negatives in a batch."""
    lengths = np.array([len(text) for text in texts])
    return {
        "texts": len(texts),
        "repeated": len(texts) - len(set(texts)),
        "characters_p5_p50_p95_max": [int(np.percentile(lengths, q)) for q in (5, 50, 95, 100)],
        "distinct_characters": len(set("".join(texts))),
    }


def write_corpus(path: str, texts: list[str], made_by: str, settings: dict, facts: dict | None = None) -> None:
    """Write one text per line to `path`, atomically, and a record to `<path>.json`, and print the report.

    Args:
        path: the text file.
        texts: the corpus.
        made_by: name of the script.
        settings: its flags, with file names instead of paths.
        facts: counts from reading the input, for example of dropped rows.

    Raises:
        InputError: there are no texts, or the file cannot be written.
    """
    if not texts:
        raise InputError("no texts left to write; change the flags or give more input")
    target = Path(path)
    content = "".join(f"{text}\n" for text in texts)
    record = {
        "made_by": made_by,
        "settings": settings,
        "facts": facts or {},
        "report": report_of(texts),
        "sha256": hashlib.sha256(content.encode()).hexdigest(),
        "numpy": version("numpy"),
    }
    try:
        atomic_write_text(
            target.with_name(target.name + ".json"), json.dumps(record, indent=2, ensure_ascii=False) + "\n"
        )
        atomic_write_text(target, content)
    except OSError as error:
        raise InputError(f"--output_file {path}: {error.strerror}") from error
    print(format_report(target.name, record))


def format_report(name: str, record: dict) -> str:
    """Format the report and the facts of a record as aligned lines."""
    report = record["report"]
    low, median, high, longest = report["characters_p5_p50_p95_max"]
    lines = [
        f"{name}: {report['texts']:,} texts, {report['repeated']:,} duplicates",
        f"  characters per text  {low} / {median} / {high} / {longest} (5%, median, 95%, maximum)",
        f"  distinct characters  {report['distinct_characters']:,}",
    ]
    return "\n".join(lines + [f"  {key.replace('_', ' '):<20} {value:,}" for key, value in record["facts"].items()])
