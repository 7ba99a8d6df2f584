"""The one logging set-up of every script: plain lines on stderr, from the first process of each machine."""

from __future__ import annotations

import logging
import os


CHATTY_LIBRARIES = ("httpx", "httpx2", "absl")


def configure_logging(level: int = logging.INFO) -> None:
    """Show messages from `level` on; only warnings on the other processes of a machine and from chatty libraries."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    logging.basicConfig(format="%(message)s", level=level if is_first else max(level, logging.WARNING))
    for name in CHATTY_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    # It warns of the older spelling of the pooling, which our checkpoints hold on purpose (modeling/checkpoint.py).
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


def hide_dataset_progress() -> None:
    """No progress bars of `datasets`."""
    from datasets import disable_progress_bars  # a second of imports that the tools without data do not need

    disable_progress_bars()
