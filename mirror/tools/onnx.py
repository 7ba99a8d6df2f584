"""Export a checkpoint to ONNX or OpenVINO, for servers and machines without torch, or for speed on a processor.

    mirror-export out/mirror --onnx
    mirror-export out/mirror --onnx --openvino --int8 --texts sample.txt
    python -m mirror.tools.onnx out/mirror --openvino --int8 --eval_tasks stsb_dev --data_dir data --max_loss 0.01

OUT/onnx/model.onnx and OUT/openvino/openvino_model.xml return `last_hidden_state`; the caller applies the pooling of
1_Pooling/config.json. --int8 adds a model of 8 bits beside each. All are compared with the checkpoint on a sample of texts.
An 8-bit model and the checkpoint are also scored on --eval_tasks (default: STS-B dev, if its data is available), and it is
refused if it loses more than --max_loss. The results are written to export.json beside the models and to the model card.
Needs the extra "onnx" or "openvino".
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirror.common.cli import Parser, add_trust, configure_logging
from mirror.common.errors import InputError, run_main


if TYPE_CHECKING:
    from mirror.evaluation.run import PreparedTask
    from mirror.modeling.encoder import EncodeByRole, Encoder

Batch = Mapping[str, np.ndarray]  # of token ids, mask and so on, (B, T) each
Run = Callable[[Batch], np.ndarray]  # a batch to `last_hidden_state`, (B, T, D)
SAMPLE = 256
MAX_LOSS = 0.02


# The files have the names and places that sentence-transformers reads with `backend="onnx"` and `backend="openvino"`.
# They are written without optimum-onnx and optimum-intel, on which these backends rest: both require transformers < 5.


class OnnxRuntime:
    """ONNX, for ONNX Runtime and most servers. Weights of 8 bits, activations quantized while it runs."""

    name, folder, files = "ONNX Runtime", "onnx", ("model.onnx", "model_quantized.onnx")
    needs, extra = ("onnx", "onnxscript", "onnxruntime"), "onnx"
    # Dynamic quantization has one scale for all activations of a batch. Alone, the vector of a text depends on no other.
    int8_batch_size = 1

    def write(self, encoder: Encoder, path: Path) -> None:
        """Write the backbone to `path` as a graph with dynamic batch size and sequence length."""
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

    def quantize(self, source: Path, target: Path, batches: Sequence[Batch]) -> None:
        """Write a copy with 8-bit weights."""
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(source, target, weight_type=QuantType.QInt8)

    def load(self, path: Path) -> tuple[list[str], Run]:
        """Return the names of the inputs and the function of a model."""
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return [item.name for item in session.get_inputs()], lambda batch: session.run(["last_hidden_state"], batch)[0]


class OpenVino:
    """OpenVINO, for processors of Intel and AMD. Weights and activations of 8 bits, calibrated on texts."""

    name, folder = "OpenVINO", "openvino"
    files = ("openvino_model.xml", "openvino_model_qint8_quantized.xml")
    needs, extra = (*OnnxRuntime.needs[:2], "openvino", "nncf"), "openvino"
    int8_batch_size = 64

    def write(self, encoder: Encoder, path: Path) -> None:
        """Write the backbone to `path`, and its weights beside it. It is made from the ONNX graph."""
        import openvino

        graph = path.with_suffix(".onnx")
        OnnxRuntime().write(encoder, graph)
        openvino.save_model(openvino.Core().read_model(graph), path, compress_to_fp16=False)
        graph.unlink()

    def quantize(self, source: Path, target: Path, batches: Sequence[Batch]) -> None:
        """Write a copy with 8-bit weights and activations, whose ranges are those of `batches`."""
        import nncf
        import openvino

        logging.getLogger("nncf").setLevel(logging.ERROR)
        model = openvino.Core().read_model(source)
        names = [item.get_any_name() for item in model.inputs]
        rows = nncf.Dataset([{name: batch[name] for name in names} for batch in batches])
        options = {"model_type": nncf.ModelType.TRANSFORMER, "subset_size": len(batches)}
        with redirect_stdout(sys.stderr):  # it draws progress bars
            small = nncf.quantize(model, rows, **options)
        openvino.save_model(small, target, compress_to_fp16=False)

    def load(self, path: Path) -> tuple[list[str], Run]:
        """Return the names of the inputs and the function of a model, in float32 where it would take bfloat16 by itself."""
        import openvino

        model = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        names = [item.get_any_name() for item in model.inputs]
        return names, lambda batch: model(dict(batch))["last_hidden_state"].copy()


RUNTIMES = {"onnx": OnnxRuntime(), "openvino": OpenVino()}


def check_packages(runtime: OnnxRuntime | OpenVino) -> None:
    """Raise an InputError if a package that a runtime needs is not installed."""
    os.environ["NNCF_DEV"] = "1"  # or nncf reports its use to a server
    for package in runtime.needs:
        try:
            import_module(package)
        except ImportError as error:
            install = f'pip install "mirror-encoders[{runtime.extra}]"'
            raise InputError(f"--{runtime.folder} needs {error.name}: {install}") from error


def runtime_encode(
    runtime: OnnxRuntime | OpenVino, path: Path, encoder: Encoder, batch_size: int = 64
) -> EncodeByRole:
    """Return a function that encodes texts like `encoder`, with its backbone in another runtime."""
    import torch
    from transformers.modeling_outputs import BaseModelOutput

    from mirror.modeling.encoder import Encoder

    names, run = runtime.load(path)

    class Backbone(torch.nn.Module):
        device, config = torch.device("cpu"), encoder.model.config

        def forward(self, output_hidden_states=False, **batch):
            batch.setdefault("token_type_ids", torch.zeros_like(batch["input_ids"]))
            hidden = run({name: batch[name].numpy().astype(np.int64) for name in names})  # (B, T, D)
            return BaseModelOutput(last_hidden_state=torch.from_numpy(hidden))

    same = encoder.max_seq_length, [*encoder.head], encoder.prompt, encoder.truncate_dim, encoder.role_prompts
    copied = Encoder(Backbone(), encoder.tokenizer, encoder.pooling, *same, encoder.include_prompt)
    return copied.by_role(lambda each: partial(each.encode, batch_size=batch_size))


def export(
    folder: Path,
    encoder: Encoder,
    texts: Sequence[str],
    runtime: OnnxRuntime | OpenVino,
    int8: bool,
    tasks: Sequence[PreparedTask] = (),
    max_loss: float = MAX_LOSS,
) -> dict[str, dict]:
    """Write the models of a runtime and compare them with the checkpoint. Existing ones are replaced only on success.

    Args:
        texts: sample to calibrate 8-bit activations on, and to compare the embeddings on.
        int8: whether to write a model of 8 bits too, and score it and the checkpoint on `tasks`.
        max_loss: largest loss of a score by 8 bits, and of the rank correlation of the cosines of all pairs of texts.

    Returns:
        By file name `lowest_cosine`, `mean_cosine` and the number of `texts`. For the 8-bit model also `rank_correlation`
        and `scores`: by task, the main score of the `checkpoint` and of its `copy`. Other embeddings than the
        checkpoint's, or a larger loss, are an InputError.
    """
    from scipy.stats import spearmanr

    from mirror.common.vectors import unit_length

    temporary = folder / f"_{runtime.folder}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    expected, report = unit_length(encoder.encode(texts)), {}
    full, small = (temporary / file for file in runtime.files)
    try:
        runtime.write(encoder, full)
        if int8:
            rows = encoder.tokenize(texts)
            padded = (encoder.tokenizer.pad({"input_ids": [row]}, return_tensors="np") for row in rows)
            zeros = (dict(each) | {"token_type_ids": np.zeros_like(each["input_ids"])} for each in padded)
            runtime.quantize(full, small, list(zeros))
        for path in (full, small) if int8 else (full,):
            encode = runtime_encode(runtime, path, encoder, runtime.int8_batch_size if path == small else 64)
            found = unit_length(encode(texts))
            cosines = (expected * found).sum(axis=1)  # (N,)
            lowest, mean = float(cosines.min()), float(cosines.mean())
            report[path.name] = {"lowest_cosine": lowest, "mean_cosine": mean, "texts": len(texts)}
            if path == full and not lowest > 0.9999:
                message = f"the {runtime.name} model computes different embeddings: cosine {lowest:.6f}, expected 1"
                raise InputError(f"{folder}: {message}")
        if int8:
            both = {"checkpoint": encoder.by_role(), "copy": encode}
            scores = {task.name: {key: task.score(each)["main_score"] for key, each in both.items()} for task in tasks}
            pairs = np.triu_indices(len(texts), 1)
            order = float(spearmanr(*((each @ each.T)[pairs] for each in (expected, found))).statistic)
            report[small.name] |= {"rank_correlation": order, "scores": scores}
            refuse_loss(folder, report[small.name], max_loss)
        (temporary / "export.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        shutil.rmtree(folder / runtime.folder, ignore_errors=True)
        temporary.rename(folder / runtime.folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def refuse_loss(folder: Path, measured: dict, max_loss: float) -> None:
    """Raise an InputError if the 8-bit model lost more of a score, or of the order of the cosines, than is allowed."""
    losses = {f"of {task}": score["checkpoint"] - score["copy"] for task, score in measured["scores"].items()}
    losses["of the rank correlation of the cosines of the sample"] = 1 - measured["rank_correlation"]
    what, loss = max(losses.items(), key=lambda item: item[1])
    if not loss <= max_loss:
        fix = "leave out --int8, give more of your --texts to calibrate on, or raise --max_loss"
        raise InputError(f"{folder}: the 8-bit model loses {loss:.4f} {what}, and --max_loss is {max_loss:g}; {fix}")


def tasks_to_score(names: Sequence[str] | None, data_dir: str | None) -> list[PreparedTask]:
    """Return the tasks of `--eval_tasks`. Default: STS-B dev, or nothing and a message if its data is missing."""
    from mirror.evaluation.run import all_tasks, default_data_dir, make_plan, resolve

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
    add("--onnx", action="store_true", help="Whether to export to ONNX.")
    add("--openvino", action="store_true", help="Whether to export to OpenVINO.")
    add("--int8", action="store_true", help="Whether to write models of 8 bits too.")
    sample = f"Path to texts of which the first {SAMPLE} are compared, and 8-bit activations of OpenVINO calibrated on"
    add("--texts", metavar="F", help=f"{sample} (default: docstrings of the installed packages).")
    tasks = "Tasks to score the 8-bit model and the checkpoint on (default: stsb_dev, if its data is available)."
    add("--eval_tasks", nargs="+", metavar="T", help=tasks)
    add("--data_dir", metavar="D", help="Path to the evaluation data (default: $MIRROR_DATA_DIR, or 'data').")
    loss = "Largest loss of a score by 8 bits, and of the order of the cosines of the texts. A larger one is an error."
    add("--max_loss", type=float, default=MAX_LOSS, metavar="X", help=loss)
    add_trust(parser)
    args = parser.parse_args()
    if not (args.onnx or args.openvino):
        parser.error("give --onnx, --openvino or both")
    if (args.eval_tasks or args.data_dir) and not args.int8:
        parser.error("--eval_tasks and --data_dir are for scores of the 8-bit model; add --int8")
    configure_logging(logging.ERROR)  # the quantizer logs advice to the root logger
    runtimes = [runtime for name, runtime in RUNTIMES.items() if getattr(args, name)]
    for runtime in runtimes:
        check_packages(runtime)
    from mirror.common import trust
    from mirror.common.files import lock_output_dir
    from mirror.data.corpus import load_texts
    from mirror.data.source import CorpusSource
    from mirror.modeling.encoder import Encoder
    from mirror.modeling.static import StaticModel
    from mirror.training.card import name_on_unedited_card, write_card
    from mirror.training.record import FILE

    trust.grant(args.allow_pickle, args.trust_remote_code)
    folder = Path(args.folder)
    if not (folder / "modules.json").exists():
        raise InputError(f"{folder}: no modules.json; give the --output_dir of a finished run")
    lock_output_dir(folder)  # against another export, and a run that is still going on
    encoder = Encoder.from_pretrained(str(folder), device="cpu")
    if isinstance(encoder.model, StaticModel):
        raise InputError(f"{folder} is a static encoder, which has no layers to export; it is a table already")
    if encoder.pooling not in ("cls", "mean", "max"):
        message = "which runtimes of exported models do not support; use cls, mean or max"
        raise InputError(f"{folder} uses pooling '{encoder.pooling}', {message}")
    tasks = tasks_to_score(args.eval_tasks, args.data_dir) if args.int8 else []
    source = CorpusSource(train_file=args.texts, max_train_samples=SAMPLE)
    texts = load_texts(source)
    is_run = (folder / FILE).exists()
    name = name_on_unedited_card(folder) if is_run else None  # before the export, because a new card describes it
    for runtime in runtimes:
        report = export(folder, encoder, texts, runtime, args.int8, tasks, args.max_loss)
        for file, measured in report.items():
            path = folder / runtime.folder / file
            size = sum(part.stat().st_size for part in path.parent.glob(f"{path.stem}.*")) / 1e6
            sys.stdout.write(f"{path}\t{size:.1f} MB\tlowest cosine {measured['lowest_cosine']:.6f}\n")
            for task, score in measured.get("scores", {}).items():
                sys.stdout.write(f"{task}\t{score['checkpoint']:.4f} checkpoint\t{score['copy']:.4f} with 8 bits\n")
    if name:
        write_card(folder, name)
    elif is_run:
        sys.stderr.write(f"{folder}/README.md was edited, so it stays as it is; add the export to it by hand\n")


if __name__ == "__main__":
    run_main(main)
