from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from mirror.evaluation.task import DataFile, Task, preparation
from tests.evaluation.folder import write_tsv


ROOT = Path(__file__).resolve().parents[2]
PAIRS = DataFile("words.tsv", ("word1", "word2", "score"), rows=(2,), score_range=(0, 10))
HEADER = ("word1", "word2", "score")


def test_quotes_and_na_are_text_and_blank_lines_are_skipped(tmp_path):
    (tmp_path / "words.tsv").write_text('word1\tword2\tscore\n"null\tNA\t1\n\nnan\t\t2\n', encoding="utf-8")
    assert PAIRS.read(tmp_path) == {"word1": ['"null', "nan"], "word2": ["NA", ""], "score": ["1", "2"]}


def test_a_line_separator_inside_a_text_does_not_split_it(tmp_path):
    write_tsv(tmp_path / "words.tsv", HEADER, [("a\u2028b", "c", 1), ("d", "e", 2)])
    assert PAIRS.read(tmp_path)["word1"][0] == "a\u2028b"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("word1\tword2\nx\ty\n", r"words\.tsv: no column 'score'; the header has \['word1', 'word2'\]"),
        ("", "no column 'word1'"),
        ("word1\tword2\tscore\na\tb\t1\nc\td\n", "line 3: 2 fields, expected 3"),
        ("word1\tword2\tscore\na\tb\t1\n", "has 1 rows, expected 2"),
        ("word1\tword2\tscore\n\na\tb\t1\nc\td\t11\n", r"line 4: score '11' is not a number in \[0, 10\]"),
        ("word1\tword2\tscore\na\tb\tnan\nc\td\t1\n", "line 2: score 'nan'"),
        ("word1\tword2\tscore\na\tb\thigh\nc\td\t1\n", "line 2: score 'high'"),
    ],
)
def test_the_message_names_the_damage(tmp_path, text, message):
    (tmp_path / "words.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        PAIRS.read(tmp_path)


def test_a_missing_file_says_how_to_get_it(tmp_path):
    command = r"python \S*data_scripts/prepare_eval_data\.py --tasks TASK --output_dir"
    with pytest.raises(InputError, match=rf"words\.tsv is missing; make it with: {command}"):
        PAIRS.read(tmp_path)


def test_the_command_that_makes_the_data_works_where_the_script_is(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert preparation(["sts", "men"], Path("my data")) == (
        "python data_scripts/prepare_eval_data.py --tasks sts men --output_dir 'my data'"
    )
    monkeypatch.chdir(tmp_path)
    script = preparation(["sts"], Path("data")).split()[1]
    assert Path(script).resolve() == ROOT / "data_scripts/prepare_eval_data.py"
    monkeypatch.setattr("mirror.evaluation.task.__file__", str(tmp_path / "site-packages/mirror/evaluation/task.py"))
    assert preparation(["sts"], Path("data")).endswith("(in a clone of the repository; pip installs no data_scripts)")


def test_a_file_in_another_encoding_is_reported_with_the_byte(tmp_path):
    (tmp_path / "words.tsv").write_bytes(b"word1\tword2\tscore\n\xe9t\xe9\tb\t1\n")
    with pytest.raises(InputError, match=r"not UTF-8 \(byte 18\)"):
        PAIRS.read(tmp_path)


def test_the_hash_covers_every_file_in_order(tmp_path):
    first, second = (write_tsv(tmp_path / name, HEADER, [(name, "b", 1)] * 2) for name in ("x.tsv", "y.tsv"))
    files = (DataFile("x.tsv", HEADER), DataFile("y.tsv", HEADER))
    task = Task("t", "m", "p", files, score=lambda encode, data_dir: {})
    assert task.data_sha256(tmp_path) == hashlib.sha256(first.read_bytes() + second.read_bytes()).hexdigest()
    second.unlink()
    assert task.missing_files(tmp_path) == [str(second)]
