"""Downloading from a web site: resuming, failing fast, files that appear whole or not at all."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from shoal.workloads.fetch import SourceError
from shoal.workloads.website import WebSite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CONTENT = bytes(range(256)) * 4096  # 1 MiB
SILENT = lambda *_: None  # noqa: E731 - a progress callback that ignores everything


class Server(ThreadingHTTPServer):
    """Serves CONTENT at /data.bin; may break off, ignore ranges or refuse."""

    daemon_threads = True

    def __init__(self, *, break_after: list[int], ranges: bool, status: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.break_after = break_after
        self.ranges = ranges
        self.status = status
        self.requested: list[str | None] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requested.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if self.server.status != 200 or self.path != "/data.bin":
            self.send_error(self.server.status if self.server.status != 200 else 404)
            return
        if start > len(CONTENT):
            self.send_error(416)
            return
        partial = bool(wanted) and self.server.ranges
        body = CONTENT[start:] if partial else CONTENT
        self.send_response(206 if partial else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        limit = self.server.break_after.pop(0) if self.server.break_after else len(body)
        self.wfile.write(body[:limit])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(
    *, break_after: list[int] | None = None, ranges: bool = True, status: int = 200
) -> Iterator[tuple[Server, WebSite]]:
    with Server(break_after=break_after or [], ranges=ranges, status=status) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server, WebSite(f"http://127.0.0.1:{server.server_port}/")
        finally:
            server.shutdown()
            thread.join(timeout=10)


def test_file_arrives_whole_with_progress(tmp_path: Path):
    seen: list[tuple[str, int, int]] = []
    with serving() as (_, site):
        paths = site.fetch(["data.bin"], tmp_path, lambda *step: seen.append(step))
    assert paths["data.bin"].read_bytes() == CONTENT
    assert seen[-1] == ("downloading data.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert list(tmp_path.iterdir()) == [tmp_path / "data.bin"]


def test_interrupted_transfer_is_resumed(tmp_path: Path):
    with serving(break_after=[300_000, 300_000]) as (server, site):
        paths = site.fetch(["data.bin"], tmp_path, SILENT)
    assert paths["data.bin"].read_bytes() == CONTENT
    assert server.requested == [None, "bytes=300000-", "bytes=600000-"]


def test_part_of_an_earlier_run_is_resumed(tmp_path: Path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:1000])
    with serving() as (server, site):
        paths = site.fetch(["data.bin"], tmp_path, SILENT)
    assert paths["data.bin"].read_bytes() == CONTENT
    assert server.requested == ["bytes=1000-"]


def test_server_without_ranges_starts_over(tmp_path: Path):
    (tmp_path / "data.bin.part").write_bytes(b"something else")
    with serving(ranges=False) as (_, site):
        paths = site.fetch(["data.bin"], tmp_path, SILENT)
    assert paths["data.bin"].read_bytes() == CONTENT


def test_three_interruptions_keep_the_part_for_the_next_run(tmp_path: Path):
    with serving(break_after=[100, 100, 100]) as (server, site):
        with pytest.raises(SourceError, match="connection ended early"):
            site.fetch(["data.bin"], tmp_path, SILENT)
        assert not (tmp_path / "data.bin").exists()
        assert (tmp_path / "data.bin.part").read_bytes() == CONTENT[:300]
        assert len(server.requested) == 3


def test_part_longer_than_the_file_is_dropped(tmp_path: Path):
    (tmp_path / "data.bin.part").write_bytes(CONTENT + b"too much")
    with serving() as (_, site):
        with pytest.raises(SourceError, match="HTTP status 416"):
            site.fetch(["data.bin"], tmp_path, SILENT)
        assert site.fetch(["data.bin"], tmp_path, SILENT)["data.bin"].read_bytes() == CONTENT


@pytest.mark.parametrize(("status", "name"), [(200, "absent.bin"), (503, "data.bin")])
def test_refusal_is_told_and_not_repeated(tmp_path: Path, status: int, name: str):
    with serving(status=status) as (server, site):
        with pytest.raises(SourceError, match=r"HTTP status (404|503)"):
            site.fetch([name], tmp_path, SILENT)
        assert len(server.requested) == 1


def test_closed_port_fails_at_once(tmp_path: Path):
    with serving() as (server, _):
        port = server.server_port
    with pytest.raises(SourceError, match="refused"):
        WebSite(f"http://127.0.0.1:{port}/").fetch(["data.bin"], tmp_path, SILENT)


def test_file_url_works_too(tmp_path: Path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "data.bin").write_bytes(CONTENT)
    site = WebSite((tmp_path / "site").as_uri() + "/")
    assert site.fetch(["data.bin"], tmp_path, SILENT)["data.bin"].read_bytes() == CONTENT
    with pytest.raises(SourceError, match="No such file"):
        site.fetch(["absent.bin"], tmp_path, SILENT)
