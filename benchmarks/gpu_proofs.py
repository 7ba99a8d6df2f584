"""What must hold on a GPU before its times mean anything; each check runs on a CPU too, where a GPU's own ways are left out.

Every function returns rows of the report: what was checked, `ok` or what is wrong, and the number it was judged by.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import (
    AlbertConfig,
    AutoModel,
    BertConfig,
    EuroBertConfig,
    ModernBertConfig,
    NomicBertConfig,
    PreTrainedModel,
    RobertaConfig,
    TrainerCallback,
)
from transformers.utils import is_flash_attn_2_available

from benchmarks.stand_in import DTYPES, device, made_up_sentences, make_model, synchronise
from mirror.common.errors import one_line
from mirror.data.packing import pack
from mirror.modeling.attention import (
    FLASH_ATTN,
    KERNELS,
    PackedLayout,
    _attend,
    attend_flash,
    attend_padded,
    suits_flash_attention,
)
from mirror.modeling.packing import configure_noise_and_packing, first_position, packed_forward
from mirror.modeling.pooling import pool
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer


Row = dict[str, str]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
VOCABULARY = 1000
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,  # 64 numbers per head, as in the encoders of this size and larger
    "intermediate_size": 512,
    "max_position_embeddings": 160,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS = {
    "BERT": lambda: BertConfig(**SIZES),
    "RoBERTa": lambda: RobertaConfig(**SIZES),
    "ALBERT": lambda: AlbertConfig(**SIZES, embedding_size=64),
    "ModernBERT, past its local window": lambda: ModernBertConfig(
        **SIZES, cls_token_id=1, sep_token_id=2, local_attention=16, global_attn_every_n_layers=2
    ),
    "EuroBERT, grouped queries": lambda: EuroBertConfig(**SIZES, mask_token_id=3, num_key_value_heads=2),
    "NomicBERT": lambda: NomicBertConfig(**SIZES),
}
# Largest relative difference, in the norm, of the vectors of all texts and of the gradients of all weights; that of rounding is
# a tenth of it on a CPU. Two low-precision results are compared with float32, not with each other.
TOLERANCES = {"fp32": 2e-3, "bf16": 6e-2, "fp16": 1e-2}


def row(check: str, error: float, tolerance: float) -> Row:
    outcome = "ok" if error <= tolerance else "WRONG"  # not a number is wrong
    return {"check": check, "outcome": outcome, "detail": f"difference {error:.1e}, tolerance {tolerance:.0e}"}


@contextmanager
def failing_as_a_row(rows: list[Row], check: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error, 200)}"
        rows.append({"check": check, "outcome": "FAILED", "detail": reason})


def relative(found: list[Tensor], expected: list[Tensor]) -> float:
    """Norm of the difference of two lists of tensors over the norm of the second."""
    difference = sum((a.double() - b.double()).square().sum() for a, b in zip(found, expected, strict=True))
    return (difference / sum(b.double().square().sum() for b in expected)).sqrt().item()


# ---- Packed = padded -------------------------------------------------------------------------------------------------


def packed_equals_padded() -> list[Row]:
    """Vectors and gradients of packed rows, in each precision, against padded rows of an untouched model in float32."""
    rows: list[Row] = []
    generator = torch.Generator().manual_seed(0)
    count, longest = (24, 100) if device().type == "cuda" else (6, 30)  # float16 is slow on a CPU
    lengths = torch.randint(3, longest, (count,), generator=generator).tolist()
    texts = [torch.randint(5, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    for name, config in MODELS.items():
        plain, model = tiny(config()), tiny(config())
        configure_noise_and_packing(model, "mean", "on", dropout_rate=0.0)
        expected = vectors_and_gradients(plain, lambda plain=plain: padded_vectors(plain, texts))
        for precision, dtype in DTYPES.items():
            check = f"packed = padded, {name}, {precision}"
            with (
                failing_as_a_row(rows, check),
                torch.autocast(device().type, dtype, enabled=precision != "fp32"),
            ):
                found = vectors_and_gradients(model, lambda model=model: packed_vectors(model, texts))
                error = max(relative([found[0]], [expected[0]]), relative(found[1], expected[1]))
                rows.append(row(check, error, TOLERANCES[precision]))
    return rows


def tiny(config) -> PreTrainedModel:
    torch.manual_seed(0)
    return AutoModel.from_config(config).to(device()).eval()


def padded_vectors(model: PreTrainedModel, texts: list[list[int]]) -> Tensor:
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts], device=device())
    mask = torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts], device=device())
    return pool(model(input_ids=ids, attention_mask=mask), mask, "mean")


def packed_vectors(model: PreTrainedModel, texts: list[list[int]]) -> Tensor:
    batch = pack(texts, first_position(model), 0)
    batch = {name: tensor.to(device()) for name, tensor in batch.items()}
    return pool(*packed_forward(model, batch, "mean"), "mean")


def vectors_and_gradients(model: nn.Module, vectors_of: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
    model.zero_grad()
    vectors = vectors_of().float()
    (vectors * torch.linspace(-1, 1, vectors.numel(), device=vectors.device).view_as(vectors)).sum().backward()
    return vectors.detach(), [weight.grad for weight in model.parameters() if weight.grad is not None]


# ---- The ways of packed attention ------------------------------------------------------------------------------------


def attention_ways(texts: int = 400, heads: int = 12, width: int = 64, repeats: int = 20) -> list[Row]:
    """Each way of packed attention against each other and against float32, and the time of a forward and backward pass."""
    rows: list[Row] = []
    lengths = torch.randint(5, 50, (texts,), generator=torch.Generator().manual_seed(0)).tolist()
    batch = {name: x.to(device()) for name, x in pack([[5] * length for length in lengths], 0, 0).items()}
    layout = PackedLayout(batch["lengths"], batch["slots"], batch["attention_mask"])
    torch.manual_seed(0)
    exact = [torch.randn(batch["input_ids"].shape[1], heads, width, device=device()) for _ in range(3)]
    for window in (None, 16):
        kind = "local" if window else "global"
        expected = outputs_and_gradients(ways_of_attention(layout, window)["padded SDPA"], exact)
        for precision in ("bf16", "fp16"):
            inputs = [x.to(DTYPES[precision]) for x in exact]
            found: dict[str, list[Tensor]] = {}
            for name, attend in ways_of_attention(layout, window).items():
                check = f"{kind} attention of {texts} texts, {name}, {precision}"
                with failing_as_a_row(rows, check):
                    found[name] = outputs_and_gradients(attend, inputs)
                    outcome = row(check, relative(found[name], expected), TOLERANCES[precision])
                    seconds = seconds_of(
                        lambda attend=attend, inputs=inputs: outputs_and_gradients(attend, inputs), repeats
                    )
                    rows.append(outcome | {"detail": f"{outcome['detail']}; {1000 * seconds:.2f} ms"})
            for first, second in combinations(found, 2):
                error = relative(found[first], found[second])
                check = f"{kind} attention, {first} = {second}, {precision}"
                rows.append(row(check, error, 2 * TOLERANCES[precision]))
    return rows


def ways_of_attention(layout: PackedLayout, window: int | None) -> dict[str, Attend]:
    """(S, H, d) each of query, key and value to (S, H, d), without dropout."""
    padded = partial(_attend, dropout=0.0, scaling=None, sliding_window=window, paired=False)
    return {
        "padded SDPA": lambda q, k, v: attend_padded(q, k, v, None, layout, padded),
        "flash-attn": lambda q, k, v: attend_by_flash(q, k, v, layout, window, FLASH_ATTN),
        "kernels": lambda q, k, v: attend_by_flash(q, k, v, layout, window, KERNELS),
        "torch.nn.attention.varlen": lambda q, k, v: attend_varlen(q, k, v, layout, window),
    }


def attend_by_flash(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, window: int | None, build: str):
    if not suits_flash_attention(query):
        raise RuntimeError("needs an Ampere GPU or a newer one, and half precision")
    if build == FLASH_ATTN and not is_flash_attn_2_available():
        raise RuntimeError("the package flash-attn is not installed")  # transformers would take kernels' build instead
    return attend_flash(query, key, value, None, layout, 0.0, None, window, build)


def attend_varlen(query: Tensor, key: Tensor, value: Tensor, layout: PackedLayout, window: int | None) -> Tensor:
    """torch's own kernel, which has no dropout of the weights."""
    from torch.nn.attention.varlen import varlen_attn

    if query.device.type == "cpu":
        raise RuntimeError("has no kernel for a CPU")
    count, longest = len(layout.slots), layout.mask.shape[1]
    sides = (window - 1, window - 1) if window else (-1, -1)
    parts = (x[:count] for x in (query, key, value))
    output = varlen_attn(*parts, layout.bounds, layout.bounds, longest, longest, window_size=sides)
    return nn.functional.pad(output, (0, 0, 0, 0, 0, len(query) - count))


