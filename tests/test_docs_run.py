"""Runs the commands of the how-to pages on a tiny model, made-up texts and a small data folder, a step or two each.

Nothing here names a command. A file that a command reads and that is missing is made by rule, from the values of the flags: texts
by their ending and columns, models and finished runs, Hub datasets as folders, the files that tasks declare. Launchers are read
and left out: one process on the CPU runs the script.
"""

from __future__ import annotations

import gzip
import importlib
import io
import json
import random
import re
import shutil
import sys
from pathlib import Path

import pytest
from datasets import Dataset

import run_mirror
from mirror.common.errors import InputError
from mirror.evaluation.run import all_tasks, default_data_dir, resolve
from mirror.evaluation.task import DataFile, Options
from tests.conftest import WORDS
from tests.documents import PAGES, ROOT, Command, all_commands, blocks
from tests.evaluation.folder import write_tsv
from tests.test_docs import launched, module_of, parsed_by, without_placeholders
from tests.tools.test_push import server  # noqa: F401


pytestmark = pytest.mark.slow

# Pages whose commands are whole measurements, the page that tests/test_readme.py runs, and scripts that download or run a
# hundred others: other tests run those.
LEFT_OUT = re.compile(r"results\.md|performance\.md|studies/|mini-mlm/|^README\.md")
SCRIPTS_LEFT_OUT = ("data_scripts.prepare_eval_data", "run_study", "benchmarks.small_speed")
SLOW_TASKS = ("transfer", "amazon")
BRIEF = {
    # The tiny models have 64 positions.
    "run_mirror": "--max_steps 2 --per_device_train_batch_size 40 --max_seq_length 48 --disable_tqdm true",
    "run_cmlm": "--max_steps 2 --per_device_train_batch_size 4 --max_seq_length 48 --disable_tqdm true",
    "run_eval": "--skip_missing",
    "mirror.tools.demo": "--max_texts 50",
    "mirror.tools.distill": "--max_steps 2 --student layers:1",
    **dict.fromkeys(("data_scripts.umls_names", "data_scripts.sample_sentences"), "--count 600"),
    "data_scripts.wordpiece_vocabulary": "--vocab_size 200",
}
TEXTS = list({" ".join(random.Random(n).choices(WORDS, k=4 + n % 8)): None for n in range(800)})
LABELS = ("entailment", "neutral", "contradiction")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory) -> Path:
    """Return the output folder of a run of run_mirror.py on the embedded model."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "texts.txt").write_text("\n".join(TEXTS))
    flags = f"--train_file {folder}/texts.txt --output_dir {folder}/out --pooling mean"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["run_mirror.py", *flags.split(), *BRIEF["run_mirror"].split()])
        run_mirror.main()
    return folder / "out"


@pytest.fixture
def desk(tmp_path, monkeypatch) -> Path:
    """Make a folder to type in, with the scripts and recipes of this repository and nothing else."""
    for pattern in ("run_*.py", "*.txt", "mirror", "data_scripts", "accelerate_configs"):
        for path in ROOT.glob(pattern):
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MIRROR_DATA_DIR", raising=False)
    return tmp_path


@pytest.mark.parametrize("page", [page for page in PAGES if not LEFT_OUT.search(page)])
def test_the_commands_of_a_page_run(page, desk, finished_run, bert_folder, monkeypatch, server, tmp_path_factory):  # noqa: F811
    for name in ("launch", "block_thread"):  # or mirror.tools.demo would wait for a browser
        monkeypatch.setattr(f"gradio.Blocks.{name}", lambda self, **options: None)
    for command in all_commands(blocks(page), tmp_path_factory.mktemp("bash")):
        found = script_of(command)
        if found and found[0] not in SCRIPTS_LEFT_OUT and "..." not in command.argv:
            run(command, *found, finished_run, Path(bert_folder), monkeypatch)


def script_of(command: Command) -> tuple[str, list[str]] | None:
    """Return module and arguments of one of this project's scripts, None for a benchmark, an example and any other program."""
    match launched(without_placeholders(command)):
        case ["python", "-m", module, *argv] if module.startswith("mirror."):
            return module, argv
        case ["python", script, *argv] if script.endswith(".py") and not script.startswith(
            ("benchmarks/", "examples/")
        ):
            return module_of(script), argv
    return None


def run(command: Command, module: str, argv: list[str], finished_run: Path, plain_model: Path, monkeypatch) -> None:
    """Run a command.

    Raises:
        AssertionError: the script refuses its arguments or what it reads, or leaves nothing behind.
    """
    argv = argv + BRIEF.get(module, "").split()
    if {"--matryoshka_dims", "--truncate_dim"} & {*argv}:  # the tiny models have 32 dimensions
        argv = [{"128": "16", "64": "8"}.get(word, word) for word in argv]
    try:
        values = parsed_by(module, argv)
        make_what_is_missing(values, finished_run, plain_model)
        monkeypatch.setattr(sys, "argv", [module, *argv])
        monkeypatch.setattr(sys, "stdin", io.StringIO(command.stdin))
        importlib.import_module(module).main()
    except InputError as error:
        if "pip install" in str(error):
            return  # a package that is not installed here; the line says which
        raise AssertionError(f"{command}\n    {error}") from error
    for flag in ("output_dir", "output_file"):
        if flag in values and not values.get("list_tasks"):
            assert Path(values[flag]).exists(), f"{command}\n    left no {values[flag]}"


