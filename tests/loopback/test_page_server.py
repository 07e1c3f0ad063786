"""The page's server: what it sends, to whom, how many, and what it makes of anything else."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from shoal.control import __main__ as control_main
from shoal.errors import ResourceError
from shoal.watch import PageServer, WatchAddress, page_server

if TYPE_CHECKING:
    from collections.abc import Iterator

ANY = WatchAddress("127.0.0.1", 0)
DEADLINE_S = 20.0


@contextmanager
def serving(*, publishes: bool = True) -> Iterator[PageServer]:
    """Serve a page, to which whoever keeps the job publishes numbers while it wants some."""
    page = PageServer(ANY)
    ends = threading.Event()

    def keep() -> None:
        number = 0
        while not ends.wait(0.01):
            if publishes and page.wants(time.monotonic()):
                number += 1
                page.publish(partial(bytes, b'{"number":%d}' % number), time.monotonic())

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield page
    finally:
        page.close()
        ends.set()
        keeper.join()


def get(page: PageServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", page.address.port, timeout=DEADLINE_S)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def said(page: PageServer, request: bytes) -> bytes:
    """Return what the server says to these bytes, to its end."""
    with socket.create_connection(("127.0.0.1", page.address.port), timeout=DEADLINE_S) as here:
        here.sendall(request)
        with suppress(OSError):  # it may have closed already
            here.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := here.recv(1 << 16):
            answer += chunk
        return answer


def test_the_page_and_a_snapshot() -> None:
    with serving() as page:
        status, headers, content = get(page, "/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b"<title>Shoal</title>" in content
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        status, headers, content = get(page, "/snapshot?later=1")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert content == b'{"number":1}'
        assert "Access-Control-Allow-Origin" not in headers


def test_the_page_loads_nothing_from_a_network() -> None:
    """What it names are its own parts, and the namespace of SVG, which nobody loads."""
    text = page_server._PAGE.read_text()
    for word in ("http://", "https://", "src=", "@import", "url("):
        for place in range(len(text)):
            if text.startswith(word, place):
                around = text[place : place + 40]
                assert around.startswith(("http://www.w3.org/2000/svg", "url(#hatch)")), around


def test_a_stream_of_snapshots_goes_on() -> None:
    with (
        serving() as page,
        socket.create_connection(("127.0.0.1", page.address.port), timeout=DEADLINE_S) as here,
    ):
        here.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        heard = b""
        while heard.count(b"data: ") < 3:
            heard += here.recv(4096)
        assert b"Content-Type: text/event-stream" in heard
        assert [line for line in heard.split(b"\n") if line.startswith(b"data: ")] == [
            b'data: {"number":%d}' % number for number in (1, 2, 3)
        ]


def test_nothing_is_made_while_nobody_looks() -> None:
    with serving() as page:
        assert not page.wants(time.monotonic())
        get(page, "/snapshot")
        assert page.number == 1
        assert not page.wants(time.monotonic() + 100)


def test_before_anything_is_known_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "_FRESH_S", 0.1)
    with serving(publishes=False) as page:
        assert get(page, "/snapshot")[0] == 503


def test_another_sites_name_for_this_machine_is_refused() -> None:
    with serving() as page:
        for name in ("evil.example", "evil.example:8265", "127.0.0.1.evil.example:1", ""):
            assert get(page, "/snapshot", Host=name)[0] == 403
        for name in ("localhost", "127.0.0.1:9", "[::1]:9", "localhost:1"):
            assert get(page, "/snapshot", Host=name)[0] == 200


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\r\n\r\n",
        b"\0" * 100,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"GET /%2e%2e/x HTTP/1.0\r\nHost: localhost\r\n\r\n",
        b"POST / HTTP/1.0\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\n",
        b"GET / HTTP/1.0\r\n" + b"X: y\r\n" * 1000,
        b"GET /" + b"a" * 100_000 + b" HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.0\r\nHost: " + b"\xff" * 50 + b"\r\n\r\n",
    ],
)
def test_what_is_no_request_harms_nobody(
    request_: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving() as page:
        try:
            answer = said(page, request_)
        except ConnectionError:
            answer = b""
        assert b"200" not in answer.partition(b"\r\n")[0]
        assert get(page, "/snapshot")[0] == 200
    assert capfd.readouterr().err == ""


def test_so_many_may_look_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "MOST_VIEWERS", 3)
    with serving() as page, ExitStack() as viewers:
        for _ in range(3):
            here = viewers.enter_context(
                socket.create_connection(("127.0.0.1", page.address.port), timeout=DEADLINE_S)
            )
            here.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert here.recv(10)
        assert said(page, b"").startswith(b"HTTP/1.0 503")
    with serving() as page:  # places come back, a moment after each answer
        for _ in range(9):
            end = time.monotonic() + DEADLINE_S
            while get(page, "/snapshot")[0] != 200:
                assert time.monotonic() < end


def test_who_does_not_take_what_it_is_sent_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_server, "MOST_VIEWERS", 1)
    monkeypatch.setattr(page_server._Viewer, "timeout", 0.3)
    monkeypatch.setattr(page_server, "_INTERVAL_S", 0.0)
    page = PageServer(ANY)
    ends = threading.Event()

    def keep() -> None:
        while not ends.wait(0.001):
            page.publish(partial(bytes, b"x" * 1_000_000), time.monotonic())

    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        with socket.create_connection(("127.0.0.1", page.address.port), timeout=DEADLINE_S) as here:
            here.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
            assert here.recv(10)  # and it takes no more; its place is needed
            end = time.monotonic() + DEADLINE_S
            while said(page, b"GET /snapshot HTTP/1.0\r\nHost: localhost\r\n\r\n")[9:12] != b"200":
                assert time.monotonic() < end
                time.sleep(0.05)
    finally:
        ends.set()
        keeper.join()
        page.close()


def test_an_address_that_cannot_be_had_is_said_so() -> None:
    in_use = r"cannot be shown at 127\.0\.0\.1:\d+: Address already in use"
    with serving() as page, pytest.raises(ResourceError, match=in_use):
        PageServer(page.address)
    with pytest.raises(ResourceError, match=r"cannot be shown at 192\.0\.2\.1:8265: Cannot assign"):
        PageServer(WatchAddress("192.0.2.1", 8265))
    with pytest.raises(ResourceError, match=r"cannot be shown at no\.such\.host\.invalid:1: "):
        PageServer(WatchAddress("no.such.host.invalid", 1))


def test_it_ends_with_viewers_still_there() -> None:
    with serving() as page:
        here = socket.create_connection(("127.0.0.1", page.address.port), timeout=DEADLINE_S)
        here.sendall(b"GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert here.recv(10)
    with here:
        while here.recv(4096):
            pass
    page.close()


def test_a_job_says_once_that_it_cannot_be_shown_and_where_it_is_shown_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    is_said = threading.Event()

    def say(sentence: str) -> None:
        said.append(sentence)
        is_said.set()

    monkeypatch.setattr(control_main, "_AGAIN_S", 0.01)
    monkeypatch.setattr(control_main, "_say", say)
    job: Any = SimpleNamespace(page=None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = WatchAddress(*other.getsockname())
        starting = threading.Thread(target=control_main._show, args=(job, address))
        starting.start()
        assert is_said.wait(DEADLINE_S)
    starting.join(DEADLINE_S)
    job.page.close()
    refused, shown = said
    assert refused.startswith(f"The job cannot be shown at {address}: Address already in use.")
    assert refused.endswith("The job goes on, and tries again for 30 s.")
    assert shown == f"this job is shown at http://{address}/"


def test_a_page_for_all_who_can_reach_the_machine_is_said_to_be_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job: Any = SimpleNamespace(page=None)
    control_main._show(job, WatchAddress("0.0.0.0", 0))
    job.page.close()
    said = capsys.readouterr().err
    assert "to anybody who can reach this machine there: no key is asked for." in said
