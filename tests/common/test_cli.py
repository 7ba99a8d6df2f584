"""Lines of a log: above a progress bar, on one line each."""

from __future__ import annotations

import io
import logging

from tqdm.auto import tqdm

from mirror.common.cli import LogHandler


def test_a_line_never_follows_a_progress_bar_on_its_line():
    stream = io.StringIO()
    handler = LogHandler(stream)
    with tqdm(total=3, file=stream, ncols=40) as bar:
        bar.update()
        bar.refresh()
        handler.emit(logging.makeLogRecord({"msg": "a line"}))
    before = stream.getvalue().partition("a line\n")[0]
    assert before.rpartition("\r")[2].strip() == "" and before.endswith("\r")  # the bar was overwritten by blanks
