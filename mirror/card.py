"""The model card: what really ran, in words and in metadata that the Hub reads.

    python -m mirror.card out/mirror --results before/results.json after/results.json
    python -m mirror.card out/mirror --hub_model_id me/my-encoder

writes README.md of a saved checkpoint again: with scores of run_eval.py (of the checkpoint, or of its base model and of
the checkpoint), or under another name. The card is made from files of the folder alone, and tells no text, token or path.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mirror.checkpoint import stored_pooling
from mirror.errors import InputError, run_main
from mirror.flags import Parser
from mirror.scores import eval_results, read_scores, score_table, scores_of_results, write_scores


TEMPLATES = Path(__file__).parent / "templates"
POOLING_WORDS = {
    "cls": "the first token's vector of the last layer",
    "mean": "the mean of the last layer over the attention mask",
    "max": "the maximum of the last layer over the attention mask",
    "pooler": "its `pooler_output`",
    "mean_padded": "the mean of the last layer over all positions, padding included",
    "first_last_mean": "the mean of the first and last layers' average over the attention mask",
}
SNIPPETS = {
    "cls": "output.last_hidden_state[:, 0]",
    "mean": "(output.last_hidden_state * mask).sum(1) / mask.sum(1)",
    "max": 'output.last_hidden_state.masked_fill(mask == 0, float("-inf")).amax(1)',
    "pooler": "output.pooler_output",
    "mean_padded": "output.last_hidden_state.mean(1)",
    "first_last_mean": "((output.hidden_states[1] + output.last_hidden_state) / 2 * mask).sum(1) / mask.sum(1)",
}
NOTES = {
    "mean_padded": "This model was trained with padding in the mean. Readers other than this project's `run_eval.py` "
    "use the mean without padding and give different vectors.",
    "first_last_mean": "This model was trained on the mean of its first and last layers. Readers other than this "
    "project's `run_eval.py` use the last layer only and give different vectors.",
}
UNITS = {"word": "words", "phrase": "words and phrases", "sentence": "sentences"}


def write_card(folder: str | Path, name: str | None = None) -> None:
    """Write `README.md` of the checkpoint in `folder` from its `train_results.json` and, if there, `scores.json`.

    Args:
        name: what the card calls the model; by default the run's --hub_model_id, or the name of the folder.

    Raises:
        InputError: no run of this project ended in `folder`.
    """
    folder = Path(folder)
    results = _read(folder, "train_results.json")
    settings, scores = results["settings"], read_scores(folder)
    is_cmlm = "stage" in settings
    if is_cmlm:
        from mirror.cmlm.card import card_facts as facts_of
    else:
        facts_of = card_facts
    name = re.sub(r"[^\w./ -]", "_", name or settings.get("hub_model_id") or folder.resolve().name)
    base, pooling = results["run"]["base_model"], stored_pooling(folder)
    width, dense = _readers_see(folder)
    text = _environment().get_template("cmlm.md.jinja" if is_cmlm else "mirror.md.jinja").render(
        metadata=_metadata(name, base, results["run"]["dataset"], scores, "cmlm" if is_cmlm else "mirror-bert"),
        name=name,
        base=base["hub_id"] or base["name"],
        license=base["license"].get("license_name") or base["license"].get("license"),
        unit=UNITS[settings.get("level", "sentence")],
        width=width,
        max_seq_length=_read(folder, "sentence_bert_config.json")["max_seq_length"],
        pooling_words=POOLING_WORDS[pooling],
        snippet=None if dense and pooling != "pooler" else SNIPPETS[pooling],
        padding='padding="max_length"' if pooling == "mean_padded" else "padding=True",
        note=NOTES.get(pooling),
        facts=facts_of(results),
        corpus={} if is_cmlm else corpus_facts(results["corpus"]),
        readers=results["cosine_after_reload"] | _onnx_readers(folder),
        eight_bits=_eight_bit_scores(folder),
        scores=score_table(scores),
    )  # fmt: skip
    ModelCard(text).save(folder / "README.md")  # which reads the metadata back, and so refuses what the Hub could not


def card_facts(results: dict) -> dict[str, str]:
    """Rows of the card's table about the method and the run."""
    settings = results["settings"]
    noise = [f"dropout {settings['dropout_rate']}"]
    if settings["drophead_rate"]:
        noise.append(f"drophead {settings['drophead_rate']}")
    if settings["controlled_dropout"]:
        noise.append("the same masks for both views")
    return {
        "level": settings["level"],
        "views": f"{view_words(settings)}; {', '.join(noise)}",
        "loss": loss_words(settings),
        "trained": f"updates of rank {settings['lora_rank']}, merged" if settings.get("lora_rank") else "all weights",
        "optimiser": f"AdamW, rate {settings['learning_rate']:g}, decay {settings['weight_decay']:g}",
        **run_rows(results),
    }


