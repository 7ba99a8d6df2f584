"""Run notebooks from the first cell to the last and store their outputs.

    python notebooks/execute.py
    python notebooks/execute.py notebooks/02_from_bert.ipynb

Timings and editor settings, which would change with every run, are not stored.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode


FOLDER = Path(__file__).resolve().parent


def main() -> None:
    for path in map(Path, sys.argv[1:] or sorted(FOLDER.glob("*.ipynb"))):
        notebook = nbformat.read(path, as_version=4)
        execute(notebook, FOLDER)
        nbformat.write(notebook, path)


def execute(notebook: NotebookNode, folder: Path) -> None:
    """Run `notebook` in `folder`; new outputs replace the old ones.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    client = NotebookClient(
        notebook,
        timeout=3600,  # seconds per cell
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": folder}},
    )
    client.execute()
    notebook.metadata.language_info = {"name": "python"}  # without the Python version of this run
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                output.text = output.text.replace("\r\n", "\n")  # shell commands write to a terminal


if __name__ == "__main__":
    main()
