"""Tests that the stored outputs of the notebooks can be published, and that each runs to its end with the embedded model."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager

from notebooks.execute import execute
from tests.hub_server import HubServer


ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
BADGE = re.compile(r"\(https://colab\.research\.google\.com/github/([\w.-]+/[\w.-]+)/blob/main/notebooks/([\w.]+)\)")
SOURCE = 'SOURCE = "mirror-encoders"'  # on PyPI
MINILM = "sentence-transformers/all-MiniLM-L6-v2"

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(notebook) -> str:
    """Return the text of all outputs, without images."""
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    return "".join(output.get("text", "") + output.get("data", {}).get("text/markdown", "") for output in outputs)


@each_notebook
def test_it_is_valid_and_installs_from_one_constant(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    address, name = BADGE.search(notebook.cells[0].source).groups()
    assert name == path.name and SOURCE in code_cells(notebook)[0].source
    assert path.read_text(encoding="utf-8").count(address) == 1  # only in the badge
    assert [cell.id for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())] == ["parameters"]
    # Timings and editor settings would change with every run.
    assert {key for cell in notebook.cells for key in cell.metadata} <= {"tags"}


def run_first_cell(monkeypatch, folder: Path, source: str) -> list[str]:
    """Run the first cell in `folder` as IPython does, and return its shell commands instead of running them."""
    commands = []

    class Shell:
        def system(self, command):
            commands.append(command)
            Path("mirror-encoders").mkdir(exist_ok=True)

        def run_line_magic(self, name, arguments):
            commands.append(f"{name} {arguments}")

    code = code_cells(nbformat.read(NOTEBOOKS[0], as_version=4))[0].source.replace(SOURCE, f"SOURCE = {source!r}")
    monkeypatch.chdir(folder)
    for name in ("PATH", "TQDM_DISABLE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr(sys, "path", list(sys.path))
    exec(TransformerManager().transform_cell(code), {"get_ipython": Shell})
    return commands


@pytest.mark.parametrize(
    ("source", "first"),
    [
        ("mirror-encoders", "pip download --quiet --no-deps --no-binary {SOURCE} {SOURCE} &&"),  # IPython fills it in
        ("https://github.com/someone/encoders", "git clone --quiet --depth 1 {SOURCE} mirror-encoders"),
    ],
)
def test_the_first_cell_installs_the_project_outside_a_checkout(source, first, monkeypatch, tmp_path):
    get, *_, install = run_first_cell(monkeypatch, tmp_path, source)
    assert get.startswith(first) and install == "pip install --quiet ./mirror-encoders"
    assert Path.cwd() == tmp_path / "mirror-encoders" and sys.path[0] == str(Path.cwd())


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """Copy the files that the notebooks need, so that nothing is written into this checkout."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("mirror", "studies", "data_scripts", "docs", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for script in ROOT.glob("run_*.py"):
        shutil.copy(script, folder)
    return folder


def run_briefly(path: Path, checkout: Path, *parameters: str) -> str:
    """Run a notebook with two training steps and other values of its parameters. Return what it printed."""
    notebook = nbformat.read(path, as_version=4)
    (place,) = (place for place, cell in enumerate(notebook.cells) if cell.id == "parameters")
    notebook.cells.insert(place + 1, nbformat.v4.new_code_cell("\n".join(["MAX_STEPS = 2", *parameters])))
    execute(notebook, checkout / "notebooks")
    # A failing shell command does not fail its cell.
    assert "error:" not in printed(notebook) and "Traceback" not in printed(notebook)
    return printed(notebook)


@pytest.mark.slow
@each_notebook
def test_it_runs_to_its_end(path, checkout, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run_briefly(path, checkout)


@pytest.fixture
def minilm(bert_folder, tmp_path) -> dict[str, bytes]:
    """Return the files of a tiny encoder with the modules of all-MiniLM-L6-v2: transformer, mean pooling, normalization."""
    from sentence_transformers import SentenceTransformer, models

    transformer = models.Transformer(bert_folder)
    pooling = models.Pooling(transformer.get_word_embedding_dimension(), "mean")
    SentenceTransformer(modules=[transformer, pooling, models.Normalize()], device="cpu").save_pretrained(
        tmp_path / "st"
    )
    files = [file for file in (tmp_path / "st").rglob("*") if file.is_file()]
    return {file.relative_to(tmp_path / "st").as_posix(): file.read_bytes() for file in files}


@pytest.mark.slow
def test_the_first_one_adapts_minilm_of_the_hub_to_a_folder(minilm, checkout, sentences, monkeypatch, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "docs").mkdir()
    parts = [f"# Part {n}\n\n{text}. {text}.\n" for n, text in enumerate(sentences)]
    (tmp_path / "docs/manual.md").write_text("\n".join(parts))
    with HubServer({(MINILM, "main"): minilm}) as hub:
        home = {"HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path)}
        for name, value in ({"HF_ENDPOINT": hub.url} | home).items():
            monkeypatch.setenv(name, value)
        text = run_briefly(NOTEBOOKS[0], checkout, f"FOLDER = {str(tmp_path / 'docs')!r}")
    assert f"model: {MINILM}" in text and "all-MiniLM-L6-v2 is an encoder already" in text
    pooling = json.loads((checkout / "out/documents/modules.json").read_text())
    assert [module["type"].rsplit(".")[-1] for module in pooling] == ["Transformer", "Pooling", "Normalize"]
