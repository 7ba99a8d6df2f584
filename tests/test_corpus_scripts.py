"""The corpus scripts: content, reproducibility with a seed, and the JSON record."""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from data_scripts import disease_names, frequent_words, random_strings, sample_sentences, umls_names
from mirror.common.errors import InputError
from tests.evaluation.folder import write_tsv


def make(monkeypatch, script: ModuleType, output: Path, *flags) -> list[str]:
    """Run a script and return the lines of its output."""
    argv = [script.__name__, "--output_file", output, *flags]
    monkeypatch.setattr(sys, "argv", [str(item) for item in argv])
    script.main()
    return output.read_text(encoding="utf-8").splitlines()


def record(output: Path) -> dict:
    return json.loads(output.with_name(output.name + ".json").read_text(encoding="utf-8"))


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "made" / "corpus.txt"


def refused(monkeypatch, script: ModuleType, out: Path, message: str, *flags) -> None:
    with pytest.raises(InputError, match=message):
        make(monkeypatch, script, out, *flags)
    assert not out.exists() and not out.with_name(out.name + ".json").exists()


# ---- Random strings ----------------------------------------------------------------------------------------------------


def chi_squares(seed: int) -> list[float]:
    """p-values for uniform characters, uniform lengths, and independent neighbouring characters."""
    rng = np.random.default_rng(seed)
    strings = random_strings.random_strings(rng.integers(2, 12, size=800), rng)
    letters = random_strings.ALPHABET
    characters, lengths = Counter("".join(strings)), Counter(map(len, strings))
    pairs = Counter((a, b) for text in strings for a, b in zip(text[::2], text[1::2], strict=False))
    observed = [characters[a] for a in letters], [lengths[n] for n in range(2, 12)]
    return [chisquare(counts).pvalue for counts in (*observed, [pairs[a, b] for a in letters for b in letters])]


def test_every_character_and_every_length_is_as_likely_as_any_other():
    """A single small p-value can be chance; over many seeds, the p-values must be uniformly distributed."""
    assert len(set(random_strings.ALPHABET)) == 62
    for values in np.transpose([chi_squares(seed) for seed in range(100)]):
        assert kstest(values, "uniform").pvalue > 0.001


def test_the_script_draws_from_the_whole_range(monkeypatch, out):
    strings = make(monkeypatch, random_strings, out, "--count", 2000, "--min_length", 2, "--max_length", 11)
    assert set("".join(strings)) == set(random_strings.ALPHABET)
    assert set(map(len, strings)) == set(range(2, 12))


def test_the_chi_square_test_detects_a_bias():
    """The test rejects characters of which the letters are a fifth more frequent than the digits."""
    weights = np.array([1.2] * 52 + [1.0] * 10)
    drawn = np.random.default_rng(1).choice(62, size=32_500, p=weights / weights.sum())
    assert chisquare(np.bincount(drawn, minlength=62)).pvalue < 1e-6


def test_lengths_are_those_of_a_corpus(monkeypatch, tmp_path, out):
    like = tmp_path / "words.txt"
    like.write_text("a\nhouse\n\nthe moon\nété\n", encoding="utf-8")
    strings = make(monkeypatch, random_strings, out, "--length_like", like)
    assert list(map(len, strings)) == [1, 5, 8, 3]
    assert len(make(monkeypatch, random_strings, out, "--length_like", like, "--count", 2)) == 2
    assert record(out)["settings"]["length_like"] == "words.txt"


def test_a_seed_gives_the_same_strings(monkeypatch, out):
    first, again, other = (make(monkeypatch, random_strings, out, "--count", 50, "--seed", s) for s in (3, 3, 4))
    assert first == again != other


def test_random_strings_input_errors(monkeypatch, tmp_path, out):
    refused(monkeypatch, random_strings, out, "--min_length 9 is more than", "--min_length", 9, "--max_length", 4)
    refused(monkeypatch, random_strings, out, "no such file|No such file", "--length_like", tmp_path / "absent.txt")
    refused(monkeypatch, random_strings, out, "--seed must be 0 or more", "--seed", -1)


# ---- Sampled sentences -------------------------------------------------------------------------------------------------


