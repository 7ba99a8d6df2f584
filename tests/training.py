"""A trainer on a tiny model, for the tests of training."""

from __future__ import annotations

from datasets import Dataset

from mirror.arguments import MirrorArguments
from mirror.collator import MiniBatchCollator, PackedCollator, TwoViewCollator
from mirror.encoder import load_backbone
from mirror.features import TwoViewDataset, ViewSettings
from mirror.packing import prepare_model
from mirror.trainer import MirrorTrainer
from mirror.training_arguments import MirrorTrainingArguments


def make_trainer(model_folder: str, texts: list[str], output_dir, score=None, **flags) -> MirrorTrainer:
    """`flags` go to the dataclass that knows them; the defaults are float32, batch 20, two epochs."""
    defaults = {
        "bf16": False,
        "per_device_train_batch_size": 20,
        "num_train_epochs": 2,
        "disable_tqdm": True,
        "seed": 5,
    }
    flags = defaults | flags
    pooling = flags.pop("pooling", "mean")
    method = {key: flags.pop(key) for key in list(flags) if key in MirrorArguments.__dataclass_fields__}
    mirror_args = MirrorArguments(**{"span_mask_min_chars": 10} | method)
    args = MirrorTrainingArguments(output_dir=str(output_dir), **flags)
    model, tokenizer = load_backbone(model_folder, pooling)
    noise = (mirror_args.dropout_rate, mirror_args.drophead_rate, mirror_args.controlled_dropout)
    packed = prepare_model(model, pooling, mirror_args.packing, *noise)
    views = ViewSettings.of(mirror_args, tokenizer, 24, args.seed)
    dataset = TwoViewDataset(Dataset.from_dict({"text": texts}), tokenizer, views)
    collator = PackedCollator(model, tokenizer) if packed else TwoViewCollator(tokenizer)
    if mirror_args.mini_batch_size:
        collator = MiniBatchCollator(collator, mirror_args.mini_batch_size)
    return MirrorTrainer(
        model=model,
        args=args,
        train_dataset=dataset,
        eval_dataset=dataset if score else None,
        data_collator=collator,
        processing_class=tokenizer,
        pooling=pooling,
        max_seq_length=24,
        mirror_args=mirror_args,
        score=score,
    )
