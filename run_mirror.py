"""Turn a masked language model into a text encoder, without labels.

    python run_mirror.py                                          # the embedded model, this machine's docstrings
    accelerate launch run_mirror.py --model_name_or_path bert-base-uncased --train_file my_texts.txt
    accelerate launch --config_file accelerate_configs/multi_gpu_fp16.yaml run_mirror.py --gather_negatives \\
        --model_name_or_path roberta-base --train_file my_texts.txt --output_dir out/roberta --push_to_hub

The encoder in --output_dir loads in transformers, sentence-transformers and run_eval.py. Every flag of transformers'
TrainingArguments works too.
"""

from __future__ import annotations

import logging

from transformers import set_seed

from mirror.arguments import DataArguments, MirrorArguments, ModelArguments, default_pooling, parse_arguments
from mirror.card import write_card
from mirror.checkpoint import verify_encoder
from mirror.collator import MiniBatchCollator, PackedCollator, TwoViewCollator
from mirror.distributed import end_together
from mirror.encoder import check_length, load_backbone
from mirror.errors import run_main
from mirror.features import TwoViewDataset, ViewSettings, two_view_dataset
from mirror.lora import add_lora, check_lora
from mirror.packing import prepare_model
from mirror.report import corpus_report, format_report, row_tokens
from mirror.runs import (
    adapt_training_arguments,
    all_scorers,
    check_batch_fits,
    check_output_dir,
    check_reporters,
    describe_step,
    find_checkpoint,
    load_training_corpus,
    run_facts,
    sample_texts,
    settings_of,
    setup_logging,
    step_memory,
    task_scorer,
    write_train_results,
)
from mirror.scores import scores_of_run, write_scores
from mirror.selection import alignment_uniformity_scorer, hold_out
from mirror.trainer import MirrorTrainer
from mirror.training_arguments import MirrorTrainingArguments


logger = logging.getLogger("run_mirror")


def main() -> None:
    # ---- Arguments, logging, seed ----------------------------------------------------------------------------------
    argument_types = (ModelArguments, DataArguments, MirrorArguments, MirrorTrainingArguments)
    model_args, data_args, mirror_args, training_args = parse_arguments(argument_types, description=__doc__)
    setup_logging(training_args)
    adapt_training_arguments(training_args, mirror_args.eval_tasks, data_args.streaming, mirror_args.select_by)
    check_lora(mirror_args.lora_rank, training_args)
    check_output_dir(training_args.output_dir, bool(training_args.resume_from_checkpoint), mirror_args.force)
    check_reporters(training_args.report_to)
    checkpoint = find_checkpoint(training_args)
    settings = settings_of(training_args, model_args, data_args, mirror_args)
    set_seed(training_args.seed)

    # ---- Model -----------------------------------------------------------------------------------------------------
    model, tokenizer = load_backbone(model_args.model_name_or_path, model_args.pooling or "mean")
    pooling = model_args.pooling or default_pooling(model.config.model_type)
    check_length(model, model_args.max_seq_length)
    noise = (mirror_args.dropout_rate, mirror_args.drophead_rate, mirror_args.controlled_dropout)
    packed = prepare_model(model, pooling, mirror_args.packing, *noise)
    if mirror_args.lora_rank:
        add_lora(model, mirror_args.lora_rank)
    views = ViewSettings.of(mirror_args, tokenizer, model_args.max_seq_length, training_args.seed)

    # ---- Data ------------------------------------------------------------------------------------------------------
    with training_args.main_process_first(desc="two views of each text"):
        corpus = load_training_corpus(data_args.settings())
        label_free = None
        if mirror_args.validation_samples:
            corpus, held_out = hold_out(corpus, mirror_args.validation_samples, training_args.seed)
            label_free = alignment_uniformity_scorer(TwoViewDataset(held_out, tokenizer, views))
        check_batch_fits(corpus.rows, training_args)
        dataset = two_view_dataset(corpus.rows, tokenizer, views, data_args.preprocessing_num_workers)
    report = corpus_report(corpus, dataset, training_args.train_batch_size)
    logger.info("corpus\n%s", format_report(report))

    # ---- Training --------------------------------------------------------------------------------------------------
    pad_to = (model_args.pad_to or model_args.max_seq_length) if pooling == "mean_padded" else model_args.pad_to
    collator = PackedCollator(model, tokenizer) if packed else TwoViewCollator(tokenizer, pad_to)
    if mirror_args.mini_batch_size:
        collator = MiniBatchCollator(collator, mirror_args.mini_batch_size)
    score = all_scorers(label_free, task_scorer(mirror_args.eval_tasks, mirror_args.data_dir))
    trainer = MirrorTrainer(
        model=model,
        args=training_args,
        train_dataset=dataset,
        eval_dataset=dataset if score else None,  # Trainer wants one; `score` is what is evaluated
        data_collator=collator,
        processing_class=tokenizer,
        pooling=pooling,
        max_seq_length=model_args.max_seq_length,
        mirror_args=mirror_args,
        settings=settings,
        score=score,
    )
    memory = step_memory(model, training_args, mirror_args, row_tokens(report, packed, model_args.max_seq_length))
    step = describe_step(training_args, mirror_args.gather_negatives, mirror_args.loss, memory)
    logger.info(step)
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics

    # ---- Saving, card, Hub -----------------------------------------------------------------------------------------
    trainer.save_model(_internal_call=True)
    trainer.save_state()
    if trainer.is_world_process_zero():
        readers = verify_encoder(training_args.output_dir, trainer.encoder(training=False), sample_texts(corpus.rows))
        run = run_facts(training_args, model_args.model_name_or_path, data_args.dataset_name, step)
        write_train_results(training_args.output_dir, metrics, report, settings, readers, run)
        scores = scores_of_run(trainer.state, training_args.load_best_model_at_end, mirror_args.data_dir)
        write_scores(training_args.output_dir, scores)
        write_card(training_args.output_dir)
        logger.info("encoder with pooling '%s' in %s; read back alike by %s",
                    pooling, training_args.output_dir, " and ".join(readers))  # fmt: skip
    if training_args.push_to_hub:
        trainer.push_to_hub(commit_message="Mirror encoder")
    end_together(trainer.accelerator)


if __name__ == "__main__":
    run_main(main)
