"""Docstrings of the Python packages on this machine: real text for the demo, without a download.

Reads source files with `ast`, imports nothing, executes nothing. Gives `(name, summary)` pairs for the task
`docs_search` and sentences to train on. A fixed hash of the summary assigns every pair to a split, so the splits share no
summary on any machine, and a model pretrained elsewhere has not seen the test split either.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path


# Packages that the pinned requirements install anyway and whose docstrings were written to be read.
DEFAULT_PACKAGES = ("stdlib", "numpy", "scipy", "pandas", "sklearn", "matplotlib", "networkx", "torch")
SKIPPED_FOLDERS = {"test", "tests", "testing", "_vendor", "site-packages", "idlelib", "lib2to3"}
TEST_SHARE = 4  # one summary in four is the test's
DEV_SHARE = 6  # and of the rest one in six is for choosing settings

_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
_NOT_PROSE = re.compile(r">>>|::|\.\. |----|====|^\s*[:@*+|]|\{|\}|\\", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """One documented function, method or class."""

    name: str  # the words of its name: "read csv"
    summary: str  # the first sentence of its docstring
    paragraphs: tuple[str, ...]  # every paragraph of prose, the summary's included

    @property
    def part(self) -> str:
        """`train`, `dev` or `test`."""
        number = int(hashlib.sha1(self.summary.lower().encode()).hexdigest(), 16)
        if number % TEST_SHARE == 0:
            return "test"
        return "dev" if number // TEST_SHARE % DEV_SHARE == 0 else "train"


def split_name(identifier: str) -> str:
    """The words of an identifier, lower case: `read_csv` and `ReadCSV` both give "read csv"."""
    return " ".join(word.lower() for word in _WORD.findall(identifier))


def collect(packages: Iterable[str] = DEFAULT_PACKAGES, num_proc: int | None = None) -> list[Docstring]:
    """Every documented public function, method and class of `packages`, in a fixed order.

    Args:
        packages: names of importable packages, or "stdlib"; packages that are not installed are skipped.
        num_proc: processes to parse with; by default one for each core.
    """
    files = sorted(set(_source_files(packages)))
    with ProcessPoolExecutor(num_proc) as pool:
        per_file = pool.map(_parse, files, chunksize=32)
    return [entry for entries in per_file for entry in entries]


def search_pairs(entries: Iterable[Docstring], part: str = "test") -> list[tuple[str, str]]:
    """(name, summary) pairs of one part: names of two words or more, each name and each summary once."""
    names: set[str] = set()
    summaries: set[str] = set()
    pairs = []
    for entry in entries:
        key = entry.summary.lower()
        if entry.part == part and " " in entry.name and entry.name not in names and key not in summaries:
            names.add(entry.name)
            summaries.add(key)
            pairs.append((entry.name, entry.summary))
    return pairs


def training_texts(entries: Iterable[Docstring]) -> list[str]:
    """Names and summaries of the training part as separate, unpaired texts, each once."""
    texts: dict[str, None] = {}
    for entry in entries:
        if entry.part == "train":
            texts.setdefault(entry.name)
            texts.setdefault(entry.summary)
    return list(texts)


def pretraining_paragraphs(entries: Iterable[Docstring]) -> list[str]:
    """Prose paragraphs of the training part, each once, none holding a summary of another part."""
    entries = list(entries)
    held_out = {entry.summary.lower() for entry in entries if entry.part != "train"}
    paragraphs: dict[str, None] = {}
    for entry in entries:
        if entry.part == "train":
            for paragraph in entry.paragraphs:
                if first_sentence(paragraph).lower() not in held_out:
                    paragraphs.setdefault(paragraph)
    return list(paragraphs)


def first_sentence(paragraph: str) -> str:
    return _SENTENCE_END.split(paragraph, maxsplit=1)[0].strip()


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
        with warnings.catch_warnings():  # invalid escapes in other people's files are not ours to report
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = (node for node in ast.walk(tree) if isinstance(node, kinds) and not node.name.startswith("_"))
    return [entry for node in nodes if (entry := _entry(node.name, ast.get_docstring(node)))]


def _entry(identifier: str, docstring: str | None) -> Docstring | None:
    if not docstring:
        return None
    blocks = [
        " ".join(block.split()) for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)) if _is_prose(block)
    ]
    if not blocks:
        return None
    summary = first_sentence(blocks[0])
    name = split_name(identifier)
    if not name or not 3 <= len(summary.split()) <= 40:
        return None
    return Docstring(name, summary, tuple(blocks))


def _is_prose(block: str) -> bool:
    letters = sum(character.isalpha() or character.isspace() for character in block)
    return block.isascii() and len(block.split()) >= 3 and letters > 0.8 * len(block) and not _NOT_PROSE.search(block)
