"""The model card: what really ran, in words and in metadata that the Hub reads."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from transformers import PreTrainedModel, TrainingArguments

from mirror.arguments import MirrorArguments, ModelArguments
from mirror.runs import hardware, versions


TEMPLATE = """---
{{ card_data }}
---

# {{ name }}

A text encoder: it turns {{ unit }} into vectors of {{ width }} dimensions whose cosine tells how close they are in meaning.
It was made from {{ base }} without labels by [Mirror-BERT](https://arxiv.org/abs/2104.08027).

## Use

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{{ name }}")
vectors = model.encode(["a text", "another text"])
```

With transformers alone: `AutoModel`, then {{ pooling_words }}.
{% if note %}
**Note.** {{ note }}
{% endif %}
## How it was made

| | |
| --- | --- |
{% for key, value in facts.items() -%}
| {{ key }} | {{ value }} |
{% endfor %}
## Limits

Trained on one corpus to tell its texts apart; scores on other kinds of text have to be measured. It inherits the
biases of its base model.

## Citation

Fangyu Liu, Ivan Vulić, Anna Korhonen, Nigel Collier (2021). *Fast, Effective, and Self-Supervised: Transforming Masked
Language Models into Universal Lexical and Sentence Encoders.* EMNLP 2021.
"""
POOLING_WORDS = {
    "cls": "the first token's vector of the last layer",
    "mean": "the mean of the last layer over the attention mask",
    "max": "the maximum of the last layer over the attention mask",
    "pooler": "its `pooler_output`",
    "mean_padded": "the mean of the last layer over all positions, padding included",
    "first_last_mean": "the mean of the first and last layers' average over the attention mask",
}
NOTES = {
    "mean_padded": "This model was trained with padding in the mean. Readers other than this project's `run_eval.py` "
    "use the mean without padding and give different vectors.",
    "first_last_mean": "This model was trained on the mean of its first and last layers. Readers other than this "
    "project's `run_eval.py` use the last layer only and give different vectors.",
}


def card_facts(settings: dict, report: dict, metrics: dict) -> dict[str, str]:
    """Rows of the card's table: what ran, on what, with what. No text of the corpus."""
    batch = settings["per_device_train_batch_size"] * settings["gradient_accumulation_steps"]
    facts = {
        "level": settings["level"],
        "loss": loss_words(settings),
        "views": f"{view_words(settings)}; dropout {settings['dropout_rate']}",
        "texts": f"{report['rows']:,} distinct" if report else "streamed",
        "epochs": f"{metrics.get('epoch', settings['num_train_epochs']):g}",
        "batch": f"{batch} texts on each process",
        "longest text": f"{settings['max_seq_length']} tokens",
        "optimiser": f"AdamW, rate {settings['learning_rate']:g}, decay {settings['weight_decay']:g}",
        "precision": "bfloat16" if settings.get("bf16") else "float16" if settings.get("fp16") else "float32",
        "seed": str(settings["seed"]),
        "training time": f"{metrics['train_runtime']:.0f} s on {hardware()}",
        "final training loss": f"{metrics['train_loss']:.3f}",
    }
    return facts | {name: f"version {number}" for name, number in versions().items()}


def loss_words(settings: dict) -> str:
    if settings["loss"] == "multi_similarity":
        return "multi_similarity"
    return f"{settings['loss']}, temperature {settings['temperature']}" + (
        " at first, then learned" if settings["learnable_temperature"] else ""
    )


def view_words(settings: dict) -> str:
    """What was done to the text of which view."""
    augmentation = settings["augmentation"]
    if augmentation == "span":
        noise = f"span of {settings['span_mask_length']} characters masked"
    elif augmentation == "none":
        noise = "text as it is"
    else:
        noise = f"{augmentation} noise at a rate of {settings['augmentation_rate']}"
    return f"{noise} in {'both' if settings['augment_both_views'] else 'the second'}"


def write_card(
    training_args: TrainingArguments,
    model_args: ModelArguments,
    mirror_args: MirrorArguments,
    pooling: str,
    model: PreTrainedModel,
    facts: dict[str, str],
) -> None:
    """Write `README.md` into the output folder. A base model that is a folder is named, but its path is not told."""
    base = model_args.model_name_or_path
    is_folder = Path(base).exists()
    data = ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=None if is_folder else base,
        tags=["mirror-bert", "sentence-transformers", "feature-extraction"],
    )
    card = ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        name=training_args.hub_model_id or Path(training_args.output_dir).name,
        base=f"`{Path(base).name if is_folder else base}`",
        unit={"word": "words", "phrase": "words and phrases", "sentence": "sentences"}[mirror_args.level],
        width=model.config.hidden_size,
        pooling_words=POOLING_WORDS[pooling],
        note=NOTES.get(pooling),
        facts=facts,
    )
    card.save(Path(training_args.output_dir) / "README.md")
