"""Settings of a study run: models, published recipes and corpora, and the checks of what the user gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from transformers import AutoConfig

from mirror.common.config_parser import RECIPES, load_recipe
from mirror.common.errors import InputError, one_line
from mirror.common.files import digest, file_digest
from mirror.evaluation.published import checkpoint_name
from studies.study import Cell, Study


Flags = dict[str, list[str]]

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Setup:
    """Settings of a study run."""

    model: str
    data_dir: Path
    corpus_dirs: tuple[Path, ...]
    output_dir: Path
    seeds: tuple[int, ...]
    stages_dir: Path = Path("stages")  # models of CMLM's stages
    max_train_samples: int | None = None
    extra: Flags = field(default_factory=dict)  # given after --
    language_models: Mapping[str, str] = field(default_factory=dict)  # part of a cell, or a language -> model
    skip_missing: bool = False
    modern: bool = False  # this project's defaults instead of the published recipes
    bli_vocabulary: str | None = None  # of run_eval.py

    def corpus(self, name: str) -> Path:
        """Return the path in the first folder that contains the file, or in the first folder if none does."""
        paths = [folder / name for folder in self.corpus_dirs]
        return next((path for path in paths if path.is_file()), paths[0])

    def models_of(self, cell: Cell) -> list[str]:
        """Return the model of a cell and, if it has one, that of its second language."""
        return [self.language_models.get(key, self.model) for key in (cell.language or cell.part, *cell.second[:1])]

    def recipe_of(self, cell: Cell, model: str) -> str | None:
        """Return the name of the published settings of a cell, or None: this project's defaults."""
        return None if self.modern else find_recipe(model, cell.level, cell.drophead)


@cache
def recipes() -> dict[str, dict]:
    """Return the settings of each file in `mirror/recipes/` by its name without .yaml: of Mirror-BERT, with a level, and of CMLM."""
    found = {path.stem: load_recipe(str(path)) for path in sorted(RECIPES.glob("*.yaml"))}
    if not found:
        raise InputError(f"no recipes in {RECIPES}, so the published settings are unknown; install the package again")
    for name, settings in found.items():
        if "level" in settings and "model_name_or_path" not in settings:
            lacks = "has no model_name_or_path, so nobody knows whose recipe it is; add it"
            raise InputError(f"{RECIPES / f'{name}.yaml'} {lacks}")
    return found


def find_recipe(model: str, level: str, drophead: bool = False) -> str | None:
    """Return the recipe of a model (a Hub id, or a folder of that name) and level, or None if nothing was published."""
    asked = level, drophead, checkpoint_name(model)
    for name, settings in recipes().items():
        own = checkpoint_name(settings.get("model_name_or_path", ""))
        if (settings.get("level"), bool(settings.get("drophead_rate")), own) == asked:
            return name
    return None


def paper_models(study: Study) -> dict[str, str]:
    """Return the models of the paper's own table, as named by the recipes, by part or language, if it has several."""
    if not study.paper_models:
        raise InputError(f"--paper_models: the paper has one model for all cells of '{study.title}'; leave it out")
    return {key: recipes()[name]["model_name_or_path"] for key, name in study.paper_models.items()}


@cache
def model_type(model: str, flag: str = "--model_name_or_path ") -> str:
    """Return the model type (`bert`, `roberta`, ...) of a Hub id or folder. `flag` names it in the error."""
    try:
        return AutoConfig.from_pretrained(model).model_type
    except (OSError, ValueError) as error:
        raise InputError(f"{flag}{model}: {one_line(error, 200)}") from error


@cache
def model_content(model: str) -> str:
    """Return a digest of the files of a local model, whatever its path, or the commit of a Hub id."""
    if not Path(model).is_dir():
        return AutoConfig.from_pretrained(model)._commit_hash or model
    files = sorted(path for path in Path(model).rglob("*") if path.is_file())
    return f"sha256:{digest({path.relative_to(model).as_posix(): file_digest(path) for path in files})}"


@cache
def corpus_facts(path: Path) -> tuple[int, str]:
    """Return the number of distinct texts of a file, one per line, and its SHA-256."""
    return len({line.strip() for line in path.read_bytes().split(b"\n")} - {b""}), file_digest(path)


content_of = cache(file_digest)  # of a data file, which is not read twice in a process
