"""Seconds per training step and peak memory: this project, sentence-transformers, and the released Mirror-BERT code's method.

    python benchmarks/train_speed.py --train_file my_texts.txt
    python benchmarks/train_speed.py --train_file my_texts.txt --layers 12 --width 768 --batch_size 32
    python benchmarks/train_speed.py --batch_size 4096 --mini_batch_size 200 --steps 1 --warmup_steps 1 \\
        --variants ours-bf16 ours-cached-bf16 ours-padded-bf16 ours-padded-cached-bf16

A variant is a training method and a precision (fp32, bf16, fp16):

    ours                    run_mirror.py with its defaults: both views of a text in one forward pass, no padding
    ours-padded             with --packing off
    ours-compiled           with --torch_compile
    ours-lora               with --lora_rank 16 and --pooling last, for a decoder
    ours-cached             with --mini_batch_size; also ours-padded-cached and ours-cached-compiled
    sentence-transformers   SentenceTransformerTrainer; its loss compares the same pairs of views in one softmax
    sentence-transformers-cached
                            with its cached loss and --mini_batch_size
    sentence-transformers-flash
                            with flash-attn, which turns on its own training without padding (a GPU only)
    sentence-transformers-flash-cached
                            both
    original-way            two forward passes padded to --max_length, tokenized by worker processes in the collate function,
                            NTXentLoss of pytorch-metric-learning

All variants train once on the same distinct texts, as many as the steps need, and save an encoder at the end. Runs are
interleaved, one subprocess each. The time of a step is the mean over --steps steps after --warmup_steps others. The time of
the process is everything from start to exit. Run it on an idle machine: on a busy one, steps take several times as long.
"""

from __future__ import annotations

import random
import sys
import tempfile
from argparse import Namespace
from functools import partial
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import side_by_side as bench
from mirror.common.errors import InputError, run_main


CACHED = "MINI_BATCH"  # stands for --mini_batch_size
OURS = {
    "ours": ["--packing", "on"],
    "ours-padded": ["--packing", "off"],
    "ours-padded-cached": ["--packing", "off", "--mini_batch_size", CACHED],
    "ours-compiled": ["--packing", "on", "--torch_compile", "true"],
    "ours-cached": ["--packing", "on", "--mini_batch_size", CACHED],
    "ours-lora": ["--packing", "on", "--lora_rank", "16", "--pooling", "last"],
    "ours-cached-compiled": ["--packing", "on", "--mini_batch_size", CACHED, "--torch_compile", "true"],
}
PEER = "sentence-transformers"
THEIRS = (PEER, f"{PEER}-cached", f"{PEER}-flash", f"{PEER}-flash-cached")
WAYS = (*OURS, *THEIRS, "original-way")
PRECISIONS = {"fp32": ["--bf16", "false", "--fp16", "false"], "bf16": ["--bf16", "true"], "fp16": ["--fp16", "true"]}
DEFAULT_VARIANTS = (
    *("original-way-fp32", "original-way-bf16", "sentence-transformers-fp32", "sentence-transformers-bf16"),
    *("ours-bf16", "ours-padded-bf16", "ours-compiled-bf16"),
)
TEMPERATURE, RATE, DECAY, SEED = 0.04, 2e-5, 0.01, 42
WORKERS = 16  # as in the released code


def main() -> None:
    args = parse_arguments()
    limits = [f"matmul-{precision}" for precision in sorted({v.rpartition("-")[2] for v in args.variants})]
    bench.run_benchmark(__file__, args, measure, [*limits, *args.variants], report)


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = bench.make_parser(__doc__)
    add = parser.add_argument
    add("--train_file", help="Path to texts, one per line. Default: made-up sentences")
    add("--model_name_or_path", help="Model to train. Default: a new BERT with random weights")
    add("--layers", type=int, default=6, help="Number of layers of that BERT")
    add("--width", type=int, default=384, help="Hidden size of that BERT")
    add("--steps", type=int, default=8, help="Number of steps that are timed")
    add("--warmup_steps", type=int, default=2, help="Number of steps before the timed ones")
    add("--mini_batch_size", type=int, default=512, help="Texts in memory at once in a cached variant")
    return bench.parse_speed_flags(parser, argv, WAYS, variants=[*DEFAULT_VARIANTS], batch_size=200, max_length=50)


