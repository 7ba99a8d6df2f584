"""mirror-search --index: the same matches as the exact search, from a table on disk that survives a kill."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.common.vectors import top_k, unit_length
from mirror.tools import index, search
from mirror.tools.index import TextIndex, build_index, is_index
from tests.tools.test_search import folder  # noqa: F401 (a fixture)


ROWS, WIDTH = 600, 16


@pytest.fixture(scope="module")
def vectors() -> dict[str, np.ndarray]:
    made = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(np.float32)
    return {f"text {number}": vector for number, vector in enumerate(made)}


@pytest.fixture
def rows(vectors):
    from datasets import Dataset

    return Dataset.from_dict({"text": [*vectors], "id": [f"p-{number}" for number in range(ROWS)]})


def test_matches_are_those_of_the_exact_search(folder, tmp_path, monkeypatch, capsys):  # noqa: F811
    products = tmp_path / "products.csv"
    lines = [f'{number:03},"{text}",{number % 7}' for number, text in enumerate((folder / "texts.txt").open())]
    products.write_text(
        "\n".join(["sku,title,price", *(line.replace("\n", "") for line in lines if '""' not in line)])
    )
    columns = ["--text_column", "title", "--id_column", "sku", "--show_columns", "price"]
    where = str(tmp_path / "index")
    printed = []
    for texts, flags in ((products, columns), (products, [*columns, "--index", where]), (where, [])):
        argv = [str(folder / "out"), str(texts), "a red bird", "--top_k", "5", "--json", *flags]
        monkeypatch.setattr(sys, "argv", ["mirror.tools.search", *argv])
        search.main()
        printed.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    scores = [[match.pop("score") for match in matches] for matches in printed]
    assert printed[0] == printed[1] == printed[2] and len(printed[0]) == 5
    assert printed[0][0].keys() == {"query", "rank", "text", "id", "columns"}
    np.testing.assert_allclose(scores[1:], [scores[0]] * 2, atol=2e-6)
    monkeypatch.setattr(sys, "argv", [*sys.argv[:2], where, "a red bird", "--index", str(tmp_path / "other")])
    with pytest.raises(InputError, match="index is an index already; leave out --index"):
        search.main()


def test_a_folder_of_documents_with_a_file_of_that_name_is_no_index(tmp_path):
    (tmp_path / "index.json").write_text('{"pages": []}')  # as site generators write
    assert not is_index(str(tmp_path))


def test_a_build_that_was_killed_goes_on_where_it_stopped(rows, vectors, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "BLOCK", 100)
    encoded: list[str] = []

    def encode(texts):
        if len(encoded) == 300:
            encoded.append("")
            raise KeyboardInterrupt
        encoded.extend(texts)
        return np.stack([vectors[text] for text in texts])

    with pytest.raises(KeyboardInterrupt):
        build_index(tmp_path, rows, encode, "an encoder")
    with pytest.raises(InputError, match="is no complete index; build it again"):
        TextIndex(tmp_path, "an encoder")
    build_index(tmp_path, rows, encode, "an encoder")
    build_index(tmp_path, rows, encode, "an encoder")  # complete: nothing is encoded
    assert [text for text in encoded if text] == [*vectors]
    asked, entries = np.stack([vectors["text 7"]]), np.stack([*vectors.values()])
    (found,) = TextIndex(tmp_path, "an encoder").search(asked, 10)
    scores, places = top_k(unit_length(asked), unit_length(entries), 10)
    assert [row for _, row in found] == [{"text": f"text {n}", "id": f"p-{n}"} for n in places[0]]
    np.testing.assert_allclose([score for score, _ in found], scores[0], atol=1e-6)


@pytest.mark.parametrize("many", [ROWS, ROWS + 1])  # the parts are learned from a smaller sample, and from all
def test_a_large_index_reads_a_part_and_says_what_it_misses(rows, vectors, tmp_path, monkeypatch, caplog, many):
    monkeypatch.setattr(index, "INDEXED_ROWS", ROWS)
    monkeypatch.setattr(index, "MANY_ROWS", many)
    build_index(tmp_path, rows, lambda texts: np.stack([vectors[text] for text in texts]), "an encoder")
    stored = json.loads((tmp_path / "index.json").read_text())
    made = TextIndex(tmp_path, "an encoder")
    assert made.table.list_indices() and 0.5 < stored["recall@10"] <= 1
    # The same by a plain double loop, without each text itself.
    asked = [f"text {place}" for place in np.linspace(0, ROWS - 1, 100).astype(int)]
    units = dict(zip(vectors, unit_length(np.stack([*vectors.values()])), strict=True))
    shares = []
    for text, found in zip(asked, made.search(np.stack([vectors[text] for text in asked]), 11), strict=True):
        nearest = sorted(units, key=lambda other: -units[text] @ units[other])[1:11]
        shares.append(len({row["text"] for _, row in found} & set(nearest)) / 10)
    assert stored["recall@10"] == pytest.approx(np.mean(shares))
    assert f"600 texts, recall@10 {stored['recall@10']:.3f}" in caplog.text
    (found,) = made.search(np.stack([vectors["text 7"]]), 1)
    assert found[0][1]["text"] == "text 7" and found[0][0] == pytest.approx(1, abs=1e-5)


def test_what_does_not_belong_together_is_refused(rows, vectors, tmp_path):
    def encode(texts):
        return np.stack([vectors[text] for text in texts])

    build_index(tmp_path / "one", rows, encode, "an encoder")
    with pytest.raises(InputError, match="built with another encoder; search with that one"):
        TextIndex(tmp_path / "one", "another")
    for others, name, differs in ((rows, "another", "encoder"), (rows.select([3, 2]), "an encoder", "texts")):
        with pytest.raises(
            InputError, match=rf"--index .*one was built of other inputs \({differs}\); choose another"
        ):
            build_index(tmp_path / "one", others, encode, name)
    with pytest.raises(InputError, match="--index: the column a.b has a dot in its name; rename it"):
        build_index(tmp_path / "three", rows.add_column("shown a.b", ["x"] * len(rows)), encode, "an encoder")
    assert not (tmp_path / "three").exists()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="two is not empty and holds no index"):
        build_index(tmp_path / "two", rows, encode, "an encoder")