def test_sentences_of_several_tables(monkeypatch, tmp_path, out):
    (tmp_path / "sts.tsv").write_text('sentence1\tsentence2\tscore\nA "cat.\tA dog.\t3\nA  dog.\t\t1\n')
    rows = [{"sentence1": f"s{n}", "sentence2": f"t{n}", "label": 1} for n in range(5)]
    (tmp_path / "nli.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = ["--input_file", tmp_path / "sts.tsv", tmp_path / "nli.jsonl", "--columns", "sentence1", "sentence2"]
    sample = make(monkeypatch, sample_sentences, out, *flags, "--count", 12)
    expected = {'A "cat.', "A dog.", *(f"{side}{n}" for side in "st" for n in range(5))}
    assert len(sample) == 12 and set(sample) == expected
    made = record(out)
    assert made["facts"] == {"read": 14, "blank": 1, "repeated": 1}
    assert made["settings"]["input_file"] == ["sts.tsv", "nli.jsonl"] and made["report"]["texts"] == 12
    assert str(tmp_path) not in json.dumps(made)


def test_wikimatrix_by_column_number(monkeypatch, tmp_path, out):
    with gzip.open(tmp_path / "WikiMatrix.ar-en.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("1.21\tمرحبا\thello\n1.05\tقطة\tcat\n")
    flags = ["--input_file", tmp_path / "WikiMatrix.ar-en.tsv.gz", "--no_header", "--count", 2]
    assert set(make(monkeypatch, sample_sentences, out, *flags, "--columns", 2)) == {"مرحبا", "قطة"}
    assert set(make(monkeypatch, sample_sentences, out, *flags, "--columns", 3)) == {"hello", "cat"}
    out = tmp_path / "other.txt"
    refused(
        monkeypatch,
        sample_sentences,
        out,
        "line 1: 3 columns, but --columns asks for column 4",
        *flags,
        "--columns",
        4,
    )
    refused(monkeypatch, sample_sentences, out, "--no_header needs --columns with column numbers", *flags)


def test_samples_are_uniform_over_distinct_sentences_and_seeded(monkeypatch, tmp_path, out):
    (tmp_path / "text.txt").write_text("often\n" * 300 + "".join(f"line {n}\n" for n in range(9)))
    flags = ["--input_file", tmp_path / "text.txt", "--count", 2]
    samples = [make(monkeypatch, sample_sentences, out, *flags, "--seed", seed) for seed in (0, 0, 1, 2, 3, 4, 5, 6)]
    assert samples[0] == samples[1] and len(set(map(tuple, samples))) > 4
    assert sum("often" in sample for sample in samples) < 6


def test_sample_sentences_input_errors(monkeypatch, tmp_path, out):
    (tmp_path / "t.tsv").write_text("question\tsentence\nq\ts\n")
    flags = ["--input_file", tmp_path / "t.tsv"]
    refused(monkeypatch, sample_sentences, out, "no column 'text'; it has question, sentence", *flags)
    refused(monkeypatch, sample_sentences, out, "1 distinct sentences, fewer than", *flags, "--columns", "sentence")
    refused(monkeypatch, sample_sentences, out, "no such file", "--input_file", tmp_path / "absent.txt")


# ---- UMLS --------------------------------------------------------------------------------------------------------------


def row(name: str, language: str = "ENG", suppress: str = "N") -> str:
    before = ["C0000039", language, "P", "L0000039", "PF", "S0007564", "Y", "A0016515", "", "M0023172", "D015060"]
    return "|".join([*before, "MSH", "MH", "D015060", name, "0", suppress, "1792", ""]) + "\n"


@pytest.fixture
def mrconso(tmp_path) -> Path:
    path = tmp_path / "MRCONSO.RRF"
    rows = [row("Myocardial  infarction"), row("myocardial infarction"), row("Heart attack"), row("Infarto", "SPA")]
    rows += [row("Old name", suppress="O"), row("Hidden", suppress="Y"), row("Editor's", suppress="E"), row(" ")]
    path.write_text("".join([*rows, row("β-blocker")]), encoding="utf-8")
    return path


def test_names_of_umls(monkeypatch, mrconso, out):
    names = make(monkeypatch, umls_names, out, "--mrconso", mrconso, "--count", 3)
    assert sorted(names) == ["Heart attack", "Myocardial infarction", "β-blocker"]
    assert record(out)["facts"] == {"rows": 9, "other_language": 1, "suppressed": 3, "blank": 1, "repeated": 1}
    assert make(monkeypatch, umls_names, out, "--mrconso", mrconso, "--count", 1, "--language", "SPA") == ["Infarto"]


def test_a_gzipped_mrconso_and_a_seed(monkeypatch, mrconso, tmp_path, out):
    packed = tmp_path / "MRCONSO.RRF.gz"
    packed.write_bytes(gzip.compress(mrconso.read_bytes()))
    samples = [
        make(monkeypatch, umls_names, out, "--mrconso", path, "--count", 2, "--seed", 5) for path in (packed, mrconso)
    ]
    assert samples[0] == samples[1]


def test_umls_names_input_errors(monkeypatch, mrconso, tmp_path, out):
    refused(monkeypatch, umls_names, out, "3 names of ENG, fewer than --count 4", "--mrconso", mrconso, "--count", 4)
    refused(monkeypatch, umls_names, out, "absent.RRF", "--mrconso", tmp_path / "absent.RRF")
    mrconso.write_text(row("fine") + "C1|ENG|name|\n")
    refused(monkeypatch, umls_names, out, "line 2: 3 fields, MRCONSO.RRF has 18", "--mrconso", mrconso)


# ---- Frequent words ----------------------------------------------------------------------------------------------------


@pytest.fixture
def wordfreq(monkeypatch) -> None:
    """A fake of the optional library: 25 words of one language."""
    library = ModuleType("wordfreq")
    library.available_languages = lambda: {"en": "path"}
    library.top_n_list = lambda language, count: [f"word{rank}" for rank in range(1, 26)][:count]
    monkeypatch.setitem(sys.modules, "wordfreq", library)
    monkeypatch.setattr(frequent_words, "version", lambda name: "3.1.1")


@pytest.mark.usefixtures("wordfreq")
def test_buckets_of_frequent_words(monkeypatch, out):
    assert make(monkeypatch, frequent_words, out, "--language", "en", "--count", 3) == ["word1", "word2", "word3"]
    third = make(monkeypatch, frequent_words, out, "--language", "en", "--count", 3, "--bucket", 3)
    assert third == ["word7", "word8", "word9"]
    settings = {"language": "en", "count": 3, "bucket": 3, "wordfreq": "3.1.1"}
    assert record(out)["settings"] == settings


@pytest.mark.usefixtures("wordfreq")
def test_frequent_words_input_errors(monkeypatch, out):
    refused(monkeypatch, frequent_words, out, "--language et: not in wordfreq", "--language", "et")
    flags = ["--language", "en", "--count", 10, "--bucket", 3]
    refused(monkeypatch, frequent_words, out, "has 25 words of 'en', bucket 3 ends at 30", *flags)


def test_without_the_library(monkeypatch, out):
    monkeypatch.setitem(sys.modules, "wordfreq", None)
    refused(monkeypatch, frequent_words, out, "requirements-corpora.txt", "--language", "en")


@pytest.mark.parametrize("script", [frequent_words, random_strings, sample_sentences, umls_names])
def test_help_contains_an_example(monkeypatch, capsys, script):
    monkeypatch.setattr(sys, "argv", ["script", "--help"])
    with pytest.raises(SystemExit):
        script.main()
    assert f"python data_scripts/{script.__name__.rpartition('.')[2]}.py --" in capsys.readouterr().out


# ---- Disease names -----------------------------------------------------------------------------------------------------


def test_disease_names_are_no_test_queries(monkeypatch, out, tmp_path):
    names = [f"disease {number}" for number in range(20)]
    write_tsv(
        tmp_path / "biomed/ncbi-disease/dictionary.tsv", ("cui", "name"), [("D1", name.title()) for name in names]
    )
    for folder, mention in (("ncbi-disease", "Disease 3"), ("bc5cdr-disease", "disease 4|disease 5")):
        write_tsv(tmp_path / f"biomed/{folder}/test_queries.tsv", ("mention", "cui"), [(mention, "D1")])
    flags = ("--data_dir", tmp_path, "--count")
    texts = make(monkeypatch, disease_names, out, *flags, 17)
    assert {*texts} == {*names} - {"disease 3", "disease 4", "disease 5"}
    assert record(out)["facts"] == {"names": 20, "left_out_queries": 3}
    refused(
        monkeypatch,
        disease_names,
        tmp_path / "more.txt",
        "17 names that are no query, fewer than --count 18",
        *flags,
        18,
    )
