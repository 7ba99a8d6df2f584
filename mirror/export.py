"""Write an ONNX copy of a checkpoint beside its weights, for servers and machines without torch.

    python -m mirror.export out/mirror --onnx
    python -m mirror.export out/mirror --onnx --int8 --texts sample.txt
    python -m mirror.export out/mirror --onnx --int8 --eval_tasks stsb_dev --data_dir data

OUT/onnx/model.onnx gives `last_hidden_state`; pooling stays the reader's, as 1_Pooling/config.json says. --int8 adds
OUT/onnx/model_quantized.onnx, with weights of 8 bits. Both are run and compared with the checkpoint on a sample of texts,
and the 8-bit copy is scored beside the checkpoint on STS-B dev, if that is in the data folder, or on --eval_tasks. All of
it goes into OUT/onnx/export.json and the card. Needs requirements-onnx.txt.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import shutil
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.errors import InputError, run_main
from mirror.flags import Parser


if TYPE_CHECKING:
    import numpy as np

    from mirror.encoder import Encoder
    from mirror.evaluation.run import PreparedTask

FLOAT, INT8, REPORT = "model.onnx", "model_quantized.onnx", "export.json"
MINIMUM_COSINE = 0.9999  # of the float model; how much 8 bits lose is reported, not judged
SAMPLE = 256
USUAL_TASK = "stsb_dev"


def export_onnx(encoder: Encoder, path: Path) -> None:
    """The backbone as an ONNX graph with free batch size and length."""
    model = encoder.model.cpu().eval()
    model.set_attn_implementation("sdpa")
    batch = encoder.tokenizer(["a text", "another, longer text"], padding=True, return_tensors="pt")
    accepted = inspect.signature(model.forward).parameters
    inputs = {name: tensor for name, tensor in batch.items() if name in accepted}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, which texts do not need
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _export(_backbone(model, list(inputs)).eval(), inputs, path)


def _export(module, inputs: dict, path: Path) -> None:
    import torch

    torch.onnx.export(
        module, tuple(inputs.values()), path, dynamo=True, external_data=False,
        input_names=list(inputs), output_names=["last_hidden_state"], verbose=False,
        dynamic_shapes=(tuple({0: "batch", 1: "sequence"} for _ in inputs),),
    )  # fmt: skip


def quantize(source: Path, target: Path) -> None:
    """Weights of 8 bits; activations are quantized as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QInt8)


def encode_with_onnx(path: Path, encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """(N, D) vectors of `texts` by ONNX Runtime, pooled as `encoder` pools.

    Each distinct text is encoded once and by itself, so that nothing is padded.
    """
    import numpy as np
    import onnxruntime
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    from mirror.pooling import pool

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = {item.name for item in session.get_inputs()}
    unique, vectors = list(dict.fromkeys(texts)), []
    for ids in encoder.tokenize(unique):
        batch = encoder.tokenizer.pad({"input_ids": [ids]}, return_tensors="np")
        feed = {name: array.astype(np.int64) for name, array in batch.items() if name in names}
        if "token_type_ids" in names:
            feed.setdefault("token_type_ids", np.zeros_like(feed["input_ids"]))
        (hidden,) = session.run(["last_hidden_state"], feed)  # (1, T, D)
        output = BaseModelOutput(last_hidden_state=torch.from_numpy(hidden))
        vector = pool(output, torch.ones(hidden.shape[:2], dtype=torch.long), encoder.pooling)
        if len(encoder.head):
            vector = encoder.head({"sentence_embedding": vector})["sentence_embedding"]
        vectors.append(vector.detach().numpy())
    position = {text: row for row, text in enumerate(unique)}
    return np.concatenate(vectors)[[position[text] for text in texts]]


def compare(path: Path, encoder: Encoder, texts: Sequence[str]) -> dict[str, float]:
    """Lowest and mean cosine of the vectors of `path` with those of the checkpoint."""
    from mirror.evaluation.search import unit_length

    ours, theirs = (
        unit_length(vectors) for vectors in (encoder.encode(texts), encode_with_onnx(path, encoder, texts))
    )
    cosines = (ours * theirs).sum(axis=1)  # (N,)
    return {"lowest_cosine": float(cosines.min()), "mean_cosine": float(cosines.mean()), "texts": len(texts)}


def score_both(path: Path, encoder: Encoder, tasks: Sequence[PreparedTask]) -> dict[str, dict[str, float]]:
    """Main scores of the checkpoint and of its copy in `path`, by task."""
    encoders = {"checkpoint": encoder.encode, "copy": partial(encode_with_onnx, path, encoder)}
    return {
        task.name: {which: task.score(encode)["main_score"] for which, encode in encoders.items()} for task in tasks
    }


def load(folder: Path) -> Encoder:
    """The checkpoint in `folder`.

    Raises:
        InputError: there is none, or its pooling is one that `last_hidden_state` alone does not give.
    """
    from mirror.encoder import Encoder

    if not (folder / "modules.json").exists():
        raise InputError(f"{folder}: no modules.json; give the --output_dir of a finished run")
    encoder = Encoder.from_pretrained(str(folder), device="cpu")
    if encoder.pooling not in ("cls", "mean", "max"):
        raise InputError(
            f"{folder} pools by '{encoder.pooling}', which readers of ONNX do not know; only cls, mean, max"
        )
    return encoder


def export(
    folder: Path, encoder: Encoder, texts: Sequence[str], int8: bool, tasks: Sequence[PreparedTask] = ()
) -> dict[str, dict]:
    """Write and compare the ONNX copies of a checkpoint; its old ones are replaced only by copies that agree.

    Args:
        tasks: to score the 8-bit copy on, beside the checkpoint.

    Returns:
        What `compare` measured, by file name; for the 8-bit copy also what `score_both` did, as `scores`.

    Raises:
        InputError: the copy gives other vectors.
    """
    aside = folder / "_onnx"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        export_onnx(encoder, aside / FLOAT)
        report = {FLOAT: compare(aside / FLOAT, encoder, texts)}
        if not report[FLOAT]["lowest_cosine"] > MINIMUM_COSINE:
            raise InputError(
                f"the ONNX copy gives other vectors: cosine {report[FLOAT]['lowest_cosine']:.6f}, expected 1"
            )
        if int8:
            quantize(aside / FLOAT, aside / INT8)
            report[INT8] = compare(aside / INT8, encoder, texts)
            report[INT8]["scores"] = score_both(aside / INT8, encoder, tasks)
        (aside / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder / "onnx", ignore_errors=True)
        aside.rename(folder / "onnx")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return report


def main() -> None:
    args = parse_arguments()
    logging.basicConfig(format="%(message)s", level=logging.ERROR)  # the quantizer advises on the root logger
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"--onnx needs {error.name}: pip install -r requirements-onnx.txt") from error
    folder = Path(args.folder)
    encoder = load(folder)
    tasks = tasks_to_score(args.eval_tasks, args.data_dir) if args.int8 else []
    report = export(folder, encoder, sample(args.texts), args.int8, tasks)
    if (folder / "train_results.json").exists():
        from mirror.card import write_card

        write_card(folder)
    for name, measured in report.items():
        size = (folder / "onnx" / name).stat().st_size / 1e6
        sys.stdout.write(f"{folder}/onnx/{name}\t{size:.1f} MB\tlowest cosine {measured['lowest_cosine']:.6f}\n")
        for task, score in measured.get("scores", {}).items():
            sys.stdout.write(f"{task}\t{score['checkpoint']:.4f} by the checkpoint\t{score['copy']:.4f} with 8 bits\n")


