"""Turn a masked language model into a sentence encoder by conditional masked language modelling (CMLM).

    python run_cmlm.py --train_file documents.txt                     # the embedded model, one document per block of lines
    python run_cmlm.py --model_name_or_path bert-base-uncased --train_file wiki/*.parquet --output_dir out/cmlm
    python run_cmlm.py --stage bitext --model_name_or_path out/cmlm --bitext_file pairs.tsv --output_dir out/cmlm-bitext

The encoder in --output_dir loads in transformers, sentence-transformers and run_eval.py; its folder cmlm/ holds what a later
stage needs. docs/cmlm.md explains stages, data and costs.
"""

from __future__ import annotations

from dataclasses import asdict

from mirror.cmlm.arguments import parse_cmlm_arguments
from mirror.common.errors import run_main
from mirror.common.logging import configure_logging


def main() -> None:
    script_args, data_args, config = parse_cmlm_arguments(description=__doc__)
    configure_logging()

    # Imported here so that --help and errors in the flags are immediate.
    from mirror.cmlm.stages import read_stage_data
    from mirror.cmlm.trainer import CMLMTrainer
    from mirror.tools.finish_run import finish_run
    from mirror.training.preflight import preflight

    checkpoint = preflight(config, script_args.model_name_or_path)

    with config.main_process_first(desc="documents and pairs"):
        parts, bitext = read_stage_data(config.stage, data_args)

    trainer = CMLMTrainer(
        model=script_args.model_name_or_path,
        args=config,
        train_dataset=parts,
        bitext_dataset=bitext,
        data_settings=asdict(data_args),
    )
    metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics

    finish_run(trainer, metrics, commit_message="CMLM encoder")  # save, verify, record, card, push


if __name__ == "__main__":
    run_main(main)
