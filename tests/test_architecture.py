"""The rooms of the package: who may import whom, read off the syntax trees, imports inside functions included."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest


PACKAGE = Path(__file__).resolve().parents[1] / "mirror"
# A room imports rooms of lower floors only. Two rooms of one floor do not know each other.
FLOORS = [{"assets"}, {"common"}, {"data"}, {"modeling"}, {"evaluation"}, {"training"}, {"cmlm"}, {"tools"}]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(path for room in FLOOR_OF for path in (PACKAGE / room).rglob("*.py"))
STUDIES = sorted((PACKAGE.parent / "studies").glob("*.py"))


def imports(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_room_imports_lower_floors_only_and_no_script(path):
    room = path.relative_to(PACKAGE).parts[0]
    names = imports(path)
    rooms = {name.split(".")[1] for name in names if name.startswith("mirror.")} - {room}
    assert all(FLOOR_OF[other] < FLOOR_OF[room] for other in rooms), rooms
    assert not any(name.startswith(("run_", "studies")) for name in names)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_the_studies_do_without_the_tools(path):
    assert not any(name.startswith(("mirror.tools", "run_")) for name in imports(path))


def modules_of(path: Path) -> set[Path]:
    """The files of the package that a file imports when it is loaded, or later."""
    found = set()
    for name in imports(path):
        parts = name.split(".")
        for end in (len(parts), len(parts) - 1):  # a module, or a name in one
            file = PACKAGE.parent.joinpath(*parts[:end]).with_suffix(".py")
            if parts[0] == "mirror" and file.is_file():
                found.add(file)
    return found - {path}


def test_there_is_no_circle_of_imports():
    graph = {path: modules_of(path) for path in FILES}
    while free := [path for path, needs in graph.items() if not needs & graph.keys()]:
        for path in free:
            del graph[path]
    assert not graph, sorted(path.relative_to(PACKAGE).as_posix() for path in graph)


def test_nothing_lies_beside_the_rooms():
    assert {path.name for path in PACKAGE.iterdir()} - {"__pycache__"} == {
        *FLOOR_OF,
        "recipes",
        "__init__.py",
        "py.typed",
    }
