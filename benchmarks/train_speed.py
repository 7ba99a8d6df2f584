"""Seconds per training step: this project, sentence-transformers, and the method of the released Mirror-BERT code.

    python benchmarks/train_speed.py --train_file my_texts.txt
    python benchmarks/train_speed.py --train_file my_texts.txt --layers 12 --width 768 --batch_size 32
    python benchmarks/train_speed.py --train_file my_texts.txt --model_name_or_path bert-base-uncased
    python benchmarks/train_speed.py --train_file my_texts.txt --variants ours-fp16 ours-padded-fp16 ours-compiled-fp16

A variant is a training method and a precision (fp32, bf16, fp16):

    ours                    run_mirror.py with its defaults: both views of a text in one forward pass, no padding
    ours-padded             the same with --packing off
    ours-grouped            padded, batches of texts of similar length (--batching length)
    ours-compiled           run_mirror.py with --torch_compile
    ours-cached             run_mirror.py with --mini_batch_size; also ours-cached-compiled
    sentence-transformers   SentenceTransformerTrainer; its loss compares the same pairs of views in one softmax
    sentence-transformers-flash
                            the same with flash-attn, which switches its own training without padding on (a GPU only)
    sentence-transformers-flash-cached
                            the same with its cached loss and --mini_batch_size
    original-way            two forward passes padded to --max_length, tokenised by worker processes in the collate function,
                            NTXentLoss of pytorch-metric-learning

All variants train once on the same distinct texts, as many as the steps need, and save an encoder at the end. Runs are
interleaved, one subprocess each. The time of a step is the mean over --steps steps after --warmup_steps others; the time of the
process is everything from start to exit. Run it on an idle machine: on a busy one, steps take several times as long.
"""

from __future__ import annotations

import random
import sys
import tempfile
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from functools import partial
from pathlib import Path


sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.side_by_side import (
    Results,
    add_common_flags,
    markdown,
    median,
    prepare,
    ratio,
    run_child,
    run_interleaved,
    spread,
    write_report,
)
from mirror.common.errors import InputError, run_main


CACHED = "MINI_BATCH"  # stands for --mini_batch_size
OURS = {
    "ours": ["--packing", "on"],
    "ours-padded": ["--packing", "off"],
    "ours-grouped": ["--packing", "off", "--batching", "length"],
    "ours-compiled": ["--packing", "on", "--torch_compile", "true"],
    "ours-cached": ["--packing", "on", "--mini_batch_size", CACHED],
    "ours-cached-compiled": ["--packing", "on", "--mini_batch_size", CACHED, "--torch_compile", "true"],
}
THEIRS = ("sentence-transformers", "sentence-transformers-flash", "sentence-transformers-flash-cached")
PRECISIONS = {
    "fp32": ["--bf16", "false", "--fp16", "false"],
    "bf16": ["--bf16", "true"],
    "fp16": ["--fp16", "true"],
}
DEFAULT_VARIANTS = (
    *("original-way-fp32", "original-way-bf16", "sentence-transformers-fp32", "sentence-transformers-bf16"),
    *("ours-bf16", "ours-padded-bf16", "ours-grouped-bf16", "ours-compiled-bf16"),
)
TEMPERATURE, RATE, DECAY, SEED = 0.04, 2e-5, 0.01, 42
WORKERS = 16  # as in the released code


def main() -> None:
    args = parse_arguments()
    if args.child:
        run_child(args, measure)
        return
    with tempfile.TemporaryDirectory() as work:
        flags = [*sys.argv[1:], "--work", work]
        facts = prepare(__file__, flags)
        limits = [f"matmul-{precision}" for precision in sorted({way_and_precision(v)[1] for v in args.variants})]
        results = run_interleaved(__file__, [*limits, *args.variants], args.rounds, flags)
    title = (
        f"Training step of {facts['model']}, {args.batch_size} texts ({2 * args.batch_size} views); "
        f"{facts['machine']}; {args.rounds} rounds of {args.steps} steps, {facts['tokens']:.1f} tokens per view; "
        "median (min-max)"
    )
    bars = {
        name: [run["step_seconds"] for run in runs] for name, runs in results.items() if runs and name not in limits
    }
    table = table_of(results, args, facts["tokens"])
    write_report(args.output_dir, "train_speed", title, table, results, bars, "seconds per step")


