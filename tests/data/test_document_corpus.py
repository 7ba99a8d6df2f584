"""Documents as a corpus: a mixture of pairs and passages, and documents that are held out as a whole."""

from __future__ import annotations

import json
import random
import shutil
import sys
from itertools import product

import numpy as np
import pytest
from datasets import Dataset, IterableDataset

from mirror.common.errors import InputError
from mirror.data.cleaning import hold_out
from mirror.data.corpus import as_corpus, load_corpus, load_texts, load_training_corpus
from mirror.data.docstrings import Docstring
from mirror.data.document_corpus import title_pairs
from mirror.data.source import CorpusSource
from mirror.training.base_encoder import passages_for
from mirror.training.config import MirrorConfig
from mirror.training.trainer import MirrorTrainer
from run_mirror import main
from tests.decoders import tiny_decoder


WORDS = "river mountain city house tree bird fish dog cat road".split()


@pytest.fixture
def folder(tmp_path):
    """Sixty documents of two sections, each of a paragraph under a heading and one of its own."""
    rng = np.random.default_rng(0)
    docs = tmp_path / "docs"
    docs.mkdir()
    for number in range(60):
        sections = [
            f"## {' '.join(rng.choice(WORDS, 3))} {number}{part}\n\nThe {' '.join(rng.choice(WORDS, 9))} {number}.\n\n"
            f"```\ncode {number}{part}\n```\n\n{' '.join(rng.choice(WORDS, 20))}.\n"
            for part in "ab"
        ]
        (docs / f"{number}.md").write_text("\n".join(sections))
    return docs


def test_a_corpus_has_pairs_and_the_passages_without_one(folder, tokenizer):
    corpus = load_corpus(str(folder), tokenizer=lambda: tokenizer, max_tokens=24)
    pairs = [(row["text"], row["text_pair"]) for row in corpus.rows if row["text_pair"]]
    single = [row["text"] for row in corpus.rows if not row["text_pair"]]
    assert len(pairs) == 120 and len(single) == 120
    assert not {*single} & {positive for _, positive in pairs} and not any("code" in text for text in single)
    source = CorpusSource(train_file=[str(folder)], pairs="none")
    rows = load_corpus(source, tokenizer=lambda: tokenizer, max_tokens=24).rows
    assert rows.column_names == ["text", "document"] and {*rows["text"]} == {*single} | {pair[1] for pair in pairs}


@pytest.mark.parametrize("pairs", ["auto", "none"])
def test_documents_are_held_out_as_a_whole(folder, tokenizer, pairs):
    source = CorpusSource(train_file=[str(folder)], pairs=[pairs])
    corpus = load_corpus(source, tokenizer=lambda: tokenizer, max_tokens=24)
    document_of = dict(zip(corpus.rows["text"], corpus.rows["document"], strict=True))
    rest, held_out = hold_out(corpus, 60)
    assert 48 <= len(held_out) == rest.held_out_rows <= 66 and "document" not in rest.rows.column_names
    assert not {document_of[text] for text in rest.rows["text"]} & {*held_out["document"]}
    assert len(rest.rows) + len(held_out) == len(corpus.rows)
    assert hold_out(corpus, 0)[1] is None
    with pytest.raises(InputError, match="--validation_samples 2: every document has at least [0-9]+ rows; give more"):
        hold_out(corpus, 2)
    with pytest.raises(InputError, match="--validation_samples 10000: leaves no text to train on; give fewer"):
        hold_out(corpus, 10_000)


