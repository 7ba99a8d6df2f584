"""The next commands after a training, a scoring or an encoding, with the paths filled in. Imports nothing heavy."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path


COMMANDS = {"run_mirror.py": "mirror-train", "run_eval.py": "mirror-eval"}


def after_training(folder: str, base_model: str) -> str:
    """What to do with a new encoder.

    Args:
        base_model: what the training started from.
    """
    folder, base = shlex.quote(folder), shlex.quote(_from_here(base_model))
    return _listing(
        {
            f"python -m mirror.tools.search {folder} my_texts.txt 'a query'": "search your texts",
            f"python -m mirror.tools.demo {folder} --before {base}": "before and after, in a browser",
            f"{_script('run_eval.py')} --model_name_or_path {folder} --tasks docs_search --output_dir {folder}-scores": "score it",
            f"python -m mirror.tools.push {folder} --hub_model_id your-name/your-encoder": "share it",
        }
    )


def after_scoring(models: Sequence[str], results: Sequence[Path]) -> str:
    """What to do with the last one of the models that were scored.

    Args:
        models: folders or Hub ids.
        results: the file results.json of each.
    """
    model = shlex.quote(models[-1])
    steps = {f"python -m mirror.tools.search {model} my_texts.txt 'a query'": "search your texts"}
    is_run = [(Path(name) / "train_results.json").exists() for name in models]
    if is_run[-1]:
        scores = shlex.join(
            map(str, results if is_run == [False, True] else results[-1:])
        )  # before and after, or after
        steps[f"python -m mirror.tools.model_card {model} --results {scores}"] = "put the scores on its card"
        steps[f"python -m mirror.tools.push {model} --hub_model_id your-name/your-encoder"] = "share it"
    else:
        command = f"{_script('run_mirror.py')} --model_name_or_path {model} --train_file my_texts.txt"
        steps[command] = "adapt it to your texts"
    return _listing(steps)


def after_encoding(folder: str) -> str:
    """How to read the vectors."""
    code = (
        f'from datasets import load_dataset; print(load_dataset("parquet", data_files="{folder}/*.parquet")["train"])'
    )
    return _listing({f"python -c {shlex.quote(code)}": "read the vectors"})


def _from_here(model: str) -> str:
    """An absolute path below the working directory without it; a Hub id and any other path as they are."""
    here = Path.cwd()
    return str(Path(model).relative_to(here)) if Path(model).is_relative_to(here) else model


def _script(name: str) -> str:
    """A script as it is called here: from a checkout, or as an installed command."""
    return f"python {name}" if sys.argv[0].endswith(".py") else COMMANDS[name]


def _listing(steps: dict[str, str]) -> str:
    return "\n".join(["next:", *(f"  {command}   # {purpose}" for command, purpose in steps.items())])
