"""Table rows of a model card: the numbers and settings of a run, no text of the corpus."""

from __future__ import annotations

from mirror.training.run_record import RunRecord


def mirror_facts(record: RunRecord) -> dict[str, str]:
    """Rows about a Mirror-BERT run: method, settings, size and duration."""
    settings = record.settings
    noise = [f"dropout {settings['dropout_rate']}"]
    if settings["drophead_rate"]:
        noise.append(f"drophead {settings['drophead_rate']}")
    if settings["controlled_dropout"]:
        noise.append("same dropout masks in both views")
    lora_rank = settings.get("lora_rank")
    return {
        "level": settings["level"],
        "views": f"{describe_views(settings)}; {', '.join(noise)}",
        "loss": describe_loss(settings),
        **beyond_facts(settings),
        "trained": f"low-rank updates (LoRA) of rank {lora_rank}, merged" if lora_rank else "all weights",
        "optimiser": f"AdamW, learning rate {settings['learning_rate']:g}, weight decay {settings['weight_decay']:g}",
        **shared_facts(record),
    }


def cmlm_facts(record: RunRecord) -> dict[str, str]:
    """Rows about a CMLM run: stage, data, settings, size and duration."""
    settings = record.settings
    return {
        "stage": settings["stage"],
        "conditioning": f"{settings['num_projections']} projected vectors, pooling {settings['pooling']}",
        "masked": f"{settings['mlm_probability']:.1%} of the second segment",
        **{f"rows of {kind}": f"{count:,}" for kind, count in record.corpus.items()},
        "optimiser": f"{settings['optimizer']}, learning rate {settings['learning_rate']:g}",
        **shared_facts(record),
    }


def shared_facts(record: RunRecord) -> dict[str, str]:
    """Rows that all training methods share: batch, epochs, precision, seed, duration, versions."""
    settings, metrics, run = record.settings, record.metrics, record.run
    rows = {
        "batch": f"{run['effective_batch']:,} texts per step, on {run['processes']} process(es)",
        "step": run["step"],
        **length_facts(settings, metrics),
        "maximum length": f"{settings['max_seq_length']} tokens",
        "precision": "bfloat16" if settings.get("bf16") else "float16" if settings.get("fp16") else "float32",
        "seed": str(settings["seed"]),
        "training time": f"{metrics['train_runtime']:.0f} s on {record.hardware}"
        if "train_runtime" in metrics
        else None,
        "after training": settings.get("after_training"),
        "mean training loss": f"{metrics['train_loss']:.3f}" if "train_loss" in metrics else None,
    }
    versions = ", ".join(f"{package} {number}" for package, number in record.versions.items())
    return {key: value for key, value in rows.items() if value} | {"versions": versions}


def length_facts(settings: dict, metrics: dict) -> dict[str, str]:
    """Epochs of a corpus, steps of a stream."""
    if settings.get("streaming"):
        return {"steps": f"{settings['max_steps']:,}"}
    return {"epochs": f"{round(metrics.get('epoch', settings['num_train_epochs']), 2):g}"}


def describe_loss(settings: dict) -> str:
    """The loss and its temperature, if it has one."""
    if settings["loss"] == "multi_similarity":
        return "multi_similarity"
    return f"{settings['loss']}, temperature {settings['temperature']}" + (
        " initially, then learned" if settings["learnable_temperature"] else ""
    )


def beyond_facts(settings: dict) -> dict[str, str]:
    """Rows about what came after Mirror-BERT, where it was used."""
    queue, noise, phi = (
        settings.get(key) for key in ("negative_queue", "noise_negatives", "false_negative_weighting")
    )
    further = (
        [f"{queue:,} earlier texts, by a copy of the encoder with momentum {settings['queue_momentum']}"]
        if queue
        else []
    )
    further += [f"{noise:,} Gaussian vectors"] if noise else []
    dims = settings.get("matryoshka_dims")
    rows = {
        "projection head": "a linear layer and tanh, in training only" if settings.get("projection_head") else "",
        "further negatives": " and ".join(further),
        "negatives left out": f"cosine above {phi}" if phi is not None else "",
        "hardness": f"{settings['hardness']} times the cosine of a negative" if settings.get("hardness") else "",
        "batches": "texts of similar length" if settings.get("batching") else "",
        "shorter vectors": f"trained too: the first {', '.join(map(str, dims))} dimensions (`truncate_dim`)"
        if dims
        else "",
    }
    return {name: text for name, text in rows.items() if text}


def describe_views(settings: dict) -> str:
    """The text augmentation, and the views that it applies to."""
    augmentation = settings["augmentation"]
    if augmentation == "none":
        return "no text augmentation"
    if augmentation == "span":
        noise = f"span of {settings['span_mask_length']} characters masked"
    else:
        noise = f"augmentation {augmentation} with rate {settings['augmentation_rate']}"
    return f"{noise} in {'both views' if settings['augment_both_views'] else 'the second view'}"


def own_text_facts(scores: list[dict] | None, together: dict[str, float] | None = None) -> dict[str, str]:
    """Rows about the tests on held-out texts; none if there was no test."""
    from mirror.evaluation.own_text import KINDS  # imported late to keep --help fast

    named = [(f"{each['texts']:,} held-out texts {KINDS[each['test']]}", each) for each in scores or ()]
    named += [("both together, geometric mean of their mean reciprocal ranks", together)] if together else []
    return {
        name: f"{each['before']:.3f} before, {each['after']:.3f} after ({each['change']:+.3f} ± {each['margin']:.3f})"
        for name, each in named
    }


def kept_facts(kept: dict | None) -> dict[str, str]:
    """The row about the score that the training was not to lose; none without `--keep`."""
    if not kept:
        return {}
    text = f"{kept['before']:.3f} before, {kept['after']:.3f} after (a loss of {kept['allowed_loss']:g} was allowed)"
    return {f"guarded: {kept['score']}": text}


def corpus_facts(report: dict) -> dict[str, str]:
    """Rows about the corpus, from its report; `report` is empty for a stream."""
    if not report:
        return {"texts": "streamed: each text read once, duplicates not detected"}
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
    return rows
