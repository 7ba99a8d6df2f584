"""The model card (README.md) of a checkpoint: description, metadata for the Hub, scores, and settings of the run.

A card is rendered only from files in the checkpoint's folder. It contains no training text, no token and no path.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mirror.common.errors import InputError
from mirror.common.files import atomic_write_text
from mirror.training.record import RunRecord


if TYPE_CHECKING:
    from transformers import TrainerState

CARD, SCORES_FILE, FIGURE = "README.md", "scores.json", "cosines.png"


def write_card(folder: str | Path, name: str | None = None) -> None:
    """Write the card of a finished run. The default of `name` is its --hub_model_id, or the name of the folder."""
    ModelCard(render_card(folder, name)).save(Path(folder) / CARD)


def name_on_unedited_card(folder: str | Path) -> str | None:
    """Return the model name on the card of a finished run. None: somebody edited the card, or there is none."""
    path = Path(folder) / CARD
    card = path.read_text(encoding="utf-8") if path.exists() else ""
    heading = re.search(r"^# (.+)$", card, re.MULTILINE)
    return heading[1] if heading and card.strip() == render_card(folder, heading[1]).strip() else None


def render_card(folder: str | Path, name: str | None = None) -> str:
    """Return the text of the card that `write_card` writes."""
    from mirror.modeling.read_checkpoint import checkpoint_settings, choose_prompt
    from mirror.modeling.save_checkpoint import stored_pooling  # imports torch, which --help of the tools must not

    folder = Path(folder)
    record, scores = RunRecord.load(folder), _read_json(folder, SCORES_FILE, optional=True)
    settings, base = record.settings, record.run["base_model"]
    name = _plain(name or settings.get("hub_model_id") or folder.resolve().name)
    pooling, modules = stored_pooling(folder), _read_json(folder, "modules.json")
    dense = [module["path"] for module in modules if module["type"].endswith(".Dense")]
    static = modules[0]["type"].endswith(".StaticEmbedding")
    place = f"{dense[-1]}/" if dense else "" if static else "1_Pooling/"
    last = _read_json(folder, f"{place}config.json")
    transformer = {} if static else _read_json(folder, "sentence_bert_config.json")
    known = checkpoint_settings(str(folder))
    width = last["out_features" if dense else "hidden_dim" if static else "word_embedding_dimension"]
    prompt = choose_prompt(str(folder), known, None, None)
    white_space = dict.fromkeys(("trim_blocks", "lstrip_blocks", "keep_trailing_newline"), True)
    templates = FileSystemLoader(Path(__file__).parent / "templates")
    environment = Environment(loader=templates, undefined=StrictUndefined, **white_space)
    text = environment.get_template("card.md.jinja").render(
        metadata=_metadata(name, record, scores),
        method=record.method,
        name=name,
        base=_plain(base["hub_id"] or base["name"]),
        license=_plain(base["license"].get("license_name") or base["license"].get("license") or ""),
        level=settings.get("level"),
        width=min(width, known.get("truncate_dim") or width),
        max_seq_length=transformer.get("max_seq_length"),
        static=static,
        pooling=pooling,
        has_dense=bool(dense),
        normalized=any(module["type"].endswith(".Normalize") for module in modules),
        texts=f"[{prompt + 'a text'!r}, {prompt + 'another text'!r}]" if prompt else '["a text", "another text"]',
        facts=training_facts(record),
        corpus={} if record.method == "cmlm" else corpus_facts(record),
        cosines=record.cosine_after_reload,
        exports={
            (runtime, file): measured
            for place, runtime in {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}.items()
            for file, measured in _read_json(folder, f"{place}/export.json", optional=True).items()
        },
        scores=scores,
        distilled=record.distilled,
    )
    return str(ModelCard(text))  # parses the metadata, because the Hub refuses invalid ones


def training_facts(record: RunRecord) -> dict[str, str]:
    """Return the rows of the card about method, settings, size and duration of a run."""
    settings, metrics, run = record.settings, record.metrics, record.run
    if record.method == "cmlm":
        rows = {
            "stage": settings["stage"],
            "conditioning": f"{settings['num_projections']} projected vectors, pooling {settings['pooling']}",
            "masked": f"{settings['mlm_probability']:.1%} of the second segment",
            **{f"rows of {kind}": f"{count:,}" for kind, count in record.corpus.items()},
            "optimizer": f"{settings['optimizer']}, learning rate {settings['learning_rate']:g}",
        }
    elif record.method == "distilled":
        loss, rate = describe_loss(settings), settings["learning_rate"]
        rows = {"student": settings["student"], "loss": loss, "optimizer": f"AdamW, learning rate {rate:g} at first"}
    else:
        rows = _mirror_facts(settings)
    epochs = round(metrics.get("epoch", settings["num_train_epochs"]), 2)
    seconds, loss = metrics.get("train_runtime"), metrics.get("train_loss")
    rows |= {
        "batch": f"{run['effective_batch']:,} texts per step, on {run['processes']} process(es)",
        "step": run["step"],
        # A stream has no known length, so it has no epochs.
        **({"steps": f"{settings['max_steps']:,}"} if settings.get("streaming") else {"epochs": f"{epochs:g}"}),
        "maximum length": f"{settings['max_seq_length']} tokens",
        "precision": "bfloat16" if settings.get("bf16") else "float16" if settings.get("fp16") else "float32",
        "seed": settings["seed"],
        "training time": None if seconds is None else f"{seconds:.0f} s on {record.hardware}",
        "merged": f"{record.merged['weight']:g} of these weights, the rest the base model's"
        if record.merged
        else None,
        "after training": settings.get("after_training"),
        "mean training loss": None if loss is None else f"{loss:.3f}",
        "versions": ", ".join(f"{package} {number}" for package, number in record.versions.items()),
    }
    # A user's own text, such as the description of a loss, must not break the table.
    cells = {name: " ".join(str(text).split()).replace("|", r"\|") for name, text in rows.items() if text is not None}
    return {name: text for name, text in cells.items() if text}


def _mirror_facts(settings: dict) -> dict[str, str | None]:
    noise = f"dropout {settings['dropout_rate']}"
    noise += f", drophead {settings['drophead_rate']}" if settings["drophead_rate"] else ""
    noise += ", same dropout masks in both views" if settings["controlled_dropout"] else ""
    rank, hardness, shorter = (settings.get(key) for key in ("lora_rank", "hardness", "matryoshka_dims"))
    by_length = settings.get("train_sampling_strategy") == "group_by_length"
    dimensions = f"also trained: the first {', '.join(map(str, shorter or ()))} dimensions (`truncate_dim`)"
    return {
        "level": settings["level"],
        "views": f"{describe_views(settings)}; {noise}",
        "loss": describe_loss(settings),
        "projection head": "a linear layer and tanh, in training only" if settings.get("projection_head") else None,
        "hardness": f"{hardness} times the cosine of a negative" if hardness else None,
        "batches": "texts of similar length" if by_length else None,
        "shorter vectors": dimensions if shorter else None,
        "trained": f"low-rank updates (LoRA) of rank {rank}, merged" if rank else "all weights",
        "optimizer": f"AdamW, learning rate {settings['learning_rate']:g}, weight decay {settings['weight_decay']:g}",
    }


def describe_loss(settings: dict) -> str:
    """Return the name of the loss, and its temperature or its own description if it has one."""
    loss = settings["loss"]
    if description := settings.get("loss_description"):
        return f"{loss}: {description}"
    if loss not in ("nt_xent", "decoupled", "one_way"):  # other losses, such as a user's, bring a description
        return loss
    return f"{loss}, temperature {settings['temperature']}"


def describe_views(settings: dict) -> str:
    """Return the text augmentation of the second view, built in or a user's function."""
    augmentation, rate = settings["augmentation"], settings.get("augmentation_rate")
    if augmentation == "none":
        return "no text augmentation"
    if augmentation == "span":
        noise = f"span of {settings['span_mask_length']} characters masked"
    else:
        noise = f"augmentation {augmentation}" + (f" with rate {rate}" if rate else "")
    if (token := settings.get("mask_token")) and token != "<MASK_TOKEN>":  # of earlier versions, for any
        noise += f" by '{token}'"
    return f"{noise} in the second view"


