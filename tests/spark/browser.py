"""Opens a page in headless Chromium and says what went wrong there. No test lives here.

The DevTools protocol over the browser's debugging pipe: JSON with a NUL byte after each message,
on file descriptors 3 (to the browser) and 4 (from it). So no port is opened and no websocket
library is needed. Nothing is fetched: the pages are files.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import selectors
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.processes import poll

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_S = 60.0


def find() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class BrowserFailed(RuntimeError):
    """The browser ended, refused a command or did not answer in time."""


@dataclass
class Page:
    """One open page; ``errors`` are console errors and exceptions since it was opened."""

    browser: Browser
    session: str
    errors: list[str] = field(default_factory=list)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserFailed(f"{expression!r} failed: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        return self.browser.call(method, self.session, **parameters)

    def look(self, width: int, scheme: str = "light", height: int = 900) -> None:
        """Set the width of the window and the preferred colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.call(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )
        # Two frames: the page redraws its charts in the first one after a resize.
        self.call(
            "Runtime.evaluate", awaitPromise=True,
            expression="new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))",
        )  # fmt: skip

    def screenshot(self, path: Path) -> Path:
        """The whole page as a PNG file."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path

    def overflow(self) -> int:
        """By how many pixels the page is wider than the window."""
        found = self.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return int(found)


class Browser:
    """A headless Chromium with a profile of its own, spoken to over its pipe."""

    def __init__(self, path: str, profile: Path) -> None:
        to_read, self._to = os.pipe()
        self._from, from_write = os.pipe()
        self._pid = _spawn(
            [
                path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                "--no-first-run", "--disable-background-networking", "--disable-component-update",
                f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
            ],
            to_read, from_write,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        self._pending = b""
        self._count = 0
        self._over = False
        self._pages: dict[str, Page] = {}

    def open(self, file: Path) -> Page:
        """A new page that has loaded this file."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Log"):
            page.call(f"{domain}.enable")
        page.look(1280)
        page.call("Page.navigate", url=file.resolve().as_uri())
        deadline = time.monotonic() + DEADLINE_S
        while page.evaluate("document.readyState + location.protocol") != "completefile:":
            if time.monotonic() > deadline:
                raise BrowserFailed(f"{file} was not loaded in {DEADLINE_S:.0f} s")
        page.look(1280)
        return page

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come meanwhile are taken note of."""
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + DEADLINE_S
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise BrowserFailed(f"{method} was refused: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _read(self, deadline: float, method: str) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._from, selectors.EVENT_READ)
            while b"\0" not in self._pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise BrowserFailed(f"no answer to {method} in {DEADLINE_S:.0f} s")
                chunk = os.read(self._from, 1 << 20)
                if not chunk:
                    raise BrowserFailed(f"the browser ended during {method}")
                self._pending += chunk
        message, _, self._pending = self._pending.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        page = self._pages.get(event.get("sessionId", ""))
        if page is None:
            return
        details = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            page.errors.append(json.dumps(details["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and details["type"] == "error":
            page.errors.append(json.dumps(details["args"]))
        elif event.get("method") == "Log.entryAdded" and details["entry"]["level"] == "error":
            page.errors.append(details["entry"]["text"])

    def close(self) -> None:
        """End the browser."""
        try:
            self.call("Browser.close")
            poll(self._ended, 20, "the browser to end")
        except (BrowserFailed, OSError, AssertionError):
            if not self._ended():
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
        os.close(self._to)
        os.close(self._from)

    def _ended(self) -> bool:
        if not self._over:
            self._over = os.waitpid(self._pid, os.WNOHANG)[0] == self._pid
        return self._over


def _spawn(command: list[str], to_read: int, from_write: int) -> int:
    """Start the browser with the pipes as descriptors 3 and 4; a shell could not name all of ours.

    They are first moved above 9, so that neither stands where the other has to go.
    """
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_read, from_write)]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_DUP2, high[0], 3),
        (os.POSIX_SPAWN_DUP2, high[1], 4),
    ]
    try:
        return os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    finally:
        for fd in high:
            os.close(fd)


@contextmanager
def browser(path: str, profile: Path) -> Iterator[Browser]:
    """A running browser, ended with the block."""
    running = Browser(path, profile)
    try:
        yield running
    finally:
        running.close()
