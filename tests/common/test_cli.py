"""Lines of a log: above a progress bar, on one line each. Arguments in any order."""

from __future__ import annotations

import io
import logging

import pytest
from tqdm.auto import tqdm

from mirror.common.cli import LogHandler, Parser


def test_a_line_never_follows_a_progress_bar_on_its_line():
    stream = io.StringIO()
    handler = LogHandler(stream)
    with tqdm(total=3, file=stream, ncols=40) as bar:
        bar.update()
        bar.refresh()
        handler.emit(logging.makeLogRecord({"msg": "a line"}))
    before = stream.getvalue().partition("a line\n")[0]
    assert before.rpartition("\r")[2].strip() == "" and before.endswith("\r")  # the bar was overwritten by blanks


@pytest.mark.parametrize("argv", ["a b c --top 3", "--top 3 a b c", "a --top 3 b c", "a b --top 3 c"])
def test_flags_may_stand_between_the_arguments(argv):
    parser = Parser(None)
    for name, options in {"model": {}, "texts": {}, "query": {"nargs": "?"}, "--top": {"type": int}}.items():
        parser.add_argument(name, **options)
    assert vars(parser.parse_args(argv.split())) == {"model": "a", "texts": "b", "query": "c", "top": 3}
