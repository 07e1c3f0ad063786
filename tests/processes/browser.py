"""A headless Chromium, if this machine has one, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import TracebackType

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DEADLINE_S = 30.0
_AT_3_AND_4 = """
import fcntl, os, sys
into, out = (fcntl.fcntl(int(each), fcntl.F_DUPFD, 10) for each in sys.argv[1:3])
os.dup2(into, 3)
os.dup2(out, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Becomes a browser, which listens at descriptor 3 and answers at 4."""


def found_browser() -> str | None:
    """Return the path of a Chromium on this machine."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of a Chromium; a context manager, which ends it."""

    def __init__(self, path: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-", ignore_cleanup_errors=True)
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-c",
                _AT_3_AND_4,
                str(theirs_in),
                str(theirs_out),
                path,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                f"--user-data-dir={self._folder.name}",
                "about:blank",
            ],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        """What the page's scripts threw, and what the page complained of."""
        page = next(
            each
            for each in self._call("Target.getTargets")["targetInfos"]
            if each["type"] == "page"
        )
        attached = self._call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self.requests: list[str] = []
        """The addresses that the page has asked for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._to)  # it ends when nobody speaks to it any more
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)
        self._folder.cleanup()

    def open(self, url: str, *, width: int = 1400, dark: bool = False) -> None:
        """Load a page as wide as that, in one of both themes."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[theme])
        self._call("Page.navigate", url=url)
        self.wait_until("document.readyState !== 'loading' && document.body !== null")

    def evaluate(self, expression: str) -> Any:
        """Return what JavaScript says, which must be a value of JSON."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait_until(self, expression: str) -> None:
        """Return once JavaScript says that something is so."""
        end = time.monotonic() + DEADLINE_S
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"it never came true: {expression}; {self.errors}"
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """Write what the whole page looks like to a PNG file."""
        taken = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(taken["data"]))

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE_S
        while True:
            answer = self._receive(end)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.errors.append(str(event["params"]["exceptionDetails"]))
            case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                self.errors.append(event["params"]["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            chunk = os.read(self._from, 1 << 16)
            assert chunk, "the browser has ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer
