"""README.md of a model that `pretrain_mini_mlm.py` exports: its size, its data, its hours and its learning curve.

`pretraining.json` lists the runs that trained a model: in the folder of a run the runs before it, in that of an exported model
all of them. So the README of a model that was exported, decayed and trained further covers everything.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from itertools import accumulate, chain, groupby
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from transformers import BertForMaskedLM

from mirror.common.errors import InputError
from mirror.common.files import atomic_write_text
from mirror.evaluation.plots import COLORS, save
from mirror.training.checkpoints import last_complete_checkpoint


HISTORY, FIGURE = "pretraining.json", "learning_curve.png"
CARD = """---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: fill-mask
tags:
- masked-lm
- mini
---

# {name}

A small BERT ({num_hidden_layers} layers, width {hidden_size}, {num_attention_heads} heads, {vocab_size:,} word pieces,
{max_position_embeddings} positions, lower case; {weights:.1f} million weights, {megabytes:.0f} MB in float16). It is a masked language
model: `run_mirror.py` turns it into an encoder.

## How it was made

`data_scripts/pretrain_mini_mlm.py` on running text alone: {texts}, and docstrings of installed Python packages, without the
summaries that the tasks `docs_search` and `docs_search_dev` use. {tokens:.1f} million tokens, {passes:.1f} passes over {corpus:.1f} million;
{hours:.1f} hours, pauses and other work on the machine included. torch {torch}, transformers {transformers}.

{objectives}

None of the text is part of this repository. The docstrings have the licenses of their packages, mostly BSD, MIT, Apache-2.0 and PSF.

Loss of held-out text, over the whole vocabulary, 15% of the tokens masked:

![Held-out loss and learning rate over tokens]({figure})

{curve}

## Limits

