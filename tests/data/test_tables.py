"""Named columns of files come out as they are spelled, by two oracles: what was written, and Python's own csv and json."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value

from mirror.common.errors import InputError
from mirror.data.corpus import as_corpus, load_corpus, text_rows
from mirror.data.source import CorpusSource
from mirror.data.tables import columns_of, read_rows, read_table


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def texts_of(path: Path, **options) -> list[str]:
    """Return the texts of a file, which a stream of it gives too."""
    stored = load_corpus(path, keep_duplicates=True, **options).rows["text"][:]
    streamed = load_corpus(path, keep_duplicates=True, streaming=True, **options).rows
    assert [row["text"] for row in streamed] == stored
    return stored


def refused(path: Path, **options) -> str:
    """Return the message of a file that is refused, read as a whole and as a stream, without its folder."""
    messages = []
    for streaming in (False, True):
        with pytest.raises(InputError) as caught:
            list(load_corpus(path, streaming=streaming, **options).rows)
        messages.append(str(caught.value))
    assert messages[0] == messages[1] and "\n" not in messages[0]
    return messages[0].removeprefix(f"{path.parent}/")


AS_SPELLED = ["1990-01-01", "2024-01-01T00:00:00Z", "007", "1e5", "null", "NaN", "true", "1.50", "12:30", "{}", "é"]


@pytest.mark.parametrize("ending", ["csv", "tsv", "json", "jsonl", "parquet", "csv.gz", "jsonl.gz"])
def test_a_text_stays_as_it_is_spelled(tmp_path, ending):
    path = tmp_path / f"a.{ending}"
    if "json" in ending:
        rows = [{"id": 7, "text": text, "at": {"day": 1}} for text in AS_SPELLED]
        write(path, json.dumps(rows) if ending == "json" else "".join(json.dumps(row) + "\n" for row in rows))
    elif ending == "parquet":
        pq.write_table(pa.table({"id": range(len(AS_SPELLED)), "text": AS_SPELLED}), path)
    else:
        write(
            path,
            "".join(
                "\t,"["csv" in ending].join(row) + "\n"
                for row in [("id", "text"), *zip("abcdefghijk", AS_SPELLED, strict=True)]
            ),
        )
    assert texts_of(path) == AS_SPELLED


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("sep.csv", "sep=;\nnr;text\n1;a, b\n", ["a, b"]),
        ("sep.csv", 'sep=;\r\n"nr";"text"\r\n1;"a ""b"""\r\n', ['a "b"']),
        ("sep.tsv", "sep=,\nnr,text\n1,a\n", ["a"]),
        ("semicolon.csv", "nr;text\n1;a\n", ["a"]),
        ("quoted.csv", '"nr";"x, y";"text"\n"1";"";"a"\n', ["a"]),
        ("tab.csv", 'nr\ttext\n1\t"a\tb"\n', ["a\tb"]),
        ("bar.csv", "nr|text\n1|a\n", ["a"]),
        ("comma.tsv", "nr,text\n1,a\n", ["a"]),
        ("quotes.tsv", 'nr\ttext\n1\t"a\n2\tb"\n', ['"a', 'b"']),
        ("blank.csv", "nr,text\n\n1,a\n  \n2,b\n", ["a", "b"]),
        ("unnamed.csv", ",text,,\n1,a,,\n", ["a"]),
        ("bom.csv", "\ufefftext,nr\na,1\n", ["a"]),
        ("crlf.tsv", "nr\ttext\r\n1\ta\rb\r\n", ["a\rb"]),
        ("long.csv", f"nr,text\n1,{'x' * 200_000}\n", ["x" * 200_000]),
        ("bom.txt", "\ufeffhello\n", ["hello"]),
        ("packed.txt.gz", "naïve 日本 🎈\nsaid \"no\"\n", ["naïve 日本 🎈", 'said "no"']),
        ("ends.txt", "a\rb\x0bc\x0cd\u2028e\x85f\r\ng\n", ["a\rb\x0bc\x0cd\u2028e\x85f", "g"]),
        ("missing.jsonl", '{"text": "a"}\n\n{"text": null}\n{}\n{"text": "b"}', ["a", "b"]),
        ("late.jsonl", '{"n": 1, "text": "a"}\n{"n": "x", "text": "b"}\n{"n": [1], "text": "c"}\n', ["a", "b", "c"]),
        ("twice.jsonl", '{"text": "a", "n": 1, "n": 2}\n', ["a"]),
        ("inner.jsonl", '{"text": "a", "n": {"text": 2, "m": NaN}}\n', ["a"]),
        ("large.jsonl", '{"text": "a", "n": %s}\n' % ("1" * 9000), ["a"]),
        ("only.jsonl", '{"title": "a"}\n{"title": "b"}\n', ["a", "b"]),
        ("trace.jsonl", '{"type": "x", "payload": {"a": 1}, "text": "a"}\n{"type": "x", "payload": "n", "text": "b"}\n', ["a", "b"]),
        ("lines.json", '{"text": "a"}\n{"text": "b"}\n', ["a", "b"]),
        ("pretty.json", '{\n "text": "a"\n}\n{\n "text": "b"\n}\n', ["a", "b"]),
        ("list.json", '\n["a", "b"]', ["a", "b"]),
        ("columns.json", '{\n "text": ["a", "b"], "n": [1, 2]\n}', ["a", "b"]),
        ("dumped.json", '{"text": ["a", "b"], "n": [1, 2]}', ["a", "b"]),
    ],
)  # fmt: skip
def test_other_forms_of_a_file(tmp_path, name, content, expected):
    assert texts_of(write(tmp_path / name, content)) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "id,text\n1,a,b\n", "a.csv, line 2: 3 fields, the header has 2"),
        ("a.csv", "id,text\n1,a,\n", "a.csv, line 2: 3 fields, the header has 2"),
        ("a.csv", 'id,text\n1,"a\nb"\n\n2\n', "a.csv, line 5: 1 field, the header has 2"),
        ("a.tsv", "id\ttext\n1\ta\tb\n", "a.tsv, line 2: 3 fields, the header has 2"),
        ("a.csv", "id;text\n1;a\n2;b;c\n", "a.csv, line 3: 3 fields, the header has 2 (separated by ';')"),
        ("a.csv", "id:text\n1:a\n", "a.csv has no column 'text'; it has id:text; choose with --text_column"),
        ("a.csv", "A cat runs, fast.\nb\n", "a.csv has no column 'text'; it has A cat runs, fast."),
        ("a.csv", "text,text\na,b\n", "a.csv, line 1: two columns have the name 'text'; rename one"),
        ("a.csv", 'id,text\n1,a\n2,"b\n3,c\n', "a.csv, line 3: a quotation mark that opens a field is never closed"),
        ("a.csv", 'id,text\n1,"a \\"b\\" c"\n', "a.csv, line 2: text after the quotation mark that closes a field"),
        ("a.csv", "id,text\n1,a\rb\n", "a.csv, line 2: a carriage return outside of quotation marks"),
        ("a.csv", "id,text\r1,a\r", "a.csv, line 1: a carriage return outside of quotation marks"),
        ("a.jsonl", '{"text": "a"}\n\n{"text": 50}\n', "a.jsonl, line 3: 'text' holds the number 50, not a text; put it in"),
        ("a.jsonl", '{"text": NaN}\n', "a.jsonl, line 1: 'text' holds the number NaN"),
        ("a.jsonl", '{"text": true}\n', "a.jsonl, line 1: 'text' holds true"),
        ("a.jsonl", '{"text": ["a"]}\n', "a.jsonl, line 1: 'text' holds a list, not a text; choose another column"),
        ("a.jsonl", '{"text": {"a": 1}}\n', "a.jsonl, line 1: 'text' holds an object"),
        ("a.jsonl", '{"text": "a \\ud800"}\n', "a.jsonl, line 1: 'text' holds half of a surrogate pair ('\\ud800')"),
        ("a.jsonl", '{"text": %s}\n' % ("1" * 9000), "a.jsonl, line 1: 'text' holds the number 1111"),
        ("a.jsonl", '{"text": "a", "te\\u0078t": "b"}\n', "a.jsonl, line 1: the key 'text' is there twice; rename one"),
        ("a.json", '[{"text": "a", "text": "b"}]', "a.json, row 1: the key 'text' is there twice; rename one"),
        ("a.jsonl", '{"text": "a"}\n{"n": %s\n' % ("[" * 100_000), "a.jsonl, line 2: JSON that is nested too deeply"),
        ("a.json", "[" * 100_000, "a.json: JSON that is nested too deeply"),
        ("a.jsonl", "3\n", "a.jsonl, line 1: '3' is not a JSON object"),
        ("a.jsonl", '{"title": "a"}\n{"title": "b", "x": 1}\n', "a.jsonl has no column 'text'; it has title, x; choose with"),
        ("a.json", '[{"text": "a"},\n{"text": 5}]', "a.json, row 2: 'text' holds the number 5"),
        ("a.json", '[{"text": "a"},\n{"text": "b"', "a.json, line 2: not JSON (Expecting ',' delimiter, column 13)"),
        ("a.json", "[]", "a.json has no column 'text'; it has no columns"),
        ("a.json", '{\n"text": ["a"], "n": []}', "a.json: its columns have different lengths"),
    ],
)  # fmt: skip
def test_what_would_be_read_wrongly_is_refused_by_its_line(tmp_path, name, content, message):
    assert refused(write(tmp_path / name, content)).startswith(message)


TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
BINARY_TYPES = [pa.binary(), pa.large_binary(), pa.dictionary(pa.int8(), pa.binary())]


@pytest.mark.parametrize("kind", [*TYPES, *BINARY_TYPES], ids=str)
def test_every_type_of_text_in_parquet_beside_a_column_of_any_type(tmp_path, kind):
    cells = ["é", None, "b"] * 300
    is_binary = kind in BINARY_TYPES
    texts = pa.array([text and text.encode() for text in cells] if is_binary else cells).cast(kind)
    other = pa.array([[("a", 1)]] * len(cells), pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"text": texts, "other": other}), tmp_path / "a.parquet", row_group_size=400)
    assert texts_of(tmp_path / "a.parquet") == ["é", "b"] * 300


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1]), "column 'text' holds int64, not text"),
        (pa.array([1], pa.timestamp("ms")), "column 'text' holds timestamp[ms], not text"),
        (pa.array([["a"]]), "column 'text' holds list<element: string>, not text"),
        (pa.array([b"\xff"]), "a column of bytes that are not UTF-8, 'text'"),
    ],
)
def test_what_is_no_text_in_parquet(tmp_path, column, words):
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert words in refused(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    "options",
    [{}, {"use_dictionary": False, "compression": "zstd"}, {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}],
    ids=["dictionary", "zstd", "delta"],
)  # fmt: skip
def test_a_parquet_file_that_unpacks_to_gigabytes_is_refused(tmp_path, options):
    pq.write_table(pa.table({"text": ["x" * (1 << 20)] * 80}), tmp_path / "a.parquet", **options)
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 21
    assert "unpacks to over" in refused(tmp_path / "a.parquet")


