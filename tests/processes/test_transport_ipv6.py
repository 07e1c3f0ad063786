"""The transport over IPv6: an all-reduce through `shoal.connect()` between processes on ::1."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from forked_process import start

import started_ranks
from shoal.control.rendezvous import exchange_cards
from thoroughness import seldom

SCRIPT = """
import json, sys
import numpy as np
import shoal
from shoal.wire.settings import from_environment

with shoal.connect(deadline_s=20) as comm:
    values = np.arange(200_000, dtype=np.float32) + comm.rank
    exact = comm.all_reduce(values.copy())
    lossy = comm.all_reduce(np.ones(200_000, np.float32), loss_bound=0.1)
    whole = comm.all_reduce(np.full(5, comm.rank, np.int64))
    print(json.dumps({
        "bind": from_environment().bind,
        "segment": from_environment().transport.segment_bytes,
        "right": bool((exact == 3 * np.arange(200_000, dtype=np.float32) + 3).all()),
        "least": float(lossy.mean()),
        "most": float(lossy.max()),
        "whole": whole.tolist(),
    }))
"""


def free_port() -> int:
    """Return a free port of ::1. Skips the test if there is none."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
            return int(probe.getsockname()[1])
    except OSError:
        pytest.skip("this machine has no IPv6 on loopback")


def test_a_name_of_version_6_is_met_at(monkeypatch: pytest.MonkeyPatch) -> None:
    port, original = free_port(), socket.getaddrinfo

    def resolve(host: str, *more: Any, **options: Any) -> Any:
        return original("::1" if host == "six.invalid" else host, *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("MASTER_ADDR", "six.invalid")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("SHOAL_PORT", raising=False)
    assert exchange_cards(0, 1, b"card", deadline_s=5) == [b"card"]


@pytest.mark.parametrize("paths", seldom([1, 3], often=[3]))
def test_all_reduce_on_the_loopback_address_of_version_6(paths: int) -> None:
    size, port = 3, free_port()
    more = {"MASTER_ADDR": "::1", "SHOAL_PATHS": str(paths)}
    ended = started_ranks.outcomes(
        [start(rank, size, port, SCRIPT, **more) for rank in range(size)]
    )
    assert [status for status, _, _ in ended] == [0] * size, ended
    for _, out, _ in ended:
        result = json.loads(out)
        assert (result["bind"], result["segment"]) == ("::1", 1408)  # found from MASTER_ADDR
        assert result["right"]
        assert result["whole"] == [3] * 5
        assert 0.9 * size - 0.2 <= result["least"] <= size
        assert result["most"] == size


MIXED = """
import shoal
try:
    shoal.connect(deadline_s=20)
except shoal.MismatchError as error:
    print(error)
"""


def test_ranks_of_different_versions_of_ip_are_told_so() -> None:
    free_port()  # skips without IPv6
    port = started_ranks.free_port()
    binds = ("127.0.0.1", "::1")
    for code, out, _ in started_ranks.outcomes(
        [start(rank, 2, port, MIXED, SHOAL_BIND=binds[rank]) for rank in range(2)]
    ):
        assert code == 0
        assert "set SHOAL_BIND on every rank to addresses of one version of IP." in out