def run_rows(results: dict) -> dict[str, str]:
    """Rows that every kind of run shares: how much, on what, for how long, with which versions."""
    settings, metrics, run = results["settings"], results["metrics"], results["run"]
    rows = {
        "batch": f"{run['effective_batch']:,} texts a step, from {run['processes']} process(es)",
        "a step compares": run["step"],
        "epochs": f"{metrics.get('epoch', settings['num_train_epochs']):g}",
        "longest text": f"{settings['max_seq_length']} tokens",
        "precision": "bfloat16" if settings.get("bf16") else "float16" if settings.get("fp16") else "float32",
        "seed": str(settings["seed"]),
        "training time": f"{metrics['train_runtime']:.0f} s on {results['hardware']}",
        "final training loss": f"{metrics['train_loss']:.3f}",
    }
    versions = ", ".join(f"{package} {number}" for package, number in results["versions"].items())
    return {key: value for key, value in rows.items() if value} | {"versions": versions}


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


def corpus_facts(report: dict) -> dict[str, str]:
    """Rows of the card's table about the corpus; numbers only."""
    if not report:
        return {"texts": "streamed: seen once, duplicates not looked for"}
    low, median, high, longest = report["tokens_p5_p50_p95_max"]
    return {
        "texts": f"{report['rows']:,}" + ("" if report["duplicates_kept"] else " distinct"),
        "duplicates": f"{report['duplicate_rows']:,} {'kept' if report['duplicates_kept'] else 'dropped'}",
        "blank rows dropped": f"{report['blank_rows_dropped']:,}",
        "tokens a text": f"{low} / {median} / {high} / {longest} (5 %, median, 95 %, longest)",
        "cut at the limit": f"{report['share_at_max_length']:.1%}",
    } | (
        {"touched by the span mask": f"{report['share_span_masked']:.1%}"} if report["augmentation"] == "span" else {}
    )


def _metadata(name: str, base: dict, dataset: str | None, scores: dict, method: str) -> str:
    """The YAML at the head of the card."""
    found = eval_results(scores)
    return ModelCardData(
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=base["hub_id"],
        datasets=[dataset] if dataset else None,
        tags=[method, "sentence-transformers", "feature-extraction"],
        model_name=name if found else None,
        eval_results=found or None,
        **base["license"],
    ).to_yaml()


def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        keep_trailing_newline=True,
    )  # fmt: skip


def _readers_see(folder: Path) -> tuple[int, bool]:
    """Width of the vectors, and whether dense layers follow the pooling (a pooler counts as one)."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    dense = [module["path"] for module in modules if module["type"].endswith("Dense")]
    if dense:
        return _read(folder, f"{dense[-1]}/config.json")["out_features"], True
    return _read(folder, "1_Pooling/config.json")["word_embedding_dimension"], False


def _onnx_readers(folder: Path) -> dict[str, float]:
    """The cosines that `mirror.export` measured, if it ran on this folder."""
    report = _onnx_report(folder)
    return {f"ONNX Runtime, {name}, on {got['texts']} texts": got["lowest_cosine"] for name, got in report.items()}


def _eight_bit_scores(folder: Path) -> dict[str, str]:
    """What the 8-bit copy scored, by task, if `mirror.export` scored it."""
    scores = {task: both for got in _onnx_report(folder).values() for task, both in got.get("scores", {}).items()}
    return {
        task: f"{both['copy']:.4f} instead of {both['checkpoint']:.4f} ({both['copy'] - both['checkpoint']:+.4f})"
        for task, both in scores.items()
    }


def _onnx_report(folder: Path) -> dict[str, dict]:
    return _read(folder, "onnx/export.json") if (folder / "onnx" / "export.json").exists() else {}


def _read(folder: Path, filename: str) -> dict:
    try:
        return json.loads((folder / filename).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: no readable {filename}; give the --output_dir of a finished run") from error


def main() -> None:
    parser = Parser(__doc__)
    parser.add_argument("folder", metavar="OUT", help="the --output_dir of a run")
    parser.add_argument(
        "--results", nargs="+", metavar="F", help="results.json of run_eval.py: the checkpoint's, or the base's first"
    )
    parser.add_argument("--hub_model_id", metavar="ID", help="what the card calls the model")
    args = parser.parse_args()
    _read(Path(args.folder), "train_results.json")
    if args.results:
        if len(args.results) > 2:
            parser.error("--results takes one file, or two: before and after")
        write_scores(args.folder, scores_of_results(args.results, Path(args.folder)))
    write_card(args.folder, args.hub_model_id)


if __name__ == "__main__":
    run_main(main)
