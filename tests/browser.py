"""Headless Chromium driven over WebDriver, which is JSON over HTTP. A client library would bring its own downloads."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


PROGRAMS = ("chromium", "chromedriver")
FLAGS = (  # Chromium refuses to start as root in a sandbox; a page that needs the network shows it
    *("--headless", "--no-sandbox", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
    *(f"--disable-{part}" for part in ("gpu", "quic", "background-networking", "component-update", "sync")),
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element's id in the standard


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if not shutil.which(name)]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """Start a browser with a fresh `profile` folder, and end it."""
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        for line in driver.stdout:
            if started := re.search(r"successfully on port (\d+)", line):
                break
        browser = Browser(int(started[1]), profile)
        try:
            yield browser
        finally:
            browser.command("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()


class Browser:
    def __init__(self, port: int, profile: Path):
        self.port, self.session = port, ""
        options = {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self.session = self.command("POST", "", capabilities={"alwaysMatch": wanted})["sessionId"]

    def command(self, method: str, path: str, **body):
        """Send a command, and return the `value` of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        place = f"/session/{self.session}{path}" if self.session else "/session"
        connection.request(method, place, json.dumps(body) if method == "POST" else None)
        answer = json.loads(connection.getresponse().read())["value"]
        connection.close()
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, url: str) -> None:
        self.command("POST", "/url", url=url)

    def run(self, script: str, *args):
        """Return what the body `script` of a function returns. Its arguments are in `arguments`."""
        return self.command("POST", "/execute/sync", script=script, args=args)

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        """Wait until the expression `condition` holds."""
        end = time.monotonic() + seconds
        while not self.run(f"return Boolean({condition})"):
            assert time.monotonic() < end, f"not within {seconds} s: {condition}"
            time.sleep(0.05)

    def find(self, selector: str) -> str:
        return self.command("POST", "/element", using="css selector", value=selector)[ELEMENT]

    def type(self, selector: str, text: str) -> None:
        element = self.find(selector)
        self.command("POST", f"/element/{element}/clear")
        self.command("POST", f"/element/{element}/value", text=text)

    def upload(self, selector: str, path: Path) -> None:
        self.command("POST", f"/element/{self.find(selector)}/value", text=str(path))

    def click(self, selector: str) -> None:
        self.command("POST", f"/element/{self.find(selector)}/click")

    def developer(self, command: str, **parameters):
        return self.command("POST", "/goog/cdp/execute", cmd=command, params=parameters)

    def console(self) -> list[str]:
        """Return what the page, and the browser about it, wrote since the last call."""
        return [entry["message"] for entry in self.command("POST", "/se/log", type="browser")]
