"""Pages of studies: the paper beside several base models, verdicts that the overview counts, and figures."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.common.errors import InputError
from studies import pages
from studies.figures import draw
from studies.scores import Base
from studies.study import STUDIES, Cell, Claim, Study
from tests.studies.fakes import RG65


SMALL = Study(
    "Table 0: a small study",
    (Cell("before", ("rg65",)), Cell("after", ("rg65",), ("texts.txt",)), Cell("half", ("rg65",), ("texts.txt",))),
    RG65,
    paper="Training helps, and half of it helps less.",
    claims=(Claim("after", "before", "rg65"), Claim("after", "half", "rg65")),
)
HALF = (0.25, 0.3, 0.35)  # of seeds 33, 44, 55


@pytest.fixture
def studies(monkeypatch) -> None:
    for name in list(STUDIES):
        monkeypatch.delitem(STUDIES, name)
    monkeypatch.setitem(STUDIES, "small", SMALL)
    monkeypatch.setitem(STUDIES, "other", Study("Another", (Cell("before", ("rg65",)),), RG65))


def write_results(folder: Path, study: str = "small", after: tuple = (), half: tuple = (), notes: str = "") -> Path:
    """Write what run_study.py leaves of the base model `folder.parent.name`: scores of three seeds for each row."""
    scores = {("before", None): 0.1}
    for row, values in (("after", after), ("half", half)):
        scores |= {(row, seed): score for seed, score in zip((33, 44, 55), values, strict=False)}
    for (row, seed), score in scores.items():
        cell = folder / f"{row}-{seed}"
        cell.mkdir(parents=True)
        record = {"row": row, "part": "", "seed": seed, "tasks": {"rg65": {"main_score": score}}}
        (cell / "cell.json").write_text(json.dumps(record))
    facts = {"study": study, "model": f"models/{folder.parent.name}", "command": f"python run_study.py {study}"}
    facts["model_type"] = "roberta" if "roberta" in folder.parent.name else "bert"
    (folder / "study.json").write_text(json.dumps(facts | {"published": {}, "notes": notes}))
    return folder


def make_pages(monkeypatch, output_dir: Path, *folders: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["pages.py", *map(str, folders), "--output_dir", str(output_dir)])
    pages.main()


def test_a_page_has_every_base_model_and_one_verdict(studies, tmp_path, monkeypatch):
    weak = write_results(tmp_path / "weak/small", after=(0.2, 0.4, 0.6), half=HALF)  # of 0.1, .1 to .5: not shown
    strong = write_results(tmp_path / "strong/small", after=(0.5, 0.55, 0.6), half=HALF, notes="- seeds 33 44 55\n")
    (tmp_path / "docs/results").mkdir(parents=True)
    (tmp_path / "docs/results/weak.md").write_text("It knows little.\n")
    make_pages(monkeypatch, tmp_path / "docs", weak, strong)
    page = (tmp_path / "docs/small.md").read_text()
    judged_by = "It is judged by what the paper says of BERT (model type `bert`)."
    assert f"## weak\n\nIt knows little.\n\n{judged_by}\n\n    python run_study.py small\n" in page
    assert page.startswith("# Table 0: a small study\n\n**The paper.** Training helps, and half of it helps less.\n\n")
    verdicts = "**Verdict.** strong: agrees (2 as in the paper); weak: not contradicted (2 unresolved)\n"
    assert verdicts in page and "95% intervals over seeds: 3 of strong, 3 of weak.\n" in page
    assert "| difference | in the paper | strong |  | weak |  |\n| --- | ---: | ---: | --- | ---: | --- |\n" in page
    # weak, after - before: mean .3, standard deviation .2, half the interval 4.3027 x .2 / sqrt(3)
    assert "+0.3000 (-0.1968 to +0.7968) | unresolved |\n" in page
    line = next(line for line in page.splitlines() if line.startswith("| after above half"))
    assert [cell.strip() for cell in line.split("|")[3:7]] == [
        "+0.2500 (+0.2500 to +0.2500)", "as in the paper", "+0.1000 (-0.2726 to +0.4726)", "unresolved",
    ]  # fmt: skip
    assert (
        f"\n![Table 0: a small study](small.svg)\n\n## strong\n\n{judged_by}\n\n    python run_study.py small\n\n| | rg65 |"
        in page
    )
    assert "| after | 0.5500 ± 0.0500 |" in page and "- seeds 33 44 55\n" in page
    figure = (tmp_path / "docs/small.svg").read_text()  # one, with a panel for each base model
    assert all(f">{text}</text>" in figure for text in ("strong", "weak", "Table 0: a small study"))
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == ["results", "small.md", "small.svg"]


def test_the_page_of_a_base_model_says_whose_claims_judge_it(studies, tmp_path, monkeypatch):
    apart = (replace(SMALL.claims[0], of=("bert",)), replace(SMALL.claims[1], of=("roberta",)))
    monkeypatch.setitem(STUDIES, "small", replace(SMALL, claims=apart))
    bases = ("my-bert", "my-roberta")
    make_pages(
        monkeypatch,
        tmp_path / "docs",
        *(write_results(tmp_path / b / "small", after=(0.5, 0.55, 0.6), half=HALF) for b in bases),
    )
    page = (tmp_path / "docs/small.md").read_text()
    assert "## my-roberta\n\nIt is judged by what the paper says of RoBERTa (model type `roberta`).\n" in page
    assert "**Verdict.** my-bert: agrees (1 as in the paper); my-roberta: agrees (1 as in the paper)\n" in page
    assert "| after above before: rg65 (bert) |  | +0.4500 (+0.3258 to +0.5742) | as in the paper |  |  |\n" in page
    assert "| after above half: rg65 (roberta) |  |  |  | +0.2500 (+0.2500 to +0.2500) | as in the paper |\n" in page


def test_base_models_come_one_after_the_other(studies, tmp_path, monkeypatch):
    weak = write_results(tmp_path / "weak/small", after=(0.2, 0.4, 0.6), half=HALF)
    strong = write_results(tmp_path / "strong/small", after=(0.5, 0.55, 0.6), half=HALF)
    make_pages(monkeypatch, tmp_path / "together", weak, strong)
    earlier = write_results(tmp_path / "earlier/strong/small", after=(0.2, 0.3, 0.4))  # replaced by the new results
    for folder in (weak, earlier, strong):
        make_pages(monkeypatch, tmp_path / "docs", folder)
    together, docs = ({p.name: p.read_bytes() for p in (tmp_path / d).rglob("*.*")} for d in ("together", "docs"))
    assert docs == together and {"strong.json", "weak.json"} < set(docs)
    shutil.rmtree(weak)
    shutil.rmtree(strong)
    (tmp_path / "docs/small.md").unlink()
    make_pages(monkeypatch, tmp_path / "docs")  # from what is kept
    assert {path.name: path.read_bytes() for path in (tmp_path / "docs").rglob("*.*")} == docs


def test_remarks_stay_when_a_page_is_written_again(studies, tmp_path, monkeypatch):
    folder = write_results(tmp_path / "weak/small", after=(0.5, 0.55, 0.6))
    make_pages(monkeypatch, tmp_path / "docs", folder)
    path = tmp_path / "docs/small.md"
    first = path.read_text()
    path.write_text(first + "\n## Remarks\n\nThe weak model knows little.\n")
    for _ in range(2):
        make_pages(monkeypatch, tmp_path / "docs", folder)
        assert path.read_text() == first + "\n## Remarks\n\nThe weak model knows little.\n"


def test_the_overview_says_in_lines_and_a_table_what_agrees_on_which_base_model(studies, tmp_path, monkeypatch):
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text("Before.\n<!-- verdicts -->\nold\n<!-- end of verdicts -->\nAfter.\n")
    lacking = Study("Big", SMALL.cells, RG65, paper="It helps.", claims=SMALL.claims, untested="no data")
    lacking = replace(lacking, published={"bert": {"before": {"rg65": 0.2}, "after": {"rg65": 0.5}}})
    monkeypatch.setitem(STUDIES, "big", lacking)
    bases = {"good": (0.5, 0.55, 0.6), "bad": (0.05, 0.06, 0.07)}
    folders = [write_results(tmp_path / name / "small", after=after, half=HALF) for name, after in bases.items()]
    make_pages(monkeypatch, docs, *folders)
    assert (docs / "README.md").read_text() == (
        "Before.\n<!-- verdicts -->\n\n"
        "- **bad**: of 2 differences 0 as in the paper, 0 unresolved, 2 the other way round. Studies: contradicted 1.\n"
        "- **good**: of 2 differences 2 as in the paper, 0 unresolved, 0 the other way round. Studies: agrees 1.\n"
        "- Agrees, or is not contradicted, on every base model: nothing.\n"
        "- Mixed or contradicted on bad: [small](small.md).\n"
        "- Mixed or contradicted on good: nothing.\n"
        "- The paper's own models have **not been run here**: bert-base-uncased, roberta-base.\n\n"
        "| | the paper | bad | good |\n| --- | --- | --- | --- |\n"
        "| [small](small.md) | Training helps, and half of it helps less. | contradicted (2 the other way round) "
        "| agrees (2 as in the paper) |\n"
        "| [big](untested.md) | It helps. | not tested here: no data |  |\n\n<!-- end of verdicts -->\nAfter.\n"
    )
    assert (docs / "untested.md").read_text() == (  # what the paper has, for the day that someone can run it
        "# Studies that nothing here can test\n\n## Big\n\n**The paper.** It helps.\n\n**Verdict.** not tested here: no data\n\n"
        "| difference | in the paper |\n| --- | ---: |\n| after above before: rg65 | +0.3000 |\n"
    )


def test_a_study_without_the_rows_or_without_conclusions_says_so(studies, tmp_path, monkeypatch):
    lacking = write_results(tmp_path / "weak/small", notes="- Left out of after: no corpus texts.txt\n- other\n")
    make_pages(monkeypatch, tmp_path / "docs", lacking, write_results(tmp_path / "weak/other", "other"))
    page = (tmp_path / "docs/small.md").read_text()
    assert "| before | 0.1000 |" in page and "| after |" not in page  # no empty rows
    assert "**Verdict.** not tested here: Left out of after: no corpus texts.txt\n" in page
    assert page.count(" |  | not run |\n") == 2
    assert "**Verdict.** not in the paper\n" in (tmp_path / "docs/other.md").read_text()


def test_errors_are_one_line(studies, tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"nothing: no study.json; run_study.py writes it"):
        make_pages(monkeypatch, tmp_path / "docs", tmp_path / "nothing")
    with pytest.raises(InputError, match=r"docs has no results/ to make pages from; name output folders"):
        make_pages(monkeypatch, tmp_path / "docs")
    assert not (tmp_path / "docs").exists()
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("No place.\n")
    weak = write_results(tmp_path / "weak/small", after=(0.5, 0.55, 0.6))
    facts = (weak / "study.json").read_text()
    (weak / "study.json").write_text(facts.replace("model_type", "other"))
    with pytest.raises(
        InputError, match="study.json: written by an earlier version; run the command of table.md again"
    ):
        make_pages(monkeypatch, tmp_path / "docs", weak)
    (weak / "study.json").write_text(facts[:50])
    with pytest.raises(InputError, match="weak/small/study.json is damaged; run the command of its table.md again"):
        make_pages(monkeypatch, tmp_path / "docs", weak)
    (weak / "study.json").write_text(facts)
    with pytest.raises(InputError, match="README.md: no lines <!-- verdicts --> and <!-- end of verdicts -->"):
        make_pages(monkeypatch, tmp_path / "docs", weak)
    again = write_results(tmp_path / "again/weak/small", after=(0.5, 0.55, 0.6))
    with pytest.raises(InputError, match="again/weak/small: small with weak is in .*weak/small already"):
        make_pages(monkeypatch, tmp_path / "docs", weak, again)
    assert [path.name for path in (tmp_path / "docs").iterdir()] == ["README.md"]


# ---- Figures -----------------------------------------------------------------------------------------------------------

CURVE = {"false_positive_rate": [0, 0.5, 1], "true_positive_rate": [0, 0.8, 1]}
HISTOGRAM = {"bin_edges": [-1, 0, 1], "positive": [1, 3], "negative": [3, 1]}
SELECTION = {"main_score": 0.5, "dev_of_chosen": 0.6, "dev_of_best": 0.7, "dev_of_last": 0.6}
SELECTION |= {"criterion": [-1, -2, -3], "dev": [0.5, 0.7, 0.6]}
ANSWERS = {
    "qnli": {"main_score": 0.6, "roc_curve": CURVE},
    "own_text": {"main_score": 0.5, "before": 0.4},
    "qqp_cosine": {"main_score": 0.7, "gap": 0.1, "histogram": HISTOGRAM},
    "selection_own_text": SELECTION,
    "language_bias": {"languages": ["de", "fr", "zh"], "matrix_ranked": [[0.2, 0.5, 0.3]] * 3},
    "tatoeba_projection": {"points": {"fra": [[[0, 1], [1, 0]], [[0.5, 1], [1, 0.2]]]}},
}
DRAWN = "table3 figure4 figure8 figure7 selection own_text rivals figure5 table21 cmlm_figure2 cmlm_figure3".split()
MORE_DOTS = [pytest.param(name, marks=pytest.mark.slow) for name in ("table1", "table2", "table12", "table14")]


@pytest.mark.parametrize("name", DRAWN + MORE_DOTS)
def test_each_kind_of_figure_can_be_drawn_from_results_of_run_eval_for_several_bases(name, tmp_path):
    study = STUDIES[name]
    fields = {"main_score": 0.5} | {column.field: 0.3 for column in study.columns}
    records = [
        {
            **{"row": cell.row, "part": cell.part, "seed": seed if cell.corpora else None},
            "tasks": {column.task: fields | ANSWERS.get(column.task, {}) for column in study.columns},
        }
        for cell in study.cells
        for seed in ((33, 44) if cell.corpora else (33,))
    ]
    facts = {"published": {}} | ({"ranks": dict.fromkeys(study.rows, 10)} if study.ranks else {})
    bases = [Base(study, records, facts | {"model": f"models/{base}"}) for base in ("weak", "strong")]
    draw(bases, tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert ">weak</text>" in text and ">strong</text>" in text
    assert (">words of the test set</text>" in text) == (name == "figure8")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.svg"]
