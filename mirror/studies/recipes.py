"""The published settings of a cell: the recipe of its model and level in `recipes/`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mirror.common.config_parser import load_recipe
from mirror.common.errors import InputError
from mirror.evaluation.published import checkpoint_name


RECIPES = Path(__file__).resolve().parents[2] / "recipes"  # also in an installed package: beside the scripts


@dataclass(frozen=True)
class Recipe:
    """A file of `recipes/`."""

    path: Path
    settings: dict

    @property
    def name(self) -> str:
        return f"recipes/{self.path.name}"

    @property
    def model(self) -> str:
        return self.settings["model_name_or_path"]

    @property
    def drophead_rate(self) -> float:
        return self.settings.get("drophead_rate", 0.0)

    @property
    def flags(self) -> dict[str, list[str]]:
        """The settings as flags of run_mirror.py."""
        return {key: [str(value)] for key, value in self.settings.items()}


def find_recipe(model: str, level: str, drophead: bool = False) -> Recipe | None:
    """Return the recipe of a model and level, with drophead or without, or None if nothing was published.

    Args:
        model: a Hub id, or a folder with the name of the checkpoint.
    """
    wanted = (checkpoint_name(model), level, drophead)
    for recipe in all_recipes():
        if (checkpoint_name(recipe.model), recipe.settings["level"], bool(recipe.drophead_rate)) == wanted:
            return recipe
    return None


def recipe_named(name: str) -> Recipe:
    """Return the recipe in `recipes/<name>.yaml`, of Mirror-BERT or of CMLM.

    Raises:
        InputError: there is none, or it is damaged.
    """
    path = RECIPES / f"{name}.yaml"
    return Recipe(path, load_recipe(str(path)))


@cache
def all_recipes() -> tuple[Recipe, ...]:
    """Return the recipes of Mirror-BERT.

    Raises:
        InputError: there is no folder `recipes/`, or a file in it is damaged.
    """
    found = [Recipe(path, load_recipe(str(path))) for path in sorted(RECIPES.glob("*.yaml"))]
    if not found:
        raise InputError(
            f"no recipes in {RECIPES}, so the published settings are not known; install the package again"
        )
    ours = tuple(recipe for recipe in found if "level" in recipe.settings)  # the others are CMLM's
    for recipe in ours:
        if "model_name_or_path" not in recipe.settings:
            raise InputError(f"{recipe.path} has no model_name_or_path, so it is not known whose recipe it is; add it")
    return ours
