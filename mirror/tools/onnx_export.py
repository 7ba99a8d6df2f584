"""Export a checkpoint to ONNX, for servers and machines without torch.

    python -m mirror.tools.onnx_export out/mirror --onnx
    python -m mirror.tools.onnx_export out/mirror --onnx --int8 --texts sample.txt
    python -m mirror.tools.onnx_export out/mirror --onnx --int8 --eval_tasks stsb_dev --data_dir data

OUT/onnx/model.onnx returns `last_hidden_state`; the caller applies the pooling of 1_Pooling/config.json. --int8 adds
OUT/onnx/model_quantized.onnx with 8-bit weights. Both are compared with the checkpoint on a sample of texts. The 8-bit
model and the checkpoint are also scored on --eval_tasks (default: STS-B dev, if its data is available). The results
are written to OUT/onnx/export.json and to the model card. Needs the extra "onnx".
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

from mirror.common.cli import Parser, add_trust
from mirror.common.errors import InputError, run_main
from mirror.common.logging import configure_logging
from mirror.training.run_record import FILE


if TYPE_CHECKING:
    import numpy as np

    from mirror.evaluation.run import PreparedTask
    from mirror.modeling.encoder import Encoder

FLOAT, INT8, REPORT = "model.onnx", "model_quantized.onnx", "export.json"
MINIMUM_COSINE = 0.9999  # for the float model; the loss from 8 bits is only reported
SAMPLE = 256
DEFAULT_TASK = "stsb_dev"


def export_onnx(encoder: Encoder, path: Path) -> None:
    """Write the backbone to `path` as an ONNX graph with dynamic batch size and sequence length."""
    model = encoder.model.cpu().eval()
    model.set_attn_implementation("sdpa")
    batch = encoder.tokenizer(["a text", "another, longer text"], padding=True, return_tensors="pt")
    accepted = inspect.signature(model.forward).parameters
    inputs = {name: tensor for name, tensor in batch.items() if name in accepted}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is not installed
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
    """Dynamic quantization: 8-bit weights; activations are quantized at run time."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QInt8)


def encode_with_onnx(path: Path, encoder: Encoder, texts: Sequence[str]) -> np.ndarray:
    """Embeddings of `texts` with ONNX Runtime, (N, D), with the pooling of `encoder`.

    Each distinct text is encoded once, in a batch of its own, so there is no padding.
    """
    import numpy as np
    import onnxruntime
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    from mirror.modeling.pooling import pool

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
        vectors.append(vector[:, : encoder.truncate_dim].detach().numpy())
    position = {text: row for row, text in enumerate(unique)}
    return np.concatenate(vectors)[[position[text] for text in texts]]


def compare(path: Path, encoder: Encoder, texts: Sequence[str]) -> dict[str, float]:
    """Lowest and mean cosine between the embeddings of the ONNX model `path` and of the checkpoint."""
    from mirror.common.nearest_neighbors import unit_length

    expected, exported = (
        unit_length(vectors) for vectors in (encoder.encode(texts), encode_with_onnx(path, encoder, texts))
    )
    cosines = (expected * exported).sum(axis=1)  # (N,)
    return {"lowest_cosine": float(cosines.min()), "mean_cosine": float(cosines.mean()), "texts": len(texts)}


def score_both(path: Path, encoder: Encoder, tasks: Sequence[PreparedTask]) -> dict[str, dict[str, float]]:
    """Main scores of the checkpoint ("checkpoint") and of the ONNX model `path` ("copy"), by task."""
    encoders = {"checkpoint": encoder.encode, "copy": partial(encode_with_onnx, path, encoder)}
    return {
        task.name: {which: task.score(encode)["main_score"] for which, encode in encoders.items()} for task in tasks
    }


def load_checkpoint(folder: Path) -> Encoder:
    """The checkpoint in `folder`.

    Raises:
        InputError: there is none, or its pooling cannot be computed from `last_hidden_state` by other readers.
    """
    from mirror.modeling.encoder import Encoder

    if not (folder / "modules.json").exists():
        raise InputError(f"{folder}: no modules.json; give the --output_dir of a finished run")
    encoder = Encoder.from_pretrained(str(folder), device="cpu")
    if encoder.pooling not in ("cls", "mean", "max"):
        raise InputError(
            f"{folder} uses pooling '{encoder.pooling}', which readers of ONNX models do not support; "
            "use cls, mean or max"
        )
    return encoder


