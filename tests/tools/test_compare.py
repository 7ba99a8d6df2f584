"""mirror.tools.compare: the order of encoders and BM25 with and without labels, intervals, table, picture and advice."""

from __future__ import annotations

import json
import shlex
import sys
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import gmean

from mirror.common.errors import InputError
from mirror.evaluation.metrics import Sample, margin
from mirror.evaluation.own_text import OwnTextTest, combined_score, compare_together, make_row_tests, make_tests
from mirror.modeling.encoder import Encoder
from mirror.tools import compare
from mirror.tools.compare import System, by_own_text, lexical_by_own_text, rank, read_rows
from tests.conftest import make_sentences
from tests.evaluation.test_benchmark_formats import CORPUS, QUERIES, encode, write_qrels, write_rows
from tests.evaluation.test_own_tables import SCORED


TEXTS = [text for text in make_sentences() if len(text.split()) >= 6]


@pytest.fixture
def run(bert_folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    write_rows(tmp_path / "mine" / "corpus.jsonl", CORPUS)
    write_rows(tmp_path / "mine" / "queries.jsonl", QUERIES)
    write_qrels(tmp_path / "mine" / "qrels" / "test.tsv")
    write_rows(tmp_path / "pairs.csv", SCORED)
    (tmp_path / "tiny").symlink_to(bert_folder)
    (tmp_path / "same").symlink_to(bert_folder)

    def compare_with(*argv):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["mirror-compare", *argv, "--pooling", "mean", "--output_dir", "out"])
        compare.main()
        printed = capsys.readouterr().out
        assert printed == (tmp_path / "out" / "compare.md").read_text(encoding="utf-8")
        assert (tmp_path / "out" / "compare.svg").stat().st_size > 1000
        return printed.splitlines(), json.loads((tmp_path / "out" / "results.json").read_text())

    return compare_with


def test_sections_of_documents_are_found_by_their_headings_and_resampled_by_document(run, bert_folder, tmp_path):
    (tmp_path / "docs").mkdir()
    for document in range(60):  # small ones, because large ones are resampled by chapter
        sections = (
            f"## {text.split()[0]} {document} {number}\n\n{text} {document}\n" for number, text in enumerate(TEXTS[:3])
        )
        (tmp_path / "docs" / f"{document}.md").write_text("\n".join(sections))
    _, record = run("tiny", "--texts", "docs")
    assert record["tests"]["headings"] == record["texts"] == 180
    rows = read_rows(Namespace(texts=str(tmp_path / "docs"), text_column=None, max_texts=2000))
    tests = make_row_tests(rows)
    assert tests[0].kind == "headings" and len({*tests[0].documents}) == 60
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    tiny = next(each for each in record["ranking"] if each["name"] == "tiny")
    assert tiny["scores"]["headings"] == pytest.approx((1 / tests[0].ranks(encoder.encode)).mean())
    by_document, by_query = (
        by_own_text("tiny", encoder.encode, kind) for kind in (tests, [replace(t, documents=()) for t in tests])
    )
    assert tiny["margin"] == pytest.approx(margin(by_document.draws())) != pytest.approx(margin(by_query.draws()))


def test_texts_without_labels_rank_encoders_and_bm25(run, bert_folder):
    lines, record = run("tiny", "same", "--texts", "texts.txt")
    assert lines[0].startswith("| encoder") and "halves" in lines[0] and "unknown tokens" in lines[0]
    assert len(lines[2].split("|")) == len(lines[0].split("|")) == len(lines[1].split("|"))
    found = {each["name"]: each for each in record["ranking"]}
    assert set(found) == {"tiny", "same", "BM25"}
    tests = make_tests(TEXTS)
    encoder = Encoder.from_pretrained(bert_folder, "mean")
    assert found["tiny"]["score"] == pytest.approx(combined_score([test.ranks(encoder.encode) for test in tests]))
    assert found["tiny"]["score"] == found["same"]["score"]
    assert "tiny and same are not told apart (.000 ± .000)" in lines
    facts = found["tiny"]
    size = sum(each.numel() for each in encoder.model.parameters()) * 4 / 1e6
    assert (facts["dimension"], facts["size_mb"], facts["max_seq_length"]) == (32, pytest.approx(size, abs=0.06), 64)
    assert facts["texts_per_second"] > 0 and facts["unknown_tokens"] == facts["cut_tokens"] == 0
    assert found["BM25"]["scores"]["words"] > 0.9 and "dimension" not in found["BM25"]
    words = shlex.split(lines[-1][lines[-1].index("mirror-train") :])
    assert words == ["mirror-train", "--model_name_or_path", "tiny", "--train_file", "texts.txt", "--output_dir",
                     "out/adapted"]  # fmt: skip
    assert lines[-1].startswith("Next: confirm the order with some queries (--tasks), then adapt ")