def corpus_facts(record: RunRecord) -> dict[str, str]:
    """Return the rows of the card about the texts: the corpus report, and the tests on held-out texts."""
    from mirror.evaluation.own_text import KINDS, TOGETHER  # imports torch

    report, kept = record.corpus, record.kept
    if report:
        low, median, high, longest = report["tokens_p5_p50_p95_max"]
        rows = {
            "texts": f"{report['rows']:,}" + ("" if report["duplicates_kept"] else " distinct"),
            "duplicates": f"{report['duplicate_rows']:,} {'kept' if report['duplicates_kept'] else 'dropped'}",
            "blank rows dropped": f"{report['blank_rows_dropped']:,}",
            "tokens per text": f"{low} / {median} / {high} / {longest} (5%, median, 95%, maximum)",
            "texts at the maximum length": f"{report['share_at_max_length']:.1%}",
        }
        if report["augmentation"] == "span":
            rows["texts with a span mask"] = f"{report['share_span_masked']:.1%}"
    else:
        rows = {"texts": "streamed: each text read once, duplicates not detected"}
    tests = {f"{test['texts']:,} held-out texts {KINDS[test['test']]}": test for test in record.own_text or ()}
    if record.own_text_together:
        name = f"{TOGETHER[len(record.own_text)]}, geometric mean of their mean reciprocal ranks"
        tests[name] = record.own_text_together
    for name, test in tests.items():
        change = f"{test['change']:+.3f} ± {test['margin']:.3f}"
        rows[name] = f"{test['before']:.3f} before, {test['after']:.3f} after ({change})"
    if kept:
        change = f"{kept['before']:.3f} before, {kept['after']:.3f} after"
        rows[f"guarded: {kept['score']}"] = f"{change} (a loss of {kept['allowed_loss']:g} was allowed)"
    return rows