def make_what_is_missing(values: dict, finished_run: Path, plain_model: Path) -> None:
    output = values.get("output_dir")
    if output and Path(output).exists() and values.get("resume_from_checkpoint") in (None, "auto"):
        shutil.rmtree(output)
    for flag, value in values.items():
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str) or flag.startswith("output") or Path(item).exists():
                continue
            if flag in ("model_name_or_path", "second_model_name_or_path", "models"):
                shutil.copytree(finished_run if item.startswith("out/") else plain_model, item)
            elif flag in ("model", "folder"):
                shutil.copytree(finished_run, item)
            elif item.endswith("/"):
                make_documents(Path(item))
            elif flag == "dataset_name":
                make_file(Path(item) / "train.parquet", values)
            elif flag != "config" and re.search(r"\.(txt|[ct]sv|jsonl?|parquet|RRF)(\.gz)?$", item):
                make_file(Path(item.replace("*", "a")), values)
    names = [*(values.get("tasks") or values.get("eval_tasks") or [])]
    if values.get("keep") and not Path(values["keep"]).suffix:  # a task, or else a file
        names.append(values["keep"])
    for name in [name for name in names if name.startswith("my_")]:  # a folder of the user
        for file in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
            make_file(Path(name, file), {"id_column": "_id"})
    data_dir = Path(values["data_dir"]) if values.get("data_dir") else default_data_dir()
    options = Options(**{name: values[name] for name in Options.__dataclass_fields__ if name in values})
    for task in resolve(names, all_tasks(data_dir, options)):
        if not task.name.startswith(SLOW_TASKS):
            for file in task.files:
                make_data_file(file, data_dir)


def make_documents(folder: Path) -> None:
    """Write a folder of documents, each with a heading for every few of `TEXTS`."""
    folder.mkdir()
    for start in range(0, len(TEXTS), 12):
        sections = [
            f"## Topic {n}\n\n{TEXTS[n]}. {TEXTS[n - 1]}.\n" for n in range(start, min(start + 12, len(TEXTS)))
        ]
        (folder / f"page{start}.md").write_text(f"# Page {start}\n\n" + "\n".join(sections))


def make_file(path: Path, values: dict) -> None:
    """Write a file of `TEXTS` in the form of its ending, with the columns that the command names."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ending = path.name.removesuffix(".gz").rpartition(".")[2]
    named = values.get("pair_columns") or values.get("columns") or values.get("text_column") or "text"
    columns = [named] if isinstance(named, str) else [*named]
    columns += [f"column{n}" for n in range(len(columns), 3) if values.get("no_header")]
    rows = [{name: TEXTS[n - k] for k, name in enumerate(columns)} for n in range(len(TEXTS))]
    for name in filter(None, [values.get("id_column"), *(values.get("show_columns") or ())]):
        rows = [row | {name: str(n)} for n, row in enumerate(rows)]
    if "qrels" in str(path):
        rows = [{"query-id": str(n), "corpus-id": str(n), "score": "1"} for n in range(len(TEXTS))]
    elif path.stem == "queries":
        rows = [{"_id": str(n), "text": text} for n, text in enumerate(TEXTS)]
    if label := values.get("label_column"):
        rows = [row | {label: LABELS[n % 3]} for n, row in enumerate(rows)]
    documents = values.get("stage") is not None  # of run_cmlm.py
    if ending == "parquet":
        if documents:
            rows = [{"text": f"{text.capitalize()}. {TEXTS[n - 1].capitalize()}."} for n, text in enumerate(TEXTS)]
        Dataset.from_list(rows).to_parquet(path)
        return
    if ending == "txt":
        separator = values.get("pair_separator")
        lines = [f"{text} {separator} {TEXTS[n - 1]}" if separator else text for n, text in enumerate(TEXTS)]
        content = "\n".join(line + "\n" * (documents and n % 8 == 7) for n, line in enumerate(lines))
    elif ending == "RRF":
        fields = [["C1", "ENG", *["x"] * 12, text, "x", "N", "", ""] for text in TEXTS]
        content = "\n".join("|".join(row) for row in fields)
    elif ending.startswith("json"):
        content = "\n".join(json.dumps(row) for row in rows)
    else:
        separator = "," if ending == "csv" else "\t"
        content = "\n".join(separator.join(row) for row in [list(rows[0]), *(row.values() for row in rows)])
    data = (content + "\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def make_data_file(file: DataFile, data_dir: Path) -> None:
    """Write a file of the data folder with the rows and columns that its task declares."""
    if (data_dir / file.path).exists():
        return
    count, numbers = file.rows[0] if file.rows else 50, random.Random(file.path)
    low, high = file.score_range or (0, 1)
    makers = {
        "score": lambda n: round(numbers.uniform(low, high), 3),
        "label": lambda n: LABELS[0] if n % 2 else "not_entailment",
        "cui": lambda n: f"C{n % 40}",
    }
    rows = [[makers.get(name, lambda n: numbers.choice(TEXTS))(n) for name in file.columns] for n in range(count)]
    write_tsv(data_dir / file.path, file.columns, rows)
