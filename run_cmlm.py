"""Turn a masked language model into a sentence encoder by conditional masked language modelling (CMLM).

    python run_cmlm.py --train_file documents.txt                     # the embedded model, one document per block of lines
    accelerate launch run_cmlm.py --config recipes/cmlm-base-en.yaml --train_file wiki/*.parquet --output_dir out/cmlm
    python run_cmlm.py --stage bitext --model_name_or_path out/cmlm --bitext_file pairs.tsv --output_dir out/cmlm-bitext

The encoder in --output_dir loads in transformers, sentence-transformers and run_eval.py; its folder cmlm/ holds what a later
stage needs. Every flag of transformers' TrainingArguments works too. docs/cmlm.md explains stages, data and costs.
"""

from __future__ import annotations

import logging

from transformers import set_seed

from mirror.card import write_card
from mirror.checkpoint import verify_encoder
from mirror.cmlm.arguments import parse_cmlm_arguments
from mirror.cmlm.checkpoint import load_cmlm
from mirror.cmlm.data import StageCollator
from mirror.cmlm.stages import check_positions, dataset_report, sample_of, stage_dataset
from mirror.cmlm.trainer import CMLMTrainer
from mirror.collator import MiniBatchCollator
from mirror.distributed import end_together
from mirror.errors import run_main
from mirror.runs import (
    check_output_dir,
    check_reporters,
    find_checkpoint,
    run_facts,
    settings_of,
    setup_logging,
    write_train_results,
)


logger = logging.getLogger("run_cmlm")


def main() -> None:
    # ---- Arguments, logging, seed ----------------------------------------------------------------------------------
    model_args, data_args, cmlm_args, training_args = parse_cmlm_arguments(description=__doc__)
    setup_logging(training_args)
    check_output_dir(training_args.output_dir, bool(training_args.resume_from_checkpoint), cmlm_args.force)
    check_reporters(training_args.report_to)
    checkpoint = find_checkpoint(training_args)
    settings = settings_of(training_args, model_args, data_args, cmlm_args)
    set_seed(training_args.seed)

    # ---- Model -----------------------------------------------------------------------------------------------------
    model, tokenizer = load_cmlm(
        model_args.model_name_or_path,
        model_args.num_projections,
        model_args.skip_connection,
        model_args.pooling,
        model_args.from_scratch,
    )
    check_positions(model, model_args.max_seq_length, cmlm_args.stage)

    # ---- Data ------------------------------------------------------------------------------------------------------
    with training_args.main_process_first(desc="pairs"):
        dataset = stage_dataset(tokenizer, model_args, data_args, cmlm_args, training_args)
    report = dataset_report(dataset)
    logger.info("rows: %s", ", ".join(f"{count:,} of {kind}" for kind, count in report.items()) or "streamed")

    # ---- Training --------------------------------------------------------------------------------------------------
    collator = StageCollator(tokenizer)
    if cmlm_args.mini_batch_size:
        collator = MiniBatchCollator(collator, cmlm_args.mini_batch_size)
    trainer = CMLMTrainer(
        model=model,
        args=training_args,
        cmlm_args=cmlm_args,
        max_seq_length=model_args.max_seq_length,
        sentence_vector=model_args.sentence_vector,
        settings=settings,
        train_dataset=dataset,
        data_collator=collator,
        processing_class=tokenizer,
    )
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics

    # ---- Saving, card, Hub -----------------------------------------------------------------------------------------
    trainer.save_model(_internal_call=True)
    trainer.save_state()
    if trainer.is_world_process_zero():
        readers = verify_encoder(training_args.output_dir, trainer.encoder(), sample_of(dataset, tokenizer))
        run = run_facts(training_args, model_args.model_name_or_path, data_args.dataset_name)
        write_train_results(training_args.output_dir, metrics, report, settings, readers, run)
        write_card(training_args.output_dir)
        logger.info("encoder with pooling '%s' in %s; read back alike by %s",
                    model_args.pooling, training_args.output_dir, " and ".join(readers))  # fmt: skip
    if training_args.push_to_hub:
        trainer.push_to_hub(commit_message="CMLM encoder")
    end_together(trainer.accelerator)


if __name__ == "__main__":
    run_main(main)