def test_a_text_of_the_held_out_part_is_not_trained_on(tmp_path, tokenizer):
    for number in range(40):
        (tmp_path / f"{number}.md").write_text(
            f"# Title {number}\n\nThe same river.\n\n# Next {number}\n\nThe cat {number}."
        )
    source = CorpusSource(train_file=[str(tmp_path)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mirror.data.documents.REPEATS", (100, 1.0, 100))
        rest, held_out = hold_out(load_corpus(source, tokenizer=lambda: tokenizer, max_tokens=24), 30)
    assert "The same river." in held_out["text_pair"] and "The same river." not in rest.rows["text_pair"]


def test_a_large_document_is_no_more_likely_to_be_held_out(tmp_path, tokenizer):
    """One of 40 has half of all texts. Split by chapter, it has half of what is held out, in parts."""
    for number in range(40):
        (tmp_path / f"{number}.md").write_text(
            f"# Title {number}\n\nThe cat {number}.\n\n# More {number}\n\nThe dog {number}."
        )
    chapters = "\n".join(f"# Chapter {n}\n\nThe bird {n}.\n\n## Part of {n}\n\nThe fish {n}.\n" for n in range(40))
    (tmp_path / "manual.md").write_text(chapters)
    corpus = load_corpus(CorpusSource(train_file=[str(tmp_path)]), tokenizer=lambda: tokenizer, max_tokens=24)
    assert len({*corpus.rows["document"]}) == 40 + 80
    _, held_out = hold_out(corpus, 40)
    of_manual = sum("bird" in text or "fish" in text for text in held_out["text_pair"])
    assert 36 <= len(held_out) <= 44 and 10 <= of_manual <= 30 and len({*held_out["document"]}) >= 18


def test_few_documents_are_split_by_chapter(tmp_path, tokenizer):
    chapters = "\n".join(f"## Chapter {n}\n\nThe cat {n}.\n\n### Part of {n}\n\nThe dog {n}.\n" for n in range(20))
    (tmp_path / "manual.md").write_text(f"# Manual\n\n{chapters}")
    corpus = load_corpus(str(tmp_path / "manual.md"), tokenizer=lambda: tokenizer, max_tokens=24)
    assert len({*corpus.rows["document"]}) == 20


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"pair_columns": ["a", "b"]}, "--pair_columns does not apply to documents"),
        ({"streaming": True}, "--streaming does not apply"),
        ({"keep_duplicates": True}, "--keep_duplicates does not apply to documents"),
        ({"pairs": ["headings"]}, "--pairs 'headings' is unknown; .*; did you mean 'heading'"),
    ],
)
def test_a_wrong_flag_is_named(folder, flags, message):
    with pytest.raises(InputError, match=message):
        load_corpus(CorpusSource(train_file=[str(folder)], **flags))
    (folder.parent / "a.txt").write_text("a\nb\n")
    file = str(folder.parent / "a.txt")
    with pytest.raises(InputError, match="--pairs auto needs documents; leave it out, or name the columns"):
        load_corpus(CorpusSource(train_file=[file], pairs=["auto"]))
    with pytest.raises(InputError, match="--pairs title needs documents"):
        as_corpus(["a", "b"], CorpusSource(pairs=["title"]))
    with pytest.raises(InputError, match="docstrings have signature only"):
        load_training_corpus(CorpusSource(pairs=["heading"]))


NAMES = ["".join(letters) for letters in product("bdfgk", "aeiou", "lmnrs", "aeiou", "t")]
TITLED = [text for name in NAMES for text in (f"{name} list", f"Return the {name} of every row in a table.")]


def title_rows(texts, **source):
    corpus = title_pairs(as_corpus(texts, CorpusSource(**source)))
    return list(zip(corpus.rows["text"], corpus.rows["text_pair"], strict=True)) if corpus.has_pairs else None


def test_titles_are_pairs_with_the_texts_after_them():
    other = "Nobody has given this row of words one."
    rows = title_rows([*TITLED, other])
    pairs = [*zip(TITLED[::2], TITLED[1::2], strict=True)]
    assert len(rows) == len(pairs) + 1 and {*rows} == {*pairs, (other, "")}
    # A text that shares no word with the next one is no title, and the text of a title is none.
    longer = f"{TITLED[1]} So it is with this long text, which says {NAMES[0]} once more, and then more of it."
    rows = title_rows(["door list", *TITLED[:2], longer, *TITLED[2:]])
    assert {*rows} == {*pairs, ("door list", ""), (longer, "")}


def test_a_title_and_its_text_are_held_out_together():
    corpus = title_pairs(as_corpus(TITLED))
    kept, held_out = hold_out(corpus)
    assert 50 <= len(held_out) <= 75 and kept.held_out_rows == len(held_out)
    held_texts = {*held_out["text"], *held_out["text_pair"]}
    assert not held_texts & {*kept.rows["text"], *kept.rows["text_pair"]}


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param(random.Random(0).sample(TITLED, len(TITLED)), id="any order"),
        pytest.param(
            sorted(f"{name} {'of a large house ' * (n % 3)}" for name in NAMES for n in range(3)), id="sorted"
        ),
        pytest.param([f"{name} list" for name in NAMES], id="titles alone"),
        pytest.param(TITLED[1::2], id="texts alone"),
        pytest.param(TITLED[:1], id="one text"),
        pytest.param(TITLED[:38], id="too few to tell"),
        pytest.param([*TITLED[:100], *[f"A {name} sees another one." for name in NAMES]], id="few titles"),
        pytest.param(["dog", "The cat runs in the garden."] * 200, id="no word in common"),
    ],
)
def test_other_texts_have_no_titles(texts):
    assert title_rows(texts) is None