def report(args: Namespace, facts: dict, results: bench.Results) -> tuple[str, str]:
    """Return the title, and a table with one row per variant. One that failed says so."""
    title = (
        f"Training step of {facts['model']}, {args.batch_size} texts ({2 * args.batch_size} views); "
        f"{facts['machine']}; {args.rounds} rounds of {args.steps} steps, {facts['tokens']:.1f} tokens per view; "
        "median (min-max)"
    )
    header = ("variant", "s/step", "sentences/s", "real tokens/s", "of the matmul limit", "process s", "peak GB")
    rows, tokens = [], 2 * facts["tokens"]
    for variant in args.variants:
        runs, precision = results[variant], variant.rpartition("-")[2]
        if not runs:
            rows.append((variant, "failed", *["-"] * 7))
            continue
        per_second = args.batch_size / bench.median(runs, "step_seconds")
        limit = {key: bench.median(results[f"matmul-{precision}"], key) for key in ("gflops", "flops_per_token")}
        step, process = (bench.spread([run[key] for run in runs]) for key in ("step_seconds", "process_seconds"))
        share, peak = share_of_limit(tokens * per_second, limit), f"{bench.median(runs, 'peak_gb'):.2f}"
        speed = f"{per_second:.0f}", f"{tokens * per_second:.0f}"
        rows.append((variant, step, *speed, share, process, peak, *bench.ratios(results, variant, "step_seconds")))
    limits = ", ".join(
        f"{name.removeprefix('matmul-')} {bench.spread([run['gflops'] for run in runs])}"
        for name, runs in results.items()
        if name.startswith("matmul-") and runs
    )
    note = f"\nMatmul limit in the shapes of the model's linear layers, GFLOP/s: {limits}.\n"
    return title, bench.markdown((*header, *bench.VERSUS), rows) + note


def share_of_limit(tokens_per_second: float, limit: dict[str, float]) -> str:
    """Return how much of the matmul limit the linear layers reach. Their backward pass costs twice the forward pass."""
    return f"{3 * limit['flops_per_token'] * tokens_per_second / 1e9 / limit['gflops']:.0%}"


# ---- In a measuring subprocess ---------------------------------------------------------------------------------------


def measure(variant: str, args: Namespace, stop: bool = False) -> dict:
    """Return the numbers of a variant. `stop`: without saving the encoder."""
    if variant == "prepare":
        return make_inputs(args)
    from benchmarks.stand_in import StepClock, matmul_limit, peak_memory

    model = model_of(args)
    if variant.startswith("matmul-"):
        tokens = round(2 * args.batch_size * mean_tokens(model, read_corpus(args), args.max_length))
        return matmul_limit(model, tokens, variant.removeprefix("matmul-"))
    way, _, precision = variant.rpartition("-")
    run = train_ours if way in OURS else train_sentence_transformers if way in THEIRS else train_original_way
    with StepClock(args.warmup_steps, args.steps, stop) as clock, tempfile.TemporaryDirectory() as output_dir:
        run(model, args, way, precision, output_dir)
    return {"step_seconds": clock.step_seconds(), "peak_gb": peak_memory()}


