"""ONNX Runtime and OpenVINO: write the backbone of an encoder for them, with 8-bit weights too, and run it.

The files have the names and places that sentence-transformers reads with `backend="onnx"` and `backend="openvino"`. They are
written without optimum-onnx and optimum-intel, on which these backends rest: both require transformers < 5.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirror.common.errors import InputError


if TYPE_CHECKING:
    from mirror.modeling.encoder import Encoder

Batch = Mapping[str, np.ndarray]  # of token ids, mask and so on, (B, T) each
Run = Callable[[Batch], np.ndarray]  # a batch to `last_hidden_state`, (B, T, D)


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
        return [item.get_any_name() for item in model.inputs], lambda batch: model(dict(batch))[
            "last_hidden_state"
        ].copy()


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
