"""Building the evaluation folder from small copies of the Hub datasets and of the authors' files."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from data_scripts import eval_data_hub, eval_data_sources, prepare_eval_data
from mirror.common.errors import InputError
from mirror.evaluation.run import all_tasks
from tests.evaluation.folder import pairs


def write(path: Path, text: str, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding=encoding)


def write_hub(mirror: Path, dataset: str, rows: list[dict], split: str = "test", config: str | None = None) -> None:
    """Write a small Hub dataset: one jsonl file, and a README with its configuration."""
    folder = mirror / dataset
    write(folder / (config or "data") / f"{split}.jsonl", "\n".join(json.dumps(row) for row in rows))
    files = f"  data_files:\n  - split: {split}\n    path: {config or 'data'}/{split}.jsonl\n"
    write(folder / "README.md", f"---\nconfigs:\n- config_name: {config or 'default'}\n{files}---\n")


def prepare(monkeypatch, output_dir: Path, *flags) -> None:
    arguments = ["prepare_eval_data.py", "--output_dir", output_dir, *flags]
    monkeypatch.setattr(sys, "argv", [str(argument) for argument in arguments])
    prepare_eval_data.main()


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def similar(count: int) -> list[dict]:
    return [{"sentence1": a, "sentence2": b, "score": score} for a, b, score in pairs(count)]


def test_a_hub_dataset_becomes_a_file_and_is_recorded(tmp_path, monkeypatch):
    rows = similar(1500)
    rows[0]["sentence1"] = 'tab\there, line\nthere, "quote" and null'
    write_hub(tmp_path / "hub", "mteb/stsbenchmark-sts", rows, "validation")
    prepare(monkeypatch, tmp_path / "data", "--tasks", "stsb_dev", "--hub_mirror", tmp_path / "hub")
    built = read(tmp_path / "data/sts/stsb_dev.tsv")
    assert len(built) == 1500
    assert built[0] == {"sentence1": 'tab here, line there, "quote" and null', "sentence2": "b 0", "score": "5.0"}
    (record,) = read(tmp_path / "data/MANIFEST.tsv")
    assert (record["path"], record["rows"]) == ("sts/stsb_dev.tsv", "1500")
    assert record["source"].startswith("mteb/stsbenchmark-sts@b0fddb56")
    assert not (tmp_path / "data/.partial").exists()
    again = ["--tasks", "stsb_dev", "--hub_mirror", tmp_path / "nothing"]
    prepare(monkeypatch, tmp_path / "data", *again)  # the existing file is checked and kept
    path = tmp_path / "data/sts/stsb_dev.tsv"
    path.write_text(path.read_text().replace("b 7\t", "b 8\t"))
    with pytest.raises(InputError, match="has changed since it was built"):
        prepare(monkeypatch, tmp_path / "data", *again)


def test_incomplete_data_is_not_installed(tmp_path, monkeypatch):
    write_hub(tmp_path / "hub", "mteb/stsbenchmark-sts", similar(1499), "validation")
    with pytest.raises(InputError, match=r"stsb_dev\.tsv has 1,499 rows, expected 1,500"):
        prepare(monkeypatch, tmp_path / "data", "--tasks", "stsb_dev", "--hub_mirror", tmp_path / "hub")
    assert not list((tmp_path / "data").glob("*.tsv")) and not (tmp_path / "data/sts/stsb_dev.tsv").exists()


def test_damaged_files_of_the_authors_are_one_line_and_leave_nothing(tmp_path, monkeypatch):
    """A row without a field, another encoding, a missing column, and too few rows."""
    write(tmp_path / "scores.csv", "NUMBER,ENG\n1,2.5\n")
    write(tmp_path / "translation.csv", "ID,ENG 1,ENG 2\n1,a,b\n")
    write(tmp_path / "TREC/train_5500.label", "NUM:count\n")
    (tmp_path / "EN-MTurk-287.txt").write_bytes("caf\u00e9 tea 1\n".encode("latin-1"))
    write(tmp_path / "EN-RG-65.txt", "cat dog 1\n")
    for task, flag, message in (
        (
            "multisimlex_eng",
            "multisimlex_dir",
            f"--multisimlex_dir {tmp_path}: the files for multisimlex/ENG.tsv .*'ID'",
        ),
        (
            "transfer_trec",
            "senteval_dir",
            f"--senteval_dir {tmp_path}: the files for senteval/trec.tsv are not as expected",
        ),
        ("mturk287", "word_similarity_dir", "the files for wordsim/mturk287.tsv are not as expected: .*utf-8"),
        ("rg65", "word_similarity_dir", "from --word_similarity_dir: wordsim/rg65.tsv has 1 rows, expected 65"),
    ):
        with pytest.raises(InputError, match=message) as error:
            prepare(monkeypatch, tmp_path / "data", "--tasks", task, f"--{flag}", tmp_path)
        assert ".partial" not in str(error.value)
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file() or path.name == ".partial"]


def test_missing_columns_on_the_hub_are_named(tmp_path, monkeypatch):
    write_hub(tmp_path / "hub", "mteb/sts16-sts", [{"sentence1": "a", "sentence2": "b", "similarity": 1}])
    with pytest.raises(InputError, match="mteb/sts16-sts has no column 'score'"):
        prepare(monkeypatch, tmp_path / "data", "--tasks", "sts16", "--hub_mirror", tmp_path / "hub")


def test_senteval_sts_has_subsets_and_no_unscored_pairs(tmp_path, monkeypatch):
    folder = tmp_path / "STS/STS16-en-test"
    for subset, count in (("headlines", 600), ("surprise.answer-answer", 586)):
        lines = [(f"{a}\t{b}\tsource", f"{score:.1f}") for a, b, score in pairs(count)]
        lines.insert(1, ("never\tscored", ""))
        write(folder / f"STS.input.{subset}.txt", "\r\n".join(pair for pair, _ in lines) + "\r\n")
        write(folder / f"STS.gs.{subset}.txt", "\n".join(score for _, score in lines) + "\n")
    prepare(monkeypatch, tmp_path / "data", "--tasks", "sts16", "--senteval_dir", tmp_path)
    rows = read(tmp_path / "data/sts/sts16.tsv")
    assert len(rows) == 1186
    assert {row["subset"] for row in rows} == {"headlines", "answer-answer"}
    assert rows[0] == {"subset": "headlines", "sentence1": "a 0", "sentence2": "b 0", "score": "5.0"}


def test_senteval_classification_files(tmp_path, monkeypatch):
    write(tmp_path / "CR/custrev.neg", "dull\n" * 1367, "latin-1")
    write(tmp_path / "CR/custrev.pos", "a café\n" + "\n" + "great\n" * 2403, "latin-1")
    header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    for split, count in (("train", 4076), ("test", 1725)):
        write(tmp_path / f"MRPC/msr_paraphrase_{split}.txt", header + '1\t2\t3\tHe said "yes" .\tYes .\n' * count)
    for name, count in (("train_5500", 5452), ("TREC_10", 500)):
        write(tmp_path / f"TREC/{name}.label", "DESC:manner How did it begin ?\n" * count, "latin-1")
    for split, count in (("train", 67349), ("dev", 872), ("test", 1821)):
        write(tmp_path / f"SST/binary/sentiment-{split}", "a fine film\t1\n" * count)
    tasks = ["transfer_cr", "transfer_mrpc", "transfer_trec", "transfer_sst2"]
    prepare(monkeypatch, tmp_path / "data", "--tasks", *tasks, "--senteval_dir", tmp_path)
    reviews = read(tmp_path / "data/senteval/cr.tsv")
    assert len(reviews) == 3771
    assert {"split": "all", "text": "a café", "label": "1"} in reviews
    assert read(tmp_path / "data/senteval/mrpc.tsv")[0]["sentence1"] == 'He said "yes" .'
    trec = {"split": "train", "text": "How did it begin ?", "label": "DESC", "fine_label": "DESC:manner"}
    assert read(tmp_path / "data/senteval/trec.tsv")[0] == trec
    assert read(tmp_path / "data/senteval/sst2.tsv")[-1] == {"split": "test", "text": "a fine film", "label": "1"}


def test_sick_with_its_split(tmp_path, monkeypatch):
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    for name, count in (("SICK_train", 4500), ("SICK_trial", 500), ("SICK_test_annotated", 4927)):
        write(tmp_path / f"SICK/{name}.txt", header + "1\tA man .\tA cat .\t3.3\tNEUTRAL\n" * count)
    tasks = ["sickr", "sickr_full", "transfer_sicke"]
    prepare(monkeypatch, tmp_path / "data", "--tasks", *tasks, "--senteval_dir", tmp_path)
    header, row = (tmp_path / "data/sts/sickr_test.tsv").read_text().splitlines()[:2]
    assert header.split("\t") == ["subset", "sentence1", "sentence2", "score", "entailment"]
    assert row.split("\t") == ["SICK-test", "A man .", "A cat .", "3.3", "NEUTRAL"]
    assert not (tmp_path / "data/sts/sickr_full.tsv").exists()


def test_word_pairs_and_multisimlex(tmp_path, monkeypatch):
    write(tmp_path / "EN-RG-65.txt", "".join(f"w{n}\tnull {4 * n / 64:.2f}\n" for n in range(65)))
    prepare(monkeypatch, tmp_path / "data", "--tasks", "rg65", "--word_similarity_dir", tmp_path)
    assert read(tmp_path / "data/wordsim/rg65.tsv")[0] == {"word1": "w0", "word2": "null", "score": "0.00"}

    ids = range(1888, 0, -1)  # the order is by id, not by line
    scores = "".join(f"{n},{n / 1888},{n / 944 if n < 900 else 5}\n" for n in ids)
    write(tmp_path / "scores.csv", "ID,ENG,FRA\n" + scores)
    words = "".join(f'{n},a{n},b{n},"c, {n}",d{n}\n' for n in ids)
    write(tmp_path / "translation.csv", "ID,ENG 1,ENG 2,FRA 1,FRA 2\n" + words)
    tasks = ["multisimlex_fra", "multisimlex_eng_fra"]
    prepare(monkeypatch, tmp_path / "data", "--tasks", *tasks, "--multisimlex_dir", tmp_path)
    assert read(tmp_path / "data/multisimlex/FRA.tsv")[0] == {"word1": "c, 1", "word2": "d1", "score": "0.0011"}
    cross = read(tmp_path / "data/multisimlex/ENG-FRA.tsv")
    assert cross[:2] == [
        {"word1": "a1", "word2": "d1", "score": "0.0008", "pair": "1a"},
        {"word1": "b1", "word2": "c, 1", "score": "0.0008", "pair": "1b"},
    ]
    assert len(cross) == 2 * 899  # from id 900 on, the scores of the two languages differ by more than 1.2


def test_dictionaries_reviews_and_linking(tmp_path, monkeypatch):
    for part, count in (("train.freq.1k", 1000), ("train.freq.5k", 5000), ("test.freq.2k", 2000)):
        write(tmp_path / f"it-fr/yacle.{part}.it-fr.tsv", "".join(f"i{n}\tf{n}\n" for n in range(count)))
    prepare(monkeypatch, tmp_path / "data", "--tasks", "bli_it_fr", "--xling_eval_dir", tmp_path)
    assert len(read(tmp_path / "data/bli/it-fr.train1k.tsv")) == 1000
    assert read(tmp_path / "data/bli/it-fr.test2k.tsv")[1] == {"source": "i1", "target": "f1"}

    review = "<item><summary>A\tB\n</summary><rating>4.0</rating><text>one\n two &amp; three</text></item>"
    for name in ("de", "en", "fr", "jp"):
        for domain in ("books", "dvd", "music"):
            for split in ("train", "test"):
                write(tmp_path / name / domain / f"{split}.review", f"<items>{review * 2000}</items>")
    prepare(monkeypatch, tmp_path / "data", "--tasks", "amazon_zero_shot", "--cls10_dir", tmp_path)
    row = read(tmp_path / "data/amazon_cls10/jp_music_test.tsv")[0]
    assert row == {"label": "1", "rating": "4", "summary": "A B", "text": "one two & three"}

    write(tmp_path / "askapatient/test_dictionary.txt", "D1||headache\n")
    write(tmp_path / "askapatient/processed_test/1.concept", "1||0|8||Disease||head ache||D1\n")
    prepare(monkeypatch, tmp_path / "data", "--tasks", "bel_askapatient", "--biosyn_dir", tmp_path)
    assert (tmp_path / "data/biomed/askapatient/processed_test/1.concept").is_file()
    assert not list((tmp_path / "data/biomed").glob(".*"))


def test_a_known_checksum_is_compared(tmp_path, monkeypatch):
    lines = ["\n".join(f"{side} {n}" for n in range(1000)) + "\n" for side in ("une phrase", "a sentence")]
    for side, text in zip(("fra", "eng"), lines, strict=True):
        write(tmp_path / f"tatoeba.fra-eng.{side}", text)
    with pytest.raises(InputError, match=r"tatoeba/fra-eng\.tsv has a wrong checksum \(sha256 \w{12}, expected"):
        prepare(monkeypatch, tmp_path / "data", "--tasks", "tatoeba_fra", "--laser_dir", tmp_path)
    assert not (tmp_path / "data/tatoeba/fra-eng.tsv").exists()


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        (["simlex999"], r"wordsim/simlex999\.tsv is not on the Hub; give --word_similarity_dir: .*eval-word-vectors"),
        (["bel_cometa"], "biomed/cometa is not on the Hub; give --biosyn_dir"),
        (["xlbel_de", "--xlbel_dir", "nowhere"], "nowhere/de_1k_test_query_with_context.txt is missing"),
        (["simlex99"], "unknown task 'simlex99'; did you mean 'simlex999'"),
    ],
)
def test_errors_name_the_missing_source(tmp_path, monkeypatch, tasks, message):
    with pytest.raises(InputError, match=message):
        prepare(monkeypatch, tmp_path / "data", "--tasks", *tasks)


def test_every_file_of_every_task_has_a_source(tmp_path):
    from_owner_only = {"biomed/xlbel/dictionary.tsv"}  # and XEVAL, which was never released
    for task in all_tasks(tmp_path).values():
        if task.name not in prepare_eval_data.WHOLE_FOLDERS:
            for file in task.files:
                sources = eval_data_sources.local_source(file.path), eval_data_hub.hub_source(file.path)
                known = any(sources) or file.path in from_owner_only or file.path.startswith("xeval/")
                assert known, file.path


def test_model_cards_name_the_data_set_that_is_downloaded(tmp_path):
    for task in all_tasks(tmp_path).values():
        if task.hub and (source := eval_data_hub.hub_source(task.files[0].path)):
            place = (source.dataset, source.config or "default", source.split)
            assert task.hub == place[: len(task.hub)], task.name
