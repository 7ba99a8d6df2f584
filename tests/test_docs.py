"""Tests that every command of a page, a script's --help or a recipe is one that its program takes.

Nothing here names a command, so one that is added to a page is tested. Each command line is read by the program's own parser.
tests/test_docs_run.py runs the commands of the how-to pages. `...` stands for flags left out, a word of capitals for any value.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import re
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from transformers import HfArgumentParser, hf_argparser

from mirror.cmlm.options import CMLMDataArguments
from mirror.common import cli
from mirror.common.errors import InputError
from mirror.data.source import CorpusSource
from mirror.evaluation.run import all_tasks, resolve
from studies.study import find_study
from tests.documents import PAGES, RECIPES, ROOT, SCRIPTS, Block, Command, all_commands, blocks, text_of


try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same under its older name
    import tomli as tomllib

# Not this project's to check: they install, log in, schedule, or cut columns.
NOT_OURS = {"pip", "pip-audit", "pip-licenses", "uv", "hf", "trackio", "pre-commit", "ruff"} | {
    *("iconv", "touch", "mkdir", "rm", "cut", "head", "sed", "awk", "scontrol")
}
# Words of nobody's documentation but an earlier one of this project.
DIALECT = re.compile(
    r"\btrainings\b|\ba training(?! (run|dictionary|set|step|text))|\bat hand\b|\bto be had\b|\bno time to speak of\b|\bof like length\b"
    r"|\bas told\b|\bwhat is told\b|\bis told\b|\btwo roads\b|\bother readers\b|\bevery reader\b|\bfor everybody who\b|\bfor everyone who\b"
    r"|colour|favour|neighbour|behaviour|modelling|labelled|licence|\b(normal|optim|organ|initial|token|summar)is(e|ed|es|er|ing)\b",  # American spelling
    re.IGNORECASE,
)
SOMETHING_MISSING = re.compile(r"is missing|are required|give either")


# Each of some hundred commands reads the same sources and types.
PARSE, TYPES = cache(ast.parse), cache(hf_argparser.get_type_hints)


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ast, "parse", PARSE)
    for module in (hf_argparser, cli):
        monkeypatch.setattr(module, "get_type_hints", TYPES)
    with mock.patch.dict(os.environ):  # TrainingArguments leaves its precision there
        yield


class Parsed(Exception):
    """Stops a script that has read its arguments."""


def stopped_after(read):
    def wrapper(*args, **kwargs):
        raise Parsed(read(*args, **kwargs))

    return wrapper


def complain(self, message: str) -> None:
    raise InputError(message)


def parsed_by(module_name: str, argv: list[str]) -> dict:
    """Return the value of each flag of a script, read by its own code. The script goes no further.

    Raises:
        InputError: the script does not take `argv`.
    """
    module = sys.modules[importlib.import_module(module_name).main.__module__]
    readers = [name for name in vars(module) if re.fullmatch(r"parse_(\w+_)?(arguments|flags)", name)]
    places = [(module, name) for name in readers] or [
        (argparse.ArgumentParser, "parse_args"),
        (cli.Parser, "parse_args"),
        (HfArgumentParser, "parse_args_into_dataclasses"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module_name, *argv])
        patch.setattr(argparse.ArgumentParser, "error", complain)
        for arguments in (CorpusSource, CMLMDataArguments):  # a page names files that its reader has
            patch.setattr(arguments, "check_files", lambda self: None)
        for owner, name in places:
            patch.setattr(owner, name, stopped_after(getattr(owner, name)))
        with pytest.raises(Parsed) as stopped:
            module.main()
    (values,) = stopped.value.args
    groups = values if isinstance(values, tuple) else (values,)
    return {name: value for group in groups if not isinstance(group, list) for name, value in vars(group).items()}


def check(command: Command) -> None:
    """Read a command as its program would.

    Raises:
        InputError, OSError, ValueError, ImportError: the command could not be run as it stands.
    """
    try:
        check_program(without_placeholders(command), command.stdin)
    except InputError as error:
        if not ("..." in command.argv and SOMETHING_MISSING.search(str(error))):
            raise


def without_placeholders(command: Command) -> list[str]:
    return ["1" if re.fullmatch("[A-Z]+", word) else word for word in command.argv if word != "..."]


def launched(argv: list[str]) -> list[str]:
    """Return what a launcher would start, without its own flags, and any other command as it is.

    Raises:
        InputError, OSError: a flag that the launcher does not take, or a configuration that is not there.
    """
    if argv[:2] == ["accelerate", "launch"]:
        parser, own = importlib.import_module("accelerate.commands.launch").launch_command_parser(), argv[2:]
    elif argv[0] == "torchrun":
        parser, own = importlib.import_module("torch.distributed.run").get_args_parser(), argv[1:]
    else:
        return argv
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "error", complain)
        args = parser.parse_args(own)
    if getattr(args, "config_file", None):
        importlib.import_module("accelerate.commands.config.config_args").load_config_from_file(args.config_file)
    return ["python", args.training_script, *args.training_script_args]


def check_program(argv: list[str], stdin: str) -> None:
    match launched(argv):
        case ["python", "-"]:
            compile(stdin, "stdin", "exec")
        case ["python" | "python3", "-m", "pip" | "venv", *_]:
            check_requirements(argv)
        case ["python", "-m", "pytest", *rest]:
            assert all(Path(word).is_file() for word in rest if word.endswith(".py"))
        case ["python", "-m", module, *rest]:
            check_script(module, rest)
        case ["python", script, *rest] if script.startswith("examples/"):
            assert Path(script).is_file() and len(rest) >= 2, "an example takes a file of texts and an output folder"
        case ["python", script, *rest]:
            check_script(module_of(script), rest)
        case [name, *rest] if name.startswith("mirror-"):
            scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
            function = getattr(importlib.import_module("mirror.tools.entry_points"), scripts[name].partition(":")[2])
            check_script(f"mirror.tools.{function.args[0]}", rest)
        case [name, *_]:
            assert name in NOT_OURS, f"{name}: no program that is known here"
            check_requirements(argv)


def module_of(script: str) -> str:
    if script.endswith(".py") and not Path(script).is_file():
        raise InputError(f"{script}: no such script")
    return script.removesuffix(".py").replace("/", ".")


def check_script(module: str, argv: list[str]) -> None:
    place = argv.index("--") if "--" in argv else len(argv)
    values = parsed_by(module, argv)
    if argv[place + 1 :]:  # run_study.py hands these on
        is_cmlm = str(values.get("study")).startswith("cmlm")
        documents = ["--train_file", "en.txt"] if is_cmlm else []  # which the study names
        parsed_by("run_cmlm" if is_cmlm else "run_mirror", argv[place + 1 :] + documents)
    if values.get("study"):
        find_study(values["study"])
    names = values.get("tasks") or values.get("eval_tasks") or []
    if not str(values.get("data_dir")).startswith("out/"):  # made on the page itself, with tasks of its own
        resolve(
            [name for name in names if not name.startswith("my_")], all_tasks(Path("nowhere"))
        )  # a user's own files


def check_requirements(argv: list[str]) -> None:
    for flag, name in pairwise(argv):
        if flag == "-r" and not Path(name).is_file():
            raise InputError(f"{name}: no such file")


def complaints(found: list[Block], folder: Path) -> str:
    """Return a line for each command among `found` that its program does not take, with the reason."""
    lines = []
    for block in found:
        try:
            wanted = all_commands([block], folder)
        except AssertionError as error:
            lines.append(f"{block}: {error}")
            continue
        for command in wanted:
            try:
                check(command)
            except (InputError, OSError, ValueError, ImportError, AssertionError) as error:
                lines.append(f"{command}\n    {type(error).__name__}: {error}")
    return "\n".join(lines)


@pytest.mark.parametrize("sources", [*([page] for page in PAGES), SCRIPTS, RECIPES], ids=lambda sources: sources[0])
def test_every_command_of_a_page_a_help_text_and_a_recipe_is_taken_by_its_program(sources, tmp_path):
    assert not complaints([block for source in sources for block in blocks(source)], tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_python_on_a_page_compiles_and_imports_what_exists(page):
    for block in blocks(page):
        if block.language != "python":
            continue
        for node in ast.walk(ast.parse(block.text, str(block))):
            if isinstance(node, ast.Import):
                names = [(alias.name, None) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module, alias.name) for alias in node.names]
            else:
                continue
            for module, name in names:
                if importlib.util.find_spec(module.partition(".")[0]) is None:
                    assert not module.startswith("mirror"), f"{block}: no {module}"
                    continue  # a program that reads our files, not installed here
                assert name is None or hasattr(importlib.import_module(module), name), (
                    f"{block}: no {name} in {module}"
                )


def known_flags() -> set[str]:
    """Return every flag of every script and launcher."""
    flags = set()

    def remember(self, file=None):
        flags.update(self._option_string_actions)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "print_help", remember)
        for script in SCRIPTS:
            patch.setattr(sys, "argv", [script, "--help"])
            with pytest.raises(SystemExit):
                importlib.import_module(module_of(script)).main()
    for module, name in (
        ("accelerate.commands.launch", "launch_command_parser"),
        ("torch.distributed.run", "get_args_parser"),
    ):
        flags.update(getattr(importlib.import_module(module), name)()._option_string_actions)
    return flags


def test_every_flag_that_the_text_names_exists():
    flags = known_flags()
    unknown = [
        f"{page}: {flag}"
        for page in PAGES
        if page != "CHANGELOG.md"  # which names the flags that left
        for code in re.findall(r"`([^`\n]+)`", text_of(page))
        for flag in re.findall(r"(?<![\w-])--[a-z]\w+", code)
        if flag not in flags
    ]
    assert not unknown


def test_the_errors_on_the_troubleshooting_page_are_those_that_the_code_raises():
    said = "\n".join(
        template(node)
        for path in [*ROOT.glob("*.py"), *ROOT.glob("mirror/**/*.py"), *ROOT.glob("studies/*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    quoted = re.findall(r"`error: ([^`]+)`", text_of("docs/troubleshooting.md"))
    assert len(quoted) > 20
    pieces = [piece for message in quoted for piece in re.split(r"(?<=[;:,]) ", message)]  # which the code may join
    assert [piece for piece in pieces if piece.rstrip(";:, ") not in said] == []


def template(node: ast.AST) -> str:
    """Return a string of the code, with `...` for what is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("mirror/**/*.py"))]
)
def test_no_word_of_the_private_dialect_is_left(page):
    assert [match[0] for match in DIALECT.finditer((ROOT / page).read_text(encoding="utf-8"))] == []
