from __future__ import annotations

import numpy as np
import pytest

from mirror.common.errors import InputError
from mirror.evaluation import linking
from mirror.evaluation.run import make_plan
from mirror.evaluation.task import Options
from tests.evaluation.folder import task_named, write_tsv


AXES = {"cold": 0, "flu": 1, "cancer": 2, "ulcer": 3, "coma": 4, "gout": 5, "rash": 6}


def encode(texts):
    """Encode each known word as an axis; "flu~cold" is flu plus a smaller weight of cold."""
    vectors = np.zeros((len(texts), len(AXES)), dtype=np.float32)
    for row, text in enumerate(texts):
        for weight, word in zip((1, 0.5, 0.25, 0.125, 0.06, 0.03), text.split("~"), strict=False):
            vectors[row, AXES[word]] = weight
    return vectors


DICTIONARY = [("cold", "C1"), ("flu", "C2|D2"), ("cancer", "C3"), ("ulcer", "C4"), ("coma", "C5"), ("gout", "C6")]


@pytest.mark.parametrize(
    ("mention", "gold", "rank"),
    [
        ("cold", "C1", 1),
        ("flu", "D2", 1),  # one of the ids of the dictionary row
        ("flu", "X9|C2", 1),  # one of the ids of the mention
        ("flu", "X9|X8", 6),  # no hit among the first five
        ("flu~cold", "C1", 2),
        ("flu~cold~cancer~ulcer~coma", "C5", 5),
        ("flu~cold~cancer~ulcer~coma~gout", "C6", 6),
        ("cold|flu", "C1|C2", 1),  # a composite mention: both parts are hits
        ("cold|flu~cancer", "C1|C3", 2),  # the rank of its worse part
        ("coma|gout", "C5", 6),  # the second part retrieves gout, then the first four rows at cosine 0
    ],
)
def test_rank_of_the_first_hit(mention, gold, rank):
    assert linking.link(encode, [(mention, gold)], DICTIONARY).tolist() == [rank]


def test_concepts_that_share_a_name_are_rows_in_the_dictionarys_order_and_encoded_once():
    calls = []

    def counting(texts):
        calls.append(list(texts))
        return encode(texts)

    shared = [("cold", "A"), ("flu", "F"), ("cold", "B"), ("cold", "B")]
    assert linking.link(counting, [("cold", "A"), ("cold", "B"), ("cold", "F")], shared).tolist() == [1, 2, 3]
    assert calls == [["cold"], ["cold", "flu"]]


def queries_of(count, folder, name="test"):
    rows = [(n, "Flu!", "flu", "D2") for n in range(count - 1)] + [(count, "Flu", "flu", "gone")]
    write_tsv(folder / f"{name}_queries.tsv", ("doc", "mention", "mention_norm", "cui"), rows)


@pytest.fixture
def ncbi(tmp_path):
    folder = tmp_path / "biomed/ncbi-disease"
    queries_of(960, folder)
    rows = [("C1", "Cold", "cold"), ("C2|D2", "FLU", "flu")]
    write_tsv(folder / "dictionary.tsv", ("cui", "name", "name_norm"), rows)
    return tmp_path


def test_the_data_folders_own_layout(ncbi):
    task = task_named("bel_ncbi", ncbi)
    task.check(ncbi)
    fields = task.score(encode, ncbi)
    assert fields["main_score"] == fields["accuracy@1"] == 959 / 960
    assert (fields["num_examples"], fields["dictionary_size"], fields["dictionary_names"]) == (960, 2, 2)
    queries_of(4420, ncbi / "biomed/bc5cdr-disease")  # which uses the dictionary of ncbi
    assert task_named("bel_bc5cdr_disease", ncbi).score(encode, ncbi)["main_score"] == 4419 / 4420


def test_training_mentions_on_request(ncbi):
    for part in ("train", "dev"):
        rows = [(1, "a", "rash", "gone"), (2, "b", "flu", "gone")]
        header = ("doc", "mention", "mention_norm", "cui")
        write_tsv(ncbi / f"biomed/ncbi-disease/{part}_queries.tsv", header, rows)
    plain = task_named("bel_ncbi", ncbi).score(encode, ncbi)
    task = task_named("bel_ncbi", ncbi, bel_add_mentions=True)
    added = task.score(encode, ncbi)
    assert "training and dev mentions" in task.protocol
    assert (plain["dictionary_size"], added["dictionary_size"]) == (2, 6)
    assert plain["dictionary_sha256"] != added["dictionary_sha256"]
    assert (plain["accuracy@5"], added["accuracy@5"]) == (959 / 960, 1)  # "gone" is the id of the second row named flu