def tasks_to_score(names: Sequence[str] | None, data_dir: str | None) -> list[PreparedTask]:
    """The tasks of `--eval_tasks`; by default STS-B dev, or with a word on stderr none if its data is not there.

    Raises:
        InputError: an unknown task, one that trains, or data that is missing or damaged.
    """
    from mirror.evaluation.catalogue import all_tasks, resolve
    from mirror.evaluation.run import default_data_dir, prepare_tasks

    folder = Path(data_dir) if data_dir else default_data_dir()
    if names is None and (missing := all_tasks(folder)[USUAL_TASK].missing_files(folder)):
        sys.stderr.write(
            f"no {missing[0]}: what 8 bits cost on {USUAL_TASK} is not measured; --data_dir names the data folder, "
            "--eval_tasks docs_search needs none\n"
        )
        return []
    names = names or [USUAL_TASK]
    if training := [task.name for task in resolve(names, all_tasks(folder)) if task.trains]:
        raise InputError(f"--eval_tasks {training[0]} trains the encoder, which an ONNX copy cannot be")
    return prepare_tasks(names, folder)


def sample(path: str | None) -> list[str]:
    """Distinct texts to compare on: of a file, or docstrings of this machine's packages."""
    from mirror.data import DataSettings
    from mirror.runs import load_training_corpus

    settings = DataSettings(train_file=(path,) if path else (), max_train_samples=SAMPLE)
    return list(load_training_corpus(settings).rows["text"])


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("folder", metavar="OUT", help="the --output_dir of a finished run")
    add("--onnx", action="store_true", required=True, help="the format; the only one so far")
    add("--int8", action="store_true", help="also a copy with weights of 8 bits")
    add(
        "--texts",
        metavar="F",
        help=f"compare on the first {SAMPLE} texts of this file (default: docstrings found here)",
    )
    add(
        "--eval_tasks",
        nargs="+",
        metavar="T",
        help="score the 8-bit copy and the checkpoint on these (default: stsb_dev, if its data is there)",
    )
    add("--data_dir", metavar="D", help="their data; default: $MIRROR_DATA_DIR, or the folder 'data'")
    args = parser.parse_args()
    if args.eval_tasks and not args.int8:
        parser.error("--eval_tasks scores the copy that --int8 makes; add it")
    return args


def _backbone(model, names: list[str]):
    """`model` with inputs by position and one tensor as its output, which is what an ONNX graph has."""
    from torch import nn

    class Backbone(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, *inputs):
            return self.model(**dict(zip(names, inputs, strict=True))).last_hidden_state

    return Backbone()


if __name__ == "__main__":
    run_main(main)
