"""`modules.json` of a sentence-transformers checkpoint: which modules can be used, and where the weights of the first are."""

from __future__ import annotations

import json
from pathlib import Path

from mirror.common import loading_policy
from mirror.common.errors import InputError


FIRST = ("Transformer", "Pooling")
LATER = ("Dense", "LayerNorm", "Normalize", "Dropout")  # they turn one vector into another
LIBRARY = "sentence_transformers."


def modules_of(name_or_path: str) -> list[dict]:
    """The content of `modules.json`; empty where there is none.

    Raises:
        InputError: it is damaged, or has a module that this project can neither use nor train through.
    """
    modules = read_json(name_or_path, "modules.json", list) or []
    for number, module in enumerate(modules):
        library, _, kind = module["type"].rpartition(".")
        known = (FIRST[number],) if number < len(FIRST) else LATER
        is_custom = not f"{library}.".startswith(LIBRARY)
        if is_custom and number >= len(FIRST) and loading_policy.remote_code()["trust_remote_code"]:
            continue
        if is_custom or kind not in known:
            raise InputError(
                f"{name_or_path}: its module {number + 1}, {module['type']}, can be neither used nor trained through; what can is "
                f"{', '.join(FIRST)}, and then {', '.join(LATER)} of sentence-transformers"
            )
    return modules


def backbone_subfolder(name_or_path: str) -> str:
    """The folder of the backbone inside a checkpoint: "" or, in older ones, such as `0_Transformer`.

    Raises:
        InputError: it is outside the checkpoint, or as `modules_of`.
    """
    modules = modules_of(name_or_path)
    return check_inside(name_or_path, modules[0]["path"]) if modules else ""


def check_inside(name_or_path: str, path: str) -> str:
    """
    Raises:
        InputError: the path of a module is outside the checkpoint.
    """
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise InputError(f"{name_or_path}: modules.json names '{path}', which is outside the checkpoint")
    return path


def read_json(name_or_path: str, filename: str, kind: type) -> dict | list | None:
    path = loading_policy.model_file(name_or_path, filename)
    if path is None:
        return None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{name_or_path}: {filename} is not valid JSON ({error})") from error
    if not isinstance(content, kind):
        raise InputError(f"{name_or_path}: {filename} holds a {type(content).__name__}, expected a {kind.__name__}")
    return content