def scores_of_run(state: TrainerState, loads_best: bool, data_dir: str | None) -> dict:
    """Return the scores of `--eval_tasks` at the saved step and before training, as the content of `scores.json`.

    With `loads_best` that is the best step. Empty if it was not evaluated.
    """
    saved = state.best_global_step if loads_best and state.best_global_step else state.global_step
    by_step = {entry["step"]: entry for entry in state.log_history if any(key.startswith("eval_") for key in entry)}
    if saved not in by_step:
        return {}
    from mirror.evaluation.run import all_tasks, default_data_dir

    tasks = all_tasks(Path(data_dir) if data_dir else default_data_dir())
    steps = {"before": 0, "after": saved} if 0 in by_step else {"after": saved}
    scores: dict = {
        label: {
            name: {"score": value, "metric": tasks[name].metric}
            for key, value in by_step[step].items()
            if (name := key.removeprefix("eval_")) in tasks
        }
        for label, step in steps.items()
    }
    return scores | {"how": dict.fromkeys(steps, "the settings of the run")} if scores["after"] else {}


def write_scores(folder: str | Path, scores: dict) -> None:
    """Write `scores.json`. Empty `scores` delete the files of an earlier run in the same folder."""
    for name, is_stale in ((FIGURE, "picture" not in scores), (SCORES_FILE, not scores)):
        if is_stale:
            (Path(folder) / name).unlink(missing_ok=True)
    if scores:
        atomic_write_text(Path(folder) / SCORES_FILE, json.dumps(scores, indent=2) + "\n")


def _metadata(name: str, record: RunRecord, scores: dict) -> str:
    """Return the YAML front matter of the card."""
    from mirror.evaluation.run import dataset_of

    base, dataset, settings = record.run["base_model"], record.run["dataset"], record.settings
    results = []
    for task, result in scores.get("after", {}).items():
        score = {"metric_type": result["metric"], "metric_value": round(result["score"], 6)}
        results.append(EvalResult(task_type="sentence-similarity", **score, **dataset_of(task)))
    # The tags that sentence-transformers 5 writes, and the method.
    tags = ["sentence-transformers", "sentence-similarity", "feature-extraction", "dense", "generated_from_trainer"]
    tags += [f"dataset_size:{record.corpus['rows']}"] if "rows" in record.corpus else []
    tags += [f"loss:{settings['loss']}"] if "loss" in settings else []
    return ModelCardData(
        language=record.run.get("language") or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        base_model=base["hub_id"],
        datasets=[dataset] if dataset else None,
        tags=[*tags, record.method.replace("mirror", "mirror-bert")],
        model_name=name if results else None,
        eval_results=results or None,
        **base["license"],
    ).to_yaml()


def _plain(text: str) -> str:
    """Return a name that others chose without the characters that mean something in Markdown or HTML."""
    return re.sub(r"[^\w./ +-]", "_", text)


def _read_json(folder: Path, filename: str, optional: bool = False) -> dict | list:
    if optional and not (folder / filename).exists():
        return {}
    try:
        return json.loads((folder / filename).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{folder}: no readable {filename}; give the --output_dir of a finished run") from error
