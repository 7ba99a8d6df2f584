"""A script as a scheduler starts it again and again: on from its last whole checkpoint, or from the start where there is none."""

from __future__ import annotations

import sys
from importlib import import_module

from mirror.common.errors import run_main
from mirror.training.manifest import last_complete_checkpoint


def main(script: str, output_dir: str, *flags: str) -> None:
    again = ["--resume_from_checkpoint", "true"] if last_complete_checkpoint(output_dir) else ["--force"]
    sys.argv = [script, "--output_dir", output_dir, *flags, *again]
    run_main(import_module(script).main)


if __name__ == "__main__":
    main(*sys.argv[1:])
