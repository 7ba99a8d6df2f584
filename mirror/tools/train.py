"""Turn a masked language model into a text encoder, without labels (Mirror-BERT).

    python run_mirror.py                                          # the embedded model, this machine's docstrings
    python run_mirror.py --model_name_or_path bert-base-uncased --train_file my_texts.txt
    accelerate launch --config_file accelerate_configs/multi_gpu_fp16.yaml run_mirror.py --gather_negatives \\
        --model_name_or_path roberta-base --train_file my_texts.txt --output_dir out/roberta --push_to_hub

The encoder in --output_dir loads in transformers, sentence-transformers and run_eval.py.
"""

from __future__ import annotations

from mirror.common.cli import configure_logging
from mirror.common.errors import run_main
from mirror.training.arguments import parse_arguments


def main() -> None:
    script_args, data_args, config = parse_arguments(description=__doc__)
    configure_logging(config.script_log_level)

    # Imported here so that --help and errors in the flags are immediate.
    from mirror.data.corpus import load_training_corpus
    from mirror.data.documents import are_documents
    from mirror.evaluation.run import make_plan
    from mirror.training.base_encoder import passages_for
    from mirror.training.run_setup import preflight
    from mirror.training.selection import make_kept_score
    from mirror.training.trainer import MirrorTrainer

    # A wrong name or file is refused before the texts are read.
    if config.eval_tasks:
        make_plan(config.eval_tasks, config.data_dir)
    if config.keep:
        make_kept_score(config.keep, config.data_dir)
    checkpoint = preflight(config, script_args.model_name_or_path)
    with config.main_process_first(desc="corpus"):
        documents = data_args.train_file and are_documents(data_args.train_file)
        passages = passages_for(script_args.model_name_or_path, config) if documents else {}
        corpus = load_training_corpus(data_args.source(), **passages)
    trainer = MirrorTrainer(model=script_args.model_name_or_path, args=config, train_dataset=corpus)
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.finish()  # save, verify, record, card, push


if __name__ == "__main__":
    run_main(main)
