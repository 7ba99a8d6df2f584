"""mirror.tools.search: matches by cosine, on a terminal and in a pipe."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mirror.common.errors import InputError
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


def test_a_text_cannot_break_the_columns_or_the_terminal(capsys):
    search.print_matches("a\tb", [(0.5, "x\x1b[2Jy\tz\u009b")], None)
    assert capsys.readouterr().out == "1\t0.5000\ta b\tx [2Jy z \n"
    search.print_matches("q", [(0.5, "\x1b[31m" + "word " * 200)], 72)
    out = capsys.readouterr().out
    assert "\x1b" not in out and "…" in out and max(map(len, out.splitlines())) <= 100


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
    for argv, message in (
        ([out, str(folder / "absent.txt"), "q"], r"absent.txt: no such file"),
        ([bert_folder, texts, "q"], "plain masked LM .* pass --pooling"),
        ([out, "x", "q", "--top_k", "0"], "'0' is not a positive number"),
        ([out, texts, "caf\udce9"], "argument QUERY: not UTF-8"),
    ):
        monkeypatch.setattr(sys, "argv", ["mirror.tools.search", *argv])
        with pytest.raises(InputError, match=message):
            search.main()
    latin = io.TextIOWrapper(io.BytesIO("a café\n".encode("latin-1")), encoding="latin-1")
    monkeypatch.setattr(sys, "argv", ["mirror.tools.search", out, texts])
    monkeypatch.setattr(sys, "stdin", latin)
    with pytest.raises(InputError, match=r"stdin: not UTF-8 \(.*\); convert it"):
        search.main()
