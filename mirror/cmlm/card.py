"""The model card of a CMLM encoder: what really ran."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from transformers import TrainingArguments

from mirror.card import POOLING_WORDS
from mirror.runs import hardware, versions


TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

A text encoder: it turns sentences into vectors of {{ width }} dimensions. It was made from {{ base }} by
[conditional masked language modelling](https://arxiv.org/abs/2012.14388), stage `{{ stage }}`.

## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{{ name }}")
vectors = model.encode(["a text", "another text"])
```

With transformers alone: `AutoModel`, then {{ pooling_words }}.
The folder `cmlm/` holds the MLM head, the projection and the classifier; only a later stage of training needs them.

## How it was made

| | |
| --- | --- |
{% for key, value in facts.items() -%}
| {{ key }} | {{ value }} |
{% endfor %}
## Limits

Scores on other kinds of text than it was trained on have to be measured. It inherits the biases of its base model.

## Citation

Ziyi Yang, Yinfei Yang, Daniel Cer, Jax Law, Eric Darve (2021). *Universal Sentence Representation Learning with
Conditional Masked Language Model.* EMNLP 2021.
"""


def card_facts(settings: dict, report: dict, metrics: dict) -> dict[str, str]:
    """Rows of the card's table: what ran, on what, with what. No text of the corpus."""
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    facts = {
        "stage": settings["stage"],
        "condition": f"{settings['num_projections']} projected vectors, pooling {settings['pooling']}",
        "masked": f"{settings['mlm_probability']:.1%} of the second segment",
        **{f"rows of {kind}": f"{count:,}" for kind, count in report.items()},
        "epochs": f"{metrics['epoch']:g}",
        "batch": f"{batch} rows on each process",
        "longest segment": f"{settings['max_seq_length']} tokens",
        "optimiser": f"{settings['optimizer']}, rate {settings['learning_rate']:g}",
        "precision": "bfloat16" if settings.get("bf16") else "float16" if settings.get("fp16") else "float32",
        "seed": str(settings["seed"]),
        "training time": f"{metrics['train_runtime']:.0f} s on {hardware()}",
        "final training loss": f"{metrics['train_loss']:.3f}",
    }
    return facts | {name: f"version {number}" for name, number in versions().items()}


def write_card(args: TrainingArguments, base: str, width: int, facts: dict[str, str], settings: dict) -> None:
    """Write `README.md` into the output folder. A base model that is a folder is named, but its path is not told."""
    is_folder = Path(base).exists()
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=None if is_folder else base,
        tags=["cmlm", "sentence-transformers", "feature-extraction"],
    )
    words = POOLING_WORDS[settings["pooling"]]
    card = ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        name=args.hub_model_id or Path(args.output_dir).name,
        base=f"`{Path(base).name if is_folder else base}`",
        stage=settings["stage"],
        width=width,
        pooling_words=words + (", then the dense layers" if settings["sentence_vector"] == "proj" else ""),
        facts=facts,
    )
    card.save(Path(args.output_dir) / "README.md")
