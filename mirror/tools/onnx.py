"""Export a checkpoint to ONNX, for servers and machines without torch.

    python -m mirror.tools.onnx out/mirror --onnx
    python -m mirror.tools.onnx out/mirror --onnx --int8 --texts sample.txt
    python -m mirror.tools.onnx out/mirror --onnx --int8 --eval_tasks stsb_dev --data_dir data

OUT/onnx/model.onnx returns `last_hidden_state`; the caller applies the pooling of 1_Pooling/config.json. --int8 adds
OUT/onnx/model_quantized.onnx with 8-bit weights. Both are compared with the checkpoint on a sample of texts. The 8-bit
model and the checkpoint are also scored on --eval_tasks (default: STS-B dev, if its data is available). The results
are written to OUT/onnx/export.json and to the model card. Needs the extra "onnx".
"""

from __future__ import annotations

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

from mirror.common.cli import Parser, add_trust, configure_logging
from mirror.common.errors import InputError, run_main


if TYPE_CHECKING:
    from mirror.evaluation.run import PreparedTask
    from mirror.modeling.encoder import Encode, Encoder

FLOAT, INT8 = "model.onnx", "model_quantized.onnx"
SAMPLE = 256


# Not sentence-transformers' backend="onnx" and export_dynamic_quantized_onnx_model: they need optimum-onnx, whose last
# release (0.1.0) requires transformers < 4.58.
def export_onnx(encoder: Encoder, path: Path) -> None:
    """Write the backbone to `path` as an ONNX graph with dynamic batch size and sequence length."""
    import torch

    model = encoder.model.cpu().eval()
    model.set_attn_implementation("sdpa")
    batch = encoder.tokenizer(["a text", "another, longer text"], padding=True, return_tensors="pt")
    accepted = inspect.signature(model.forward).parameters
    inputs = {name: tensor for name, tensor in batch.items() if name in accepted}

    class Backbone(torch.nn.Module):  # the exporter wants positional inputs and one output
        def forward(self, *tensors):
            return self.model(**dict(zip(inputs, tensors, strict=True))).last_hidden_state

    backbone = Backbone().eval()
    backbone.model = model
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns that torchvision is not installed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        names = {"input_names": list(inputs), "output_names": ["last_hidden_state"]}
        shapes = (tuple({0: "batch", 1: "sequence"} for _ in inputs),)
        options = {"dynamo": True, "external_data": False, "verbose": False, "dynamic_shapes": shapes}
        torch.onnx.export(backbone, tuple(inputs.values()), path, **names, **options)


def onnx_encode(path: Path, encoder: Encoder) -> Encode:
    """Return a function that encodes texts like `encoder`, with its backbone in ONNX Runtime."""
    import numpy as np
    import onnxruntime
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    from mirror.modeling.encoder import Encoder

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_inputs()]

    class Backbone(torch.nn.Module):
        device, config = torch.device("cpu"), encoder.model.config

        def forward(self, output_hidden_states=False, **batch):
            batch.setdefault("token_type_ids", torch.zeros_like(batch["input_ids"]))
            feed = {name: batch[name].numpy().astype(np.int64) for name in names}
            (hidden,) = session.run(["last_hidden_state"], feed)  # (B, T, D)
            return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden))

    same = encoder.max_seq_length, [*encoder.head], encoder.prompt, encoder.truncate_dim, encoder.role_prompts
    copied = Encoder(Backbone(), encoder.tokenizer, encoder.pooling, *same, encoder.include_prompt)
    # Dynamic quantization has one scale for all activations of a batch. Alone, the vector of a text depends on no other.
    return partial(copied.encode, batch_size=1)


