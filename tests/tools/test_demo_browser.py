"""mirror-demo in a browser: the command is started, and headless Chromium opens the page at two widths."""

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
from tests.tools.test_demo import ATTACK, save_run


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(missing_programs()), reason=f"no {' '.join(missing_programs())}: apt-get install chromium chromium-driver"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = [ATTACK, "<script>document.title='ran'</script>", "<svg onload=\"document.title='ran'\">",
           "</title><b>bold</b>", "${document.title='ran'}", "{{constructor.constructor(\"document.title='ran'\")()}}"]  # fmt: skip
WORD = "zyzzyva"  # typed on the page; must not appear in any log
DRAWN = "document.querySelectorAll('.js-plotly-plot .points').length >= 6"
PLACES = """return [...document.querySelectorAll(arguments[0])].map((node) => {
    const box = node.getBoundingClientRect(); return [box.left, box.right, box.height]; });"""


@pytest.fixture(scope="module")
def server(bert_folder, sentences, tmp_path_factory):
    """The address of a demo with hostile texts and model name; checks its output after an interrupt."""
    folder = tmp_path_factory.mktemp("demo")
    save_run(folder / ATTACK, bert_folder)
    (folder / "texts.txt").write_text("\n".join([*HOSTILE, *sentences[:40]]))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    flags = [folder / ATTACK, "--texts", folder / "texts.txt", "--before", bert_folder, "--top_k", 46, "--port", port]
    command = [sys.executable, "-m", "mirror.tools.demo", *map(str, flags)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        try:
            address = process.stdout.readline().strip()
            assert address == f"http://127.0.0.1:{port}", process.stderr.read()
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            out, log = process.communicate(timeout=30)
    assert process.returncode == 0 and log.count("\n") == 1 and WORD not in out + log, log


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def page(server, browser):
    browser.open(server)
    browser.wait_for(DRAWN)
    yield browser
    assert browser.console() == []  # neither errors nor requests to other servers
    assert browser.run("return document.title") == "Before and after training"  # no hostile text ran


def texts_of(page, selector: str) -> list[str]:
    return page.run(f"return [...document.querySelectorAll({selector!r})].map((node) => node.textContent)")


def ask(page, field: str, text: str, answer: str) -> None:
    """Type a text and Enter, and wait for the elements of the answer."""
    page.run("document.querySelectorAll('article').forEach((card) => card.replaceChildren())")
    page.type(f"#{field} textarea", text + "\ue007")
    page.wait_for(f"document.querySelectorAll('{answer}').length >= 2")


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (390, "dark")])
def test_every_part_is_visible(page, server, width, theme):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.developer("Emulation.setDeviceMetricsOverride", **size)
    page.open(f"{server}/?__theme={theme}")
    page.wait_for(DRAWN)
    for selector, count in {"h1": 1, "h2": 3, "textarea": 3, "article svg path": 2, "article ol": 2, ".js-plotly-plot": 2,
                            "#examples button": 5, ".note": 2, ".key": 3, "#map .point": 184}.items():  # fmt: skip
        found = page.run(PLACES, selector)
        assert len(found) == count, selector
        assert all(left >= 0 and right <= width and height > 0 for left, right, height in found), selector
    maps = page.run(PLACES, ".js-plotly-plot")
    assert (maps[0][0] == maps[1][0]) == (width == 390)  # below each other or side by side
    assert page.run("return document.documentElement.scrollWidth") <= width  # no scrolling sideways
    assert page.run("return document.body.classList.contains('dark')") == (theme == "dark")
    page.developer("Emulation.clearDeviceMetricsOverride")


