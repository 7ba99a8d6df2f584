"""Every command that a page, a script's --help or a recipe tells people to type is one that its program takes.

Nothing here names a command: one that is added to a page is tested. The quick tests read each command line with the program's
own parser and stop there; the slow one runs the commands of the how-to pages on a tiny model and made-up data.

Placeholders are understood by rule: `...` stands for flags left out, a word of capitals for any value.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import re
import sys
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from transformers import HfArgumentParser

from mirror.cmlm.arguments import CMLMDataArguments
from mirror.common.errors import InputError
from mirror.data.arguments import DataArguments
from mirror.evaluation.catalogue import all_tasks, resolve
from mirror.studies.catalogue import find_study
from tests.documents import (
    PAGES,
    RECIPES,
    ROOT,
    SCRIPTS,
    Block,
    Command,
    all_commands,
    blocks,
    blocks_in,
    commands,
    text_of,
)


try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same under its older name
    import tomli as tomllib

# Not this project's to check: they install, log in, schedule, or cut columns.
NOT_OURS = {"pip", "pip-audit", "pip-licenses", "uv", "hf", "trackio", "pre-commit", "ruff"} | {
    *("iconv", "touch", "mkdir", "rm", "cut", "head", "sed", "awk", "scontrol")
}
SOMETHING_MISSING = re.compile(r"is missing|are required|give either")


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch):
    monkeypatch.chdir(ROOT)
    with mock.patch.dict(os.environ):  # TrainingArguments leaves its precision there
        yield


class Parsed(Exception):
    """A script has read its arguments; it is not to go on."""


def stopped_after(read):
    def wrapper(*args, **kwargs):
        raise Parsed(read(*args, **kwargs))

    return wrapper


def complain(self, message: str) -> None:
    raise InputError(message)


def parsed_by(module_name: str, argv: list[str]) -> dict:
    """The value of each flag of a script, read by its own code; the script goes no further.

    Raises:
        InputError: the script does not take `argv`.
    """
    module = importlib.import_module(module_name)
    readers = [name for name in vars(module) if re.fullmatch(r"parse_(\w+_)?(arguments|flags)", name)]
    places = [(module, name) for name in readers] or [
        (argparse.ArgumentParser, "parse_args"),
        (HfArgumentParser, "parse_args_into_dataclasses"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module_name, *argv])
        patch.setattr(argparse.ArgumentParser, "error", complain)
        for arguments in (DataArguments, CMLMDataArguments):  # a page names files that its reader has
            patch.setattr(arguments, "check_files", lambda self: None)
        for owner, name in places:
            patch.setattr(owner, name, stopped_after(getattr(owner, name)))
        with pytest.raises(Parsed) as stopped:
            module.main()
    (values,) = stopped.value.args
    groups = values if isinstance(values, tuple) else (values,)
    return {name: value for group in groups for name, value in vars(group).items()}


def check(command: Command) -> None:
    """
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
    """What a launcher would start, its own flags read and gone; any other command as it is.

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
        case ["python", script, *rest]:
            check_script(module_of(script), rest)
        case [name, *rest] if name.startswith("mirror-"):
            scripts = tomllib.loads(Path("pyproject.toml").read_text())["project"]["scripts"]
            function = getattr(importlib.import_module("mirror.tools.entry_points"), scripts[name].partition(":")[2])
            check_script(module_of(function.__doc__.split()[-1]), rest)
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
        parsed_by("run_mirror", argv[place + 1 :])
    if values.get("study"):
        find_study(values["study"])
    names = values.get("tasks") or values.get("eval_tasks") or []
    if not str(values.get("data_dir")).startswith("out/"):  # made on the page itself, with tasks of its own
        resolve(names, all_tasks(Path("nowhere")))


def check_requirements(argv: list[str]) -> None:
    for flag, name in pairwise(argv):
        if flag == "-r" and not Path(name).is_file():
            raise InputError(f"{name}: no such file")


def complaints(found: list[Block], folder: Path) -> str:
    lines = []
    for command in all_commands(found, folder):
        try:
            check(command)
        except (InputError, OSError, ValueError, ImportError, AssertionError) as error:
            lines.append(f"{command}\n    {type(error).__name__}: {error}")
    return "\n".join(lines)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_taken_by_its_program(page, tmp_path):
    assert not complaints(blocks(page), tmp_path)


@pytest.mark.parametrize("sources", [SCRIPTS, RECIPES], ids=["help", "recipes"])
def test_every_command_of_a_help_text_and_of_a_recipe_is_taken_too(sources, tmp_path):
    assert not complaints([block for source in sources for block in blocks(source)], tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("python run_mirror.py --trian_file a.txt", "unknown flag --trian_file"),
        ("python run_mirror.py --learning_rate fast", "invalid float value"),
        ("python run_mirror.py --level paragraph", "--level 'paragraph' is unknown"),
        ("python run_mirror.py --config recipes/none.yaml", "No such file"),
        ("python run_mirror.py --eval_tasks stbs_dev", "did you mean 'stsb_dev'"),
        ("python run_eval.py --tasks sts --output_dir out", "give either --model_name_or_path"),
        ("python run_eval.py --model_name_or_path M --tasks stss --output_dir out", "unknown task"),
        ("python -m mirror.tools.search out", "arguments are required"),
        ("python run_encoder.py", "no such script"),
        ("accelerate launch --config_file accelerate_configs/tpu.yaml run_mirror.py", "does not exist"),
        ("accelerate launch --num_processes many run_mirror.py", "invalid int value"),
        ("torchrun --nproc_per_node 2 run_mirror.py --nonsense", "unknown flag --nonsense"),
        ("python run_study.py table99 --model_name_or_path M", "unknown study 'table99'"),
        ("python run_study.py table3 --model_name_or_path M -- --bff16", "unknown flag --bff16"),
        ("for s in 1 2; do python run_mirror.py --seed $s$s --seeds; done", "unknown flag --seeds"),
        ("pip install -r requirements-none.txt", "no such file"),
        ("mirror-train --nonsense", "unknown flag --nonsense"),
        ("srun bash -c 'python run_mirror.py --nonsense'", "unknown flag --nonsense"),
        ("pythn run_mirror.py", "no program that is known here"),
    ],
)
def test_a_wrong_command_would_be_found(line, message, tmp_path):
    found = complaints([Block("page.md", 7, "bash", line)], tmp_path)
    assert re.search(message, found) and found.startswith("page.md:7: "), found


def test_a_wrong_make_target_would_be_found(tmp_path):
    with pytest.raises(AssertionError, match="No rule to make target"):
        complaints([Block("page.md", 7, "bash", "make tabel3")], tmp_path)


def test_blocks_and_commands_are_those_that_a_reader_sees(tmp_path):
    page = """Text.

    make demo
    rows   12