def test_ids_labels_and_scores_are_taken_as_they_are_spelled(tmp_path):
    rows = '{"_id": 10, "text": "a", "score": 1.50}\n{"_id": "x", "title": "t", "text": "b", "score": 1e5}\n'
    path = write(tmp_path / "a.jsonl", rows)
    table = read_table(path, ["title", "text"], ["score"], key="_id", optional=["title"])
    assert table.to_dict() == {
        "title": ["", "t"], "text": ["a", "b"], "score": ["1.50", "1e5"], "_id": ["10", "x"],
    }  # fmt: skip
    assert columns_of(path) == ["_id", "text", "score", "title"] and columns_of(path, True) == ["text", "title"]
    features = Features({"label": ClassLabel(names=["yes", "no"]), "n": Value("int64")})
    Dataset.from_dict({"label": [1, -1, 0], "n": [3, 4, None]}, features=features).to_parquet(tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet", [], ["label", "n"])
    assert table.to_dict() == {"label": ["no", "-1", "yes"], "n": ["3", "4", ""]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("_id,text\n1,a\n2,b\n1,c\n", "row 3: id '1' is that of row 1 too"),
        ("_id,text\n1,a\n,b\n", "row 2: no id in the column '_id'"),
        ("id,text\n1,a\n", "has no column '_id'; it has id, text; choose with --id_column"),
    ],
)
def test_wrong_ids(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read_table(write(tmp_path / "a.csv", content), ["text"], key="_id", choose="choose with --id_column")


def test_several_columns_are_joined_without_a_separator_at_empty_cells(tmp_path):
    path = write(tmp_path / "a.csv", "id,title,body\n1, A ,x\n2,,y\n3,B,\n4,,\n")
    assert texts_of(path, text_column=["title", "body"]) == ["A. x", "y", "B"]
    assert texts_of(path, text_column=["body", "title"], text_separator=" | ") == ["x | A", "y", "B"]
    source = CorpusSource(train_file=[str(path)], text_column="title")
    rows = {"text": [" A ", "", "B", ""], "id": ["1", "2", "3", "4"]}
    assert text_rows(source, strip=False, id_column="id").to_dict() == rows
    data = Dataset.from_csv(str(path), cache_dir=str(tmp_path / "csv"))
    assert as_corpus(data, CorpusSource(text_column=["title", "body"])).rows["text"][:] == ["A. x", "y", "B"]


def test_a_folder_of_a_dataset_with_typed_texts_or_traces(tmp_path):
    for name, rows in (
        ("dates", '{"text": "1990-01-01"}\n'),
        ("trace", '{"type": "x", "payload": {"a": 1}, "text": "b"}\n'),
    ):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "train.jsonl", rows + rows.replace('{"a": 1}', '"n"'))
    with pytest.raises(InputError, match=r"column 'text' holds Value\('timestamp\[s\]'\), not text"):
        load_corpus(CorpusSource(dataset_name=str(tmp_path / "dates")))
    assert load_corpus(CorpusSource(dataset_name=str(tmp_path / "trace"))).rows["text"][:] == ["b"]