def test_xlbel_without_normalized_columns_is_lower_cased(tmp_path):
    write_tsv(tmp_path / "biomed/xlbel/de_queries.tsv", ("cui", "mention"), [("D2", "FLU")] * 1000)
    task = task_named("xlbel_de", tmp_path)
    assert task.missing_files(tmp_path) == [str(tmp_path / "biomed/xlbel/dictionary.tsv")]
    write_tsv(tmp_path / "biomed/xlbel/dictionary.tsv", ("cui", "name"), [("C1", "Cold"), ("C2|D2", "Flu")])
    assert task.score(encode, tmp_path)["main_score"] == 1


def test_biosyns_folder_as_it_is(tmp_path):
    folder = tmp_path / "biomed/bc5cdr-chemical"
    (folder / "processed_test").mkdir(parents=True)
    (folder / "test_dictionary.txt").write_text("C1||Cold\nC2|D2||flu\ncui-less||rash\n", encoding="utf-8")
    lines = "-1||0|5||Chemical||FLU||D2\n-1||6|9||Chemical||cold|flu||C1+D2\n\n-1||9|9||Chemical||coma||CUI-less\n"
    (folder / "processed_test/1.concept").write_text(lines, encoding="utf-8")
    (folder / "processed_test/2.concept").write_text("-1||0|5||Chemical||cold||C9\n", encoding="utf-8")
    task = task_named("bel_bc5cdr_chemical", tmp_path)
    task.check(tmp_path)
    fields = task.score(encode, tmp_path)
    assert (fields["num_examples"], fields["dictionary_size"], fields["main_score"]) == (3, 2, pytest.approx(2 / 3))
    assert "BioSyn" in task.protocol
    (folder / "processed_test/2.concept").write_text("-1||0|5||Chemical||cold\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"2\.concept, line 1: 4 fields, expected 5"):
        task.check(tmp_path)


def test_cometas_folder_as_it_is(tmp_path):
    folder = tmp_path / "biomed/cometa"
    for split in ("stratified_general", "zeroshot_general"):
        (folder / "splits" / split).mkdir(parents=True)
    (folder / "COMETA_id_sf_dictionary.txt").write_text("11||Cold\n22||Flu\n", encoding="utf-8")
    test = folder / "splits/stratified_general/test.csv"  # Mirror-BERT section 3
    header = "\tID\tTerm\tGeneral SNOMED ID\tExample\n"
    test.write_text(header + '0\t7\tFLU\t22\t"two\nlines"\n1\t8\tcold\t22\tone\n', encoding="utf-8")
    task = task_named("bel_cometa", tmp_path)
    task.check(tmp_path)
    assert task.score(encode, tmp_path)["main_score"] == 0.5 and "split stratified_general" in task.protocol
    tuning_file = folder / "splits/zeroshot_general/test.csv"
    tuning_file.write_text("Term\tGeneral SNOMED ID\nflu\t22\n", encoding="utf-8")
    tuning = task_named("bel_cometa_zero_shot", tmp_path)
    assert tuning.score(encode, tmp_path)["main_score"] == 1 and "split zeroshot_general" in tuning.protocol
    assert (task.groups, tuning.groups) == (("bel",), ())  # the mean over `bel` has the test split only
    test.write_text("ID\tTerm\n1\tflu\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"test\.csv: no column 'General SNOMED ID'"):
        task.check(tmp_path)
    test.write_text("Term\tGeneral SNOMED ID\nflu\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"test\.csv, line 2: 1 fields, expected 2"):
        task.check(tmp_path)


def test_any_other_folder_with_queries_and_a_dictionary_is_a_task(ncbi, caplog):
    for name in ("My-Clinic", "ncbi"):
        queries_of(7, ncbi / "biomed" / name)
        write_tsv(ncbi / "biomed" / name / "dictionary.tsv", ("cui", "name"), [("C1", "cold"), ("D2", "flu")])
    concepts = ncbi / "biomed/notes/processed_test"
    concepts.mkdir(parents=True)
    (concepts / "1.concept").write_text("1||0|3||Disease||flu||D2\n")
    (ncbi / "biomed/notes/test_dictionary.txt").write_text("C1||cold\nD2||flu\n")
    (ncbi / "biomed/empty").mkdir()
    names = [task.name for task in linking.tasks(ncbi, Options()) if task.name.startswith("bel_")]
    assert set(names) - {name for name, *_ in linking.SETS} == {"bel_my_clinic", "bel_notes"}
    assert "biomed/ncbi is not a task, because another one is called bel_ncbi" in caplog.text
    for name, score in (("bel_my_clinic", 6 / 7), ("bel_notes", 1)):
        (entry,) = make_plan([name], ncbi).run(encode)["tasks"].values()
        assert entry["main_score"] == score
