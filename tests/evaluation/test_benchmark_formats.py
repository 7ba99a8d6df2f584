"""A user's folder of corpus, queries and qrels: every layout, the numbers, and wrong files in one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import sys
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import run_eval
from mirror.common.errors import InputError
from mirror.evaluation import benchmark_formats
from mirror.evaluation.encoding import EmbeddingCache
from mirror.evaluation.metrics import MEASURES
from mirror.evaluation.run import all_tasks, make_plan, resolve
from mirror.modeling.encoder import EncodeByRole
from tests.conftest import make_sentences


TEXTS = make_sentences()[:120]
CORPUS = [{"_id": f"d{n}", "title": f"title {n % 7}", "text": text} for n, text in enumerate(TEXTS)]
QUERIES = [{"_id": f"q{n}", "text": " ".join(TEXTS[3 * n].split()[:3])} for n in range(30)]
# Query n finds document 3n (grade 2) and 3n + 1 (grade 1); two queries have no qrels.
QRELS = [(f"q{n}", f"d{3 * n + grade}", 2 - grade) for n in range(28) for grade in (0, 1)]


def encode(texts):
    """Words and their letters, hashed to 64 dimensions: no model, but texts with the same words are near."""
    vectors = np.zeros((len(texts), 64), dtype=np.float32)
    for row, text in enumerate(texts):
        for word in text.split():
            vectors[row, zlib.crc32(word.encode()) % 64] += 1
    return vectors


def write_rows(path, rows):
    """Write dictionaries as the ending of the file says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.removesuffix(".gz")
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    if name.endswith("jsonl"):
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    elif name.endswith("json"):
        text = json.dumps(rows)
    else:
        output = io.StringIO()
        writer = csv.DictWriter(output, rows[0], delimiter="\t" if name.endswith("tsv") else ",", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = output.getvalue()
    (gzip.open if path.suffix == ".gz" else open)(path, "wb").write(text.encode())


def write_qrels(path, rows=QRELS):
    write_rows(path, [dict(zip(("query-id", "corpus-id", "score"), row, strict=True)) for row in rows])


@pytest.fixture
def folder(tmp_path):
    write_rows(tmp_path / "mine" / "corpus.jsonl", CORPUS)
    write_rows(tmp_path / "mine" / "queries.jsonl", QUERIES)
    write_qrels(tmp_path / "mine" / "qrels" / "test.tsv")
    return tmp_path / "mine"


def score(folder, encode=encode):
    (entry,) = make_plan([str(folder)], folder.parent / "no data").run(encode)["tasks"].values()
    return entry


def test_the_numbers_are_those_of_trec_eval_for_encoder_bm25_and_fusion(folder):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    entry = score(folder)
    documents = [f"{row['title']} {row['text']}" for row in CORPUS]
    left, right = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
                   for vectors in (encode([row["text"] for row in QUERIES]), encode(documents)))  # fmt: skip
    cosines = (left.astype(float) @ right.astype(float).T).round(6)  # equal texts are tied
    run = {row["_id"]: dict(zip((row["_id"] for row in CORPUS), map(float, cosines[n]), strict=True))
           for n, row in enumerate(QUERIES)}  # fmt: skip
    qrels = {}
    for query, document, grade in QRELS:
        qrels.setdefault(query, {})[document] = grade
    names = ("ndcg_cut_10", "recall_10", "recall_100", "success_1")
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.10,100", "success.1"}).evaluate(run)
    for name, ours in zip(names, ("ndcg@10", "recall@10", "recall@100", "accuracy@1"), strict=True):
        assert entry[ours] == pytest.approx(np.mean([values[name] for values in theirs.values()]), abs=1e-9), name
    assert entry["main_score"] == entry["ndcg@10"] and entry["metric"] == "ndcg@10"
    assert (entry["num_examples"], entry["documents"], entry["queries_without_qrels"]) == (28, 120, 2)
    for part in (entry, entry["bm25"], entry["fusion"]):
        assert all(part["intervals"][name][0] <= part[name] <= part["intervals"][name][1] for name in MEASURES)
    assert 0 < entry["bm25"]["ndcg@10"] < 1 and "samples" not in entry
    assert json.loads(json.dumps(entry)) == entry


