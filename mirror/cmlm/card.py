"""What the model card of a CMLM encoder says about how it was made; `mirror.card` writes it."""

from __future__ import annotations

from mirror.card import run_rows


def card_facts(results: dict) -> dict[str, str]:
    """Rows of the card's table: what ran, on what, with what. No text of the corpus."""
    settings = results["settings"]
    return {
        "stage": settings["stage"],
        "condition": f"{settings['num_projections']} projected vectors, pooling {settings['pooling']}",
        "masked": f"{settings['mlm_probability']:.1%} of the second segment",
        **{f"rows of {kind}": f"{count:,}" for kind, count in results["corpus"].items()},
        "optimiser": f"{settings['optimizer']}, rate {settings['learning_rate']:g}",
        **run_rows(results),
    }
