"""Which noise suits which text: an encoder adapted with each, judged by the tests without labels on held-out texts.

    python benchmarks/noise_by_corpus.py --model_name_or_path sentence-transformers/all-MiniLM-L6-v2 \\
        --corpora captions=captions.txt questions=questions.txt names=names.txt --output_file noise.md

`docstrings` stands for this machine's docstrings. Prints one row per noise, one column per corpus: the mean reciprocal rank
of all tests (their geometric mean, as in `--select_by own_text`) after training, and the base's in the first row.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter

from mirror.common.atomic_files import atomic_write_text
from mirror.common.errors import run_main


DOCSTRINGS = "docstrings"
NOISES = {
    "dropout only": {"augmentation": "none"},
    "span of 5 characters": {"augmentation": "span"},
    "span of 2 characters": {"augmentation": "span", "span_mask_length": 2, "span_mask_min_chars": 8},
    "words deleted, .2": {"augmentation": "delete", "augmentation_rate": 0.2},
    "words deleted, .4": {"augmentation": "delete", "augmentation_rate": 0.4},
    "words deleted, .6": {"augmentation": "delete", "augmentation_rate": 0.6},
    "words deleted, .8": {"augmentation": "delete", "augmentation_rate": 0.8},
    "a part cropped, .5": {"augmentation": "crop", "augmentation_rate": 0.5},
}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--corpora", nargs="+", type=named_file, default=[(DOCSTRINGS, None)], metavar="NAME=FILE")
    parser.add_argument("--noises", nargs="+", choices=NOISES, default=list(NOISES), metavar="NOISE")
    parser.add_argument(
        "--max_train_samples", type=int, default=4000, help="texts, a thousand of them to test on (default: 4000)"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[42])
    parser.add_argument("--output_file", help="a Markdown file, rewritten after each run")
    args = parser.parse_args()

    import numpy as np

    from benchmarks.side_by_side import markdown
    from mirror.data.corpus import CorpusSource, load_training_corpus

    logging.disable(logging.WARNING)
    scores: dict[tuple[str, str], list[float]] = {}
    for corpus_name, file in args.corpora:
        files = (file,) if file else ()
        corpus = load_training_corpus(CorpusSource(train_file=files, max_train_samples=args.max_train_samples))
        for noise in args.noises:
            for seed in args.seeds:
                before, after = mean_reciprocal_ranks(args.model_name_or_path, corpus, seed, **NOISES[noise])
                scores[corpus_name, "before"] = [before]
                scores.setdefault((corpus_name, noise), []).append(after)
                rows = [
                    (row, *(cell(scores.get((column, row)), np) for column, _ in args.corpora))
                    for row in ("before", *args.noises)
                ]
                table = markdown(("", *(name for name, _ in args.corpora)), rows)
                if args.output_file:
                    atomic_write_text(args.output_file, table + "\n")
    sys.stdout.write(table + "\n")


def mean_reciprocal_ranks(model: str, corpus, seed: int, **noise) -> tuple[float, float]:
    """The criterion of `--select_by own_text` before and after one training."""
    from scipy.stats import gmean

    from mirror.training.config import MirrorConfig
    from mirror.training.trainer import MirrorTrainer

    with tempfile.TemporaryDirectory() as folder:
        quiet = {"output_dir": folder, "disable_tqdm": True, "report_to": "none"}
        config = MirrorConfig(pooling="mean", validation_samples=1000, seed=seed, **noise, **quiet)
        trainer = MirrorTrainer(model, config, corpus)
        trainer.train()
    tests = trainer.own_text_scores
    before, after = ([test[key] for test in tests] for key in ("mrr_before", "mrr_after"))
    return float(gmean(before)), float(gmean(after))


def cell(values: list[float] | None, np) -> str:
    if not values:
        return ""
    deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{deviation}"


def named_file(text: str) -> tuple[str, str | None]:
    name, sign, file = text.partition("=")
    if name == DOCSTRINGS and not sign:
        return name, None
    if not (name and file):
        raise ArgumentTypeError(f"{text!r} is neither NAME=FILE nor {DOCSTRINGS}")
    return name, file


if __name__ == "__main__":
    run_main(main)