def make_inputs(args: Namespace) -> dict:
    """Write the corpus, limited to what the steps need, and the model; return the facts for the title of the table."""
    from benchmarks.stand_in import distinct_sentences, machine, make_model
    from mirror.data.corpus import load_texts
    from mirror.data.source import CorpusSource

    count = args.batch_size * (args.warmup_steps + args.steps)
    texts = distinct_sentences(count)
    if args.train_file:
        texts = load_texts(CorpusSource(train_file=[args.train_file], max_train_samples=count))
    if len(texts) < count:
        found = f"{args.train_file} has {len(texts):,} distinct lines, {count:,} are needed"
        raise InputError(f"{found}; lower --steps or --batch_size")
    (Path(args.work) / "corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    if not args.model_name_or_path:
        make_model(Path(model_of(args)), texts, args.layers, args.width)
    return {
        "model": Path(args.model_name_or_path or f"a BERT of {args.layers} layers x {args.width}").name,
        "machine": machine(),
        "tokens": mean_tokens(model_of(args), texts, args.max_length),
    }


def model_of(args: Namespace) -> str:
    return args.model_name_or_path or str(Path(args.work) / "model")


def read_corpus(args: Namespace) -> list[str]:
    return (Path(args.work) / "corpus.txt").read_text(encoding="utf-8").splitlines()


def mean_tokens(model: str, texts: list[str], max_length: int) -> float:
    """Return the mean number of tokens per text, with special tokens and without padding."""
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(model)(texts, truncation=True, max_length=max_length)["input_ids"]
    return sum(map(len, ids)) / len(ids)


def train_ours(model: str, args: Namespace, way: str, precision: str, output_dir: str) -> None:
    import run_mirror

    sys.argv = [
        *("run_mirror.py", "--model_name_or_path", model, "--train_file", str(Path(args.work) / "corpus.txt")),
        *("--output_dir", output_dir, "--pooling", args.pooling, "--max_seq_length", str(args.max_length)),
        *("--per_device_train_batch_size", str(args.batch_size), "--num_train_epochs", "1", "--seed", str(SEED)),
        *("--temperature", str(TEMPERATURE), "--learning_rate", str(RATE), "--weight_decay", str(DECAY)),
        *("--disable_tqdm", "true", *PRECISIONS[precision]),
        *(str(args.mini_batch_size) if flag == CACHED else flag for flag in OURS[way]),
        *("--validation_samples", "0"),  # as the others: nothing but the training
    ]
    run_mirror.main()


def train_sentence_transformers(model: str, args: Namespace, way: str, precision: str, output_dir: str) -> None:
    import torch
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer import losses

    from benchmarks.stand_in import make_sentence_transformer

    options = {"dtype": torch.float32} | ({"attn_implementation": "flash_attention_2"} if "-flash" in way else {})
    encoder = make_sentence_transformer(model, args, **options)
    if "-flash" in way and not encoder[0].can_flatten_inputs:
        raise InputError("sentence-transformers does not train this model without padding")
    texts = read_corpus(args)
    options = {"num_train_epochs": 1, "per_device_train_batch_size": args.batch_size, "dataloader_drop_last": True}
    options |= {"learning_rate": RATE, "weight_decay": DECAY, "lr_scheduler_type": "constant", "seed": SEED}
    options |= {
        "bf16": precision == "bf16",
        "fp16": precision == "fp16",
        "use_cpu": not torch.accelerator.is_available(),
    }
    options |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    settings = SentenceTransformerTrainingArguments(output_dir=output_dir, **options)
    directions = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
    kind, size = losses.MultipleNegativesRankingLoss, {}
    if "-cached" in way:
        kind, size = losses.CachedMultipleNegativesRankingLoss, {"mini_batch_size": args.mini_batch_size}
    loss = kind(encoder, scale=1 / TEMPERATURE, directions=directions, **size)
    pairs = Dataset.from_dict({"anchor": texts, "positive": texts})
    trainer = SentenceTransformerTrainer(model=encoder, args=settings, train_dataset=pairs, loss=loss)
    trainer.train()
    encoder.save_pretrained(output_dir)


def train_original_way(model: str, args: Namespace, way: str, precision: str, output_dir: str) -> None:
    """Train one epoch with the batches, padding, loss and precision of the released code. None of its source is used."""
    import torch
    from pytorch_metric_learning.losses import NTXentLoss
    from torch.utils.data import DataLoader
    from transformers import AutoModel, AutoTokenizer

    from benchmarks.stand_in import DTYPES, device

    torch.manual_seed(SEED)
    place = device()
    encoder, tokenizer = AutoModel.from_pretrained(model).to(place).train(), AutoTokenizer.from_pretrained(model)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=RATE, weight_decay=DECAY)
    scaler = torch.amp.GradScaler(place.type, enabled=precision == "fp16")
    loss_of = NTXentLoss(temperature=TEMPERATURE)
    labels = torch.arange(args.batch_size, device=place).repeat(2)
    workers = {"num_workers": WORKERS, "collate_fn": partial(padded_sides, tokenizer, args.max_length)}
    loader = DataLoader(read_corpus(args), args.batch_size, shuffle=True, drop_last=True, **workers)
    for sides in loader:
        with torch.autocast(place.type, DTYPES[precision], enabled=precision != "fp32"):
            states = [encoder(**side.to(place)).last_hidden_state for side in sides]  # (B, max_length, D) each
            vectors = [state[:, 0] if args.pooling == "cls" else state.mean(dim=1) for state in states]
            loss = loss_of(torch.cat(vectors), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()  # the released code sums it at every step
    encoder.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def padded_sides(tokenizer, max_length: int, texts: list[str]) -> list:
    """Return both views of B texts, tokenized on the fly and padded to the full length."""
    sides = (texts, [mask_span(text) for text in texts])
    options = {"padding": "max_length", "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    return [tokenizer(side, **options) for side in sides]


def mask_span(text: str, length: int = 5, at_least: int = 30) -> str:
    if len(text) < at_least:
        return text
    start = random.randrange(len(text) - length)
    return f"{text[:start]} [MASK] {text[start + length :]}"


if __name__ == "__main__":
    run_main(main)
