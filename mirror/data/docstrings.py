"""Docstrings of the Python packages on this machine: real text for the demo, without a download.

Reads source files with `ast`, imports and executes nothing. Provides `(name, summary)` pairs for the task `docs_search` and
sentences to train on. A fixed hash of the summary assigns every pair to a split, so the splits share no summary on any machine, and
a model that was pretrained elsewhere has not seen the test split either.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path


# Packages that the pinned requirements install anyway, with docstrings that were written to be read.
DEFAULT_PACKAGES = ("stdlib", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "networkx", "torch")
SKIPPED_FOLDERS = {"test", "tests", "testing", "_vendor", "site-packages", "idlelib", "lib2to3"}
_NOT_PROSE = re.compile(r">>>|::|\.\. |----|====|^\s*[:@*+|]|\{|\}|\\", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """A documented function, method or class."""

    name: str  # the words of its name: "read csv"
    summary: str  # the first sentence of its docstring
    paragraphs: tuple[str, ...]  # every paragraph of prose, the summary's included

    @property
    def part(self) -> str:
        """The split: `test` for one summary in four, `dev` for one in six of the rest, or `train`."""
        number = int(hashlib.sha1(self.summary.lower().encode()).hexdigest(), 16)
        return "test" if number % 4 == 0 else "dev" if number // 4 % 6 == 0 else "train"


def split_name(identifier: str) -> str:
    """Return the words of an identifier in lower case: `read_csv` and `ReadCSV` both become "read csv"."""
    return " ".join(re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+", identifier)).lower()


def collect(packages: Iterable[str] = DEFAULT_PACKAGES, num_proc: int | None = None) -> list[Docstring]:
    """Return every documented public function, method and class of those `packages` (or "stdlib") that are installed.

    The order is fixed. `num_proc` processes parse, by default one for each core.
    """
    files = sorted(set(_source_files(packages)))
    with ProcessPoolExecutor(num_proc) as pool:
        return [entry for entries in pool.map(_parse, files, chunksize=32) for entry in entries]


def search_pairs(entries: Iterable[Docstring], part: str = "test") -> list[tuple[str, str]]:
    """Return (name, summary) pairs of one part: names of two words or more, each name and each summary once."""
    pairs: dict[str, str] = {}
    summaries: set[str] = set()
    for entry in entries:
        key = entry.summary.lower()
        if entry.part == part and " " in entry.name and entry.name not in pairs and key not in summaries:
            summaries.add(key)
            pairs[entry.name] = entry.summary
    return list(pairs.items())


def training_texts(entries: Iterable[Docstring]) -> list[str]:
    """Return names and summaries of the training part as separate, unpaired texts, each once."""
    train = (entry for entry in entries if entry.part == "train")
    return list(dict.fromkeys(text for entry in train for text in (entry.name, entry.summary)))


def first_sentence(paragraph: str) -> str:
    """Return the first sentence of a paragraph."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", paragraph, maxsplit=1)[0].strip()


def _source_files(packages: Iterable[str]) -> Iterator[Path]:
    paths = sysconfig.get_paths()
    for package in packages:
        root = Path(paths["stdlib"]) if package == "stdlib" else Path(paths["purelib"]) / package
        if not root.is_dir() and (Path(paths["platlib"]) / package).is_dir():
            root = Path(paths["platlib"]) / package
        for path in root.rglob("*.py"):
            if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts[:-1]):
                yield path


def _parse(path: Path) -> list[Docstring]:
    try:
        with warnings.catch_warnings():  # about invalid escapes in files of others
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return []
    entries = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        blocks = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
        if blocks := [" ".join(block.split()) for block in blocks if _is_prose(block)]:
            name, summary = split_name(node.name), first_sentence(blocks[0])
            if name and 3 <= len(summary.split()) <= 40:
                entries.append(Docstring(name, summary, tuple(blocks)))
    return entries


def _is_prose(block: str) -> bool:
    letters = sum(character.isalpha() or character.isspace() for character in block)
    return block.isascii() and len(block.split()) >= 3 and letters > 0.8 * len(block) and not _NOT_PROSE.search(block)
