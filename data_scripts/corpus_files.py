"""What the corpus scripts share: a text file, whole or not there, a report, and a record of how it was made."""

from __future__ import annotations

import hashlib
import json
from importlib.metadata import version
from pathlib import Path

import numpy as np

from mirror.errors import InputError
from mirror.files import write_whole


def report_of(texts: list[str]) -> dict:
    """Facts of a corpus of one or more texts; equal texts are false negatives in a batch."""
    lengths = np.array([len(text) for text in texts])
    return {
        "texts": len(texts),
        "repeated": len(texts) - len(set(texts)),
        "characters_p5_p50_p95_max": [int(np.percentile(lengths, q)) for q in (5, 50, 95, 100)],
        "distinct_characters": len(set("".join(texts))),
    }


def write_corpus(path: str, texts: list[str], made_by: str, settings: dict, facts: dict | None = None) -> None:
    """Write one text a line, beside it `<path>.json` with how it came about, and print the report.

    Args:
        made_by: the script; `settings` are its flags, files by name only, and `facts` what it saw on the way.

    Raises:
        InputError: there is no text, or the file cannot be written.
    """
    if not texts:
        raise InputError("no text is left to write; loosen the flags or give more input")
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
        write_whole(target.with_name(target.name + ".json"), json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        write_whole(target, content)
    except OSError as error:
        raise InputError(f"--output_file {path}: {error.strerror}") from error
    print(format_report(target.name, record))


def format_report(name: str, record: dict) -> str:
    report = record["report"]
    low, median, high, longest = report["characters_p5_p50_p95_max"]
    lines = [
        f"{name}: {report['texts']:,} texts, {report['repeated']:,} of them repeated",
        f"  characters a text    {low} / {median} / {high} / {longest} (5 %, median, 95 %, longest)",
        f"  distinct characters  {report['distinct_characters']:,}",
    ]
    return "\n".join(lines + [f"  {key.replace('_', ' '):<20} {value:,}" for key, value in record["facts"].items()])
