"""Background flows over sockets of this machine, and where no batch is cut into packets."""

from __future__ import annotations

import errno
import socket
import time
from typing import Any

import pytest

from shoal.compiled.libc import UDP_SEGMENT
from shoal.lab.hosts import background
from shoal.lab.hosts.background import BackgroundFlow
from shoal.scenario.cluster_spec import Flow

FLOW = Flow(0, 1, "udp", 80_000_000, packet_bytes=1_000)


class CutsNothing:
    """A socket as older kernels have it where an interface sums no checksums."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner, self.refused, self.sizes, self._segment = inner, 0, set[int](), 0

    def setsockopt(self, level: int, name: int, value: int) -> None:
        if name == UDP_SEGMENT:
            self._segment = value
        self._inner.setsockopt(level, name, value)

    def send(self, data: bytes) -> int:
        if self._segment:
            self.refused += 1
            raise OSError(errno.EIO, "no checksum offload")
        self.sizes.add(len(data))
        return self._inner.send(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def opened_here(_namespace: str, kind: int = socket.SOCK_DGRAM) -> socket.socket:
    return socket.socket(socket.AF_INET, kind)


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "socket_inside", opened_here)
    monkeypatch.setattr(background, "address_of", lambda _: "127.0.0.1")


def wait_for_bytes(flow: BackgroundFlow, least: int) -> None:
    until = time.monotonic() + 10
    while flow.sent_bytes < least and time.monotonic() < until:
        time.sleep(0.01)
    assert flow.sent_bytes >= least


def test_where_nothing_cuts_batches_packets_go_one_by_one() -> None:
    with BackgroundFlow(FLOW, ["", ""]) as flow:
        flow._source = source = CutsNothing(flow._source)  # type: ignore[assignment]
        flow.begin()
        wait_for_bytes(flow, 50_000)
    assert source.refused == 1
    assert source.sizes == {1_000 - background.UDP_HEADERS_BYTES}


def test_a_flow_that_is_stopped_sends_no_more_and_can_be_closed() -> None:
    with BackgroundFlow(FLOW, ["", ""]) as flow:
        flow.begin()
        wait_for_bytes(flow, 10_000)
        flow.stop()
        assert flow.is_closed
        flow.close()
        sent = flow.sent_bytes
        time.sleep(0.05)
        assert flow.sent_bytes == sent
