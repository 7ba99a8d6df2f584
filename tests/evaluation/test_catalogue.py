from __future__ import annotations

import re

import pytest

from mirror.common.errors import InputError
from mirror.evaluation.catalogue import all_groups, all_tasks, listing, resolve
from mirror.evaluation.dataset_names import FIELDS, dataset_of
from mirror.evaluation.sts import WORDS
from tests.evaluation.folder import pairs, write_tsv


DOCUMENTED_TASKS = """
    sts12 sts13 sts14 sts15 sts16 stsb stsb_dev sickr sickr_full sts17_es sts17_ar sts_ru
    simlex999 simverb3500 men ws353 rw rg65 mturk287 mturk771 multisimlex_eng multisimlex_eng_fra bli_en_fr bli_joint_en_fr
    qnli
    bel_ncbi bel_bc5cdr_disease bel_bc5cdr_chemical bel_askapatient bel_cometa bel_cometa_zero_shot xlbel_de
    transfer_mr transfer_cr transfer_subj transfer_mpqa transfer_sst2 transfer_trec transfer_mrpc transfer_sicke
    transfer_sickr tatoeba_fra tatoeba_projection xeval_ar amazon_zero_shot amazon_by_domain amazon_zero_shot_tuned language_bias qqp_cosine isotropy
    docs_search docs_search_dev
""".split()
DOCUMENTED_GROUPS = (
    "sts multilingual_sts word multisimlex multisimlex_cross bli bel xlbel transfer xeval tatoeba".split()
)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    return all_tasks(tmp_path_factory.mktemp("empty"))


def test_every_documented_name_is_known_without_data(tasks):
    assert set(DOCUMENTED_TASKS) <= tasks.keys()
    assert set(DOCUMENTED_GROUPS) <= all_groups(tasks).keys()
    assert all(name == task.name and task.metric and task.protocol for name, task in tasks.items())


def test_the_papers_averages_are_over_their_own_members(tasks):
    groups = all_groups(tasks)
    assert groups["sts"] == ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"]
    assert groups["multilingual_sts"] == ["sts17_es", "sts17_ar", "sts_ru"]
    assert groups["word"] == ["simlex999", "simverb3500", "men", "ws353", "rw", "rg65", "mturk287", "mturk771"]
    assert len(groups["transfer"]) == 9
    assert len(groups["bel"]) == 5 and len(groups["bli"]) == 6


def test_groups_and_tasks_resolve_in_order_each_once(tasks):
    names = [task.name for task in resolve(["stsb", "multilingual_sts", "sts17_es", "stsb"], tasks)]
    assert names == ["stsb", "sts17_es", "sts17_ar", "sts_ru"]


@pytest.mark.parametrize(("wrong", "right"), [("simlex99", "simlex999"), ("multilingual-sts", "multilingual_sts")])
def test_an_unknown_name_suggests_the_most_similar(tasks, wrong, right):
    with pytest.raises(InputError, match=f"unknown task '{wrong}'; did you mean '{right}'"):
        resolve([wrong], tasks)


def test_the_listing_marks_available_tasks(tmp_path):
    write_tsv(tmp_path / "wordsim/rg65.tsv", (*WORDS, "score"), pairs(65, top=4))
    text = listing(all_tasks(tmp_path), tmp_path)
    assert "group word, 1 of 8 available" in text and "in no group, 2 of" in text
    marked = {name: mark for mark, name in re.findall(rf"([x ]) ({'|'.join(all_tasks(tmp_path))})\b", text)}
    assert [name for name, mark in marked.items() if mark == "x"] == ["rg65", "docs_search", "docs_search_dev"]
    assert marked.keys() == all_tasks(tmp_path).keys()
    assert "accuracy: * -> eng, nearest by cosine" in text and text.count("one Spearman rho") == 6
    assert max(len(line) for line in text.splitlines() if line.startswith("    ")) <= 104


def test_every_task_has_the_name_of_its_data_set(tmp_path):
    sets = {task: dataset_of(task) for task in all_tasks(tmp_path)}
    assert not [task for task, fields in sets.items() if fields["dataset_name"] == task]
    # The Hub joins results of one type, configuration and split under one name.
    places = {tuple(fields.get(key) for key in FIELDS[1:]) for fields in sets.values()}
    assert len(places) == len({fields["dataset_name"] for fields in sets.values()}) == len(sets)
