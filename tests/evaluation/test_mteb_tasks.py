"""`mteb:NAME` gives mteb's own score. The data sets are made here, because mteb's are on the Hub."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from datasets import Dataset, DatasetDict

from mirror.common.errors import InputError
from mirror.evaluation.run import make_plan, resolve
from mirror.modeling.encoder import Encoder
from tests.conftest import make_sentences
from tests.evaluation.test_benchmark_formats import CORPUS, QRELS, QUERIES


needs_mteb = pytest.mark.skipif(importlib.util.find_spec("mteb") is None, reason="needs the extra mteb")
TEXTS = make_sentences()


def described(name: str, kind: str, main_score: str):
    from mteb.abstasks.task_metadata import TaskMetadata

    fields = {"dataset": {"path": "made/here", "revision": "1"}, "name": name, "type": kind, "main_score": main_score}
    fields |= {
        "description": "",
        "category": "t2t",
        "reference": None,
        "eval_splits": ["test"],
        "eval_langs": ["eng-Latn"],
    }
    unknown = "date domains task_subtypes license annotations_creators dialect sample_creation bibtex_citation".split()
    return TaskMetadata(**fields, **dict.fromkeys(unknown))


def similarity_task():
    from mteb.abstasks.sts import AbsTaskSTS

    class Similarity(AbsTaskSTS):
        metadata = described("MadeSTS", "STS", "cosine_spearman")
        min_score, max_score = 0, 5

        def load_data(self, **_):
            rows = {"sentence1": TEXTS[:80], "sentence2": TEXTS[80:160], "score": [n % 11 / 2 for n in range(80)]}
            self.dataset, self.data_loaded = DatasetDict(test=Dataset.from_dict(rows)), True

    return Similarity()


def search_task():
    from mteb.abstasks.retrieval import AbsTaskRetrieval

    class Search(AbsTaskRetrieval):
        metadata = described("MadeSearch", "Retrieval", "ndcg_at_10")

        def load_data(self, **_):
            qrels = {}
            for query, document, grade in QRELS:
                qrels.setdefault(query, {})[document] = grade
            rename = lambda rows: Dataset.from_list([{"id": row["_id"], **row} for row in rows]).remove_columns("_id")  # noqa: E731
            queries = rename([row for row in QUERIES if row["_id"] in qrels])
            part = {"corpus": rename(CORPUS), "queries": queries, "relevant_docs": qrels, "top_ranked": None}
            self.dataset, self.data_loaded = {"default": {"test": part}}, True

    return Search()


def classes_task():
    from mteb.abstasks import AbsTaskClassification

    class Classes(AbsTaskClassification):
        metadata = described("MadeClasses", "Classification", "accuracy")

        def load_data(self, **_):
            # Far from the boundary, and some labels wrong: no rounding of a vector changes a prediction.
            kinds = [n % 2 for n in range(len(TEXTS))]
            texts = [
                " ".join([("cat", "snow")[kind]] * 12) + f" {text}" for kind, text in zip(kinds, TEXTS, strict=True)
            ]
            rows = [
                {"text": text, "label": kind ^ (n % 11 == 3)}
                for n, (kind, text) in enumerate(zip(kinds, texts, strict=True))
            ]
            parts = {"train": Dataset.from_list(rows[:160]), "test": Dataset.from_list(rows[160:])}
            self.dataset, self.data_loaded = DatasetDict(parts), True

    return Classes()


@needs_mteb
@pytest.mark.parametrize("make", [similarity_task, search_task, classes_task])
def test_the_score_is_that_of_mteb_with_sentence_transformers(bert_folder, tmp_path, monkeypatch, make):
    """The checkpoint has prompts for queries and documents, which change the score."""
    import mteb
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    transformer = Transformer(bert_folder)
    prompts = {"query": "find the ", "document": "a "}
    model = SentenceTransformer(modules=[transformer, Pooling(32, "mean")], prompts=prompts)
    model.save_pretrained(str(tmp_path / "st"))
    theirs = mteb.evaluate(model, make(), cache=None).task_results[0].get_score()

    monkeypatch.setattr(mteb, "get_task", lambda name: make())
    encoder = Encoder.from_pretrained(str(tmp_path / "st"))
    (name,) = names = ["mteb:Made"]
    entry = make_plan(names, tmp_path).run(by_role(encoder), encoder)["tasks"][name]
    assert entry["main_score"] == pytest.approx(theirs, abs=1e-6)
    assert entry["metric"] == make().metadata.main_score and f"mteb {mteb.__version__}" in entry["protocol"]


def by_role(encoder: Encoder):
    from mirror.evaluation.encoding import EncodeSettings, make_encode
    from mirror.modeling.encoder import EncodeByRole

    made = make_encode(encoder, EncodeSettings())
    return made if isinstance(made, EncodeByRole) else EncodeByRole.of(encoder)


@needs_mteb
def test_a_name_that_mteb_does_not_know_and_data_that_cannot_be_loaded(tmp_path):
    with pytest.raises(InputError, match="--tasks mteb:STS112: 'STS112' not found. Did you mean: 'STS1[0-9]'"):
        resolve(["mteb:STS112"], {})
    with pytest.raises(InputError, match="mteb:STS12: "):
        make_plan(["mteb:STS12"], tmp_path).run(lambda texts: None)


def test_without_mteb_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--tasks mteb:STS12 needs mteb: pip install 'mirror-encoders\[mteb\]'"):
        resolve(["mteb:STS12"], {})
