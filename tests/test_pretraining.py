"""data_scripts/pretrain_mini_mlm.py: the cheap loss is the model's own loss, and a run can be stopped, continued and exported."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from data_scripts import pretrain_mini_mlm as script
from data_scripts.predicted_words import CandidateSampler, hidden_at, pretraining_loss
from data_scripts.pretraining_card import describe_objectives, draw_learning_curve, learning_curve, read_history
from data_scripts.pretraining_windows import Corpus, WindowBatches
from mirror.common.errors import InputError


WORDS = 60


@pytest.fixture
def model() -> BertForMaskedLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=WORDS, max_position_embeddings=16, **sizes)).eval()
    torch.nn.init.normal_(model.cls.predictions.bias)
    return model


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    ids = torch.from_numpy(rng.integers(0, WORDS, (4, 16)))
    positions = torch.from_numpy(np.stack([rng.permutation(16)[:3] for _ in range(4)]))
    return {"input_ids": ids, "positions": positions}


def draw(size: int, targets: np.ndarray, seed: int = 0) -> dict[str, torch.Tensor]:
    counts = np.arange(WORDS)[::-1] + 1
    return CandidateSampler.from_counts(counts, size).draw(targets, np.random.default_rng(seed))


def window_batches(num_candidates: int, separator_every: int, **options) -> WindowBatches:
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(WORDS - 5))]
    tokenizer = BertTokenizerFast(vocab={word: i for i, word in enumerate(vocab)})
    ids = np.random.default_rng(3).integers(5, WORDS, 5000)
    ids[::separator_every] = tokenizer.sep_token_id
    sampler = CandidateSampler.from_counts(np.bincount(ids, minlength=WORDS), num_candidates)
    corpus = Corpus(ids.astype(np.uint16), np.arange(0, 4000, 7))
    return WindowBatches(corpus, tokenizer, sampler, 256, 0.2, seed=0, steps=6, **options)


def test_hidden_states_are_those_of_the_model(model, batch):
    whole = model.bert(input_ids=batch["input_ids"]).last_hidden_state
    expected = torch.stack([row[at] for row, at in zip(whole, batch["positions"], strict=True)])
    torch.testing.assert_close(hidden_at(model, **batch), expected)


def test_over_the_whole_vocabulary_the_loss_is_that_of_the_model(model, batch):
    targets = np.random.default_rng(1).integers(0, WORDS, (4, 3))
    labels = torch.full((4, 16), -100).scatter(1, batch["positions"], torch.from_numpy(targets))
    expected = model(input_ids=batch["input_ids"], labels=labels).loss
    torch.testing.assert_close(pretraining_loss(model, **batch, **draw(0, targets.reshape(-1))), expected)


def test_the_first_token_predicts_the_words_of_its_row(model, batch):
    """By hand: the model's own scores at the first position, for each word in turn."""
    targets = np.random.default_rng(1).integers(0, WORDS, (4, 3)).reshape(-1)
    sample = draw(0, targets)
    bag = torch.tensor([[3, 7, 7, -1], [1, -1, -1, -1], [-1, -1, -1, -1], [5, 6, 8, 9]])
    alone = pretraining_loss(model, **batch, **sample)
    both = pretraining_loss(model, **batch, **sample, bag=bag, bag_weight=0.5)
    scores = model(input_ids=batch["input_ids"]).logits[:, 0][:, sample["candidates"]].log_softmax(-1)
    rows = [
        -np.mean([scores[row, word].item() for word in words if word >= 0] or [0.0]) for row, words in enumerate(bag)
    ]
    assert rows[2] == 0 and min(rows[0], rows[1], rows[3]) > 1
    assert both.item() == pytest.approx(alone.item() + 0.5 * np.mean(rows), rel=1e-5)


def test_the_mean_of_a_row_finds_the_text_beside_it(model, batch):
    """By hand: NT-Xent over the model's own mean vectors, in training only."""
    targets = np.random.default_rng(1).integers(0, WORDS, (4, 3)).reshape(-1)
    sample = draw(0, targets)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    alone = pretraining_loss(model, **batch, **sample)
    assert pretraining_loss(model, **batch, **sample, neighbor_weight=0.5) == alone  # an evaluation has no pairs
    both = pretraining_loss(model.train(), **batch, **sample, neighbor_weight=0.5)
    vectors = model.bert(input_ids=batch["input_ids"]).last_hidden_state.mean(dim=1)
    cosines = torch.nn.functional.normalize(vectors, dim=-1) @ torch.nn.functional.normalize(vectors, dim=-1).T
    losses = []
    for row, neighbor in ((0, 2), (1, 3), (2, 0), (3, 1)):
        others = [cosines[row, other] / 0.05 for other in range(4) if other != row]
        losses.append(torch.stack(others).logsumexp(0) - cosines[row, neighbor] / 0.05)
    neighbors = torch.stack(losses).mean()
    assert neighbors > 0.1
    torch.testing.assert_close(both, alone + 0.5 * neighbors)
    gradients = [
        torch.autograd.grad(loss, model.bert.encoder.layer[0].output.dense.weight, retain_graph=True)[0]
        for loss in (both, alone, neighbors)
    ]
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients)
    torch.testing.assert_close(gradients[0], gradients[1] + 0.5 * gradients[2])