def parse_arguments(argv: list[str] | None = None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--train_file", required=True, help="texts, one per line")
    add("--model_name_or_path", help="default: a new BERT with random weights")
    add("--layers", type=int, default=6, help="layers of that BERT (default: 6)")
    add("--width", type=int, default=384, help="hidden size of that BERT (default: 384)")
    add("--variants", nargs="+", default=DEFAULT_VARIANTS, metavar="V", help=" ".join(DEFAULT_VARIANTS))
    add("--batch_size", type=int, default=200)
    add("--steps", type=int, default=8, help="steps timed (default: 8)")
    add("--warmup_steps", type=int, default=2, help="steps before the timed ones (default: 2)")
    add("--mini_batch_size", type=int, default=512, help="texts in memory at once in a cached variant (default: 512)")
    add("--max_length", type=int, default=50, help="in tokens (default: 50)")
    add("--pooling", choices=("cls", "mean"), default="cls")
    add_common_flags(parser)
    args = parser.parse_args(argv)
    for variant in args.variants:
        way_and_precision(variant)
    return args


def way_and_precision(variant: str) -> tuple[str, str]:
    """Split a variant into its method and its precision.

    Raises:
        InputError: the variant is unknown.
    """
    way, _, precision = variant.rpartition("-")
    if way not in (*OURS, *THEIRS, "original-way") or precision not in PRECISIONS:
        raise InputError(f"--variants {variant}: unknown; for example {' '.join(DEFAULT_VARIANTS)}")
    return way, precision


def table_of(results: Results, args: Namespace, tokens: float) -> str:
    """One row per variant; one that failed says so."""
    header = ("variant", "s/step", "sentences/s", "real tokens/s", "of the matmul limit", "process s", "peak GB")
    rows = []
    for variant in args.variants:
        runs, (_, precision) = results[variant], way_and_precision(variant)
        if not runs:
            rows.append((variant, "failed", *["-"] * 7))
            continue
        per_second = args.batch_size / median(runs, "step_seconds")
        limit = results[f"matmul-{precision}"]
        flops = 3 * median(limit, "flops_per_token") * 2 * tokens * per_second  # backward costs twice the forward pass
        others = (results.get(f"{other}-{precision}") for other in ("original-way", "sentence-transformers"))
        rows.append(
            (
                variant,
                spread([run["step_seconds"] for run in runs]),
                f"{per_second:.0f}",
                f"{2 * tokens * per_second:.0f}",
                f"{flops / 1e9 / median(limit, 'gflops'):.0%}",
                spread([run["process_seconds"] for run in runs]),
                f"{median(runs, 'peak_gb'):.2f}",
                *(ratio(other, runs, "step_seconds") for other in others),
            )
        )
    limits = ", ".join(
        f"{name.removeprefix('matmul-')} {spread([run['gflops'] for run in runs])}"
        for name, runs in results.items()
        if name.startswith("matmul-") and runs
    )
    note = f"\nMatmul limit in the shapes of the model's linear layers, GFLOP/s: {limits}.\n"
    return markdown((*header, "vs original-way", "vs sentence-transformers"), rows) + note


# ---- In a measuring subprocess ---------------------------------------------------------------------------------------


def measure(variant: str, args: Namespace) -> dict:
    if variant == "prepare":
        return make_inputs(args)
    from benchmarks.stand_in import matmul_limit, peak_memory, step_clock

    model = model_of(args)
    if variant.startswith("matmul-"):
        tokens = round(2 * args.batch_size * mean_tokens(model, read_corpus(args), args.max_length))
        return matmul_limit(model, tokens, variant.removeprefix("matmul-"))
    way, precision = way_and_precision(variant)
    run = train_ours if way in OURS else train_sentence_transformers if way in THEIRS else train_original_way
    with step_clock(args.warmup_steps, args.steps) as clock, tempfile.TemporaryDirectory() as output_dir:
        run(model, args, way, precision, output_dir)
    return {"step_seconds": clock.step_seconds(), "peak_gb": peak_memory()}


def make_inputs(args: Namespace) -> dict:
    """Write the corpus, limited to what the steps need, and the model; return the facts for the title of the table."""
    from benchmarks.stand_in import distinct_lines, machine, make_model

    texts = distinct_lines(args.train_file, args.batch_size * (args.warmup_steps + args.steps))
    (Path(args.work) / "corpus.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    if not args.model_name_or_path:
        make_model(Path(model_of(args)), texts, args.layers, args.width)
    return {
        "model": Path(
            args.model_name_or_path or f"a BERT of {args.layers} layers x {args.width} (random weights)"
        ).name,
        "machine": machine(),
        "tokens": mean_tokens(model_of(args), texts, args.max_length),
    }


def model_of(args: Namespace) -> str:
    return args.model_name_or_path or str(Path(args.work) / "model")


def read_corpus(args: Namespace) -> list[str]:
    return (Path(args.work) / "corpus.txt").read_text(encoding="utf-8").splitlines()


def mean_tokens(model: str, texts: list[str], max_length: int) -> float:
    """Mean number of tokens per text, with special tokens and without padding."""
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
        *("--disable_tqdm", "true", *ours_flags(way, args), *PRECISIONS[precision]),
        *("--validation_samples", "0", "--near_duplicates", "off"),  # as the others: nothing but the training
    ]
    run_mirror.main()


def ours_flags(way: str, args: Namespace) -> list[str]:
    return [str(args.mini_batch_size) if flag == CACHED else flag for flag in OURS[way]]


def train_sentence_transformers(model: str, args: Namespace, way: str, precision: str, output_dir: str) -> None:
    import torch
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    options = {"dtype": torch.float32} | ({"attn_implementation": "flash_attention_2"} if "-flash" in way else {})
    body = Transformer(model, max_seq_length=args.max_length, model_kwargs=options)
    if "-flash" in way and not body.can_flatten_inputs:
        raise InputError("sentence-transformers does not train this model without padding")
    encoder = SentenceTransformer(modules=[body, Pooling(body.get_embedding_dimension(), args.pooling)])
    texts = read_corpus(args)
    settings = SentenceTransformerTrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=args.batch_size,
        num_train_epochs=1,
        learning_rate=RATE,
        weight_decay=DECAY,
        lr_scheduler_type="constant",
        dataloader_drop_last=True,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=not torch.accelerator.is_available(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=SEED,
    )
    directions = ("query_to_doc", "query_to_query", "doc_to_query", "doc_to_doc")
    loss = MultipleNegativesRankingLoss(encoder, scale=1 / TEMPERATURE, directions=directions)
    if "-cached" in way:
        loss = CachedMultipleNegativesRankingLoss(
            encoder, scale=1 / TEMPERATURE, directions=directions, mini_batch_size=args.mini_batch_size
        )
    trainer = SentenceTransformerTrainer(
        model=encoder,
        args=settings,
        train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
        loss=loss,
    )
    trainer.train()
    encoder.save_pretrained(output_dir)


def train_original_way(model: str, args: Namespace, way: str, precision: str, output_dir: str) -> None:
    """One epoch with the batches, padding, loss and precision of the released code; none of its source is used."""
    import torch
    from pytorch_metric_learning.losses import NTXentLoss
    from torch.utils.data import DataLoader

    from benchmarks.stand_in import DTYPES, device
    from mirror.modeling.backbone import load_backbone

    torch.manual_seed(SEED)
    place = device()
    encoder, tokenizer = load_backbone(model, args.pooling)
    encoder.to(place).train()
    optimiser = torch.optim.AdamW(encoder.parameters(), lr=RATE, weight_decay=DECAY)
    scaler = torch.amp.GradScaler(place.type, enabled=precision == "fp16")
    loss_of = NTXentLoss(temperature=TEMPERATURE)
    labels = torch.arange(args.batch_size, device=place).repeat(2)
    loader = DataLoader(
        read_corpus(args),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=WORKERS,
        collate_fn=partial(padded_sides, tokenizer, args.max_length),
    )
    for sides in loader:
        with torch.autocast(place.type, DTYPES[precision], enabled=precision != "fp32"):
            states = [encoder(**side.to(place)).last_hidden_state for side in sides]  # (B, max_length, D) each
            vectors = [state[:, 0] if args.pooling == "cls" else state.mean(dim=1) for state in states]
            loss = loss_of(torch.cat(vectors), labels)
        optimiser.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        loss.item()  # the released code sums it at every step
    encoder.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def padded_sides(tokenizer, max_length: int, texts: list[str]) -> list:
    """Both views of B texts, tokenised on the fly and padded to the full length."""
    sides = (texts, [mask_span(text) for text in texts])
    return [
        tokenizer(side, padding="max_length", truncation=True, max_length=max_length, return_tensors="pt")
        for side in sides
    ]


def mask_span(text: str, length: int = 5, at_least: int = 30) -> str:
    if len(text) < at_least:
        return text
    start = random.randrange(len(text) - length)
    return f"{text[:start]} [MASK] {text[start + length :]}"


if __name__ == "__main__":
    run_main(main)
