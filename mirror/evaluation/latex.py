"""results.tex: the comparison table as a tabular for a paper. Knows nothing of files and models."""

from __future__ import annotations

from collections.abc import Sequence

from mirror.evaluation.table import Line, Table, describe_settings, format_score, short_names


SHOWN = ("scores", "published", "change")
ESCAPED = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"} | {
    character: "\\" + character for character in "&%$#_{}"
}


def format_latex(columns: Sequence[str], table: Table, records: Sequence[dict]) -> str:
    """Format the table for booktabs: one row per task, the best model of each row bold, means below a rule."""
    lines = [line for line in table if line.kind in SHOWN]
    rows = [_row([name, *_cells(lines, index)]) for index, name in enumerate(map(escape, columns))]
    names = short_names([record["model_name_or_path"] for record in records])
    tasks = len(records[0]["tasks"])
    means = [r"\midrule", *rows[tasks:]] if rows[tasks:] else []
    return "\n".join(
        [
            r"% \usepackage{booktabs}; scores are fractions",
            *(f"% {name}: {describe_settings(record)}" for name, record in zip(names, records, strict=True)),
            *(f"% {name}: {task['metric']}, {task['protocol']}" for name, task in records[0]["tasks"].items()),
            rf"\begin{{tabular}}{{l{'r' * len(lines)}}}",
            r"\toprule",
            _row(["task", *(escape(line.label) for line in lines)]),
            r"\midrule",
            *rows[:tasks],
            *means,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def escape(text: str) -> str:
    """`text` without the characters that mean something to LaTeX."""
    return "".join(ESCAPED.get(character, character) for character in text)


def _cells(lines: Sequence[Line], index: int) -> list[str]:
    """The cells of one task; the best of several models is bold, and so is what equals it as printed."""
    models = [line.scores[index] for line in lines if line.kind == "scores"]
    best = format_score(max(models), "scores") if len(models) > 1 else None
    cells = []
    for line in lines:
        text = format_score(line.scores[index], line.kind)
        is_best = line.kind == "scores" and text == best
        text = text.replace("-", "$-$")
        cells.append(rf"\textbf{{{text}}}" if is_best else text)
    return cells


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"
