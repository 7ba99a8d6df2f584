"""Score the same model on the same rows with mteb and with run_eval.py's task; the two must agree to 1e-4.

    pip install mteb
    python benchmarks/compare_with_mteb.py --model all-MiniLM-L6-v2 --data_dir data --tasks sts12 stsb sickr_full

mteb evaluates the rows of the data folder instead of loading its own, so nothing is downloaded. The model has to load in
sentence-transformers.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from datasets import Dataset, DatasetDict
from sentence_transformers import SentenceTransformer

from mirror.common.errors import InputError, run_main
from mirror.evaluation.run import PreparedTask, make_plan
from mirror.evaluation.sts import SENTENCES
from mirror.modeling.encoder import Encoder


NAMES = {
    **{name: name.upper() for name in ("sts12", "sts13", "sts14", "sts15", "sts16")},
    **{"stsb": "STSBenchmark", "sickr_full": "SICK-R"},
}
TOLERANCE = 1e-4


def mteb_score(task: PreparedTask, model: SentenceTransformer) -> float:
    """Main score of mteb for the rows of `task`."""
    import mteb
    from mteb.models import SentenceTransformerEncoderWrapper

    parts = [file.read(task.data_dir) for file in task.task.files]
    columns = {name: [text for part in parts for text in part[name]] for name in (*SENTENCES, "score")}
    columns["score"] = [float(score) for score in columns["score"]]
    mteb_task = mteb.get_task(NAMES[task.name])
    mteb_task.dataset, mteb_task.data_loaded = DatasetDict({"test": Dataset.from_dict(columns)}), True
    wrapped = SentenceTransformerEncoderWrapper(model)
    scores = mteb_task.evaluate(wrapped, split="test", subsets_to_run=None, encode_kwargs={"batch_size": 64})
    return scores["default"]["main_score"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data_dir", help="default: $MIRROR_DATA_DIR")
    parser.add_argument("--tasks", nargs="+", choices=NAMES, default=["stsb"])
    args = parser.parse_args()

    import mteb  # imported late, so that --help is fast and works without mteb

    encoder = Encoder.from_pretrained(args.model, device="cpu")
    model = SentenceTransformer(args.model, device="cpu")
    print(f"mteb {mteb.__version__}\n\n| task | run_eval.py | mteb | difference |\n| --- | ---: | ---: | ---: |")
    for task in make_plan(args.tasks, args.data_dir).tasks:
        ours, theirs = task.score(encoder.encode)["main_score"], mteb_score(task, model)
        print(f"| {task.name} | {ours:.6f} | {theirs:.6f} | {ours - theirs:+.1e} |")
        if abs(ours - theirs) > TOLERANCE:
            raise InputError(
                f"{task.name}: {ours:.6f} here and {theirs:.6f} with mteb differ by more than {TOLERANCE}"
            )


if __name__ == "__main__":
    run_main(main)