@pytest.mark.parametrize("ending", ["jsonl", "json", "csv", "tsv", "parquet", "jsonl.gz", "csv.gz"])
@pytest.mark.parametrize("place", ["qrels/test", "qrels", "qrels.test", "qrels/dev", "qrels-dev"])
def test_every_format_and_place_gives_the_same_numbers(folder, tmp_path, ending, place):
    expected = score(folder)
    other = tmp_path / "other"
    write_rows(other / f"corpus.{ending}", CORPUS)
    write_rows(other / f"queries.{ending}", QUERIES)
    write_qrels(other / f"{place}.{ending}")
    entry = score(other)
    for field in ("seconds", "data_sha256", "protocol"):
        entry.pop(field), expected.pop(field)
    assert entry == expected


@pytest.mark.parametrize("text", ["{0}\t0\t{1}\t{2}\n", "{0} Q0 {1} {2}\n", "{0}\t{1}\t{2}\n"])
@pytest.mark.parametrize("name", ["qrels.txt", "qrels/test.tsv", "qrels.trec", "qrels/test.qrels"])
def test_judgments_of_trec_without_a_header(folder, text, name):
    expected = score(folder)["main_score"]
    (folder / "qrels" / "test.tsv").unlink()
    (folder / name).write_text("".join(text.format(*row) for row in QRELS) + "\n")
    assert score(folder)["main_score"] == expected


def test_a_split_is_named_after_a_colon_and_test_is_the_default(folder):
    write_qrels(folder / "qrels" / "dev.tsv", QRELS[:4])
    assert score(folder)["num_examples"] == 28
    (entry,) = make_plan([f"{folder}:dev"], folder).run(encode)["tasks"].values()
    assert entry["num_examples"] == 2 and "qrels/dev.tsv" in entry["protocol"]
    with pytest.raises(InputError, match="no qrels of the split 'train'; choose one of mine:dev mine:test"):
        resolve([f"{folder}:train"], {})
    with pytest.raises(InputError, match="another task is called 'mine' too"):
        resolve([f"{folder}:dev", str(folder)], {})
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "train.tsv")
    with pytest.raises(InputError, match="no qrels of the split 'test'; choose one of mine:dev mine:train"):
        resolve([str(folder)], {})


def append(path, line):
    with path.open("a", encoding="utf-8") as file:
        file.write(line)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("qrels/test.tsv", "q1\tgone\t1\n", r"test.tsv, line 58: document 'gone' is not in corpus.jsonl"),
        ("qrels/test.tsv", "gone\td1\t1\n", r"test.tsv, line 58: query 'gone' is not in queries.jsonl"),
        ("qrels/test.tsv", "q1\td5\thigh\n", "line 58: score of query 'q1' and document 'd5' is 'high', not a number"),
        ("qrels/test.tsv", "q1\td5\tnan\n", "line 58: .* is 'nan', not a number"),
        ("qrels/test.tsv", "q0\td0\t1\n", "line 58: query 'q0' and document 'd0' have two scores"),
        (
            "corpus.jsonl",
            '{"_id": "d3", "text": "x"}\n',
            "corpus.jsonl, line 121: the id 'd3' is that of an earlier row too",
        ),
        ("corpus.jsonl", '{"_id": "", "text": "x"}\n', "corpus.jsonl, line 121: the document has no id"),
        (
            "queries.jsonl",
            '{"_id": "q3", "text": "x"}\n',
            "queries.jsonl, line 31: the id 'q3' is that of an earlier row too",
        ),
        ("queries.jsonl", '{"_id": "qx", "text": " "}\n', "queries.jsonl, line 31: query 'qx' has no text"),
    ],
)
def test_a_wrong_row_is_one_line_before_anything_is_encoded(folder, file, line, message):
    append(folder / file, line)
    with pytest.raises(InputError, match=message):
        make_plan([str(folder)], folder)


def test_missing_files_and_columns(folder):
    write_qrels(folder / "qrels" / "test.tsv", [(query, document, 0) for query, document, _ in QRELS])
    with pytest.raises(InputError, match="no query has a document with a score above 0"):
        make_plan([str(folder)], folder)
    write_rows(folder / "corpus.jsonl", [{"_id": "1", "body": "x"}])
    with pytest.raises(InputError, match="corpus.jsonl has no column 'text'; it has _id, body"):
        make_plan([str(folder)], folder)
    write_rows(folder / "corpus.csv", CORPUS)
    with pytest.raises(InputError, match="mine has corpus.csv and corpus.jsonl; keep one of them"):
        resolve([str(folder)], {})
    (folder / "corpus.csv").unlink(), (folder / "corpus.jsonl").unlink()
    with pytest.raises(InputError, match="mine: no corpus file; it needs corpus.jsonl"):
        resolve([str(folder)], {})
    (folder / "qrels" / "test.tsv").unlink()
    write_rows(folder / "corpus.jsonl", CORPUS)
    with pytest.raises(InputError, match="mine: no qrels; it needs qrels/test.tsv"):
        resolve([str(folder)], {})


