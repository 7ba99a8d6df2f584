"""A study with slow fake scripts, for the test that kills it."""

from __future__ import annotations

import sys
from pathlib import Path

import run_study
from mirror.common.errors import run_main
from studies import setup
from studies.study import STUDIES
from tests.studies.fakes import STUDY, write_inputs


def make_workplace(folder: Path, sentences: list[str]) -> None:
    write_inputs(folder, sentences, before="import time\ntime.sleep(0.2)\n")


def main(folder: str, model: str, output_dir: str) -> None:
    STUDIES["small"] = STUDY
    setup.ROOT = Path(folder)
    flags = ["--model_name_or_path", model, "--data_dir", f"{folder}/data", "--output_dir", output_dir]
    sys.argv = ["run_study.py", "small", *flags, "--seeds", *map(str, range(1, 8))]
    run_main(run_study.main)


if __name__ == "__main__":
    main(*sys.argv[1:])
