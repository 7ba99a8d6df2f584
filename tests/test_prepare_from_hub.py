"""Every Hub source of the evaluation data, read with the real client from datasets of the same shape on a loopback Hub."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from pathlib import Path

import datasets
import huggingface_hub
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from huggingface_hub import HfFileSystem, constants

from data_scripts import prepare_eval_data
from data_scripts.eval_data_hub import ARCHIVES, HUB, HubArchive, hub_source
from mirror.common.errors import InputError
from mirror.evaluation.geometry import LANGUAGES
from mirror.evaluation.run import make_plan
from tests.hub_server import HubServer


ENTAILMENT, DUPLICATE = ["entailment", "not_entailment"], ["not_duplicate", "duplicate"]


# ---- Shapes: names of files and columns are the sources' own, the texts are made up ----


def jsonl_gz(rows: list[dict]) -> bytes:
    return gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())


def parquet(rows: list[dict], label: list[str], number: str) -> bytes:
    """Rows as `datasets` uploads them: `number` is an int32, `label` a class label."""
    features = Features({name: Value("string") for name in rows[0]})
    features |= {"label": ClassLabel(names=label), number: Value("int32")}
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    table = Dataset.from_dict(columns, features=Features(features)).data.table
    pq.write_table(table, sink := pa.BufferOutputStream())
    return sink.getvalue().to_pybytes()


def card(configs: dict[str, dict[str, str]], lines: str = "") -> bytes:
    """A README.md that maps the splits of each configuration to files."""
    listed = [
        f"- config_name: {name}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {path}\n" for split, path in files.items())
        for name, files in configs.items()
    ]
    return f"---\nconfigs:\n{''.join(listed)}{lines}---\n# A card\n".encode()


def graded(count: int, low: float = 0.0, **others) -> list[dict]:
    scores = [low + (5 - low) * n / count for n in range(count)]
    return [others | {"sentence1": f"a {n}", "sentence2": f"a red {n}", "score": s} for n, s in enumerate(scores)]


def yearly(count: int, low: float = 0.0) -> dict[str, bytes]:
    """mteb/sts12-sts and its like: no card, one file for each split."""
    files = {"test.jsonl.gz": jsonl_gz(graded(count, low)), "train.jsonl.gz": jsonl_gz(graded(2))}
    return {".gitattributes": b"", **files}


def benchmark() -> dict[str, bytes]:
    """mteb/stsbenchmark-sts."""
    about = {"split": "dev", "genre": "main-news", "dataset": "headlines", "year": "2015", "sid": "0001"}
    sizes = {"test": 1379, "train": 3, "validation": 1500}
    return {f"{split}.jsonl.gz": jsonl_gz(graded(size, **about)) for split, size in sizes.items()}


def by_language(rows_of: dict[str, list[dict]]) -> dict[str, bytes]:
    """mteb/sts17-crosslingual-sts and mteb/tatoeba-bitext-mining: a file and a configuration for each pair."""
    configs = {"default": {"test": "test/*.jsonl.gz"}} | {name: {"test": f"test/{name}.jsonl.gz"} for name in rows_of}
    by_pair = {name: jsonl_gz([row | {"lang": name} for row in rows]) for name, rows in rows_of.items()}
    return {"README.md": card(configs), **{f"test/{name}.jsonl.gz": data for name, data in by_pair.items()}}


def russian() -> dict[str, bytes]:
    """ai-forever/ru-stsbenchmark-sts: one configuration, which is not called default."""
    splits = {"train": "train", "validation": "dev", "test": "test"}
    paths = {split: f"data/sts_rumteb_{name}.json" for split, name in splits.items()}
    lines = "".join(json.dumps(row) + "\n" for row in graded(12)).encode()
    return {"README.md": card({"sts": paths}), **dict.fromkeys(paths.values(), lines)}


def glue() -> dict[str, bytes]:
    """nyu-mll/glue, with the class labels declared in the card as well."""
    qnli = [{"question": f"who {n}?", "sentence": f"she {n}", "label": n % 2, "idx": n} for n in range(5463)]
    qqp = [{"question1": f"why {n}?", "question2": f"how {n}?", "label": n % 2, "idx": n} for n in range(40)]
    files = {"qnli/validation-00000-of-00001.parquet": parquet(qnli, ENTAILMENT, "idx")}
    files["qqp/validation-00000-of-00001.parquet"] = parquet(qqp, DUPLICATE, "idx")
    return {"README.md": card({name: {"validation": f"{name}/validation-*"} for name in ("qnli", "qqp")}), **files}


def paws() -> dict[str, bytes]:
    """google-research-datasets/paws-x."""
    rows = [{"id": n, "sentence1": f"ein {n}", "sentence2": f"das {n}", "label": n % 2} for n in range(2000)]
    data = parquet(rows, ["0", "1"], "id")
    configs = {name: {"test": f"{name}/test-*", "validation": f"{name}/validation-*"} for name in LANGUAGES}
    files = {f"{name}/{split}-00000-of-00001.parquet": data for name in LANGUAGES for split in configs[name]}
    return {"README.md": card(configs), **files}


def senteval() -> dict[str, bytes]:
    """princeton-nlp/datasets-for-simcse: a tar file of SentEval's folder, among other data."""
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    parts = {"SICK_train": 4500, "SICK_trial": 500, "SICK_test_annotated": 4927}
    texts = {f"SICK/{name}.txt": header + "1\tA man .\tA cat .\t3.3\tNEUTRAL\n" * rows for name, rows in parts.items()}
    texts |= {"CR/custrev.neg": "dull\n" * 1367, "CR/custrev.pos": "great\n" * 2404}
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return {"senteval.tar": packed.getvalue(), "wiki1m_for_simcse.txt": b"A sentence .\n"}


