"""mirror.tools.search: matches by cosine, on a terminal and in a pipe."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation.run import make_plan
from mirror.modeling.backbone import load_backbone
from mirror.modeling.encoder import Encoder
from mirror.modeling.save_checkpoint import save_encoder
from mirror.tools import search
from tests.documents import ROOT


@pytest.fixture(scope="module")
def folder(bert_folder, sentences, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    model, tokenizer = load_backbone(bert_folder, "mean")
    save_encoder(folder / "out", model, tokenizer, "mean", max_seq_length=24)
    (folder / "texts.txt").write_text("\n".join([*sentences[:50], "", sentences[3]]) + "\n")
    return folder


def run(monkeypatch, folder: Path, *argv: str, stdin: str = "") -> None:
    arguments = [str(folder / "out"), str(folder / "texts.txt"), *argv]
    monkeypatch.setattr(sys, "argv", ["mirror.tools.search", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
    search.main()


def test_matches_are_the_nearest_by_cosine(folder, sentences, monkeypatch, capsys):
    query = "the cat sees a red bird"
    run(monkeypatch, folder, query, "--top_k", "4")
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    encoder = Encoder.from_pretrained(str(folder / "out"))
    vectors, asked = encoder.encode(sentences[:50]), encoder.encode([query])[0]
    cosines = vectors @ asked / np.linalg.norm(vectors, axis=1) / np.linalg.norm(asked)
    best = np.argsort(-cosines)[:4]
    assert [row[3] for row in rows] == [sentences[index] for index in best]
    assert [row[:3] for row in rows] == [[str(n + 1), f"{cosines[i]:.4f}", query] for n, i in enumerate(best)]


def test_queries_come_from_a_pipe(folder, sentences, monkeypatch, capsys):
    run(monkeypatch, folder, "--top_k", "1", stdin=f"{sentences[7]}\n\n{sentences[3]}\n")
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [(row[2], row[3]) for row in rows] == [(sentences[7], sentences[7]), (sentences[3], sentences[3])]
    assert all(float(row[1]) == pytest.approx(1, abs=1e-3) for row in rows)


def test_embeddings_are_cached(folder, monkeypatch, capsys, tmp_path):
    flags = ["the cat", "--cache_dir", str(tmp_path)]
    run(monkeypatch, folder, *flags)
    first = capsys.readouterr().out
    seen = []
    encode = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", lambda self, texts, **kw: seen.extend(texts) or encode(self, texts, **kw))
    run(monkeypatch, folder, *flags)
    assert capsys.readouterr().out == first
    assert seen == ["the cat"]


def test_a_text_cannot_break_the_columns_or_the_terminal(capsys, monkeypatch):
    search.print_matches("a\tb", [(0.5, {"text": "x\x1b[2Jy\tz\u009b"})])
    assert capsys.readouterr().out == "1\t0.5000\ta b\tx [2Jy z \n"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    search.print_matches("q", [(0.5, {"text": "\x1b[31m" + "word " * 200})])
    out = capsys.readouterr().out
    assert "\x1b" not in out and "…" in out and max(map(len, out.splitlines())) <= 100


def test_queries_are_asked_for_until_an_empty_line(monkeypatch, capsys):
    terminal = io.StringIO("a cat\n\na dog\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stdin", terminal)
    assert list(search.ask(50)) == ["a cat"]
    assert capsys.readouterr().err == "50 texts; an empty line ends the search\nquery> query> \n"


@pytest.mark.slow
def test_interactive_queries_on_a_terminal(folder, sentences):
    leader, follower = pty.openpty()
    argv = [str(folder / "out"), str(folder / "texts.txt"), "--top_k", "2"]
    command = [sys.executable, "-m", "mirror.tools.search", *argv]
    process = subprocess.Popen(command, cwd=ROOT, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    os.write(leader, f"{sentences[7]}\n\n".encode())
    seen = b""
    while True:
        try:
            seen += os.read(leader, 4096)
        except OSError:  # the follower is closed
            break
    os.close(leader)
    assert process.wait(timeout=60) == 0
    text = seen.decode()
    assert "50 texts; an empty line ends the search" in text and "query> " in text
    assert f" 1.000  {sentences[7]}" in text and "\t" not in text


def test_what_is_wrong_is_one_line(folder, bert_folder, monkeypatch):
    out, texts = str(folder / "out"), str(folder / "texts.txt")
    (folder / "queries.txt").write_text("a query\n")
    for argv, message in (
        ([out, str(folder / "absent.txt"), "q"], r"absent.txt: no such file"),
        ([texts, texts, "q"], "cannot load model '.*texts.txt': it is a file; give a model folder"),
        ([bert_folder, texts, "q"], "plain masked LM .* pass --pooling"),
        ([out, "x", "q", "--top_k", "0"], "'0' is not a positive number"),
        ([out, texts, "caf\udce9"], "argument QUERY: not UTF-8"),
        ([out, texts, "--queries", str(folder / "*.txt")], r"--queries .*\*.txt is 2 files; name one"),
    ):
        monkeypatch.setattr(sys, "argv", ["mirror.tools.search", *argv])
        with pytest.raises(InputError, match=message):
            search.main()
    latin = io.TextIOWrapper(io.BytesIO("a café\n".encode("latin-1")), encoding="latin-1")
    monkeypatch.setattr(sys, "argv", ["mirror.tools.search", out, texts])
    monkeypatch.setattr(sys, "stdin", latin)
    with pytest.raises(InputError, match=r"stdin: not UTF-8 \(.*\); convert it"):
        search.main()


@pytest.fixture
def products(tmp_path) -> Path:
    rows = ["sku,title,text,price", '007,"a red, fast car",runs on the road,1e5', "8,a cat,,", "9,a cat,,3"]
    (tmp_path / "products.csv").write_text("\n".join(rows) + "\n")
    return tmp_path / "products.csv"


def search_products(monkeypatch, capsys, folder: Path, products: Path, *argv: str) -> str:
    monkeypatch.setattr(sys, "argv", ["mirror.tools.search", str(folder / "out"), str(products), *argv])
    search.main()
    return capsys.readouterr().out


def test_ids_and_other_columns_are_printed_as_they_are_spelled(folder, products, monkeypatch, capsys):
    flags = ["--text_column", "title", "text", "--text_separator", " - ", "--show_columns", "price", "title"]
    out = search_products(monkeypatch, capsys, folder, products, "a red, fast car - runs on the road", *flags)
    rows = [line.split("\t") for line in out.splitlines()]
    assert rows[0][3:] == ["a red, fast car - runs on the road", "1e5", "a red, fast car"]
    assert [row[3:] for row in rows[1:]] == [["a cat", "", "a cat"]]  # a repeated text is printed once
    out = search_products(monkeypatch, capsys, folder, products, "a cat", *flags, "--id_column", "sku", "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert [row["rank"] for row in found] == [1, 2, 3] and [row["id"] for row in found] == ["8", "9", "007"]
    assert found[1] == {
        "query": "a cat", "rank": 2, "score": 1.0, "text": "a cat", "id": "9", "columns": {"price": "3", "title": "a cat"},
    }  # fmt: skip


@pytest.mark.parametrize(("name", "column"), [("q.csv", "query"), ("q.jsonl", "wanted"), ("q.txt", "text")])
def test_queries_come_from_a_file(folder, products, name, column, monkeypatch, capsys, tmp_path):
    texts = ['a "red, fast" car', "a cat"]
    if name == "q.jsonl":
        lines = [json.dumps({"_id": f"q{number}", column: text, "n": 1}) for number, text in enumerate(texts)]
    else:
        lines = [column, *(f'"{text.replace(chr(34), chr(34) * 2)}"' for text in texts)] if name == "q.csv" else texts
    (tmp_path / name).write_text("\n".join(lines) + "\n")
    flags = ["--queries", str(tmp_path / name), "--text_column", "title", "--top_k", "1", "--json"]
    flags += ["--query_column", column] if name == "q.jsonl" else []
    found = [json.loads(line) for line in search_products(monkeypatch, capsys, folder, products, *flags).splitlines()]
    assert [row["query"] for row in found] == texts and found[1]["text"] == "a cat"
    assert [row["query_id"] for row in found] == (["q0", "q1"] if name == "q.jsonl" else ["1", "2"])


def test_the_quality_of_a_search_is_that_of_run_eval(folder, sentences, monkeypatch, capsys, tmp_path):
    beir = tmp_path / "beir"
    (beir / "qrels").mkdir(parents=True)
    texts = [*sentences[:40], *sentences[:5]]  # equal texts have equal scores
    documents = [{"_id": str(number), "text": text} for number, text in enumerate(texts)]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    asked = [{"_id": f"q{number}", "text": sentences[100 + number]} for number in range(8)]
    (beir / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    qrels = [
        f"q{number}\t{document}\t{1 + document % 2}\n" for number in range(7) for document in (number, number + 20, 41)
    ]
    (beir / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(qrels))
    flags = ["--queries", str(beir / "queries.jsonl"), "--qrels", str(beir / "qrels/test.tsv")]
    out = search_products(monkeypatch, capsys, folder, beir / "corpus.jsonl", *flags, "--json")
    encoder = Encoder.from_pretrained(str(folder / "out"))
    expected = make_plan([str(beir)]).tasks[0].score(encoder.encode)
    found = json.loads(out)
    assert {name: expected[name] for name in found} == found and found["ndcg@10"] == expected["main_score"]
    lines = search_products(monkeypatch, capsys, folder, beir / "corpus.jsonl", *flags).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["ndcg@10", "mrr@10", "recall@10", "recall@100", "accuracy@1"]
    assert lines[0].split("\t")[1] == f"{found['ndcg@10']:.4f}"


def test_queries_and_documents_get_their_prompts(bert_folder, folder, products, monkeypatch, capsys, tmp_path):
    shutil.copytree(folder / "out", tmp_path / "out")
    for name in ("mirror_config.json", "config_sentence_transformers.json"):
        settings = json.loads((tmp_path / "out" / name).read_text())
        settings["prompts"] = {"query": "find: ", "document": "text: "}
        (tmp_path / "out" / name).write_text(json.dumps(settings))
    seen = []
    tokenize = Encoder.tokenize
    monkeypatch.setattr(
        Encoder,
        "tokenize",
        lambda self, texts: seen.extend(self.prompt + text for text in texts) or tokenize(self, texts),
    )
    search_products(monkeypatch, capsys, tmp_path, products, "cat", "--text_column", "title", "--top_k", "1")
    assert {"find: cat", "text: a cat"} <= set(seen) and not {"cat", "a cat", "text: cat", "find: a cat"} & set(seen)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["q", "--queries", "q.txt"], "give either QUERY or --queries"),
        (["--qrels", "q.tsv"], "--qrels needs --queries"),
        (
            ["q", "--text_column", "titel"],
            "has no column 'titel'; it has sku, title, text, price; choose with --text_column",
        ),
        (["q", "--id_column", "id"], "has no column 'id'; .* choose with --id_column"),
        (["q", "--show_columns", "prize"], "has no column 'prize'; .* choose with --show_columns"),
        (["--queries", "{products}"], "has no column 'query'; .* choose with --query_column|query '.*' has no text"),
        (["--queries", "absent.csv"], "absent.csv: no such file"),
        (["--queries", "{products}", "--qrels", "{products}"], "has no column '_id'; .* choose with --id_column"),
    ],
)
def test_wrong_columns_are_one_line(folder, products, argv, message, monkeypatch, capsys):
    with pytest.raises(InputError, match=message) as refused:
        search_products(monkeypatch, capsys, folder, products, *(word.format(products=products) for word in argv))
    assert "\n" not in str(refused.value)


def test_a_passage_is_found_with_its_file_offset_and_section(bert_folder, tmp_path, monkeypatch, capsys):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "guide.md").write_text("# Guide\n\nThe cat runs.\n\n## Install\n\n```\nread file\n```\n")
    argv = ["mirror-search", bert_folder, str(docs), "the cat", "--pooling", "mean"]
    monkeypatch.setattr(sys, "argv", argv)
    search.main()
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert sorted(row[3:] for row in rows) == [
        ["The cat runs.", f"{docs}/guide.md", "9", "Guide"],
        ["read file", f"{docs}/guide.md", "40", "Guide > Install"],
    ]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    search.print_matches("q", [(0.5, {"text": "The cat runs.", "shown file": "guide.md", "shown offset": "9"})])
    assert capsys.readouterr().out.startswith(" 0.500  The cat runs.\n        guide.md  9\n")
    monkeypatch.setattr(sys, "argv", [*argv, "--id_column", "id"])
    with pytest.raises(InputError, match="documents have no columns"):
        search.main()