def test_what_is_unusual_but_not_wrong_is_counted_and_said(folder, caplog):
    caplog.set_level(logging.INFO)
    append(folder / "corpus.jsonl", '{"_id": "e1", "title": "", "text": ""}\n{"_id": "e2", "title": "", "text": ""}\n')
    append(folder / "qrels" / "test.tsv", "q29\td1\t0\n")
    assert score(folder)["queries_without_qrels"] == 1
    assert "line 121: document 'e1' has no text; 2 in all have none and are kept" in caplog.text
    assert "1 of 30 queries have no qrels in test.tsv and are left out" in caplog.text
    assert "1 queries have no document with a score above 0 and count as 0, first 'q29'" in caplog.text


def test_names_that_clash(folder, tmp_path):
    tasks = all_tasks(tmp_path)
    for name in ("sts", "stsb"):
        folder = folder.rename(tmp_path / name)
        with pytest.raises(InputError, match=f"'{name}' is the name of a built-in task or group; rename the file"):
            resolve([str(folder)], tasks)


def test_queries_and_documents_get_their_prompts(folder):
    seen = {"query": [], "document": []}
    by_role = {role: (lambda texts, role=role: seen[role].append(len(texts)) or encode(texts)) for role in seen}
    score(folder, EncodeByRole(plain=None, **by_role))
    assert seen == {"query": [28], "document": [120]}


def test_a_corpus_in_blocks_is_searched_as_a_whole(monkeypatch):
    rng = np.random.default_rng(0)
    names = [f"{n} {n % 5}" for n in range(300)]
    vectors = dict(zip(names, rng.integers(-2, 3, (300, 3)).astype(np.float32), strict=True))  # many ties

    def encode(texts):
        return np.stack([vectors[text] for text in texts])

    whole = benchmark_formats.search(encode, names[:20], names, depth=50)
    monkeypatch.setattr(benchmark_formats, "BLOCK", 64)
    blocks = benchmark_formats.search(encode, names[:20], names, depth=50)
    assert np.array_equal(whole[1], blocks[1]) and np.array_equal(whole[0], blocks[0])


def test_a_replaced_file_is_read_anew(folder):
    first = score(folder)
    write_qrels(folder / "qrels" / "test.tsv", QRELS[:10])
    second = score(folder)
    assert (first["num_examples"], second["num_examples"]) == (28, 5)
    assert first["data_sha256"] != second["data_sha256"]


def test_a_corpus_that_is_encoded_for_hours_goes_on_after_a_kill(folder, tmp_path, monkeypatch):
    """The vectors of finished shards are on disk. The next run encodes the rest and gives the same numbers."""
    monkeypatch.setattr(benchmark_formats, "BLOCK", 40)
    calls = []

    def killed(texts):
        calls.append(list(texts))
        if len(calls) == 8:
            raise KeyboardInterrupt
        return encode(texts)

    with pytest.raises(KeyboardInterrupt):
        score(folder, EmbeddingCache(tmp_path / "cache", killed, shard_texts=10))
    done = {text for texts in calls[:-1] for text in texts}
    entry = score(folder, EmbeddingCache(tmp_path / "cache", killed, shard_texts=10))
    assert len(calls) > 9 and not done.intersection(text for texts in calls[8:] for text in texts)
    assert entry["main_score"] == score(folder)["main_score"]


def test_run_eval_shows_bm25_and_the_fusion_beside_the_encoder(folder, bert_folder, tmp_path, monkeypatch, capsys):
    flags = f"--model_name_or_path {bert_folder} --pooling mean --tasks {folder} --output_dir {tmp_path}/out"
    monkeypatch.setattr(sys, "argv", ["run_eval.py", *flags.split()])
    run_eval.main()
    record = json.loads((tmp_path / "out" / "results.json").read_text())["tasks"]["mine"]
    lines = (line.strip().rpartition("  ") for line in capsys.readouterr().out.splitlines()[1:])
    table = {label.strip(): score for label, _, score in lines}
    scores = (record["main_score"], record["fusion"]["ndcg@10"], record["bm25"]["ndcg@10"])
    assert list(table.values()) == [f"{each:.4f}" for each in scores]
    assert list(table)[1].endswith(" with BM25") and list(table)[2] == "BM25"
    assert "| mine | ndcg@10 | 28 |" in (tmp_path / "out" / "results.md").read_text()
