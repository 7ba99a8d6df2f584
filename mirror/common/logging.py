"""The one logging set-up of every script: plain lines on stderr, from the first process of each machine."""

from __future__ import annotations

import logging
import os
import re


CHATTY_LIBRARIES = ("httpx", "httpx2", "absl", "fontTools")
HUB_CLIENT = "huggingface_hub"


def configure_logging(level: int = logging.INFO) -> None:
    """Show messages from `level` on; only warnings on the other processes of a machine and from chatty libraries."""
    is_first = os.environ.get("LOCAL_RANK", "0") == "0"
    logging.basicConfig(format="%(message)s", level=level if is_first else max(level, logging.WARNING))
    for name in CHATTY_LIBRARIES:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(HUB_CLIENT).propagate = False  # it has a handler of its own, so each line would appear twice
    log_each_retry_once()
    # It warns of the older spelling of the pooling, which our checkpoints hold on purpose (modeling/checkpoint.py).
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)


class OneLinePerRetry(logging.Filter):
    """Joins the two lines that the Hub's client logs for a retry; the first one shows the address, signature included."""

    def __init__(self):
        super().__init__()
        self.reason = ""

    def filter(self, record: logging.LogRecord) -> bool:
        message = without_signatures(record.getMessage())
        reason, is_reason, _ = message.partition(" thrown while requesting ")
        if is_reason:
            self.reason = reason.strip("'.")
            return False
        record.msg, record.args = (f"the Hub: {self.reason}. {message}" if "[Retry " in message else message), ()
        return True


_one_line_per_retry = OneLinePerRetry()


def log_each_retry_once() -> None:
    """One line for each retry of the Hub's client, without the address."""
    logging.getLogger(f"{HUB_CLIENT}.utils._http").addFilter(_one_line_per_retry)


def without_signatures(text: str) -> str:
    """`text` with every URL cut at its query, which can be a signature that gives access."""
    return re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", text)


def hide_dataset_progress() -> None:
    """No progress bars of `datasets`."""
    from datasets import disable_progress_bars  # a second of imports that the tools without data do not need

    disable_progress_bars()
