"""End-to-end test of python -m mirror.tools.demo: the command is started, and headless Chromium opens the page."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mirror.modeling.encoder import Encoder
from tests.browser import chromium, missing_programs
from tests.tools.test_demo import call, cosines, save_run


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
def flags(bert_folder, sentences, tmp_path_factory) -> list[str]:
    """The demo's arguments, with hostile texts and a hostile model name."""
    folder = tmp_path_factory.mktemp("demo")
    save_run(folder / ATTACK, bert_folder)
    (folder / "texts.txt").write_text("\n".join([*HOSTILE, *sentences[:40]]))
    return [str(folder / ATTACK), "--texts", str(folder / "texts.txt"), "--before", bert_folder, "--top_k", "44"]


@pytest.fixture(scope="module")
def server(flags):
    """The address of a demo; checks its output after an interrupt."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mirror.tools.demo", *flags, "--port", str(port)]
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
def export(flags, tmp_path_factory) -> str:
    """The address of the same page in one file."""
    path = tmp_path_factory.mktemp("export") / "page.html"
    with pytest.MonkeyPatch.context() as patch:
        call(patch, *flags, "--export", path)
    return path.as_uri()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(params=["server", "export"])
def page(request, browser):
    """The page, once from the server and once from the exported file."""
    address = request.getfixturevalue(request.param)
    browser.open(address)
    browser.wait_for("document.body.dataset.ready !== undefined")
    yield browser
    assert [line for line in browser.console() if address in line] == []  # neither blocked requests nor errors


only = {
    kind: pytest.mark.parametrize("page", [kind], indirect=True) for kind in ("server", "export")
}  # for what only one of the two can do


def texts_of(page, selector: str) -> list[str]:
    return page.run(f"return [...document.querySelectorAll({selector!r})].map((node) => node.textContent)")


def compare(page, first: str, second: str) -> list[float]:
    """The two cosines that the page shows."""
    page.run("document.querySelectorAll('#cosine svg').forEach((picture) => picture.replaceChildren())")
    page.type("#cosine [name=first]", first)
    page.type("#cosine [name=second]", second)
    page.click("#cosine button")
    page.wait_for("document.querySelector('#cosine .after svg line')")
    return [float(number.replace("−", "-")) for number in texts_of(page, "#cosine .number")]


def test_it_opens_on_examples_from_the_corpus(page, sentences):
    examples = texts_of(page, "#search .examples button")
    assert len(set(examples)) == 5 and set(examples) <= {*HOSTILE, *sentences[:40]}
    values = page.run("return [...document.querySelectorAll('input')].map((input) => input.value)")
    assert values[0] == values[2] == examples[0] and values[1] in {*HOSTILE, *sentences[:40]} - {examples[0]}
    assert values[1] == texts_of(page, "#search .after .text")[0] or values[1] in texts_of(
        page, "#search .after .text"
    )
    assert all(re.fullmatch(r"−?[01]\.\d{3}", number) for number in texts_of(page, "#cosine .number"))
    page.click("#search .examples button:last-of-type")
    page.wait_for(f"document.querySelector('#search input').value === {json.dumps(examples[-1])}")
    page.wait_for(f"document.querySelector('#search .after .text').textContent !== {json.dumps(examples[-1])}")


def test_two_texts_show_both_cosines(page, sentences, bert_folder):
    first, second = sentences[3], sentences[7]
    shown = compare(page, first, second)
    left, right = Encoder.from_pretrained(bert_folder, "mean", max_seq_length=24).encode([first, second])
    assert shown[0] == pytest.approx(cosines(left, right[None])[0], abs=0.01) and shown[1] != shown[0]
    assert all(re.fullmatch(r"higher than [\d.]+% of random pairs", note) for note in texts_of(page, "#cosine .note"))


@only["server"]
def test_the_server_encodes_new_texts(page, bert_folder):
    first, second = "the cat sees a red bird", f"a small dog {WORD}"
    left, right = Encoder.from_pretrained(bert_folder, "mean", max_seq_length=24).encode([first, second])
    assert compare(page, first, second)[0] == pytest.approx(cosines(left, right[None])[0], abs=6e-4)
    page.type("#cosine [name=second]", " ")  # passes the browser's check, but not the server's
    page.click("#cosine button")
    page.wait_for("document.querySelector('#cosine .error').textContent")
    assert "at least 1 character" in texts_of(page, "#cosine .error")[0]
    assert "422" in " ".join(page.console())  # reported by the browser


@only["export"]
def test_the_exported_page_says_that_it_cannot_encode_new_texts(page):
    assert "it cannot encode new ones" in texts_of(page, "#limits")[0]
    page.type("#search [name=query]", f"a small dog {WORD}\ue007")
    page.wait_for("document.querySelector('#search .error').textContent")
    assert texts_of(page, "#search .error") == [
        "this page has no model and cannot encode a new text; choose one of its texts"
    ]
    assert page.run("return document.querySelectorAll('datalist option').length") == 44


def test_both_pages_find_the_same(server, export, browser, sentences):
    def answers(address: str) -> dict:
        browser.open(address)
        browser.wait_for("document.body.dataset.ready !== undefined")
        browser.run(
            "ask('api/search', {query: arguments[0]}).then((answer) => (window.answered = answer))", sentences[5]
        )
        browser.wait_for("window.answered")
        return browser.run("return window.answered")

    served, exported = answers(server), answers(export)
    for side in ("before", "after"):
        scores = [
            {match["text"]: match["cosine"] for match in answer[side]["matches"]} for answer in (served, exported)
        ]
        assert set(scores[0]) == set(scores[1]) and sentences[5] not in scores[0]
        assert max(abs(scores[0][text] - scores[1][text]) for text in scores[0]) < 0.01


def test_a_query_shows_the_matches_of_both_models(page, sentences):
    page.type("#search [name=query]", sentences[5] + "\ue007")  # Enter key
    page.wait_for(
        f"![...document.querySelectorAll('#search .text')].some((node) => node.textContent === {json.dumps(sentences[5])})"
    )
    for side in ("before", "after"):
        shown = [float(cosine) for cosine in texts_of(page, f"#search .{side} .cosine")]
        assert len(shown) == 43 and shown == sorted(shown, reverse=True)


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
    page.wait_for(
        f"![...document.querySelectorAll('#search .text')].some((node) => node.textContent === {json.dumps(ATTACK)})"
    )
    for side in ("before", "after"):
        assert set(HOSTILE) - {ATTACK} <= set(texts_of(page, f"#search .{side} .text"))
    assert set(texts_of(page, ".after .model")) == {ATTACK} and ATTACK in texts_of(page, "#facts")[0]
    for number in range(len(HOSTILE)):  # under the pointer
        page.run("const label = document.getElementById('pointed'); label.hidden = false;"
                 "label.textContent = ''; const dot = placing('after')(corpus.after.points[arguments[0]]);"
                 "pointAt('after', {type: 'pointermove', offsetX: dot[0], offsetY: dot[1]});", number)  # fmt: skip
        assert texts_of(page, "#pointed")[0] in HOSTILE
    assert page.run("return document.title") == "Before and after training"
    assert page.run("return document.querySelectorAll('img, b:not(h3 b), article svg[onload]').length") == 0


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
    page.run("part('search', 'after', '.text').textContent = 'w'.repeat(200)")
    assert page.run("return document.documentElement.scrollWidth") == 400
    assert page.run("return part('map', 'after', 'canvas').width") > 600
    page.developer("Emulation.clearDeviceMetricsOverride")
