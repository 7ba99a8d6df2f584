"""README.md of a model that `pretrain_mini_mlm.py` exports: its size, what it read, for how long, and its learning curve."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from transformers import BertForMaskedLM

from mirror.training.manifest import last_complete_checkpoint


CARD = """---
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
model and nothing more: `run_mirror.py` turns it into an encoder.

## How it was made

`data_scripts/pretrain_mini_mlm.py` on running text alone: {texts}, and docstrings of installed Python packages, without the
summaries that the tasks `docs_search` and `docs_search_dev` use. {tokens:.1f} million tokens, {passes:.1f} passes over {corpus:.1f} million;
{hours:.1f} hours, pauses and other work on the machine included. torch {torch}, transformers {transformers}.

Loss of held-out text, over the whole vocabulary, 15% of the tokens masked:

{curve}
"""


def write_card(
    folder: Path, model: BertForMaskedLM, legs: Sequence[Path], texts: Sequence[str], corpus: int, step: int
) -> None:
    """Write README.md.

    Args:
        folder: where the model was exported.
        legs: output folders of the runs that trained the model, in order.
        texts: the text files.
        corpus: number of tokens of the corpus.
        step: number of tokens of a step.
    """
    states = [read_leg(leg) for leg in legs]
    tokens = step * sum(state["global_step"] for state in states)
    weights = sum(parameter.numel() for parameter in model.parameters())
    text = CARD.format(
        **model.config.to_dict(),
        name=folder.name,
        weights=weights / 1e6,
        megabytes=2 * weights / 1e6,
        texts=", ".join(f"{Path(path).name} ({Path(path).stat().st_size / 1e6:.0f} MB)" for path in texts),
        tokens=tokens / 1e6,
        passes=tokens / corpus,
        corpus=corpus / 1e6,
        hours=sum(state["seconds"] for state in states) / 3600,
        torch=version("torch"),
        transformers=version("transformers"),
        curve=learning_curve(states, step),
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def read_leg(output_dir: Path) -> dict:
    """State of the last complete checkpoint of a run, with its `seconds`."""
    checkpoint = Path(last_complete_checkpoint(output_dir))
    names = ("trainer_state.json", "run_totals.json")
    state, totals = (json.loads((checkpoint / name).read_text(encoding="utf-8")) for name in names)
    return state | {"seconds": totals["seconds"]}


def learning_curve(states: Sequence[dict], step: int, points: int = 8) -> str:
    """Held-out loss over tokens as a Markdown table, with at most `points` rows for each run."""
    rows = ["| million tokens | learning rate | held-out loss |", "| ---: | ---: | ---: |"]
    before = 0
    for state in states:
        log = state["log_history"]
        rates = {entry["step"]: entry["learning_rate"] for entry in log if "learning_rate" in entry}
        losses = [(entry["step"], entry["eval_loss"]) for entry in log if "eval_loss" in entry]
        every = -(-len(losses) // points) or 1
        for at, loss in losses[::-1][::every][::-1]:
            rate = max((item for item in rates.items() if item[0] <= at), default=(0, 0.0))[1]
            rows.append(f"| {step * (before + at) / 1e6:.1f} | {rate:.1e} | {loss:.3f} |")
        before += state["global_step"]
    return "\n".join(rows)