def test_tasks_rank_them_where_there_are_labels(run):
    lines, record = run("tiny", "same", "--tasks", "mine", "--texts", "texts.txt")
    assert [each["name"] for each in record["ranking"]] == ["BM25", "tiny", "same"]
    assert lines[-1].startswith("Next: BM25 scores higher: search with both")
    assert lines[-3].startswith("tiny and same are not told apart") and record["tests"] == {}
    first = record["differences"][0]
    assert first["told_apart"] and first["low"] < first["change"] < first["high"]
    lines, record = run("tiny", "--tasks", "mine", "pairs.csv")  # BM25 has no score of pairs
    assert [each["name"] for each in record["ranking"]] == ["tiny"] and "mine" in lines[0] and "pairs" in lines[0]
    assert lines[-1].endswith("--train_file my_texts.txt --output_dir out/adapted")
    (tiny,) = record["ranking"]
    assert tiny["dimension"] == 32 and "unknown_tokens" not in tiny and "texts_per_second" not in tiny  # without texts


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["tiny"], "give --texts or --tasks"),
        (["tiny", "--tasks", "equal.csv", "--text_column", "body"], "--text_column is of --texts; give both"),
        (["tiny", "--texts", "few.txt"], "--texts few.txt: names and words are not tested.* queries with --tasks"),
        (["tiny", "--texts", "gone.txt"], "gone.txt: no such file"),
        (["absent/folder", "--texts", "texts.txt"], "absent/folder"),
        (["tiny", "/absent", "--texts", "gone.txt"], "/absent"),  # before the texts are read
        (
            ["tiny", "--tasks", "equal.csv"],
            "task equal: the score is nan, because its labels or scores are all the same",
        ),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, argv, message):
    (tmp_path / "few.txt").write_text("a b c\nd e f\ng h i\n")
    (tmp_path / "equal.csv").write_text("sentence1,sentence2,score\na cat,a cat,1\na dog,a dog,2\na tree,a tree,3\n")
    with pytest.raises(InputError, match=message) as error:
        run(*argv)
    assert "\n" not in str(error.value)


def test_the_interval_is_that_of_the_own_text_test():
    """The geometric mean of two tests, as `compare_together` of a training run computes it."""
    rng = np.random.default_rng(0)
    before, after = ([rng.integers(1, high, 300), rng.integers(1, high, 200)] for high in (6, 4))
    tests = [OwnTextTest(kind, ("query",) * size, ("answer",) * size) for kind, size in (("a", 300), ("b", 200))]
    systems = [compare._by_ranks(name, tests, ranks) for name, ranks in (("old", before), ("new", after))]
    expected = compare_together(before, after)
    (new, old), margins, (difference,) = rank(systems)
    assert (new.score, old.score) == pytest.approx((expected["after"], expected["before"]))
    assert difference.change == pytest.approx(expected["change"])
    assert (difference.high - difference.low) / 2 == pytest.approx(expected["margin"], rel=0.1)
    assert difference.told_apart and 0 < margins["new"]


def test_the_difference_of_several_tasks_is_that_of_their_means():
    rng = np.random.default_rng(1)
    values = {name: [rng.random(400) + shift, rng.random(100)] for name, shift in (("a", 0.2), ("b", 0))}
    systems = [
        System(
            name,
            {str(n): each.mean() for n, each in enumerate(parts)},
            {str(n): Sample.mean_of(each) for n, each in enumerate(parts)},
        )
        for name, parts in values.items()
    ]
    order, _, (difference,) = rank(systems)
    errors = [(first - second).std() / len(first) ** 0.5 for first, second in zip(*values.values(), strict=True)]
    assert (difference.high - difference.low) / 2 == pytest.approx(1.96 * np.hypot(*errors) / 2, rel=0.15)
    order[0].samples["0"] = None
    assert (
        str(rank(systems)[2][0])
        == f"a over b by {difference.change:.3f}".replace("0.", ".") + " (no interval for these tasks)"
    )


def test_bm25_finds_texts_by_their_words():
    tests = make_tests(TEXTS)
    lexical, ours = lexical_by_own_text(tests), by_own_text("ours", encode, tests)
    assert lexical.score == pytest.approx(gmean(list(lexical.scores.values()))) and lexical.scores["words"] > 0.9
    assert set(ours.scores) == set(lexical.scores) == {"words", "halves"}
