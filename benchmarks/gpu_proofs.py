"""Checks what must hold on a GPU before its times mean anything, on one process and on several.

Every proof returns rows of the report: what was checked, the outcome (`ok`, `WRONG`, `FAILED` or `skipped`) and the number or
the reason behind it. All of them run on a CPU too, where what only a GPU can do is skipped.
"""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel, TrainerCallback
from transformers.utils import is_flash_attn_2_available

from benchmarks.stand_in import DTYPES, device, distinct_sentences, make_model, synchronize
from mirror.common.errors import one_line
from mirror.data.batches import pack
from mirror.modeling.attention import PackedLayout, attend_flash, attend_padded, has_flash_attention
from mirror.modeling.cpu_kernels import Scores
from mirror.modeling.packing import configure_noise_and_packing, first_position, packed_forward
from mirror.modeling.pooling import pool
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


ROOT = Path(__file__).resolve().parents[1]
Row = dict[str, str]
VOCABULARY = 1000
SIZES = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# 64 numbers per head, as in the encoders of this size and larger.
SIZES |= {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
SIZES |= {"max_position_embeddings": 160}
MODERN = {"cls_token_id": 1, "sep_token_id": 2, "local_attention": 16, "global_attn_every_n_layers": 2}
MODELS = {
    "BERT": lambda: transformers.BertConfig(**SIZES),
    "RoBERTa": lambda: transformers.RobertaConfig(**SIZES),
    "ALBERT": lambda: transformers.AlbertConfig(**SIZES, embedding_size=64),
    "ModernBERT, past its local window": lambda: transformers.ModernBertConfig(**SIZES, **MODERN),
    "EuroBERT, grouped queries": lambda: transformers.EuroBertConfig(**SIZES, mask_token_id=3, num_key_value_heads=2),
    "NomicBERT": lambda: transformers.NomicBertConfig(**SIZES),
}
# Largest relative difference, in the norm, of the vectors of all texts and of the gradients of all weights. Rounding is a tenth
# of it on a CPU. Low precision is compared with float32, because two results in low precision can be wrong in the same way.
TOLERANCES = {"fp32": 2e-3, "bf16": 6e-2, "fp16": 1e-2}


class Skipped(Exception):
    """The machine cannot do what a check needs."""


def row(check: str, error: float, tolerance: float) -> Row:
    outcome = "ok" if error <= tolerance else "WRONG"  # NaN is wrong too
    return {"check": check, "outcome": outcome, "detail": f"difference {error:.1e}, tolerance {tolerance:.0e}"}


@contextmanager
def checking(rows: list[Row], check: str) -> Iterator[None]:
    """Turn an exception inside the `with` block into a row, so that the next check still runs."""
    try:
        yield
    except Exception as error:
        outcome = "skipped" if isinstance(error, Skipped) else "FAILED"
        reason = str(error) if outcome == "skipped" else f"{type(error).__name__}: {one_line(error, 200)}"
        rows.append({"check": check, "outcome": outcome, "detail": reason})


def relative(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the norm of the difference of two lists of tensors over the norm of the second."""
    difference = sum((a.double() - b.double()).square().sum() for a, b in zip(found, expected, strict=True))
    return (difference / sum(b.double().square().sum() for b in expected)).sqrt().item()


# ---- Packed = padded -------------------------------------------------------------------------------------------------


def packed_equals_padded() -> list[Row]:
    """Compare vectors and gradients of packed rows, in each precision, with padded rows of an untouched model in float32."""
    rows: list[Row] = []
    generator = torch.Generator().manual_seed(0)
    count, longest = (24, 100) if device().type == "cuda" else (6, 30)  # float16 is slow on a CPU
    lengths = torch.randint(3, longest, (count,), generator=generator).tolist()
    texts = [torch.randint(5, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    for name, config in MODELS.items():
        plain, model = tiny(config()), tiny(config())
        configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
        expected = vectors_and_gradients(plain, padded_vectors, texts)
        for precision, dtype in DTYPES.items():
            check = f"packed = padded, {name}, {precision}"
            with checking(rows, check), torch.autocast(device().type, dtype, enabled=precision != "fp32"):
                found = vectors_and_gradients(model, packed_vectors, texts)
                error = max(relative(found[:1], expected[:1]), relative(found[1:], expected[1:]))
                rows.append(row(check, error, TOLERANCES[precision]))
    return rows


def tiny(config) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(config).to(device()).eval()


def padded_vectors(model: PreTrainedModel, texts: list[list[int]]) -> Tensor:
    ids = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True).to(device())
    mask = (ids > 0).long()  # no text has the token 0
    return pool(model(input_ids=ids, attention_mask=mask), mask, "mean")


def packed_vectors(model: PreTrainedModel, texts: list[list[int]]) -> Tensor:
    batch = pack(texts, first_position(model), 0)
    batch = {name: tensor.to(device()) for name, tensor in batch.items()}
    return pool(*packed_forward(model, batch, "mean"), "mean")


def vectors_and_gradients(model: nn.Module, vectors_of: Callable, texts: list[list[int]]) -> list[Tensor]:
    """Return the vectors of all texts, and the gradient of each weight for a loss that weighs every number differently."""
    model.zero_grad()
    vectors = vectors_of(model, texts).float()
    (vectors * torch.linspace(-1, 1, vectors.numel(), device=vectors.device).view_as(vectors)).sum().backward()
    return [vectors.detach(), *(weight.grad for weight in model.parameters() if weight.grad is not None)]


# ---- The ways of packed attention ------------------------------------------------------------------------------------


def attention_ways() -> list[Row]:
    """Compare each way of packed attention with float32, and time a forward and backward pass."""
    rows: list[Row] = []
    # float16 is slow on a CPU
    texts, heads, width, repeats = (400, 12, 64, 20) if device().type == "cuda" else (6, 2, 8, 1)
    lengths = torch.randint(5, 50, (texts,), generator=torch.Generator().manual_seed(0)).tolist()
    batch = {name: x.to(device()) for name, x in pack([[5] * length for length in lengths], 0, 0).items()}
    layout = PackedLayout(batch["lengths"], batch["slots"], batch["attention_mask"])
    torch.manual_seed(0)
    exact = [torch.randn(batch["input_ids"].shape[1], heads, width, device=device()) for _ in range(3)]
    for window in (None, 16):
        scores = Scores(width**-0.5, window)
        # (S, H, d) each of query, key and value to (S, H, d), without dropout
        ways = {
            "padded SDPA": lambda q, k, v, scores=scores: attend_padded(q, k, v, None, layout, 0.0, scores),
            "flash-attn": lambda q, k, v, window=window: by_flash_attn(q, k, v, layout, window),
            "torch.nn.attention.varlen": lambda q, k, v, window=window: by_varlen(q, k, v, layout, window),
        }
        expected = outputs_and_gradients(ways["padded SDPA"], exact)
        for precision in ("bf16", "fp16"):
            inputs = [x.to(DTYPES[precision]) for x in exact]
            for name, attend in ways.items():
                check = f"{'local' if window else 'global'} attention of {texts} texts, {name}, {precision}"
                with checking(rows, check):
                    found = outputs_and_gradients(attend, inputs)
                    outcome = row(check, relative(found, expected), TOLERANCES[precision])
                    synchronize()
                    start = time.perf_counter()
                    for _ in range(repeats):
                        outputs_and_gradients(attend, inputs)
                    synchronize()
                    milliseconds = 1000 * (time.perf_counter() - start) / repeats
                    rows.append(outcome | {"detail": f"{outcome['detail']}; {milliseconds:.2f} ms"})
    return rows


def by_flash_attn(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, window: int | None) -> Tensor:
    if not has_flash_attention(query):
        installed = "installed" if is_flash_attn_2_available() else "not installed"
        raise Skipped(f"needs flash-attn ({installed}), an Ampere GPU or a newer one, and half precision")
    return attend_flash(query, key, value, None, layout, 0.0, Scores(query.shape[-1] ** -0.5, window))


def by_varlen(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, window: int | None) -> Tensor:
    """Attend with torch's own kernel, which has no dropout of the weights."""
    from torch.nn.attention.varlen import varlen_attn

    if query.device.type == "cpu":
        raise Skipped("has no kernel for a CPU")
    count, longest = len(layout.slots), layout.mask.shape[1]
    sides = (window - 1, window - 1) if window else (-1, -1)
    parts = (x[:count] for x in (query, key, value))
    output = varlen_attn(*parts, layout.bounds, layout.bounds, longest, longest, window_size=sides)
    return nn.functional.pad(output, (0, 0, 0, 0, 0, len(query) - count))


def outputs_and_gradients(attend: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = attend(*leaves)
    weights = torch.linspace(-1, 1, output.shape[-1], device=output.device, dtype=output.dtype)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)]


# ---- Training --------------------------------------------------------------------------------------------------------


@contextmanager
def small_trainers(**flags) -> Iterator[Callable[[], MirrorTrainer]]:
    """Yield a function that makes trainers of a small BERT on 200 made-up sentences, all with one output folder."""
    with tempfile.TemporaryDirectory() as folder:
        texts = distinct_sentences(200)
        make_model(Path(folder) / "model", texts, layers=2, width=64)
        common = {"per_device_train_batch_size": 20, "validation_samples": 0, "logging_steps": 1, "disable_tqdm": True}
        config = partial(MirrorConfig, output_dir=f"{folder}/run", **common, **flags)
        yield lambda: MirrorTrainer(f"{folder}/model", config(), texts)


def fp16_overflow(steps: int = 12, bad_step: int = 8) -> list[Row]:
    """Check that an infinite gradient in float16 leaves the weights as they are, and that later steps change them."""
    check = "fp16 overflow skips a step and goes on"
    rows: list[Row] = []
    with checking(rows, check), small_trainers(fp16=True, max_steps=steps) as make:
        if device().type == "cpu":
            raise Skipped("a CPU does not train in float16")
        trainer = make()
        weight = next(trainer.model.parameters())
        after: list[Tensor] = []  # the weight after each step
        weight.register_hook(lambda gradient: gradient * float("inf") if len(after) == bad_step - 1 else gradient)

        class AfterEachStep(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                after.append(weight.detach().clone())

        trainer.add_callback(AfterEachStep())
        trainer.train()
        skipped = torch.equal(after[bad_step - 2], after[bad_step - 1])
        changed = not torch.equal(after[bad_step - 1], after[-1])
        finite = bool(torch.isfinite(after[-1]).all())
        detail = f"step {bad_step} skipped: {skipped}, weights change afterwards: {changed}, finite: {finite}"
        detail += f", scale {trainer.accelerator.scaler.get_scale():g}"
        rows.append({"check": check, "outcome": "ok" if skipped and changed and finite else "WRONG", "detail": detail})
    return rows


def resume() -> list[Row]:
    """Check that a run resumed at half its steps ends with the weights of one that never stopped, bit for bit."""
    rows: list[Row] = []
    for precision in ("fp32", "bf16"):
        check = f"resumed = not interrupted, bit for bit, {precision}"
        flags = {"bf16": precision == "bf16", "save_strategy": "steps", "save_steps": 5, "num_train_epochs": 1}
        with checking(rows, check), small_trainers(**flags) as make:
            whole, again = make(), make()
            whole.train()
            expected = [weight.detach().cpu().clone() for weight in whole.model.parameters()]
            again.train(resume_from_checkpoint=str(Path(again.args.output_dir) / "checkpoint-5"))
            found = [weight.detach().cpu() for weight in again.model.parameters()]
            rows.append(row(check, relative(found, expected), 0.0))
    return rows


PROOFS: dict[str, Callable[[], list[Row]]] = {
    "packed-equals-padded": packed_equals_padded,
    "attention-ways": attention_ways,
    "fp16-overflow": fp16_overflow,
    "resume": resume,
}


# ---- Several processes: the list in docs/scaling.md -------------------------------------------------------------------

BATCH, TEXTS = 24, 240
# bfloat16 rounds a batch of half the size differently.
LOSS_TOLERANCE, WEIGHTS_TOLERANCE = 1e-2, 1e-3
ON_GPUS_ONLY = ("fsdp.yaml", "deepspeed_zero2.yaml")  # accelerate ignores both on a CPU


def several_processes(processes: int, work: Path) -> list[Row]:
    """Train on one process, then on `processes` in every way, and compare loss and weights. Encode on several processes."""
    texts = distinct_sentences(TEXTS)
    (work / "texts.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    make_model(work / "model", texts, layers=2, width=64)
    rows: list[Row] = []
    train(work, "one", [], "--per_device_train_batch_size", BATCH)
    data_parallel = "multi_gpu_bf16.yaml" if torch.cuda.is_available() else "cpu_2proc.yaml"
    ways = {
        "gathered negatives": (data_parallel, [], []),
        "gathered negatives and gradient caching": (data_parallel, [], ["--mini_batch_size", "5"]),
        "FSDP": ("fsdp.yaml", ["--fsdp_transformer_layer_cls_to_wrap", "BertLayer"], []),
        "DeepSpeed ZeRO-2": ("deepspeed_zero2.yaml", [], []),
    }
    for name, (configuration, launcher, flags) in ways.items():
        check = f"{processes} processes = one, {name}"
        with checking(rows, check):
            if configuration in ON_GPUS_ONLY and not torch.cuda.is_available():
                raise Skipped("works on GPUs only")
            several = [f"accelerate_configs/{configuration}", "--num_processes", str(processes), *launcher]
            flags = [*flags, "--gather_negatives", "--per_device_train_batch_size", BATCH // processes]
            folder = name.replace(" ", "-")
            train(work, folder, several, *flags)
            losses = [json.loads((work / out / "train_results.json").read_text())["metrics"]["train_loss"]
                      for out in (folder, "one")]  # fmt: skip
            error = abs(losses[0] - losses[1]) / max(abs(losses[1]), math.ulp(1))
            rows.append(row(f"{check}: loss", error, LOSS_TOLERANCE))
            rows.append(row(f"{check}: weights", difference(work / folder, work / "one"), WEIGHTS_TOLERANCE))

            shutil.copytree(work / folder, work / "whole", dirs_exist_ok=True)
            shutil.rmtree(work / folder / f"checkpoint-{TEXTS // BATCH}")
            (work / folder / "model.safetensors").unlink()
            train(work, folder, several, *flags, "--resume_from_checkpoint", "auto")
            rows.append(row(f"{name}: resumed = not interrupted", difference(work / folder, work / "whole"), 0.0))
    check = f"run_encode.py on {processes} processes: every row once"
    with checking(rows, check):
        import pyarrow.dataset

        run("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}", "run_encode.py",
            "--model_name_or_path", work / "one", "--input_file", work / "texts.txt", "--output_dir", work / "vectors",
            "--shard_rows", 20)  # fmt: skip
        found = pyarrow.dataset.dataset(work / "vectors", format="parquet").to_table()["row"].to_pylist()
        outcome = "ok" if found == list(range(TEXTS)) else "WRONG"
        rows.append({"check": check, "outcome": outcome, "detail": f"{len(found)} of {TEXTS}"})
    return rows


def train(work: Path, name: str, launcher: list[str], *flags) -> None:
    """Train on one process, or on several with the `launcher` arguments of accelerate: one global batch, no dropout."""
    start = ["-m", "accelerate.commands.launch", "--config_file", *launcher] if launcher else []
    run(*start, "run_mirror.py", "--model_name_or_path", work / "model", "--train_file", work / "texts.txt",
        "--output_dir", work / name, "--num_train_epochs", 1, "--dropout_rate", 0, "--validation_samples", 0,
        "--keep_duplicates", "--disable_tqdm", "true", "--save_strategy", "steps",
        "--save_steps", TEXTS // BATCH // 2, *flags)  # fmt: skip


def run(*arguments) -> None:
    """Run Python. If it fails, raise a `RuntimeError` with the first error that it wrote."""
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "rror" in line] or ["no message"]
        raise RuntimeError(f"exit status {done.returncode}: {errors[0]}")


def difference(folder: Path, expected: Path) -> float:
    """Return the relative difference of the weights of two encoders."""
    first, second = (load_file(path / "model.safetensors") for path in (folder, expected))
    return relative([first[name] for name in sorted(second)], [second[name] for name in sorted(second)])
