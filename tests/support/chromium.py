"""A headless Chromium, driven by the DevTools protocol over a pipe: no port, no driver program, no network."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_S = 60.0
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def find_chromium() -> str | None:
    """The program; None where none is installed."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One page of the browser.

    Attributes:
        events: everything that the browser told of itself so far.
    """

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._buffer = b""
        self._last_id = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        """Opens an empty page, with everything that may go wrong in it reported."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Asks, and waits for the answer."""
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def open(self, url: str, *, width: int, height: int = 900, is_dark: bool = False) -> None:
        """Loads a page at a width in CSS pixels, and waits until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not self.seen("Page.loadEventFired"):
            self.events.append(self._next("load"))

    def seen(self, method: str) -> list[Mapping[str, Any]]:
        """The parameters of every event of that name since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """The page as it would be printed on A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        return base64.b64decode(answer["data"])

    def _next(self, doing: str) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._from, 1 << 20) if ready else b""
            assert piece, f"the browser {'ended' if ready else 'does not answer'}: {doing}"
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextlib.contextmanager
def browser_tab(program: str, profile: Path) -> Iterator[Tab]:
    """A page of a browser of its own; the browser has ended when the block has."""
    theirs_in, ours_out = _high_pipe()
    ours_in, theirs_out = _high_pipe()

    actions = [
        *((os.POSIX_SPAWN_OPEN, end, os.devnull, os.O_RDWR, 0) for end in (0, 1, 2)),
        (os.POSIX_SPAWN_DUP2, theirs_in, 3),
        (os.POSIX_SPAWN_DUP2, theirs_out, 4),
    ]
    arguments = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    pid = os.posix_spawn(program, arguments, os.environ, file_actions=actions)
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        tab = Tab(ours_out, ours_in)
        tab.attach()
        yield tab
    finally:
        os.close(ours_out)  # the end of the pipe ends the browser
        _wait(pid, ours_in)
        os.close(ours_in)


def _wait(pid: int, from_browser: int) -> None:
    """Waits until the browser has closed its end, and ends it by force when it does not."""
    deadline = time.monotonic() + 20
    while select.select([from_browser], [], [], max(0.0, deadline - time.monotonic()))[0]:
        if not os.read(from_browser, 1 << 20):
            break
    else:
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _high_pipe() -> tuple[int, int]:
    """A pipe whose ends are not 3 or 4, where the browser wants its own."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]
