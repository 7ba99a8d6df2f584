"""Every call of a command that changes a file is disturbed; then the same command gives what it gives undisturbed.

The commands are `run_encode.py`, and `run_study.py` with one cell, of an encoder or of a chain of two stages. The scripts that a
study starts are fakes of a few lines, which write what the real ones write; their calls are counted and disturbed too.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from tests.faults.forked import Ended, run_forked
from tests.faults.runs import warm_up
from tests.faults.scenario import Scenario, count_wrong, ended_badly, table
from tests.faults.shim import Shim


IMPORTED = ("run_encode", "run_study", "mirror.tools.embedding_shards", "mirror.studies.report", "matplotlib.pyplot")
IMPORTED += ("mirror.modeling.embedding_cache", "tests.studies.test_run_study", "tests.studies.test_cmlm_studies")


class Commands:
    """The commands, and how each is disturbed and repeated."""

    def __init__(self, work: Path):
        from tests.conftest import make_sentences, make_tokenizer, save_tiny_bert

        self.work, self.out, self.shim = work, work / "out", Shim()
        self.sentences = make_sentences()
        self.model = save_tiny_bert(work / "model", make_tokenizer())
        (work / "texts.txt").write_text("\n".join(self.sentences[:50]))
        warm_up()
        for name in IMPORTED:
            import_module(name)

    # ---- What is disturbed -------------------------------------------------------------------------------------------

    def encode(self) -> None:
        """Two shards."""
        import run_encode

        sys.argv = ["run_encode.py", "--model_name_or_path", self.model, "--pooling", "mean", "--shard_rows", "30"]
        sys.argv += ["--input_file", str(self.work / "texts.txt"), "--output_dir", str(self.out)]
        run_encode.main()

    def encoded(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.out.iterdir() if not is_temporary(path)}

    def study_of_an_encoder(self) -> None:
        from tests.studies.test_run_study import FAKE_EVAL, FAKE_MIRROR, STUDY

        self.study(STUDY, {"run_mirror.py": FAKE_MIRROR, "run_eval.py": FAKE_EVAL})

    def study_of_a_chain(self) -> None:
        from mirror.studies.cells import Study, main_scores
        from mirror.studies.chains import ChainCell, Stage
        from tests.studies.test_cmlm_studies import FAKE_CMLM, FAKE_EVAL

        stages = Stage("first", "cmlm-multilingual-first"), Stage("nli", "cmlm-multilingual-nli")
        study = Study("S", (ChainCell("S3", ("rg65",), chain=stages),), main_scores(("rg65",)))
        self.study(study, {"run_cmlm.py": FAKE_CMLM, "run_eval.py": FAKE_EVAL})

    def study(self, study, scripts: dict[str, str]) -> None:
        import run_study
        from mirror.studies import processes
        from mirror.studies.catalogue import STUDIES
        from tests.studies.test_run_study import write_inputs

        place = self.work / "place"  # of what is not disturbed
        if not place.exists():
            write_inputs(place, self.sentences)
            for name in ("documents/en.txt", "nli/xnli.tsv"):
                (place / "data/mirror_corpus" / name).parent.mkdir()
                (place / "data/mirror_corpus" / name).write_text("a few words\n")
        for name, code in scripts.items():
            (place / name).write_text(code)
        processes.ROOT, STUDIES["small"] = place, study
        sys.argv = ["run_study.py", "small", "--model_name_or_path", self.model, "--data_dir", str(place / "data")]
        sys.argv += ["--output_dir", str(self.out), "--seeds", "33"]
        run_study.main()

    def scores(self) -> dict[str, list[str]]:
        """The scores without the seconds that they took, and which files there are."""
        lines = (self.out / "results.csv").read_text().splitlines()
        files = (path for path in self.out.rglob("*") if not is_temporary(path))
        names = sorted(path.relative_to(self.out).as_posix() for path in files)
        return {"scores": [line.rpartition(",")[0] for line in lines], "files": names}

    # ---- One disturbed process ---------------------------------------------------------------------------------------

    def run(self, scenario: Scenario, number: int = 0, mode: str | None = None) -> Ended:
        shutil.rmtree(self.out, ignore_errors=True)
        self.shim.arm(self.out, number, mode)
        (ended,) = run_forked(lambda rank: scenario.act(), self.work)
        calls = self.shim.disarm()
        scenario.calls = scenario.calls or calls
        return ended

    def disturb_all(self, scenario: Scenario, result: Callable[[], object], every: int) -> Scenario:
        ended = self.run(scenario)
        assert ended.status == 0, ended.said
        expected = result()
        for number, mode in scenario.disturbances(every):
            ended = self.run(scenario, number, mode)
            wrong = ended_badly(ended) or self.wrong_afterwards(scenario, result, expected)
            scenario.count(number, mode, ended, wrong)
        return scenario

    def wrong_afterwards(self, scenario: Scenario, result: Callable[[], object], expected: object) -> str | None:
        """What is wrong after the same command ran again, undisturbed."""
        (ended,) = run_forked(lambda rank: scenario.act(), self.work)
        if ended.status != 0:
            return f"cannot be run again: {ended.status} {ended.said[-2000:]}"
        return None if result() == expected else f"another result: {result()}, not {expected}"[:2000]


def is_temporary(path: Path) -> bool:
    """Left by a process that was killed while it wrote; nothing reads it."""
    return path.name.startswith("_") and path.suffix == ".tmp"


def run_all(work: Path, every: int = 1) -> tuple[str, int]:
    """Every `every`-th fault of each command; returns the table and how many are wrong."""
    commands, scenarios = Commands(work), []
    for name, act, result in (
        ("run_encode.py", commands.encode, commands.encoded),
        ("a cell of an encoder", commands.study_of_an_encoder, commands.scores),
        ("a chain of two stages", commands.study_of_a_chain, commands.scores),
    ):
        scenarios.append(commands.disturb_all(Scenario(name, act), result, every))
        sys.stderr.write(f"{name}: {dict(scenarios[-1].outcomes)}\n")
    return table(scenarios), count_wrong(scenarios)