```bash
for n in 1 2; do
    python a.py --n $n --out "o $n" \\
        > log.txt
done
python b.py < in.txt | cut -f 4   # comment
```

    rows   12

```python
import this
```
"""
    found = blocks_in("page.md", page)
    assert [(block.line, block.language) for block in found] == [
        (3, "bash"),
        (7, "bash"),
        (14, "output"),
        (17, "python"),
    ]
    seen = {(command.where, command.argv) for command in commands(found[1], tmp_path)}
    assert seen == {
        ("page.md:8", ("python", "a.py", "--n", "1", "--out", "o 1")),
        ("page.md:8", ("python", "a.py", "--n", "2", "--out", "o 2")),
        ("page.md:11", ("python", "b.py")),
        ("page.md:11", ("cut", "-f", "4")),
    }


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
    """Every flag of every script and launcher."""
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
        for code in re.findall(r"`([^`\n]+)`", text_of(page))
        for flag in re.findall(r"(?<![\w-])--[a-z]\w+", code)
        if flag not in flags
    ]
    assert not unknown


def test_the_errors_on_the_troubleshooting_page_are_those_that_the_code_raises():
    said = "\n".join(
        template(node)
        for path in [*ROOT.glob("*.py"), *ROOT.glob("mirror/**/*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
    quoted = re.findall(r"`error: ([^`]+)`", text_of("docs/troubleshooting.md"))
    assert len(quoted) > 20
    assert [message for message in quoted if message not in said] == []


def template(node: ast.AST) -> str:
    """A string of the code, with `...` for what is filled in; nothing for what is no string."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
