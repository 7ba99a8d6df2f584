"""End-to-end test of python -m mirror.tools.demo: the command is started, and headless Chromium opens the page."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mirror.modeling.encoder import Encoder
from tests.browser import chromium, missing_programs
from tests.tools.test_demo import cosines, save_run


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing_programs()), reason=f"no {' '.join(missing_programs())}: apt-get install chromium chromium-driver"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
ATTACK = """<img src=x onerror="document.title='ran'">"""
HOSTILE = [
    ATTACK,
    "<script>document.title='ran'</script>",
    "<svg onload=\"document.title='ran'\">",
    "</title><b>bold</b>",
]
WORD = "zyzzyva"  # typed on the page; must not appear in any log


@pytest.fixture(scope="module")
def server(bert_folder, sentences, tmp_path_factory):
    """The address of a demo with hostile texts and a hostile model name; checks its output after an interrupt."""
    folder = tmp_path_factory.mktemp("demo")
    save_run(folder / ATTACK, bert_folder)
    (folder / "texts.txt").write_text("\n".join([*HOSTILE, *sentences[:40]]))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mirror.tools.demo", str(folder / ATTACK), "--texts", str(folder / "texts.txt")]
    command += ["--before", bert_folder, "--top_k", "44", "--port", str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        try:
            address = process.stdout.readline().strip()
            assert address == f"http://127.0.0.1:{port}", process.stderr.read()
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            out, log = process.communicate(timeout=30)
    assert process.returncode == 0 and out == "" and log.count("\n") == 1 and WORD not in log, log


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(server, browser):
    browser.open(server)
    browser.wait_for("document.body.dataset.ready !== undefined")
    yield browser
    assert [line for line in browser.console() if server in line] == []  # neither blocked requests nor errors


def texts_of(page, selector: str) -> list[str]:
    return page.run(f"return [...document.querySelectorAll({selector!r})].map((node) => node.textContent)")


def test_two_texts_show_both_cosines(page, server, bert_folder):
    first, second = "the cat sees a red bird", f"a small dog {WORD}"
    page.type("#cosine [name=first]", first)
    page.type("#cosine [name=second]", second)
    page.click("#cosine button")
    page.wait_for("document.querySelector('#cosine svg line')")
    shown = [float(number.replace("−", "-")) for number in texts_of(page, "#cosine .number")]
    left, right = Encoder.from_pretrained(bert_folder, "mean", max_seq_length=24).encode([first, second])
    assert shown[0] == pytest.approx(cosines(left, right[None])[0], abs=6e-4) and shown[1] != shown[0]
    assert all(re.fullmatch(r"higher than [\d.]+% of random pairs", note) for note in texts_of(page, "#cosine .note"))
    page.type("#cosine [name=second]", " ")  # passes the browser's check, but not the server's
    page.click("#cosine button")
    page.wait_for("document.querySelector('#cosine .error').textContent")
    assert "at least 1 character" in texts_of(page, "#cosine .error")[0]
    assert "422" in " ".join(page.console())  # reported by the browser


def test_a_query_shows_the_matches_of_both_models(page, sentences):
    page.type("#search [name=query]", sentences[5] + "\ue007")  # Enter key
    page.wait_for("document.querySelectorAll('#search .after li').length")
    for side in ("before", "after"):
        assert texts_of(page, f"#search .{side} .text")[0] == sentences[5]
        assert texts_of(page, f"#search .{side} .cosine")[0] == "1.000"
        assert len(texts_of(page, f"#search .{side} li")) == 44


def test_every_text_is_a_dot_that_can_be_read(page):
    visible = """
        return SIDES.map((side) => {
          const canvas = part("map", side, "canvas"), context = canvas.getContext("2d");
          const seen = (x, y) => context.getImageData(x * devicePixelRatio, y * devicePixelRatio, 1, 1).data[3] > 0;
          return corpus[side].points.filter((point) => seen(...placing(side)(point))).length;
        });"""
    assert page.run(visible) == [44, 44]
    where = """
        const canvas = part("map", arguments[0], "canvas");
        canvas.scrollIntoView();
        const box = canvas.getBoundingClientRect(), [x, y] = placing(arguments[0])(corpus[arguments[0]].points[arguments[1]]);
        return [box.left + x, box.top + y];"""
    page.run("""
        window.apart = (side, first, second) => {
          const [left, right] = [first, second].map((number) => placing(side)(corpus[side].points[number]));
          return Math.hypot(left[0] - right[0], left[1] - right[1]);
        };""")
    for side in ("before", "after"):
        for number in (4, 20):
            x, y = page.run(where, side, number)
            page.developer("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
            page.wait_for(f"pointed !== null && apart('{side}', pointed, {number}) < 2")  # dots may overlap
            assert texts_of(page, "#pointed") == page.run("return [corpus.texts[pointed]]")


def test_no_text_becomes_html(page):
    page.type("#search [name=query]", ATTACK + "\ue007")
    page.wait_for("document.querySelectorAll('#search .after li').length")
    for side in ("before", "after"):
        assert set(HOSTILE) <= set(texts_of(page, f"#search .{side} .text"))
    assert set(texts_of(page, ".after .model")) == {ATTACK} and ATTACK in texts_of(page, "#facts")[0]
    for number in range(len(HOSTILE)):  # under the pointer
        page.run("const label = document.getElementById('pointed'); label.hidden = false;"
                 "label.textContent = ''; const dot = placing('after')(corpus.after.points[arguments[0]]);"
                 "pointAt('after', {type: 'pointermove', offsetX: dot[0], offsetY: dot[1]});", number)  # fmt: skip
        assert texts_of(page, "#pointed")[0] in HOSTILE
    assert page.run("return document.title") == "Before and after training"
    assert page.run("return document.querySelectorAll('img, b:not(h3 b), script:not([src])').length") == 0


def test_the_policy_would_stop_a_careless_script(page):
    careless = "try { document.body.innerHTML = arguments[0]; return 'written'; } catch (error) { return error.name; }"
    assert page.run(careless, ATTACK) == "TypeError"
    assert page.run("return document.title") == "Before and after training"
    page.console()  # clear the report of the blocked script


def test_the_attack_is_one(browser):
    """Control: without protection, the same text does run as a script."""
    browser.open("data:text/html,<title>quiet</title>")
    browser.run("document.body.innerHTML = arguments[0]", ATTACK)
    browser.wait_for("document.title === 'ran'")


def test_a_narrow_window_needs_no_scrolling_sideways(page):
    page.developer("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=2, mobile=True)
    page.type("#search [name=query]", "w" * 200 + "\ue007")
    page.wait_for("document.querySelectorAll('#search .after li').length")
    assert page.run("return document.documentElement.scrollWidth") == 400
    assert page.run("return part('map', 'after', 'canvas').width") > 600
    page.developer("Emulation.clearDeviceMetricsOverride")
