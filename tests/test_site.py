"""The documentation site builds without a warning: no broken link or anchor, every command and name in the reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.documents import ROOT


def build(folder) -> str:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    assert "WARNING" not in build(tmp_path)
    commands = (tmp_path / "cli" / "index.html").read_text(encoding="utf-8")
    assert "mirror-train" in commands and "--train_file" in commands and "Traceback" not in commands
    api = (tmp_path / "api" / "index.html").read_text(encoding="utf-8")
    assert 'id="mirror.training.trainer.MirrorTrainer"' in api and 'id="mirror.modeling.encoder.Encoder.encode"' in api
    for page in tmp_path.rglob("*.html"):  # nothing is loaded from other servers
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"https?://(?!github|localhost)", text), page