@pytest.fixture(scope="module")
def shapes() -> dict[tuple[str, str], dict[str, bytes]]:
    translations = [{"sentence1": f"jawa {n}", "sentence2": f"java {n}"} for n in range(205)]
    files = {
        **{f"mteb/{name}-sts": yearly(rows) for name, rows in
           {"sts12": 3108, "sts13": 1500, "sts14": 3750, "sts15": 3000, "sts16": 1186}.items()},
        "mteb/stsbenchmark-sts": benchmark(),
        "mteb/sickr-sts": yearly(9927, low=1.0),
        "mteb/sts17-crosslingual-sts": by_language({name: graded(250) for name in ("ar-ar", "es-es")}),
        "mteb/tatoeba-bitext-mining": by_language({"jav-eng": translations}),
        "ai-forever/ru-stsbenchmark-sts": russian(),
        "nyu-mll/glue": glue(),
        "google-research-datasets/paws-x": paws(),
        "princeton-nlp/datasets-for-simcse": senteval(),
    }  # fmt: skip
    named = ("tatoeba/jav-eng.tsv", "pawsx/test_de.tsv")
    pinned = [*HUB.values(), *ARCHIVES.values(), *(hub_source(path) for path in named)]
    return {(f"datasets/{source.dataset}", source.revision): files[source.dataset] for source in pinned}


@pytest.fixture
def hub(shapes, monkeypatch, tmp_path):
    """The Hub of this process, with empty caches."""
    with HubServer(shapes) as running:
        for module, name in ((constants, "ENDPOINT"), (datasets.config, "HF_ENDPOINT")):
            monkeypatch.setattr(module, name, running.url)
        template = running.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(datasets.config, "HF_UPDATE_DOWNLOAD_COUNTS", False)
        for module in (constants, datasets.config):
            monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
        HfFileSystem.clear_instance_cache()  # they keep the address of the Hub
        yield running
        HfFileSystem.clear_instance_cache()
        huggingface_hub.close_session()


def prepare(monkeypatch, folder: Path, *tasks: str) -> None:
    monkeypatch.setattr(sys, "argv", ["prepare_eval_data.py", "--tasks", *tasks, "--output_dir", str(folder)])
    prepare_eval_data.main()


def encode(texts):
    """Vectors that depend on the text only."""
    return np.array([[1.0, len(text), sum(map(ord, text)) % 97] for text in texts], dtype=np.float32)


def test_the_group_sts_needs_nothing_but_the_hub(hub, monkeypatch, tmp_path):
    prepare(monkeypatch, tmp_path / "data", "sts")
    result = make_plan(["sts"], tmp_path / "data").run(encode)
    assert set(result["tasks"]) == {"sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"}
    assert set(result["groups"]) == {"sts"} and result["tasks"]["sickr"]["num_examples"] == 4927
    manifest = (tmp_path / "data/MANIFEST.tsv").read_text()
    assert "princeton-nlp/datasets-for-simcse@e145e8bb" in manifest and manifest.count("@") == 7


@pytest.mark.slow
def test_every_other_set_of_the_hub_can_be_scored(hub, monkeypatch, tmp_path):
    names = ["stsb_dev", "sickr_full", "multilingual_sts", "qnli", "qqp_cosine", "tatoeba_jav", "language_bias"]
    prepare(monkeypatch, tmp_path / "data", *names, "transfer_cr", "transfer_sicke")
    result = make_plan(names, tmp_path / "data").run(encode)
    assert result["missing"] == [] and len(result["tasks"]) == 9
    make_plan(["transfer_cr", "transfer_sicke"], tmp_path / "data")  # reads the files
    asked = {tuple(path.split("/")[2:4]) for path in hub.not_found}
    assert ("nyu-mll", "glue") in asked  # the loading script that datasets looks for: none is served


@pytest.mark.parametrize("damaged", [False, True])
def test_what_the_hub_refuses_and_a_damaged_answer_are_one_line(hub, monkeypatch, tmp_path, damaged):
    hub.files = {key: dict.fromkeys(files, b"{") for key, files in hub.files.items()} if damaged else {}
    with pytest.raises(InputError, match="cannot load mteb/sts16-sts" + " .*doesn't exist on the Hub" * (not damaged)):
        prepare(monkeypatch, tmp_path / "data", "sts16")
    with pytest.raises(InputError, match="cannot load senteval.tar of princeton-nlp/datasets-for-simcse"):
        prepare(monkeypatch, tmp_path / "data", "sickr")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("link", ["", "/etc"], ids=["file", "link"])
def test_an_archive_puts_nothing_beyond_its_folder(tmp_path, link):
    (tmp_path / "set").mkdir()
    with tarfile.open(tmp_path / "set/a.tar", "w") as archive:
        member = tarfile.TarInfo("inside" if link else "../outside")
        member.type, member.linkname = (tarfile.SYMTYPE if link else tarfile.REGTYPE), link
        archive.addfile(member)
    with pytest.raises(InputError, match="cannot load a.tar of set .*outside|absolute path"):
        HubArchive("set", "main", "a.tar", "SICK").unpacked(tmp_path).__enter__()