def export(
    folder: Path, encoder: Encoder, texts: Sequence[str], int8: bool, tasks: Sequence[PreparedTask] = ()
) -> dict[str, dict]:
    """Write the ONNX models of a checkpoint and compare them with it; existing ones are replaced only on success.

    Args:
        folder: the checkpoint folder.
        texts: sample to compare the embeddings on.
        int8: also write a model with 8-bit weights.
        tasks: tasks to score the 8-bit model and the checkpoint on.

    Returns:
        The result of `compare` by file name; for the 8-bit model also that of `score_both`, as `scores`.

    Raises:
        InputError: the ONNX model computes different embeddings.
    """
    temporary = folder / "_onnx"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        export_onnx(encoder, temporary / FLOAT)
        report = {FLOAT: compare(temporary / FLOAT, encoder, texts)}
        if not report[FLOAT]["lowest_cosine"] > MINIMUM_COSINE:
            raise InputError(
                f"{folder}: the ONNX model computes different embeddings: "
                f"cosine {report[FLOAT]['lowest_cosine']:.6f}, expected 1"
            )
        if int8:
            quantize(temporary / FLOAT, temporary / INT8)
            report[INT8] = compare(temporary / INT8, encoder, texts)
            report[INT8]["scores"] = score_both(temporary / INT8, encoder, tasks)
        (temporary / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder / "onnx", ignore_errors=True)
        temporary.rename(folder / "onnx")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def main() -> None:
    args = parse_arguments()
    configure_logging(logging.ERROR)  # the quantizer logs advice to the root logger
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f'--onnx needs {error.name}: pip install "mirror-encoders[onnx]"') from error
    from mirror.common import loading_policy
    from mirror.tools.model_card import name_on_unedited_card, write_card

    loading_policy.grant(args.allow_pickle, args.trust_remote_code)
    folder = Path(args.folder)
    encoder = load_checkpoint(folder)
    tasks = tasks_to_score(args.eval_tasks, args.data_dir) if args.int8 else []
    texts = sample_texts(args.texts)
    is_run = (folder / FILE).exists()
    name = name_on_unedited_card(folder) if is_run else None  # before the export, which a new card describes
    report = export(folder, encoder, texts, args.int8, tasks)
    if name:
        write_card(folder, name)
    elif is_run:
        sys.stderr.write(f"{folder}/README.md was edited, so it stays as it is; add the export to it by hand\n")
    for name, measured in report.items():
        size = (folder / "onnx" / name).stat().st_size / 1e6
        sys.stdout.write(f"{folder}/onnx/{name}\t{size:.1f} MB\tlowest cosine {measured['lowest_cosine']:.6f}\n")
        for task, score in measured.get("scores", {}).items():
            sys.stdout.write(f"{task}\t{score['checkpoint']:.4f} checkpoint\t{score['copy']:.4f} with 8 bits\n")


def tasks_to_score(names: Sequence[str] | None, data_dir: str | None) -> list[PreparedTask]:
    """The tasks of `--eval_tasks`; default: STS-B dev, or no task and a message on stderr if its data is missing.

    Raises:
        InputError: a task is unknown or trains the encoder, or its data is missing or damaged.
    """
    from mirror.evaluation.catalogue import all_tasks, resolve
    from mirror.evaluation.run import default_data_dir, make_plan

    folder = Path(data_dir) if data_dir else default_data_dir()
    if names is None and (missing := all_tasks(folder)[DEFAULT_TASK].missing_files(folder)):
        sys.stderr.write(
            f"{missing[0]} is missing: the 8-bit model is not scored on {DEFAULT_TASK}; give the data folder with "
            "--data_dir, or use --eval_tasks docs_search, which needs no data\n"
        )
        return []
    names = names or [DEFAULT_TASK]
    if training := [task.name for task in resolve(names, all_tasks(folder)) if task.trains]:
        raise InputError(f"--eval_tasks {training[0]} trains the encoder, which is not possible with an ONNX model")
    return make_plan(names, folder).tasks


def sample_texts(path: str | None) -> list[str]:
    """The first `SAMPLE` distinct texts of a file, or of the docstrings of the installed packages."""
    from mirror.data.corpus import CorpusSource, load_training_corpus

    source = CorpusSource(train_file=(path,) if path else (), max_train_samples=SAMPLE)
    return list(load_training_corpus(source).rows["text"])


def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("folder", metavar="OUT", help="the --output_dir of a finished run")
    add("--onnx", action="store_true", required=True, help="export to ONNX, the only format")
    add("--int8", action="store_true", help="also write a model with 8-bit weights")
    add(
        "--texts",
        metavar="F",
        help=f"compare on the first {SAMPLE} texts of this file (default: docstrings of the installed packages)",
    )
    add(
        "--eval_tasks",
        nargs="+",
        metavar="T",
        help="score the 8-bit model and the checkpoint on these tasks (default: stsb_dev, if its data is available)",
    )
    add("--data_dir", metavar="D", help="evaluation data; default: $MIRROR_DATA_DIR, or the folder 'data'")
    add_trust(parser)
    args = parser.parse_args()
    if args.eval_tasks and not args.int8:
        parser.error("--eval_tasks scores the 8-bit model; add --int8")
    return args


def _backbone(model, names: list[str]):
    """Wrap `model` for the ONNX exporter: positional inputs `names`, and `last_hidden_state` as the only output."""
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
