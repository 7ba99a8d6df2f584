"""How well the tests without labels on one's own text agree with retrieval by labels, over runs of many settings.

    python benchmarks/own_text.py --model_name_or_path sentence-transformers/all-MiniLM-L6-v2

Trains on docstrings of this machine with each of the settings, harmful ones among them, and prints what the run says of itself
beside docs_search_dev (accuracy@1 of retrieving a held-out docstring from its name), and Spearman's correlations.
"""

from __future__ import annotations

import logging
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter

from mirror.common.errors import run_main


DELETE = {"augmentation": "delete", "augmentation_rate": 0.5}
SETTINGS = {
    "span mask": {},
    "no noise on words": {"augmentation": "none"},
    "half of the words deleted": DELETE,
    "the same, a fourth of the rate": DELETE | {"learning_rate_times": 0.25},
    "the same, 2.5 times the rate": DELETE | {"learning_rate_times": 2.5},
    "the same, 5 times the rate": DELETE | {"learning_rate_times": 5},
    "the same, 15 times the rate": DELETE | {"learning_rate_times": 15},
    "span mask, 5 times the rate": {"learning_rate_times": 5},
}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--model_name_or_path", help="default: the embedded model")
    parser.add_argument(
        "--max_train_samples", type=int, default=4000, help="texts, a thousand of them to test on (default: 4000)"
    )
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    from scipy.stats import gmean, spearmanr

    from benchmarks.side_by_side import markdown
    from mirror.assets import EMBEDDED_MODEL
    from mirror.data.corpus import CorpusSource, load_training_corpus
    from mirror.evaluation.run import make_plan
    from mirror.modeling.encoder import Encoder

    logging.disable(logging.WARNING)
    model = args.model_name_or_path or str(EMBEDDED_MODEL)
    corpus = load_training_corpus(CorpusSource(max_train_samples=args.max_train_samples))
    plan = make_plan(["docs_search_dev"])
    rows = []
    untrained = plan.run(Encoder.from_pretrained(model, "mean").encode)["tasks"]["docs_search_dev"]["main_score"]
    for name, setting in SETTINGS.items():
        trainer = train(model, corpus, args.seed, **setting)
        search = plan.run(trainer.encoder(training=False).encode)["tasks"]["docs_search_dev"]["main_score"]
        words, halves = trainer.own_text_scores
        both = [gmean([words[key], halves[key]]) for key in ("mrr_before", "mrr_after")]
        rows.append((name, words["after"], halves["after"], both[1], search))
        base = ("before", words["before"], halves["before"], both[0])
    names = ("", "words", "halves", "both (mean reciprocal ranks)", "docs_search_dev")
    print(markdown(names, [(*map(shown, base), shown(untrained)), *(tuple(map(shown, row)) for row in rows)]))
    for column, label in enumerate(names[1:4], start=1):
        rho = spearmanr([row[column] for row in rows], [row[4] for row in rows]).statistic
        print(f"Spearman with docs_search_dev, {label}: {rho:.2f}")


def train(model: str, corpus, seed: int, learning_rate_times: float = 1.0, **setting):
    """A finished trainer."""
    from mirror.training.config import MirrorConfig
    from mirror.training.levels import default_learning_rate
    from mirror.training.trainer import MirrorTrainer

    rate = learning_rate_times * default_learning_rate(model)
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"disable_tqdm": True, "report_to": "none", "output_dir": folder}
        config = MirrorConfig(
            pooling="mean", learning_rate=rate, seed=seed, validation_samples=1000, **setting, **quiet
        )
        trainer = MirrorTrainer(model, config, corpus)
        trainer.train()
    return trainer


def shown(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3f}".removeprefix("0")


if __name__ == "__main__":
    run_main(main)
