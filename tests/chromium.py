"""Chromium without a window, spoken to through two pipes in its DevTools protocol: what a page is, does and asks for.

One browser process serves a whole test session. Nothing of it needs a network, a port or a driver.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-breakpad", "--remote-debugging-pipe",
)  # fmt: skip
DEADLINE_S = 60


def binary() -> str | None:
    """The browser of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Browser:
    """A browser process."""

    def __init__(self, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        self._process = subprocess.Popen(
            [binary() or "chromium", *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(3, 4), preexec_fn=lambda: _as_3_and_4(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def close(self) -> None:
        """End it, and all its processes."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(DEADLINE_S)
        os.close(self._commands)
        os.close(self._answers)

    def call(self, method: str, session: str | None = None, **params: object) -> dict[str, Any]:
        """One command and its result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params, **({} if session is None else {"sessionId": session})}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, event: str, session: str) -> dict[str, Any]:
        """The next event of that name."""
        while True:
            found = next((item for item in self.events if item.get("method") == event and item.get("sessionId") == session), None)
            if found is not None:
                return found
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            piece = os.read(self._answers, 1 << 20)
            assert piece, f"the browser ended with {self._process.poll()}"
            self._buffer += piece
        raw, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(raw)
        return answer

    @contextmanager
    def page(self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True) -> Iterator["Page"]:
        """A tab with that file, once it has loaded; with `scripts` off those of the page do not run."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        self.call("Emulation.setDeviceMetricsOverride", session, width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", session, media="", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Emulation.setScriptExecutionDisabled", session, value=not scripts)
        self.call("Page.navigate", session, url=file.absolute().as_uri())
        self.wait_for("Page.loadEventFired", session)
        try:
            yield Page(self, session)
        finally:
            self.call("Target.closeTarget", targetId=target)


class Page:
    """A page that has loaded."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression; the tools may ask where the page may not."""
        told = self._browser.call("Runtime.evaluate", self._session, expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot: of the first screen, or of all of it."""
        data = self._browser.call("Page.captureScreenshot", self._session, format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def print_styles(self) -> None:
        """As it would be on paper."""
        self._browser.call("Emulation.setEmulatedMedia", self._session, media="print")

    def complaints(self) -> list[str]:
        """What the console shows: errors, warnings, violations of the policy, uncaught exceptions."""
        return [json.dumps(_plain(event)) for event in self._events("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")]

    def requests(self) -> list[str]:
        """Every URL that was asked for."""
        return [event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")]

    def seconds(self) -> Mapping[str, float]:
        """From the beginning of the navigation until the document was there and until all had loaded."""
        told = self.ask("(() => { const t = performance.getEntriesByType('navigation')[0]; return [t.domContentLoadedEventEnd, t.loadEventEnd] })()")
        return {"document_s": told[0] / 1000, "load_s": told[1] / 1000}

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        self.ask("1")  # all that the page caused has arrived with the answer
        return [event for event in self._browser.events if event.get("method") in methods and event.get("sessionId") == self._session]


def _plain(event: Mapping[str, Any]) -> object:
    return event["params"].get("entry", event["params"])


def _as_3_and_4(commands: int, answers: int) -> None:
    """In the child: the ends of the pipes where the browser looks for them, whatever number they had."""
    reading, writing = os.dup(commands), os.dup(answers)
    high = [os.dup(number) for number in (reading, writing, reading, writing)][2:]
    os.dup2(high[0], 3)
    os.dup2(high[1], 4)