def test_titles_are_not_looked_for_where_rows_are_chosen():
    assert title_rows(TITLED, pairs=["none"]) is None and title_rows(TITLED, keep_duplicates=True) is None
    for rows in (Dataset.from_dict({"text": TITLED}).to_iterable_dataset(), {"text": TITLED, "text_pair": TITLED}):
        corpus = as_corpus(rows if isinstance(rows, IterableDataset) else Dataset.from_dict(rows))
        assert title_pairs(corpus) is corpus


def test_docstrings_have_pairs_if_asked_for(monkeypatch):
    entries = [Docstring(f"open door {n}", f"Open the door number {n}.", ()) for n in range(50)]
    monkeypatch.setattr("mirror.data.corpus.collect", lambda: entries)
    rows = load_training_corpus(CorpusSource(pairs=["auto"])).rows
    assert sorted(zip(rows["text"], rows["text_pair"], strict=True)) == sorted(
        (entry.name, entry.summary) for entry in entries if entry.part == "train"
    )
    assert load_training_corpus(CorpusSource()).rows.column_names == ["text"]


def test_a_run_on_a_folder_reports_how_headings_find_their_sections(
    folder, bert_folder, tmp_path, monkeypatch, caplog
):
    flags = ["--model_name_or_path", bert_folder, "--train_file", folder, "--output_dir", tmp_path / "out"]
    flags += ["--max_steps", 2, "--per_device_train_batch_size", 20, "--max_seq_length", 24]
    flags += ["--validation_samples", 120]
    monkeypatch.setattr(sys, "argv", ["run_mirror.py", *map(str, flags)])
    with caplog.at_level("INFO"):
        main()
    assert "120 pairs\n  heading    120; in " in caplog.text
    results = json.loads((tmp_path / "out" / "train_results.json").read_text())
    tests = {test["test"]: test for test in results["own_text"]}
    assert {*tests} >= {"headings", "words"} and tests["headings"]["texts"] >= 50
    assert (
        f"are found by the other text of their pair, such as a heading (BM25 {tests['headings']['bm25']:.3f}"[:-5]
        in caplog.text
    )
    assert len(tests) == 3 and "all together: the geometric mean" in caplog.text
    assert "| all together, geometric mean" in (tmp_path / "out" / "README.md").read_text()


def test_texts_of_documents_are_passages_and_not_the_anchors_of_pairs(tmp_path):
    (tmp_path / "guide.md").write_text(
        "# Guide\n\nThe cat runs in the garden.\n\n## Install\n\nThe dog sleeps at night.\n"
    )
    texts = load_texts(CorpusSource(train_file=[str(tmp_path)]))
    assert sorted(texts) == ["The cat runs in the garden.", "The dog sleeps at night."]
    assert "Guide" in load_corpus(CorpusSource(train_file=[str(tmp_path)])).rows["text"][:]


def test_passages_are_as_long_as_the_texts_of_the_encoder(folder, bert_folder, tmp_path):
    """Not as the level's 50 tokens, and 128 where an encoder reads 32,000."""
    plain, encoder = str(bert_folder), shutil.copytree(bert_folder, tmp_path / "encoder")
    settings = {"pooling": "mean", "max_seq_length": 16}
    lengths = {}
    for tokens in (16, 32_000):
        (encoder / "mirror_config.json").write_text(json.dumps(settings | {"max_seq_length": tokens}))
        lengths[tokens] = passages_for(str(encoder), MirrorConfig())["max_tokens"]
    assert lengths == {16: 16, 32_000: 128} and passages_for(plain, MirrorConfig())["max_tokens"] == 50
    assert passages_for(str(encoder), MirrorConfig(max_seq_length=24))["max_tokens"] == 24
    assert passages_for(str(encoder), MirrorConfig(level="passage"))["max_tokens"] == 512
    assert passages_for(str(encoder), MirrorConfig(pooling="cls"))["max_tokens"] == 50  # then it is no encoder
    assert passages_for(tiny_decoder("llama"), MirrorConfig())["max_tokens"] == 50  # a model without a folder

    (encoder / "mirror_config.json").write_text(json.dumps(settings))
    config = MirrorConfig(output_dir=str(tmp_path / "out"), validation_samples=0, per_device_train_batch_size=20)
    trainer = MirrorTrainer(str(encoder), config, str(folder))
    lengths = [len(trainer.base.tokenizer(text)["input_ids"]) for text in trainer.corpus.rows["text"]]
    assert 12 < max(lengths) <= 16
    by_hand = load_corpus(str(folder), tokenizer=lambda: trainer.base.tokenizer, max_tokens=16)
    assert sorted(trainer.corpus.rows["text"]) == sorted(by_hand.rows["text"])
