"""A headless Chromium on a pipe: open a page at a width, and read its log and its requests."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ANSWER_SECONDS = 60.0


def find_chromium() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A running Chromium, controlled by the DevTools protocol over two pipes."""

    def __init__(self, commands: int, answers: int):
        self._commands, self._answers = commands, answers
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result; keep the events that arrive meanwhile."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._commands, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self.events.append(answer)

    def wait(self, method: str) -> None:
        """Wait for an event."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        until = time.monotonic() + ANSWER_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            block = os.read(self._answers, 1 << 20) if ready else b""
            assert block, "Chromium ended, or did not answer"
            self._buffer += block
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)


@contextmanager
def run_chromium(path: str, profile: Path) -> Iterator[Browser]:
    """Run Chromium with a profile of its own until the block ends."""
    commands_read, commands_write = os.pipe()
    answers_read, answers_write = os.pipe()
    flags = ["headless=new", "no-sandbox", "disable-gpu", "no-first-run", "disable-background-networking"]
    # The pipes' ends must be descriptors 3 and 4. Moved high first, so that neither is in the other's way.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands_read, answers_write)]
    script = "import os, sys; a = sys.argv; os.dup2(int(a[1]), 3); os.dup2(int(a[2]), 4); os.execv(a[3], a[3:])"
    arguments = [path, *(f"--{flag}" for flag in flags), f"--user-data-dir={profile}", "--remote-debugging-pipe"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, ends), *arguments],
        pass_fds=ends,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in ends:
        os.close(end)
    os.close(commands_read)
    os.close(answers_write)
    browser = Browser(commands_write, answers_read)
    try:
        yield browser
        browser.call("Browser.close")
    finally:
        os.close(commands_write)
        os.close(answers_read)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Page:
    """A page opened at a width, in light or dark."""

    def __init__(self, browser: Browser, url: str, *, width: int, height: int = 900, dark: bool = False):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Security"):
            self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2, mobile=mobile)
        browser.events.clear()
        self.call("Page.navigate", url=url)
        browser.wait("Page.loadEventFired")
        self.evaluate("new Promise(done => setTimeout(done, 200))")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the page."""
        return self._browser.call(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        """Return the value of a script's expression, run from outside the page's own policy."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def requests(self) -> list[str]:
        """Return the addresses requested since the page was opened, except `data:` addresses."""
        events = [event for event in self._browser.events if event["method"] == "Network.requestWillBeSent"]
        asked = [event["params"]["request"]["url"] for event in events]
        return [url for url in asked if not url.startswith("data:")]

    def complaints(self) -> list[str]:
        """Return what the browser logged: errors, warnings, violations, dialogs, whatever a script printed."""
        methods = (
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Page.javascriptDialogOpening",
            "Network.loadingFailed",
        )
        return [json.dumps(event["params"]) for event in self._browser.events if event["method"] in methods]