def export(
    folder: Path, encoder: Encoder, texts: Sequence[str], int8: bool, tasks: Sequence[PreparedTask] = ()
) -> dict[str, dict]:
    """Write the ONNX models of a checkpoint and compare them with it. Existing ones are replaced only on success.

    Args:
        texts: sample to compare the embeddings on.
        int8: whether to write a model with 8-bit weights too, and score it and the checkpoint on `tasks`.

    Returns:
        By file name `lowest_cosine`, `mean_cosine` and the number of `texts`. For the 8-bit model also `scores`: by task,
        the main score of the `checkpoint` and of its `copy`. Other embeddings than the checkpoint's are an InputError.
    """
    from mirror.common.vectors import unit_length

    temporary = folder / "_onnx"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    expected, report = unit_length(encoder.encode(texts)), {}
    try:
        export_onnx(encoder, temporary / FLOAT)
        if int8:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantize_dynamic(temporary / FLOAT, temporary / INT8, weight_type=QuantType.QInt8)
        for name in (FLOAT, INT8) if int8 else (FLOAT,):
            encode = onnx_encode(temporary / name, encoder)
            cosines = (expected * unit_length(encode(texts))).sum(axis=1)  # (N,)
            lowest, mean = float(cosines.min()), float(cosines.mean())
            report[name] = {"lowest_cosine": lowest, "mean_cosine": mean, "texts": len(texts)}
            if name == FLOAT and not lowest > 0.9999:  # the loss of 8 bits is only reported
                message = f"the ONNX model computes different embeddings: cosine {lowest:.6f}, expected 1"
                raise InputError(f"{folder}: {message}")
        if int8:
            both = {"checkpoint": encoder.encode, "copy": encode}
            scores = {task.name: {key: task.score(each)["main_score"] for key, each in both.items()} for task in tasks}
            report[INT8]["scores"] = scores
        (temporary / "export.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder / "onnx", ignore_errors=True)
        temporary.rename(folder / "onnx")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def tasks_to_score(names: Sequence[str] | None, data_dir: str | None) -> list[PreparedTask]:
    """Return the tasks of `--eval_tasks`. Default: STS-B dev, or nothing and a message if its data is missing."""
    from mirror.evaluation.catalogue import all_tasks, default_data_dir, resolve
    from mirror.evaluation.run import make_plan

    folder = Path(data_dir) if data_dir else default_data_dir()
    if names is None and (missing := all_tasks(folder)["stsb_dev"].missing_files(folder)):
        sys.stderr.write(
            f"{missing[0]} is missing: the 8-bit model is not scored on stsb_dev; give the data folder with "
            "--data_dir, or use --eval_tasks docs_search, which needs no data\n"
        )
        return []
    names = names or ["stsb_dev"]
    if training := [task.name for task in resolve(names, all_tasks(folder)) if task.trains]:
        raise InputError(f"--eval_tasks {training[0]} trains the encoder, which is not possible with an ONNX model")
    return make_plan(names, folder).tasks


def main() -> None:
    parser = Parser(__doc__)
    add = parser.add_argument
    add("folder", metavar="OUT", help="Path to the --output_dir of a finished run.")
    add("--onnx", action="store_true", required=True, help="Whether to export to ONNX, the only format.")
    add("--int8", action="store_true", help="Whether to write a model with 8-bit weights too.")
    sample = f"Path to texts of which the first {SAMPLE} are compared (default: docstrings of the installed packages)."
    add("--texts", metavar="F", help=sample)
    tasks = "Tasks to score the 8-bit model and the checkpoint on (default: stsb_dev, if its data is available)."
    add("--eval_tasks", nargs="+", metavar="T", help=tasks)
    data = "Path to the evaluation data (default: $MIRROR_DATA_DIR, or the folder 'data')."
    add("--data_dir", metavar="D", help=data)
    add_trust(parser)
    args = parser.parse_args()
    if args.eval_tasks and not args.int8:
        parser.error("--eval_tasks scores the 8-bit model; add --int8")
    configure_logging(logging.ERROR)  # the quantizer logs advice to the root logger
    try:
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f'--onnx needs {error.name}: pip install "mirror-encoders[onnx]"') from error
    from mirror.common import trust
    from mirror.common.reuse import lock_output_dir
    from mirror.data.corpus import load_training_corpus
    from mirror.data.source import CorpusSource
    from mirror.modeling.encoder import Encoder
    from mirror.training.card import name_on_unedited_card, write_card
    from mirror.training.record import FILE

    trust.grant(args.allow_pickle, args.trust_remote_code)
    folder = Path(args.folder)
    if not (folder / "modules.json").exists():
        raise InputError(f"{folder}: no modules.json; give the --output_dir of a finished run")
    lock_output_dir(folder)  # against another export, and a run that is still going on
    encoder = Encoder.from_pretrained(str(folder), device="cpu")
    if encoder.pooling not in ("cls", "mean", "max"):
        message = "which runtimes of ONNX models do not support; use cls, mean or max"
        raise InputError(f"{folder} uses pooling '{encoder.pooling}', {message}")
    tasks = tasks_to_score(args.eval_tasks, args.data_dir) if args.int8 else []
    source = CorpusSource(train_file=(args.texts,) if args.texts else (), max_train_samples=SAMPLE)
    texts = list(load_training_corpus(source).rows["text"])
    is_run = (folder / FILE).exists()
    name = name_on_unedited_card(folder) if is_run else None  # before the export, because a new card describes it
    report = export(folder, encoder, texts, args.int8, tasks)
    if name:
        write_card(folder, name)
    elif is_run:
        sys.stderr.write(f"{folder}/README.md was edited, so it stays as it is; add the export to it by hand\n")
    for file, measured in report.items():
        size = (folder / "onnx" / file).stat().st_size / 1e6
        sys.stdout.write(f"{folder}/onnx/{file}\t{size:.1f} MB\tlowest cosine {measured['lowest_cosine']:.6f}\n")
        for task, score in measured.get("scores", {}).items():
            sys.stdout.write(f"{task}\t{score['checkpoint']:.4f} checkpoint\t{score['copy']:.4f} with 8 bits\n")


if __name__ == "__main__":
    run_main(main)
