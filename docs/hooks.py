"""MkDocs hook: writes the reference of all commands from their `--help`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PLACE = "<!-- commands -->"


def on_page_markdown(markdown: str, page, **kwargs) -> str:
    """Replace `PLACE` by a section for each command of pyproject.toml."""
    return markdown.replace(PLACE, "\n\n".join(sections())) if PLACE in markdown else markdown


def sections() -> list[str]:
    """Return the heading and the help of each command."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = []
    for name, target in project["scripts"].items():
        module, function = target.split(":")
        code = f"import sys; sys.argv = [{name!r}, '--help']; from {module} import {function} as run; run()"
        environment = {"COLUMNS": "100", "PATH": "", "HOME": str(ROOT), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
        )
        found.append(f"## {name}\n\n```text\n{done.stdout.strip()}\n```")
    return found
