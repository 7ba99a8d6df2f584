"""A small study, fake scripts that write what the real ones write, and cells that run in the test's own process."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import run_study
from mirror.common.errors import run_main
from studies.cell import LOG, run_cell
from studies.study import RATE, STUDIES, Cell, Claim, Column, Study
from tests.evaluation.folder import write_tsv


RG65 = (Column("rg65", "rg65"),)
STUDY = Study(
    "A small study",
    (
        Cell("before", ("rg65",), pooling="mean"),
        Cell("after", ("rg65",), ("texts.txt",), "word", {RATE: 2.5}, drophead=True),
    ),
    RG65,
    published={"bert-base-uncased": {"after": {"rg65": 0.25}}},
    claims=(Claim("after", "before", "rg65"),),
)
SENTENCES = Cell("after", ("rg65",), ("texts.txt",))
# The scripts log how they were called. A trained "model" stores its seed, which becomes the score.
HEAD = """
import hashlib, json, pathlib, sys
args = sys.argv[1:]
value = lambda flag: args[args.index(flag) + 1]
here = pathlib.Path(sys.argv[0]).parent
folder = pathlib.Path(value("--output_dir"))
def log(name):
    with (here / "calls.txt").open("a") as calls:
        calls.write(name + " " + " ".join(args) + "\\n")
def write(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)
    entry = {"bytes": len(content), "sha256": hashlib.sha256(content.encode()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps({name: entry}))
versions = {"python": "3.14", "torch": "9.1", "transformers": "8.2", "sentence-transformers": "7.3"}
record = {"metrics": {}, "run": {}, "corpus": {}, "settings": {}, "cosine_after_reload": {}}
record |= {"hardware": "1 thread of an abacus", "versions": versions}
"""
FAKE_MIRROR = f"""{HEAD}
log("mirror")
if (here / ("fail" + value("--seed"))).exists():
    sys.exit("Traceback\\nerror: no luck with this seed")
write(folder, "train_results.json", json.dumps(record | {{"method": "mirror"}}))
(folder / "seed").write_text(value("--seed"))
"""
# A stage fails if a file says so, after its first checkpoint.
FAKE_CMLM = f"""{HEAD}
log("cmlm")
if (here / ("fail-" + value("--stage"))).exists():
    write(folder / "checkpoint-5", "weights", "half")
    sys.exit("error: the power went out")
write(folder, "train_results.json", json.dumps(record | {{"method": "cmlm"}}))
"""
FAKE_EVAL = f"""{HEAD}
log("eval")
seed = pathlib.Path(value("--model_name_or_path")) / "seed"
score = int(seed.read_text()) / 100 if seed.exists() else 0.7 if "--remove_components" in args else 0.1
fields = ["main_score", "own_language", "own_language_ranked", "neutrality_ranked", "accuracy", "accuracy_from_english", "accuracy_mean"]
fields += ["accuracy_" + language for language in ("en", "de", "fr", "jp")]
result = dict.fromkeys(fields, score) | {{"languages": ["de", "fr", "zh"], "matrix_ranked": [[0.2, 0.5, 0.3]] * 3}}
result["points"] = {{"fra": [[[0, 1], [1, 0]], [[0.5, 1], [1, 0.2]]]}}
tasks = args[args.index("--tasks") + 1 : args.index("--data_dir")]
write(folder, "results.json", json.dumps({{"tasks": {{task: result for task in tasks}}}}))
"""
SCRIPTS = {"run_mirror.py": FAKE_MIRROR, "run_cmlm.py": FAKE_CMLM, "run_eval.py": FAKE_EVAL}


def write_inputs(folder: Path, sentences: list[str], before: str = "") -> None:
    """Write the data of one task, one corpus, and the fake scripts with the code `before` at their beginning."""
    words = sorted({word for sentence in sentences for word in sentence.split()})
    rows = [(words[n % 90], words[(n * 7 + 3) % 90], round(4 * ((n * 13) % 65) / 64, 3)) for n in range(65)]
    write_tsv(folder / "data/wordsim/rg65.tsv", ("word1", "word2", "score"), rows)
    (folder / "data/mirror_corpus").mkdir()
    (folder / "data/mirror_corpus/texts.txt").write_text("\n".join([*sentences, sentences[0], ""]))
    for name, code in SCRIPTS.items():
        (folder / name).write_text(before + code)


def start_here(job_file: Path, environment: dict[str, str]) -> SimpleNamespace:
    """Run a cell in this process instead of a new one, which imports for a second (`studies.runner.start_cell`)."""
    status = 0
    to_log = contextlib.ExitStack()
    log = to_log.enter_context((job_file.parent / LOG).open("w"))
    for context in (contextlib.redirect_stdout(log), contextlib.redirect_stderr(log)):
        to_log.enter_context(context)
    to_log.enter_context(mock.patch("studies.cell.lock_output_dir"))  # this process does not end with the cell
    to_log.enter_context(mock.patch("studies.cell.gc.collect"))  # slow, and no fake has a Trainer
    with to_log:
        try:
            run_main(lambda: run_cell(job_file))
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
            log.write(str(end.code))
    return SimpleNamespace(poll=lambda: status, returncode=status)


def run(monkeypatch, workplace: Path, model: str, *flags, name: str = "small") -> None:
    """Run a study on the inputs of `write_inputs`."""
    common = ["--data_dir", workplace / "data", "--output_dir", workplace / "out", "--model_name_or_path", model]
    monkeypatch.setattr(sys, "argv", [str(item) for item in ("run_study.py", name, *common, *flags)])
    run_study.main()


def calls(workplace: Path) -> list[list[str]]:
    """The calls of the fake scripts: name, then arguments."""
    path = workplace / "calls.txt"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def value(call: list[str], flag: str) -> str:
    return call[call.index(flag) + 1]


def declare(monkeypatch, *cells: Cell, title: str = "S", **fields) -> None:
    """Replace the study `small` by one of these cells."""
    monkeypatch.setitem(STUDIES, "small", Study(title, cells, RG65, **fields))
