"""Tests the corpus scripts: content, reproducibility with a seed, bad input, and the JSON record."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from data_scripts import (
    disease_names,
    faq_queries,
    frequent_words,
    package_catalog,
    random_strings,
    sample_sentences,
    umls_names,
)
from mirror.common.errors import InputError
from mirror.evaluation.run import make_plan


class Runner:
    """Runs a script with an output file.

    Attributes:
        out: the output file of the last run.
    """

    def __init__(self, monkeypatch, folder: Path):
        self.monkeypatch, self.folder, self.count = monkeypatch, folder, 0

    def __call__(self, script: ModuleType, *flags) -> list[str]:
        """Return the lines of the output."""
        self.count += 1
        self.out = self.folder / f"made{self.count}" / "corpus.txt"
        argv = [script.__name__, "--output_file", self.out, *flags]
        self.monkeypatch.setattr(sys, "argv", [str(item) for item in argv])
        script.main()
        return self.out.read_text(encoding="utf-8").splitlines()

    def refused(self, script: ModuleType, message: str, *flags) -> None:
        with pytest.raises(InputError, match=message):
            self(script, *flags)
        assert not self.out.exists() and not self.out.with_name("corpus.txt.json").exists()

    def record(self) -> dict:
        return json.loads(self.out.with_name("corpus.txt.json").read_text(encoding="utf-8"))


@pytest.fixture
def run(monkeypatch, tmp_path) -> Runner:
    return Runner(monkeypatch, tmp_path)


def test_random_strings(run, tmp_path):
    assert len(set(random_strings.ALPHABET)) == 62
    flags = ("--count", 2000, "--min_length", 2, "--max_length", 11)
    first, again, other = (run(random_strings, *flags, "--seed", seed) for seed in (3, 3, 4))
    assert first == again != other
    assert set("".join(first)) == set(random_strings.ALPHABET) and set(map(len, first)) == set(range(2, 12))
    like = tmp_path / "words.txt"
    like.write_text("a\nhouse\n\nthe moon\nété\n", encoding="utf-8")
    assert list(map(len, run(random_strings, "--length_like", like))) == [1, 5, 8, 3]
    assert run.record()["settings"]["length_like"] == "words.txt"
    run.refused(random_strings, "--min_length 9 is more than", "--min_length", 9, "--max_length", 4)
    run.refused(random_strings, "no such file|No such file", "--length_like", tmp_path / "absent.txt")
    run.refused(random_strings, "--seed must be 0 or more", "--seed", -1)
    run.refused(random_strings, "--length_like has lengths of its own", "--length_like", like, "--min_length", 2)


def test_sentences_of_several_tables(run, tmp_path):
    (tmp_path / "sts.tsv").write_text('sentence1\tsentence2\tscore\nA "cat.\tA dog.\t3\nA  dog.\t\t1\n')
    rows = [{"sentence1": f"s{n}", "sentence2": f"t{n}", "label": 1} for n in range(5)]
    (tmp_path / "nli.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--input_file", tmp_path / "sts.tsv", tmp_path / "nli.jsonl", "--columns", "sentence1", "sentence2"]
    sample = run(sample_sentences, *flags, "--count", 12)
    expected = {'A "cat.', "A dog.", *(f"{side}{n}" for side in "st" for n in range(5))}
    assert len(sample) == 12 and set(sample) == expected
    made = run.record()
    assert made["facts"] == {"read": 14, "blank": 1, "repeated": 1}
    assert made["settings"]["input_file"] == ["sts.tsv", "nli.jsonl"] and made["report"]["texts"] == 12
    assert str(tmp_path) not in json.dumps(made)


def test_wikimatrix_by_column_number(run, tmp_path):
    with gzip.open(tmp_path / "WikiMatrix.ar-en.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("1.21\tمرحبا\thello\n1.05\tقطة\tcat\n")
    flags = ["--input_file", tmp_path / "WikiMatrix.ar-en.tsv.gz", "--no_header", "--count", 2]
    assert set(run(sample_sentences, *flags, "--columns", 2)) == {"مرحبا", "قطة"}
    assert set(run(sample_sentences, *flags, "--columns", 3)) == {"hello", "cat"}
    run.refused(sample_sentences, "line 1: 3 columns, but --columns asks for column 4", *flags, "--columns", 4)
    run.refused(sample_sentences, "--no_header needs --columns with column numbers", *flags)
    (tmp_path / "a.csv").write_text('"one, two",1\n')
    table = ("--input_file", tmp_path / "a.csv", "--no_header", "--columns", 1)
    run.refused(sample_sentences, "a.csv: --no_header splits lines at tabs", *table)


def test_samples_are_uniform_over_distinct_sentences_and_seeded(run, tmp_path):
    (tmp_path / "text.txt").write_text("often\n" * 300 + "".join(f"line {n}\n" for n in range(9)))
    flags = ["--input_file", tmp_path / "text.txt", "--count", 2]
    samples = [run(sample_sentences, *flags, "--seed", seed) for seed in (0, 0, 1, 2, 3, 4, 5, 6)]
    assert samples[0] == samples[1] and len(set(map(tuple, samples))) > 4
    assert sum("often" in sample for sample in samples) < 6
    (tmp_path / "t.tsv").write_text("question\tsentence\nq\ts\n")
    flags = ["--input_file", tmp_path / "t.tsv"]
    run.refused(sample_sentences, "no column 'text'; it has question, sentence", *flags)
    run.refused(sample_sentences, "1 distinct sentences, fewer than", *flags, "--columns", "sentence")
    run.refused(sample_sentences, "no such file", "--input_file", tmp_path / "absent.txt")


def test_names_of_umls(run, tmp_path):
    before = "C0000039|{}|P|L0000039|PF|S0007564|Y|A0016515||M0023172|D015060|MSH|MH|D015060|{}|0|{}|1792|\n"
    names = ["Myocardial  infarction", "myocardial infarction", "Heart attack", "β-blocker", " "]
    rows = [before.format("ENG", name, "N") for name in names] + [before.format("SPA", "Infarto", "N")]
    rows += [before.format("ENG", f"hidden {letter}", letter) for letter in "OYE"]
    (tmp_path / "MRCONSO.RRF").write_text("".join(rows), encoding="utf-8")
    packed = tmp_path / "MRCONSO.RRF.gz"
    packed.write_bytes(gzip.compress((tmp_path / "MRCONSO.RRF").read_bytes()))
    flags = ("--mrconso", tmp_path / "MRCONSO.RRF", "--count")
    assert sorted(run(umls_names, *flags, 3)) == ["Heart attack", "Myocardial infarction", "β-blocker"]
    assert run.record()["facts"] == {"rows": 9, "other_language": 1, "suppressed": 3, "blank": 1, "repeated": 1}
    assert run(umls_names, *flags, 1, "--language", "SPA") == ["Infarto"]
    first, again = (run(umls_names, "--mrconso", path, "--count", 2, "--seed", 5) for path in (packed, flags[1]))
    assert first == again
    run.refused(umls_names, "3 names of ENG, fewer than --count 4", *flags, 4)
    run.refused(umls_names, "absent.RRF", "--mrconso", tmp_path / "absent.RRF")
    (tmp_path / "MRCONSO.RRF").write_text(rows[0] + "C1|ENG|name|\n")
    run.refused(umls_names, "line 2: 3 fields, MRCONSO.RRF has 18", "--mrconso", tmp_path / "MRCONSO.RRF")


def test_buckets_of_frequent_words(run, monkeypatch):
    """Use a fake of the optional library: 25 words of one language."""
    library = ModuleType("wordfreq")
    library.available_languages = lambda: {"en": "path"}
    library.top_n_list = lambda language, count: [f"word{rank}" for rank in range(1, 26)][:count]
    monkeypatch.setitem(sys.modules, "wordfreq", library)
    monkeypatch.setattr(frequent_words, "version", lambda name: "3.1.1")
    flags = ("--language", "en", "--count")
    assert run(frequent_words, *flags, 3) == ["word1", "word2", "word3"]
    assert run(frequent_words, *flags, 3, "--bucket", 3) == ["word7", "word8", "word9"]
    assert run.record()["settings"] == {"language": "en", "count": 3, "bucket": 3, "wordfreq": "3.1.1"}
    run.refused(frequent_words, "--language et: not in wordfreq", "--language", "et")
    run.refused(frequent_words, "has 25 words of 'en', bucket 3 ends at 30", *flags, 10, "--bucket", 3)
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    run.refused(frequent_words, "requirements-corpora.txt|pip install", "--language", "en")


def test_disease_names_are_no_test_queries(run, tmp_path):
    names = [f"disease {number}" for number in range(20)]
    tables = {"ncbi-disease/dictionary": ["cui\tname", *(f"D1\t{name.title()}" for name in names)]}
    tables["ncbi-disease/test_queries"] = ["mention\tcui", "Disease 3\tD1"]
    tables["bc5cdr-disease/test_queries"] = ["mention\tcui", "disease 4|disease 5\tD1"]
    for name, lines in tables.items():
        path = tmp_path / "biomed" / f"{name}.tsv"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    flags = ("--data_dir", tmp_path, "--count")
    assert {*run(disease_names, *flags, 17)} == {*names} - {"disease 3", "disease 4", "disease 5"}
    assert run.record()["facts"] == {"names": 20, "left_out_queries": 3}
    run.refused(disease_names, "17 names that are no query, fewer than --count 18", *flags, 18)


def test_a_catalog_with_queries_of_package_descriptions(tmp_path, monkeypatch):
    entries = [
        f'Package: tool{at}\nDescription-md5: {at}\nDescription-en: finds things of kind {at}\n A "tool", it\n looks.\n .\n Again.\n'
        for at in range(6)
    ]
    left_out = "Package: libtool\nDescription-en: a library of things\n Text.\n"
    path = tmp_path / "Translation-en.xz"
    path.write_bytes(lzma.compress("\n".join([*entries, left_out]).encode()))
    flags = ["--translation_file", path, "--output_dir", tmp_path / "out", "--products", 5, "--queries", 2]
    monkeypatch.setattr(sys, "argv", ["package_catalog.py", *map(str, flags)])
    package_catalog.main()
    rows = list(csv.DictReader((tmp_path / "out" / "products.csv").open(encoding="utf-8", newline="")))
    assert len(rows) == 5 and {row["description"] for row in rows} == {'A "tool", it looks.\nAgain.'}
    (task,) = make_plan([str(tmp_path / "out" / "queries")], None).tasks
    assert task.score(lambda texts: np.ones((len(texts), 2)), None)["num_examples"] == 2
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-4], "--products", "7"])
    with pytest.raises(InputError, match="6 programs, 7 are asked for"):
        package_catalog.main()


def test_questions_of_an_faq_are_queries(tmp_path, monkeypatch):
    (tmp_path / "faq.md").write_text(
        "# FAQ\n\nAbout it.\n\n## 1.2. What is it?\n\nA tool.\n\n## Why?\n\nFor work.\n\n## End\n\nBye.\n"
    )
    (tmp_path / "guide.md").write_text("# Guide\n\nRead this first.\n")
    flags = ["--faq", tmp_path / "faq.md", "--documents", tmp_path / "guide.md", "--output_dir", tmp_path / "out"]
    monkeypatch.setattr(sys, "argv", ["faq_queries.py", *map(str, flags)])
    faq_queries.main()
    rows = [json.loads(line) for line in (tmp_path / "out" / "corpus.jsonl").read_text().splitlines()]
    text_of = {row["_id"]: row["text"] for row in rows}
    assert [*text_of.values()] == ["About it.", "A tool.", "For work.", "Bye.", "Read this first."]
    judged = [line.split("\t") for line in (tmp_path / "out" / "qrels" / "test.tsv").read_text().splitlines()[1:]]
    assert [text_of[answer] for _, answer, _ in judged] == ["A tool.", "For work."]
    queries = (tmp_path / "out" / "queries.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in queries] == ["What is it?", "Why?"]
    monkeypatch.setattr(sys, "argv", ["faq_queries.py", "--faq", str(tmp_path / "guide.md"), "--output_dir", "none"])
    with pytest.raises(InputError, match="no heading ends with a question mark"):
        faq_queries.main()