# Random tables, by two oracles


CASES = int(os.environ.get("MIRROR_FUZZ_CASES", "0"))
PIECES = ["a", "Cat", " ", '"', '""', "\n", "\r\n", "\r", "\t", ",", ";", "|", "\\", "'", "\ufeff", "\u2028", "\x85", "\x0b", "\x1c",
    "NaN", "null", "1e5", "007", "2024-01-01", "T00:00:00Z", "é", "日本", "🎈", "{", "[", "sep=;", "#", "text", ":"]  # fmt: skip
NAMES = ["text", "id", "title", "a b", "größe", "n;o", "x,y", "tab\tbed", 'q"uote', "2024"]


def random_table(rng: random.Random) -> tuple[list[str], list[list[str]]]:
    names = rng.sample(NAMES, rng.randint(2, 5))
    cell = lambda: "".join(rng.choices(PIECES, k=rng.choice([0, 1, 1, 2, 5])))  # noqa: E731
    return names, [[cell() for _ in names] for _ in range(rng.randint(1, 6))]


def written(
    ending: str, names: list[str], rows: list[list[str]], rng: random.Random
) -> tuple[str, list[dict[str, str]]]:
    """Return a file, and its rows as Python's own module reads them."""
    if ending == "csv":
        # Without quotation marks, Python's writer leaves a carriage return as it is, which its reader takes for an end.
        has_return = any("\r" in cell for row in rows for cell in row)
        file, options = (
            io.StringIO(newline=""),
            {"delimiter": rng.choice(",;\t|"), "quoting": int(has_return or rng.random() < 0.5)},
        )
        writer = csv.writer(file, lineterminator=rng.choice(["\n", "\r\n"]), **options)
        writer.writerow(names)
        writer.writerows(rows)
        return file.getvalue(), list(csv.DictReader(io.StringIO(file.getvalue(), newline=""), **options))
    objects = [
        {name: cell for name, cell in zip(names, row, strict=True) if cell or rng.random() < 0.5} for row in rows
    ]
    ascii = rng.random() < 0.5
    if ending == "json":
        content = json.dumps(objects, ensure_ascii=ascii, indent=rng.choice([None, 1]))
        return content, json.loads(content)
    content = "".join(json.dumps(row, ensure_ascii=ascii) + "\n" for row in objects)
    return content, [json.loads(line) for line in content.split("\n") if line]


@pytest.mark.parametrize("ending", ["csv", "json", "jsonl"])
def test_random_tables_are_what_was_written_and_what_python_reads(tmp_path, ending):
    """An accepted table is the same by both oracles, and one line refuses the others, few of a kind that is known."""
    rng, count, refusals = random.Random(CASES), CASES or 200, 0
    for _ in range(count):
        names, rows = random_table(rng)
        content, oracle = written(ending, names, rows, rng)
        path = write(tmp_path / f"a.{ending}", content)
        wanted = rng.sample(names, 2)
        try:
            found = [cells for _, cells in read_rows(str(path), wanted, optional=wanted if ending != "csv" else ())]
        except InputError as error:
            assert "\n" not in str(error)
            refusals += 1
            continue
        assert found == [[row[names.index(name)] for name in wanted] for row in rows], content
        assert found == [[row.get(name) or "" for name in wanted] for row in oracle], content
    assert refusals <= count * (0.1 if ending == "csv" else 0)
