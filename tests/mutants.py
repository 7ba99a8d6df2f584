"""Small changes of a module, one at a time, by the operators of mutmut.

Not counted: texts of messages and what is inside `raise` and calls of the logger, annotations, type aliases, decorators, and the
`strict` of `zip`. Of a string one change is made, not three; a positional argument becomes None, one with a name is left out.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_arg_removal, operator_string


NEVER_COUNTED = m.OneOf(
    *(m.Annotation(), m.Import(), m.ImportFrom(), m.Decorator(), m.Raise()),
    m.Call(func=m.Attribute(value=m.Name("logger"))),
    m.Assign(targets=[m.AssignTarget(target=m.Name("logger"))]),
    m.Arg(keyword=m.Name("strict")),
)


@dataclass
class Mutant:
    module: str
    line: int
    old: str
    new: str
    code: str  # of the whole module
    in_function: bool
    result: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> str:
        return hashlib.sha256((self.module + self.code).encode()).hexdigest()[:16]

    def append_to(self, path: Path) -> None:
        entry = {"key": self.key} | {key: value for key, value in asdict(self).items() if key != "code"}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


class Mutations(cst.CSTVisitor):
    """Pairs of a node and its change."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self):
        super().__init__()
        self.found: list[tuple[int, bool, cst.CSTNode, cst.CSTNode]] = []
        self.depth = 0

    def visit_FunctionDef_body(self, node: cst.FunctionDef) -> None:
        self.depth += 1

    def leave_FunctionDef_body(self, node: cst.FunctionDef) -> None:
        self.depth -= 1

    def on_visit(self, node: cst.CSTNode) -> bool:
        if m.matches(node, NEVER_COUNTED) or is_message(node) or is_alias(node):
            return False
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                changes = operator(node)
                if operator is operator_string:
                    changes = list(changes)[:1]
                if operator is operator_arg_removal:
                    changes = [change for change in changes if is_counted(node, change)]
                line = self.get_metadata(PositionProvider, node).start.line if changes else 0
                self.found += [(line, self.depth > 0, node, change) for change in changes]
        return True


def is_message(node: cst.CSTNode) -> bool:
    """A text with blanks, or a flag."""
    if isinstance(node, cst.SimpleString):
        return " " in node.value or node.value[1:].startswith("--")
    return isinstance(node, cst.FormattedString) and any(
        isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts
    )


def is_alias(node: cst.CSTNode) -> bool:
    """`View = list[str]`."""
    return (
        isinstance(node, cst.Assign)
        and m.matches(node.value, m.Subscript(value=m.Name(), slice=[m.AtLeastN(n=1)]))
        and (m.matches(node.value.value, m.Name("list") | m.Name("dict") | m.Name("tuple") | m.Name("Callable")))
    )


def is_counted(call: cst.Call, change: cst.Call) -> bool:
    """Of the two changes of an argument the one that says more: a default for a name, None for a position."""
    if m.matches(call.func, m.Name("len") | m.Name("isinstance")):
        return False
    removed = len(change.args) < len(call.args)
    changed = next((old for old, new in zip(call.args, change.args, strict=False) if old is not new), call.args[-1])
    if is_message(changed.value) or m.matches(changed, NEVER_COUNTED):
        return False
    return removed == (changed.keyword is not None and len(call.args) > 1)


def mutants_of(module: str) -> list[Mutant]:
    source = Path(module).read_text(encoding="utf-8")
    wrapper, visitor, found, known = MetadataWrapper(cst.parse_module(source)), Mutations(), [], {source}
    wrapper.visit(visitor)
    for line, in_function, node, change in visitor.found:
        code = wrapper.module.deep_replace(node, change).code
        try:
            compile(code, module, "exec")
        except SyntaxError:
            continue
        if code not in known:
            known.add(code)
            found.append(Mutant(module, line, *differing_lines(source, code), code, in_function))
    return found


def differing_lines(source: str, code: str) -> tuple[str, str]:
    """What stood there and what stands there now, without the lines around it."""
    old, new = source.splitlines(), code.splitlines()
    while old and new and old[0] == new[0]:
        del old[0], new[0]
    while old and new and old[-1] == new[-1]:
        del old[-1], new[-1]
    return tuple(" ".join(line.strip() for line in lines) for lines in (old, new))