English only. It knows little: its loss is far from that of BERT-base, and an encoder made of it is for trying things out. Texts are cut at
{max_position_embeddings} tokens. It has the biases of its sources.
"""


def start_history(output_dir: str, start_from: str | None, step: int, objective: str) -> None:
    """Write to the folder of a new run its objective, and the runs that trained the weights that it starts from.

    Args:
        step: tokens per step of the new run.
        objective: the objective of the new run, in words.
    """
    path = Path(output_dir) / HISTORY
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        runs = read_history(start_from) if start_from else []
        atomic_write_text(
            path, json.dumps({"tokens_per_step": step, "objective": objective, "runs": runs}, indent=1) + "\n"
        )


def read_history(folder: str | Path) -> list[dict]:
    """Read which runs trained the weights in the folder of a run or of an exported model: one entry for each, in order.

    Returns:
        `objective` and `tokens` of the run, its `seconds`, and its `curve`: [tokens so far, learning rate, held-out loss], ...

    Raises:
        InputError: the folder has no history.
    """
    try:
        history = json.loads((Path(folder) / HISTORY).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{folder}: no {HISTORY}, which every run and every exported model of this script has"
        ) from error
    checkpoint = last_complete_checkpoint(folder)
    if checkpoint is None:
        return history["runs"]
    return [*history["runs"], read_run(Path(checkpoint), history["tokens_per_step"], history["objective"])]


def read_run(checkpoint: Path, step: int, objective: str) -> dict:
    """Return the entry of a run in the history, up to a checkpoint."""
    names = ("trainer_state.json", "run_totals.json")
    state, totals = (json.loads((checkpoint / name).read_text(encoding="utf-8")) for name in names)
    rates = {entry["step"]: entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry}
    losses = [(entry["step"], entry["eval_loss"]) for entry in state["log_history"] if "eval_loss" in entry]
    latest = [max((item for item in rates.items() if item[0] <= at), default=(0, 0.0))[1] for at, _ in losses]
    return {
        "objective": objective,
        "tokens": step * state["global_step"],
        "seconds": round(totals["seconds"]),
        "curve": [[step * at, rate, round(loss, 4)] for (at, loss), rate in zip(losses, latest, strict=True)],
    }


def write_card(
    folder: Path, model: BertForMaskedLM, run: str, texts: Sequence[str], licenses: Sequence[str], corpus: int
) -> None:
    """Write README.md, its figure and the history.

    Args:
        folder: where the model was exported.
        run: output folder of the run that trained the model.
        texts: the text files.
        licenses: of each of them, or empty.
        corpus: number of tokens of the corpus.
    """
    runs = read_history(run)
    tokens = sum(entry["tokens"] for entry in runs)
    weights = sum(parameter.numel() for parameter in model.parameters())
    text = CARD.format(
        **model.config.to_dict(),
        name=folder.name,
        weights=weights / 1e6,
        megabytes=2 * weights / 1e6,
        texts=", ".join(map(_describe_text, map(Path, texts), licenses or [""] * len(texts))),
        tokens=tokens / 1e6,
        passes=tokens / corpus,
        corpus=corpus / 1e6,
        hours=sum(entry["seconds"] for entry in runs) / 3600,
        objectives="\n".join(describe_objectives(runs)),
        torch=version("torch"),
        transformers=version("transformers"),
        figure=FIGURE,
        curve=learning_curve(runs),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")
    atomic_write_text(folder / HISTORY, json.dumps({"runs": runs}, indent=1) + "\n")
    draw_learning_curve(runs, folder / FIGURE)


def _describe_text(path: Path, license_name: str) -> str:
    size = f"{path.stat().st_size / 1e6:.0f} MB"
    return f"{path.name} ({', '.join(filter(None, (size, license_name)))})"


def describe_objectives(runs: Sequence[dict]) -> list[str]:
    """Return a line for each objective with its tokens, in order. Consecutive runs with one objective share a line."""
    lines = []
    for objective, group in groupby(runs, key=lambda entry: entry["objective"]):
        tokens = [entry["tokens"] for entry in group]
        number = f" in {len(tokens)} runs" if len(tokens) > 1 else ""
        lines.append(f"- {sum(tokens) / 1e6:.1f} million tokens{number}: {objective}")
    return lines


def draw_learning_curve(runs: Sequence[dict], path: Path) -> None:
    """Draw the held-out loss and the learning rate over tokens, with a line where a run began."""
    points = np.reshape(list(chain.from_iterable(_curves(runs))), (-1, 3))  # none if no run reached --save_steps
    later_starts = list(accumulate(entry["tokens"] for entry in runs))[:-1]
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    upper.plot(points[:, 0], points[:, 2], color=COLORS[0])
    for tokens, _, loss in points[-1:]:
        upper.annotate(f"{loss:.3f}", (tokens, loss), xytext=(0, 6), textcoords="offset points", ha="center")
    lower.plot(points[:, 0], points[:, 1], color=COLORS[1])
    for axes in (upper, lower):
        for start in later_starts:
            axes.axvline(start / 1e6, color="0.8", linewidth=0.8, zorder=0)
    upper.set(ylabel="held-out loss")
    lower.set(xlabel="million tokens", ylabel="learning rate", ylim=(0, None))
    save(figure, path, "")


def learning_curve(runs: Sequence[dict], points: int = 8) -> str:
    """Return the held-out loss over tokens as a Markdown table, with at most `points` rows for each run."""
    rows = ["| million tokens | learning rate | held-out loss |", "| ---: | ---: | ---: |"]
    for curve in _curves(runs):
        every = -(-len(curve) // points) or 1
        rows += [f"| {tokens:.1f} | {rate:.1e} | {loss:.3f} |" for tokens, rate, loss in curve[::-1][::every][::-1]]
    return "\n".join(rows)


def _curves(runs: Sequence[dict]) -> list[list[tuple[float, float, float]]]:
    """Return for each run its points: million tokens, those of earlier runs included, learning rate and held-out loss."""
    starts = accumulate((entry["tokens"] for entry in runs), initial=0)
    return [
        [((before + tokens) / 1e6, rate, loss) for tokens, rate, loss in entry["curve"]]
        for before, entry in zip(starts, runs, strict=False)
    ]