def outputs_and_gradients(attend: Attend, inputs: list[Tensor]) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    output = attend(*leaves)
    weights = torch.linspace(-1, 1, output.shape[-1], device=output.device, dtype=output.dtype)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), leaves)]


def seconds_of(act: Callable[[], object], repeats: int) -> float:
    act()
    synchronise()
    start = time.perf_counter()
    for _ in range(repeats):
        act()
    synchronise()
    return (time.perf_counter() - start) / repeats


# ---- Training --------------------------------------------------------------------------------------------------------


@contextmanager
def a_training(**flags) -> Iterator[Callable[..., MirrorTrainer]]:
    """A function that makes a trainer of a small BERT on 200 made-up sentences; its folder is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        texts = list(dict.fromkeys(made_up_sentences(200)))
        make_model(Path(folder) / "model", texts, layers=2, width=64)

        def make(name: str, **more) -> MirrorTrainer:
            common = {
                "per_device_train_batch_size": 20,
                "disable_tqdm": True,
                "validation_samples": 0,
                "logging_steps": 1,
            }
            config = MirrorConfig(output_dir=str(Path(folder) / name), **common | flags | more)
            return MirrorTrainer(str(Path(folder) / "model"), config, texts)

        yield make


def fp16_overflow(steps: int = 12, bad_step: int = 8) -> list[Row]:
    """An infinite gradient in float16 leaves the weights as they are, and later steps go on with finite ones."""
    check = "fp16 overflow skips a step and goes on"
    rows: list[Row] = []
    with failing_as_a_row(rows, check), a_training(fp16=True, max_steps=steps) as make:
        trainer = make("fp16")
        weight = next(trainer.model.parameters())
        after: list[Tensor] = []  # the weight after each step
        weight.register_hook(lambda gradient: gradient * float("inf") if len(after) == bad_step - 1 else gradient)
        trainer.add_callback(AfterEachStep(lambda: after.append(weight.detach().clone())))
        trainer.train()
        skipped = torch.equal(after[bad_step - 2], after[bad_step - 1])
        went_on = not torch.equal(after[bad_step - 1], after[-1])
        finite = bool(torch.isfinite(after[-1]).all())
        detail = (
            f"step {bad_step} {'skipped' if skipped else 'made'}, weights {'move on' if went_on else 'stand still'}"
        )
        detail += f" and are {'finite' if finite else 'NOT finite'}; scale {trainer.accelerator.scaler.get_scale():g}"
        outcome = "ok" if skipped and went_on and finite else "WRONG"
        rows.append({"check": check, "outcome": outcome, "detail": detail})
    return rows


class AfterEachStep(TrainerCallback):
    def __init__(self, act: Callable[[], None]):
        self.act = act

    def on_step_end(self, args, state, control, **kwargs):
        self.act()


def resume() -> list[Row]:
    """A run that stops at half its steps and goes on has the weights of one that never stopped, bit for bit."""
    rows: list[Row] = []
    for precision in ("fp32", "bf16"):
        check = f"resumed = not interrupted, bit for bit, {precision}"
        flags = {"bf16": precision == "bf16", "save_strategy": "steps", "save_steps": 5, "num_train_epochs": 1}
        with failing_as_a_row(rows, check), a_training(**flags) as make:
            whole = make("run")
            whole.train()
            expected = [weight.detach().cpu().clone() for weight in whole.model.parameters()]
            again = make("run")
            again.train(resume_from_checkpoint=str(Path(again.args.output_dir) / "checkpoint-5"))
            found = [weight.detach().cpu() for weight in again.model.parameters()]
            same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
            detail = "equal" if same else f"relative difference {relative(found, expected):.1e}"
            rows.append({"check": check, "outcome": "ok" if same else "WRONG", "detail": detail})
    return rows


PROOFS: dict[str, Callable[[], list[Row]]] = {
    "packed-equals-padded": packed_equals_padded,
    "attention-ways": attention_ways,
    "fp16-overflow": fp16_overflow,
    "resume": resume,
}
