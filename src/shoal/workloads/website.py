"""Files from a data set's own web site, over urllib: short timeouts, resumed when interrupted.

Owns the transfer only. Must not know checksums (fetch.py checks what arrives) or formats.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shoal.workloads.fetch import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shoal.workloads.fetch import FetchProgress

TIMEOUT_SECONDS = 10.0
"""Longest silence of a server, at connection and at each read."""

DEADLINE_SECONDS = 3600.0
"""Longest transfer of one file."""

_ATTEMPTS = 3
_CHUNK_BYTES = 1 << 18
_RANGE_NOT_SATISFIABLE = 416


@dataclass(frozen=True, slots=True)
class WebSite:
    """Files that lie beside one another under one address."""

    base: str
    """Address of the folder, ending in a slash."""

    remote = True

    @property
    def label(self) -> str:
        """The address."""
        return self.base

    def fetch(
        self, names: Sequence[str], room: Path, progress: FetchProgress
    ) -> Mapping[str, Path]:
        """Download each file into `room`, resuming `NAME.part` where an earlier try ended."""
        return {name: self._download(name, room / name, progress) for name in names}

    def _download(self, name: str, path: Path, progress: FetchProgress) -> Path:
        part = path.with_name(f"{name}.part")
        deadline = time.monotonic() + DEADLINE_SECONDS
        for attempt in range(1, _ATTEMPTS + 1):
            before = _size(part)
            try:
                _transfer(self.base + name, part, deadline, progress)
            except (OSError, http.client.HTTPException) as error:
                # try again only what was under way: an unreachable site must fail fast
                if _size(part) <= before or attempt == _ATTEMPTS:
                    raise SourceError(_reason(error)) from error
            else:
                part.rename(path)
                return path
        raise AssertionError  # the last attempt returns or raises


def _transfer(url: str, part: Path, deadline: float, progress: FetchProgress) -> None:
    offset = _size(part)
    headers = {"Range": f"bytes={offset}-"} if offset else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            _save(response, part, deadline, progress)
    except urllib.error.HTTPError as error:
        if error.code == _RANGE_NOT_SATISFIABLE:
            part.unlink()  # it is not a beginning of this file: the next run starts afresh
        raise


def _save(
    response: http.client.HTTPResponse, part: Path, deadline: float, progress: FetchProgress
) -> None:
    resumed = response.status == http.client.PARTIAL_CONTENT
    done = _size(part) if resumed else 0
    length = int(response.headers.get("Content-Length") or 0)
    total = done + length if length else 0
    with part.open("ab" if resumed else "wb") as file:
        while chunk := response.read(_CHUNK_BYTES):
            file.write(chunk)
            done += len(chunk)
            progress(f"downloading {part.stem}", done, total)
            if time.monotonic() > deadline:
                raise TimeoutError("the transfer takes too long")
    if done < total:
        raise http.client.IncompleteRead(b"", total - done)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, Exception) else error
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early, run again to resume"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