def test_examples_and_typed_texts_are_compared(page, sentences, bert_folder):
    values = page.run("return [...document.querySelectorAll('textarea')].map((field) => field.value)")
    assert set(values) <= {*HOSTILE, *sentences[:40]} and values[0] == values[2] != values[1]
    examples = texts_of(page, "#examples button")
    assert len(set(examples)) == 5 and values[1] in texts_of(page, "article.after li span:last-child")
    page.click("#examples button:last-of-type")
    page.wait_for(f"document.querySelector('#query textarea').value !== {values[0]!r}")
    first, second = "the cat sees a red bird", f"a small dog {WORD}"
    page.type("#first textarea", first)
    ask(page, "second", second, ".number")
    shown = [float(number.replace("−", "-")) for number in texts_of(page, ".number")]
    left, right = Encoder.from_pretrained(bert_folder, "mean", max_seq_length=24).encode([first, second])
    assert shown[0] == pytest.approx(left @ right / (left @ left * right @ right) ** 0.5, abs=6e-4) != shown[1]
    assert all(re.fullmatch(r"higher than [\d.]+% of random pairs", note) for note in texts_of(page, ".note"))


def test_a_hostile_query_shows_the_matches_of_both_models_as_text(page):
    ask(page, "query", ATTACK, "article li:last-child")
    for side in ("before", "after"):
        cosines = [float(cosine.replace("−", "-")) for cosine in texts_of(page, f".{side} li span:first-child")]
        found = texts_of(page, f".{side} li span:last-child")
        assert len(cosines) == 45 and cosines == sorted(cosines, reverse=True)
        assert ATTACK not in found and set(HOSTILE) - {ATTACK} <= set(found)
    page.wait_for("document.querySelectorAll('#map .trace:nth-child(2) .point').length === 90")  # rings
    assert texts_of(page, "article.after h3") == [f"after {ATTACK}"] and ATTACK in texts_of(page, "h1 + p")[0]
    hostile = "article :is(img, script, a), #map svg :is(a, image)"
    assert page.run(f"return document.querySelectorAll('{hostile}').length") == 0
    page.type("#query textarea", "  \ue007")
    page.wait_for("document.querySelector('.toast-body')")
    assert "Type a text of 1 to 2,000 characters" in texts_of(page, ".toast-body")[0]


@pytest.mark.parametrize("side", [0, 1])
def test_pointing_at_a_dot_shows_its_text_on_both_maps(page, side):
    where = """
        const plot = document.querySelectorAll('.js-plotly-plot')[arguments[0]]; plot.scrollIntoView({block: 'center'});
        const box = plot.querySelector('.points').children[arguments[1]].getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];"""
    labels = "[...document.querySelectorAll('.js-plotly-plot')].map((m) => m.querySelector('.hovertext')?.textContent)"
    for number in (0, 4, 20):  # the first ones are hostile
        x, y = page.run(where, side, number)
        for step in (-40, 0):
            page.developer("Input.dispatchMouseEvent", type="mouseMoved", x=x + step, y=y)
        page.wait_for(f"{labels}.every(Boolean) && new Set({labels}).size === 1")
    page.developer("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    page.wait_for(f"!{labels}.some(Boolean)")


def test_an_upload_takes_the_place_of_the_texts(page, tmp_path):
    (tmp_path / "bad.csv").write_text(f"a,{ATTACK}\n1,2\n")
    page.upload("input[type=file]", tmp_path / "bad.csv")
    page.wait_for("document.querySelector('.toast-body')")
    assert "bad.csv has no column 'text'; it has a, <img src=x" in texts_of(page, ".toast-body")[0]
    (tmp_path / "mine.txt").write_text(f"one long example {'x' * 3000}\nthe second\n{ATTACK}\n")
    page.upload("input[type=file]", tmp_path / "mine.txt")
    page.wait_for("document.querySelector('h1 + p').textContent.includes('3 texts')")
    page.wait_for("document.querySelector('#map .points').children.length === 3")
    assert page.run("return document.documentElement.scrollWidth <= innerWidth")


def test_the_attack_is_one(browser):
    """Control: without protection, the same text does run as a script."""
    browser.open("data:text/html,<title>quiet</title>")
    browser.run("document.body.innerHTML = arguments[0]", ATTACK)
    browser.wait_for("document.title === 'ran'")
