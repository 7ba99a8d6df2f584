"""Turn a masked language model into a sentence encoder by conditional masked language modeling (CMLM).

    python run_cmlm.py --train_file documents.txt                     # the embedded model, one document per block of lines
    python run_cmlm.py --model_name_or_path bert-base-uncased --train_file wiki/*.parquet --output_dir out/cmlm
    python run_cmlm.py --stage bitext --model_name_or_path out/cmlm --bitext_file pairs.tsv --output_dir out/cmlm-bitext

The encoder in --output_dir loads in transformers, sentence-transformers and run_eval.py. Its folder cmlm/ contains the parts
that a later stage needs. docs/cmlm.md explains stages, data and costs.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from mirror.cmlm.options import DOCUMENT_STAGES, CMLMDataArguments, CMLMOptions
from mirror.common.cli import configure_logging
from mirror.common.config_parser import check_flags, parse_flags
from mirror.common.errors import InputError, run_main
from mirror.training.arguments import ScriptArguments


if TYPE_CHECKING:
    from mirror.cmlm.trainer import CMLMConfig


def parse_cmlm_arguments(argv: list[str] | None = None) -> tuple[ScriptArguments, CMLMDataArguments, CMLMConfig]:
    """Parse the command line. A flag overrides the recipe (`--config`). Invalid flags fail without importing torch."""
    _, data, options = check_flags((ScriptArguments, CMLMDataArguments, CMLMOptions), argv, __doc__)
    stage = options.stage
    if data.streaming and options.language_smoothing != 1:
        raise InputError("--language_smoothing needs the sizes of the files, which a stream has not; drop --streaming")
    if stage in DOCUMENT_STAGES and not (data.train_file or data.dataset_name):
        raise InputError(f"--stage {stage} learns from documents; give --train_file or --dataset_name")
    if "bitext" in stage and not data.bitext_file:
        raise InputError(f"--stage {stage} learns from translations; give --bitext_file")
    if stage == "nli" and not data.nli_file:
        raise InputError("--stage nli learns from labeled pairs; give --nli_file")
    data.check_files()
    from mirror.cmlm.trainer import CMLMConfig

    return parse_flags((ScriptArguments, CMLMDataArguments, CMLMConfig), argv)


def main() -> None:
    script_args, data_args, config = parse_cmlm_arguments()
    configure_logging(config.script_log_level)

    # Imported here so that --help and errors in the flags are immediate.
    from mirror.cmlm.reading import read_stage_data
    from mirror.cmlm.trainer import CMLMTrainer
    from mirror.training.run_setup import preflight

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
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.finish()  # save, verify, record, card, push


if __name__ == "__main__":
    run_main(main)
