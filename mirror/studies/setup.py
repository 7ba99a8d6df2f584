"""Settings of a study run: its models, folders and corpora, and the checks of what the user gave."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple

from transformers import AutoConfig

from mirror.common.errors import InputError, did_you_mean, one_line
from mirror.evaluation.published import checkpoint_name
from mirror.studies.cells import Cell, Study
from mirror.studies.recipes import Recipe, find_recipe, recipe_named


Flags = dict[str, list[str]]

# part of a corpus file name -> the script that creates the corpus
CORPUS_SCRIPTS = (
    ("random_strings", "random_strings.py"),
    ("_words_", "frequent_words.py"),
    ("umls", "umls_names.py"),
    ("train.txt", "docstring_corpus.py"),
    ("disease_names", "disease_names.py"),
)


@dataclass(frozen=True)
class Setup:
    """Settings of a study run."""

    model: str
    data_dir: Path
    corpus_dirs: tuple[Path, ...]
    output_dir: Path
    seeds: tuple[int, ...]
    max_train_samples: int | None = None
    extra: Flags = field(default_factory=dict)  # for run_mirror.py
    language_models: Mapping[str, str] = field(default_factory=dict)  # part of a cell, or a language -> model
    skip_missing: bool = False
    modern: bool = False  # this project's defaults instead of the published recipes
    bli_vocabulary: str | None = None  # of run_eval.py

    def corpus(self, name: str) -> Path:
        """Return the path in the first folder that contains the file, or in the first folder if none does."""
        paths = [folder / name for folder in self.corpus_dirs]
        return next((path for path in paths if path.is_file()), paths[0])

    def model_of(self, cell: Cell) -> str:
        return self.language_models.get(cell.language or cell.part, self.model)

    def models_of(self, cell: Cell) -> list[str]:
        """Return the model of a cell and, if it has one, that of its second language."""
        second = [self.language_models.get(cell.second.language, self.model)] if cell.second else []
        return [self.model_of(cell), *second]

    def recipe_of(self, cell: Cell, model: str) -> Recipe | None:
        """Return the published settings of a cell, or None: this project's defaults."""
        return None if self.modern else find_recipe(model, cell.level, cell.drophead)

    def checkpoint_of(self, cell: Cell) -> str:
        """Return the name that the published numbers of a cell's models would have."""
        return checkpoint_name(*self.models_of(cell))


def check_models(study: Study, setup: Setup) -> None:
    """Check that every model can be read, and that `--language_models` names parts of the study.

    Raises:
        InputError: a part that the study does not have, or a model whose configuration cannot be read.
    """
    known = language_keys(study)
    model_type(setup.model)
    for part, model in setup.language_models.items():
        if part not in known:
            has = f"it has {', '.join(known)}" if known else "all its cells have one model"
            raise InputError(
                f"--language_models {part}={model}: this study has no {part}{did_you_mean(part, known)}; {has}"
            )
        model_type(model, f"--language_models {part}=")


def language_keys(study: Study) -> list[str]:
    """Return the parts and languages of a study that can have a model of their own."""
    keys = [(cell.language or cell.part, cell.second.language if cell.second else "") for cell in study.cells]
    return [key for key in dict.fromkeys(key for both in keys for key in both) if key]


def paper_models(study: Study) -> dict[str, str]:
    """Return the models of the paper's own table, as named by the recipes, by part or language.

    Raises:
        InputError: the paper has one model for all cells of the study.
    """
    if not study.paper_models:
        raise InputError(f"--paper_models: the paper has one model for all cells of '{study.title}'; leave it out")
    return {key: recipe_named(name).model for key, name in study.paper_models.items()}


@cache
def model_type(model: str, flag: str = "--model_name_or_path ") -> str:
    """Return the model type (`bert`, `roberta`, ...) of a Hub id or folder.

    Raises:
        InputError: the configuration cannot be read.
    """
    try:
        return AutoConfig.from_pretrained(model).model_type
    except (OSError, ValueError) as error:
        raise InputError(f"{flag}{model}: {one_line(error, 200)}") from error


@cache
def folder_content(model: str) -> str:
    """Return a hash of the files of a local model, whatever its path; a Hub id as it is."""
    if not Path(model).is_dir():
        return model
    digest = hashlib.sha256()
    for path in sorted(path for path in Path(model).rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(model)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def how_to_make(corpus: str) -> str:
    """Return which script creates a missing corpus."""
    script = next((script for part, script in CORPUS_SCRIPTS if part in corpus), "sample_sentences.py")
    return f"in a checkout, python data_scripts/{script} creates it"


class CorpusFacts(NamedTuple):
    """What is known of a text file before training on it."""

    distinct: int  # texts
    sha256: str
    rows: int  # texts, repeated ones too


@cache
def corpus_facts(path: Path) -> CorpusFacts:
    """Count the texts of a file, one per line, and compute its SHA-256."""
    content = path.read_bytes()
    texts = [line for line in map(bytes.strip, content.split(b"\n")) if line]
    return CorpusFacts(len(set(texts)), hashlib.sha256(content).hexdigest(), len(texts))
