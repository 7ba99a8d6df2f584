"""Streams that are passed several times: workers, processes and interruptions change nothing.

    torchrun --nproc_per_node=2 -m tests.training.test_streams MODEL FOLDER

is what each of two processes runs.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader

from mirror.common.distributed import exit_process
from mirror.data.views import StreamedTwoViewDataset, ViewSettings
from tests.cmlm.test_trainer import make_trainer as make_cmlm_trainer
from tests.cmlm.test_trainer import rows_of
from tests.processes import run_two_processes
from tests.tiny_trainer import make_trainer


SETTINGS = ViewSettings(span_mask_length=5, span_mask_min_chars=20, mask_token=None, max_seq_length=16, seed=3)


def batches(dataset, workers: int, count: int) -> list:
    loader = DataLoader(dataset, batch_size=7, num_workers=workers, collate_fn=list)
    return list(itertools.islice(loader, count))


@pytest.mark.parametrize("files", [1, 3])
def test_workers_change_nothing(tokenizer, sentences, files):
    """30 rows are four batches of 7, so the eighth batch ends the second pass."""
    texts = Dataset.from_dict({"text": sentences[:30]}).to_iterable_dataset(num_shards=files)
    stream = StreamedTwoViewDataset(texts, tokenizer, SETTINGS, batch_size=7)
    alone = batches(stream, 0, 10)
    assert [len(batch) for batch in alone] == [7] * 10
    texts_of = [{str(row["first_ids"]) for batch in alone[start : start + 4] for row in batch} for start in (0, 4)]
    assert [len(found) for found in texts_of] == [28, 28]  # no text twice in a pass
    for workers in (1, 2):
        assert batches(stream, workers, 10) == alone


def assert_resumes(make, folder: Path, **flags) -> None:
    """From checkpoints of several passes: 120 rows are passes of three steps of 40."""
    whole = make(folder / "whole", max_steps=7, save_strategy="steps", save_steps=1, **flags)
    whole.train()
    expected = {name: value.clone() for name, value in whole.model.state_dict().items()}
    for step in (2, 3, 4):  # in the first pass, at its end, in the second pass
        resumed = make(folder / f"resumed-{step}", max_steps=7, **flags)
        resumed.train(resume_from_checkpoint=str(folder / "whole" / f"checkpoint-{step}"))
        assert resumed.state.global_step == 7
        for name, value in resumed.model.state_dict().items():
            assert torch.equal(value, expected[name]), (step, name)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stream_is_resumed_bit_for_bit_in_every_pass(bert_folder, sentences, tmp_path, workers):
    def make(folder, **flags):
        return make_trainer(bert_folder, sentences[:120], folder, streaming=True, learning_rate=1e-3, **flags)

    flags = {"per_device_train_batch_size": 20, "gradient_accumulation_steps": 2, "dataloader_num_workers": workers}
    assert_resumes(make, tmp_path, **flags)


@pytest.mark.slow
def test_a_stream_of_documents_is_too(bert_folder, sentences, tmp_path):
    def make(folder, **flags):
        return make_cmlm_trainer(bert_folder, rows_of(sentences[:120]), folder, streaming=True, dropout=0.1, **flags)

    assert_resumes(make, tmp_path, stage="cmlm_bitext", per_device_train_batch_size=10)


@pytest.mark.slow
def test_two_processes_resume_a_stream_bit_for_bit(bert_folder, sentences, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    run_two_processes("-m", "tests.training.test_streams", bert_folder, str(tmp_path))


def main(model_folder: str, folder: str) -> None:
    """Each process with half of each batch."""
    sentences = (Path(folder) / "texts.txt").read_text().splitlines()

    def make(folder, **flags):
        return make_trainer(model_folder, sentences[:120], folder, streaming=True, learning_rate=1e-3, **flags)

    for workers in (0, 2):
        assert_resumes(
            make, Path(folder) / str(workers), per_device_train_batch_size=20, dataloader_num_workers=workers
        )
    exit_process(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