def test_sampled_words_stand_for_those_left_out():
    """If rare words have one score, the softmax's denominator over the candidates is that over the whole vocabulary."""
    scores = np.random.default_rng(2).normal(size=WORDS)
    scores[10:] = 0.5
    targets = np.array([59, 3, 41, 59])
    scores[targets] = 1.5
    for seed in range(20):
        sample = draw(20, targets, seed)
        assert len(np.unique(sample["candidates"])) == 20
        assert (sample["candidates"][sample["labels"]].numpy() == targets).all()
        assert (sample["log_weights"][sample["labels"]] == 0).all()
        total = np.exp(scores[sample["candidates"]] + sample["log_weights"].numpy()).sum()
        assert total == pytest.approx(np.exp(scores).sum())


def test_each_row_has_as_many_masked_words_and_never_a_special_token():
    batches = window_batches(num_candidates=0, separator_every=40)
    for batch in (batches[index] for index in range(len(batches))):
        rows, length = batch["input_ids"].shape
        assert rows * length == 256
        assert batch["positions"].shape == (rows, round(0.2 * length))
        assert (batch["candidates"][batch["labels"]] >= 5).all()
        assert batch["positions"].min() > 0 and batch["positions"].max() < length - 1


def test_the_bag_has_the_words_before_masking_that_are_candidates():
    without, with_bag = (window_batches(num_candidates=40, separator_every=9, with_bag=bag) for bag in (False, True))
    for step in range(3):
        batch, plain = with_bag[step], without[step]
        bag = batch.pop("bag").numpy()
        assert batch.keys() == plain.keys() and all((batch[name] == plain[name]).all() for name in batch)
        seen, candidates = batch["input_ids"][:, 1:-1].numpy(), batch["candidates"].numpy()
        masked = np.zeros(bag.shape, dtype=bool)
        np.put_along_axis(masked, batch["positions"].numpy() - 1, True, axis=1)
        listed = np.isin(seen, candidates) & (seen >= 5)
        assert ((bag >= 0) == listed)[~masked].all() and listed[~masked].any() and not listed[~masked].all()
        assert (candidates[bag] == seen)[listed & ~masked].all()
        answers = np.take_along_axis(bag, batch["positions"].numpy() - 1, axis=1).reshape(-1)
        assert (answers == batch["labels"].numpy()).all()  # what is masked is in the bag too


