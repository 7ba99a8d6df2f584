"""Reads what the documentation tells people to type: code blocks of the pages, and the commands in them.

A shell block runs in a bash that can start no program: every command that is not bash's own is recorded instead, after loops,
variables, quotes, here-documents and redirections. So there is no shell grammar of our own to fall behind.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "mirror/assets/*/*.md", "notebooks/*.md")
    for path in ROOT.glob(pattern)
)
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("run_*.py", "mirror/tools/*.py", "data_scripts/*.py", "benchmarks/*.py")
    for path in ROOT.glob(pattern)
    if "\ndef main() -> None:" in path.read_text(encoding="utf-8")
)
RECIPES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("mirror/recipes/*.yaml"))
# A block without a language is a shell's if its first line starts with one of these; otherwise it is output.
STARTS = "python accelerate torchrun make pip hf mirror- .venv/ for HF_"
SHELL = re.compile("|".join(re.escape(start) for start in STARTS.split()))

# Bash asks this function about every command that it cannot find; on its PATH there is none.
PROLOGUE = """\
command_not_found_handle() {
    if [ "$1" = srun ]; then shift; fi
    if [ "$1 $2" = "bash -c" ]; then eval "$3"; return; fi
    local input
    IFS= read -r -d '' input
    printf '%s\\0' "$LINE" "$#" "$@" "$input" >> "$RECORD"
    echo output
}
trap 'LINE=$LINENO' DEBUG
"""


@dataclass(frozen=True)
class Block:
    page: str  # relative to the repository
    line: int  # of the first line of the code
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    where: str  # file:line
    argv: tuple[str, ...]
    stdin: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {' '.join(self.argv)}"


def text_of(source: str) -> str:
    """Return the text of a page, the docstring of a script (which --help prints), or the comment at the head of a recipe."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if source.endswith(".py"):
        return ast.get_docstring(ast.parse(text)) or ""
    if source.endswith(".yaml"):
        return re.sub(r"(?m)^# ?( +)?", lambda match: "    " if match[1] else "", text.split("\n\n")[0])
    return text


def blocks(source: str) -> list[Block]:
    """Return the fenced and the indented code of a page, in its order."""
    found: list[Block] = []
    lines = text_of(source).split("\n")
    number = 0
    while number < len(lines):
        start = number
        if lines[number].startswith("```"):
            end = next(at for at in range(number + 1, len(lines)) if lines[at].startswith("```"))
            found.append(Block(source, start + 2, lines[start][3:].strip(), "\n".join(lines[start + 1 : end])))
            number = end + 1
        elif lines[number].startswith("    ") and (number == 0 or not lines[number - 1].strip()):
            while number < len(lines) and (lines[number].startswith("    ") or not lines[number].strip()):
                number += 1
            code = "\n".join(line[4:] for line in lines[start:number]).rstrip()
            found.append(Block(source, start + 1, "bash" if SHELL.match(code.lstrip("# ")) else "output", code))
        else:
            number += 1
    return found


def commands(block: Block, folder: Path) -> list[Command]:
    """Return what `block` would start if it were typed in the empty `folder`.

    A variable that the block does not set is its own name ("$DATA" gives "DATA"), or 2 if Slurm sets it. A file that is read by
    `<` exists and has one line. The folder of a file that is written by `>` exists too.
    """
    text = re.sub(r"(?m)^source .*", "", block.text)  # an environment that is made by an earlier command
    text = re.sub(r"\.venv(-min)?/bin/", "", text)
    for name in re.findall(r"(?<!<)<\s+([\w./-]+)", text):
        (folder / name).write_text("a query\n")
    for name in re.findall(r">\s*([\w./-]+)/[\w.-]+", text):
        (folder / name).mkdir(parents=True, exist_ok=True)
    names = set(re.findall(r"\$\{?([A-Z_]+)", text)) - set(re.findall(r"(?:^|\s)([A-Z_]+)=", text))
    variables = {name: "2" if name.startswith("SLURM") else name for name in names}
    record = folder / "record"
    record.write_bytes(b"")
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", PROLOGUE + text + "\n"],
        env=variables | {"PATH": "/nowhere", "HOME": str(folder), "RECORD": str(record)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert not done.stderr, f"{block}: {done.stderr}"
    fields = iter(record.read_bytes().decode().split("\0")[:-1])
    found = []
    for line in fields:
        where = f"{block.page}:{block.line + int(line) - 1 - PROLOGUE.count(chr(10))}"
        found.append(Command(where, tuple(next(fields) for _ in range(int(next(fields)))), next(fields)))
    return found


def all_commands(found: Iterable[Block], folder: Path) -> list[Command]:
    """Return the commands of the shell blocks among `found`, with those of a make target in the target's place."""
    plain = [command for block in found if block.language == "bash" for command in commands(block, folder)]
    return [item for one in plain for item in (make_commands(one, folder) if one.argv[0] == "make" else [one])]


def make_commands(command: Command, folder: Path) -> list[Command]:
    """Return what `make` would run, as `make -n` prints it. A target that does not exist is an error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    make = ["make", "-n", "--no-print-directory", *command.argv[1:]]
    done = subprocess.run(make, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    recipe = re.sub(r"(?m)^make: .*\n", "", done.stdout).replace("@touch", "touch")  # "Nothing to be done"
    expanded = commands(Block(command.where, 1, "bash", recipe), folder)
    return [Command(command.where, item.argv) for item in expanded]
