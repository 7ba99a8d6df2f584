"""Flags of later ideas: values outside their range and pairs that exclude each other are refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from mirror.common.errors import InputError
from mirror.modeling.encoder import Encoder
from mirror.training.config import MirrorConfig
from mirror.training.losses import info_nce
from tests.tiny_trainer import make_trainer


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"projection_head": "mpl"}, "--projection_head 'mpl' is unknown; one of mlp; did you mean 'mlp'"),
        ({"batching": "lenght"}, "--batching 'lenght' is unknown; one of length"),
        ({"negative_queue": 0}, "--negative_queue must be at least 1, got 0; leave it out for none"),
        ({"noise_negatives": -3}, "--noise_negatives must be at least 1, got -3"),
        ({"queue_momentum": 0.9}, "--queue_momentum is that of --negative_queue"),
        ({"negative_queue": 9, "queue_momentum": 1.0}, r"--queue_momentum is a probability in \[0, 1\), got 1.0"),
        ({"false_negative_weighting": 1.5}, "--false_negative_weighting is a cosine between -1 and 1, got 1.5"),
        ({"hardness": -1.0}, "--hardness must be 0 or more, got -1.0"),
        ({"matryoshka_dims": [8, 8]}, "--matryoshka_dims must be different positive numbers, got 8 8"),
        ({"matryoshka_dims": [0]}, "--matryoshka_dims must be different positive numbers, got 0"),
        ({"matryoshka_dims": [8], "projection_head": "mlp"}, "behind --projection_head; leave out one of the two"),
        ({"loss": "multi_similarity", "hardness": 1.0}, "--loss multi_similarity has no --hardness; use nt_xent"),
        ({"loss": "multi_similarity", "negative_queue": 9}, "--loss multi_similarity has no --negative_queue"),
        (
            {"batching": "length", "train_sampling_strategy": "sequential"},
            "--batching length and --train_sampling_strategy sequential exclude each other",
        ),
        ({"loss": "decoupled", "false_negative_weighting": 0.9}, "--loss decoupled divides by the negatives only"),
    ],
)
def test_a_wrong_value_is_named(flags, message):
    with pytest.raises(InputError, match=message):
        MirrorConfig(**flags)


def test_defaults_are_none_so_that_earlier_checkpoints_can_be_resumed():
    config = MirrorConfig()
    flags = ("projection_head", "negative_queue", "queue_momentum", "noise_negatives", "false_negative_weighting")
    flags += ("hardness", "batching", "matryoshka_dims")
    assert [getattr(config, flag) for flag in flags] == [None] * len(flags)
    assert MirrorConfig(negative_queue=10).queue_momentum == 0.995


def test_batching_by_length_is_the_strategy_of_the_trainer():
    assert MirrorConfig(batching="length").train_sampling_strategy == "group_by_length"
    assert MirrorConfig().train_sampling_strategy == "random"


def test_what_depends_on_the_model_or_the_texts_is_refused_too(bert_folder, sentences, tmp_path):
    with pytest.raises(InputError, match="--matryoshka_dims 32: the vectors have 32 dimensions"):
        make_trainer(bert_folder, sentences, tmp_path, matryoshka_dims=[16, 32])
    with pytest.raises(InputError, match="--batching length needs all texts at once; leave out --streaming or it"):
        make_trainer(bert_folder, sentences, tmp_path, streaming=True, max_steps=2, batching="length")


def test_shorter_vectors_are_trained_and_named_on_the_card(bert_folder, sentences, tmp_path):
    options = {"max_steps": 1, "logging_steps": 1, "dropout_rate": 0.0}
    trainer = make_trainer(bert_folder, sentences, tmp_path, matryoshka_dims=[16, 4], **options)
    batch = next(iter(trainer.get_train_dataloader()))
    first, second = trainer.embed(trainer.model.eval(), batch).detach().chunk(2)
    parts = [info_nce(first[:, :d], second[:, :d], 0.04).item() for d in (32, 16, 4)]
    trainer = make_trainer(bert_folder, sentences, tmp_path, matryoshka_dims=[16, 4], **options)
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(sum(parts), rel=1e-4)
    trainer.save_model(str(tmp_path / "encoder"))
    whole = Encoder.from_pretrained(str(tmp_path / "encoder")).encode(sentences[:3])
    short = Encoder.from_pretrained(str(tmp_path / "encoder"), truncate_dim=4)
    np.testing.assert_array_equal(short.encode(sentences[:3]), whole[:, :4])
    theirs = SentenceTransformer(str(tmp_path / "encoder"), device="cpu", truncate_dim=4).encode(sentences[:3])
    np.testing.assert_allclose(theirs, whole[:, :4], atol=1e-5)