def test_neighbors_begin_at_the_first_sentence_after_the_text():
    batches = window_batches(num_candidates=0, separator_every=40, with_neighbors=True)
    starts = batches.corpus.starts  # 0, 7, 14, ... 3,997
    for words, distance in ((14, 14), (15, 21), (30, 35)):
        first, second = np.split(batches._pairs(200, words, np.random.default_rng(words)), 2)
        assert (second == first + distance).all() and len(np.unique(first)) > 100
        assert np.isin(first, starts).all() and second.max() <= starts[-1]
    for batch in (batches[index] for index in range(len(batches))):
        rows, length = batch["input_ids"].shape
        assert rows % 2 == 0 and rows * length == 256
        shown = batch["input_ids"].clone().scatter_(1, batch["positions"], -1)[:, 1:-1].numpy()  # -1: perhaps changed
        for row, neighbor in zip(*np.split(shown, 2), strict=True):
            gap = -(-(length - 2) // 7) * 7
            texts = [np.concatenate([batches.corpus.ids[at : at + length - 2] for at in (start, start + gap)])
                     for start in starts[starts + gap <= starts[-1]]]  # fmt: skip
            seen = np.concatenate([row, neighbor])
            assert any((text == seen)[seen >= 0].all() for text in texts)


def test_a_run_is_continued_decayed_and_exported(sentences, tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("\n".join(sentences))
    monkeypatch.setattr(script, "DOCSTRING_PACKAGES", ("json",))
    sizes = [*("--text_files", str(tmp_path / "texts.txt"), "--text_licenses", "CC0 1.0")]
    sizes += ["--vocab_size", "300", "--hidden_size", "64"]
    sizes += ["--num_hidden_layers", "1", "--tokens_per_step", "256", "--save_steps", "2", "--num_candidates", "80"]

    def run(*argv) -> None:
        monkeypatch.setattr(sys, "argv", ["pretrain_mini_mlm.py", *map(str, argv)])
        script.main()

    first, final, exported = tmp_path / "first", tmp_path / "final", tmp_path / "exported"
    run(*sizes, "--output_dir", first, "--max_steps", 2)
    monkeypatch.setattr(script, "initialise_words", lambda *_: pytest.fail("the weights are in the checkpoint"))
    run(*sizes, "--output_dir", first, "--max_steps", 4)
    assert (first / "checkpoint-4").is_dir()
    decay = [*("--max_steps", 2, "--lr_scheduler_type", "linear", "--warmup_steps", 0), *("--dropout", 0.1)]
    decay += ["--bag_weight", 0.3, "--neighbor_weight", 0.1]
    run(*sizes, "--start_from", first, "--output_dir", final, *decay, "--export_dir", exported)
    model = BertForMaskedLM.from_pretrained(exported)
    assert model.dtype == torch.float16
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.1
    tokenizer = BertTokenizerFast.from_pretrained(exported)
    assert tokenizer.convert_tokens_to_ids(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]) == list(range(5))
    assert len(tokenizer) == model.config.vocab_size
    card = (exported / "README.md").read_text()
    assert f"1 layers, width 64, 1 heads, {len(tokenizer)} word pieces" in card
    assert [line.split("|")[1].strip() for line in card.splitlines() if line.startswith("| 0.0")] == ["0.0"] * 3
    assert "texts.txt (0 MB, CC0 1.0), and docstrings" in card
    assert "- 0.0 million tokens: 20% of the tokens are predicted; dropout 0, 256 tokens a step\n" in card
    assert (
        "the words of its row (weight 0.3); the mean of a row tells which other row is the text beside it (weight 0.1)"
        in card
    )

    assert (exported / "learning_curve.png").stat().st_size and "](learning_curve.png)" in card

    further, again = tmp_path / "further", tmp_path / "again"  # as on a machine that has only the exported model
    for folder in (first, final):
        shutil.rmtree(folder)
    run(*sizes, "--start_from", exported, "--output_dir", further, "--max_steps", 2, "--export_dir", again)
    assert BertTokenizerFast.from_pretrained(again).get_vocab() == tokenizer.get_vocab()
    runs = read_history(again)
    assert [entry["tokens"] for entry in runs] == [4 * 256, 2 * 256, 2 * 256]
    assert runs[:2] == read_history(exported)
    assert [[tokens for tokens, _, _ in entry["curve"]] for entry in runs] == [[512, 1024], [512], [512]]
    assert all(entry["seconds"] >= 0 and loss > 0 for entry in runs for _, _, loss in entry["curve"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--text_files", "nowhere"], "--text_files nowhere: no such file"),
        (["--start_from", "nowhere"], "nowhere: no pretraining.json, which every"),
        (
            ["--text_files", __file__, "--text_licenses", "a", "b"],
            "--text_licenses needs one for each of the 1 --text_",
        ),
    ],
)
def test_wrong_flags_are_one_line_before_anything_is_prepared(flags, message, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["pretrain_mini_mlm.py", *flags, "--output_dir", str(tmp_path / "out")])
    monkeypatch.setattr(script, "prepare", lambda *_: pytest.fail("not before the paths are checked"))
    with pytest.raises(InputError, match=message):
        script.main()


def test_the_curve_counts_the_tokens_of_earlier_runs():
    first = {"tokens": 4_000_000, "curve": [[2_000_000, 1e-3, 5.0], [4_000_000, 1e-3, 4.5]]}
    second = {"tokens": 1_000_000, "curve": [[1_000_000, 1e-5, 4.25]]}
    assert learning_curve([first, second]).splitlines()[2:] == [
        "| 2.0 | 1.0e-03 | 5.000 |",
        "| 4.0 | 1.0e-03 | 4.500 |",
        "| 5.0 | 1.0e-05 | 4.250 |",
    ]
    assert len(learning_curve([first, second], points=1).splitlines()) == 2 + 2


def test_consecutive_runs_with_one_objective_are_one_line():
    runs = [
        {"tokens": tokens, "objective": words} for tokens, words in ((4e6, "a"), (5e5, "a"), (1e6, "b"), (1e6, "a"))
    ]
    assert describe_objectives(runs) == [
        "- 4.5 million tokens in 2 runs: a",
        "- 1.0 million tokens: b",
        "- 1.0 million tokens: a",
    ]


def test_a_run_too_short_for_a_held_out_loss_has_an_empty_figure(tmp_path):
    draw_learning_curve([{"tokens": 4_000_000, "curve": []}], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size
