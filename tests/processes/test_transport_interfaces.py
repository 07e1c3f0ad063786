"""Paths over several addresses of loopback: all of them carry traffic, and sums are right."""

from __future__ import annotations

import json
from typing import Any

import pytest
from forked_process import start

from shoal.errors import UsageError
from shoal.transport.endpoint import TransportConfig
from shoal.wire.engine import UdpEngine
from started_ranks import free_port, outcomes
from thoroughness import seldom

SCRIPT = """
import ctypes, json, os, socket, struct
import numpy as np
import shoal
from shoal.wire import sockets

RANDOM = 0xFFFFF000 + 56  # where the kernel's packet filters find a random number
ATTACH_FILTER = 26
LOSSY, SHARE = os.environ.get("LOSSY"), float(os.environ.get("SHARE", 0))
SIZE = int(os.environ.get("SIZE", 500_000))

def bound(family, bind, ports, opened, original=sockets._bound):
    made = original(family, bind, ports, opened)
    if bind == LOSSY:  # a share of what arrives there is lost
        code = [(0x20, 0, 0, RANDOM), (0x25, 1, 0, int((1 << 32) * (1 - SHARE)))]
        code += [(6, 0, 0, 1 << 20), (6, 0, 0, 0)]
        memory = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
        program = struct.pack("HL", len(code), ctypes.addressof(memory))
        made.setsockopt(socket.SOL_SOCKET, ATTACH_FILTER, program)
    return made

sockets._bound = bound
with shoal.connect(deadline_s=20) as comm:
    values = np.arange(SIZE, dtype=np.float32) + comm.rank
    exact = [comm.all_reduce(values.copy()) for _ in range(4)]
    expected = comm.world_size * np.arange(SIZE, dtype=np.float32)
    expected += sum(range(comm.world_size))
    bounded = comm.all_reduce(np.ones(SIZE, np.float32), loss_bound=0.1)
    stats = comm.stats()
    print(json.dumps({
        "right": all(bool((each == expected).all()) for each in exact),
        "least": float(bounded.mean()),
        "most": float(bounded.max()),
        "sent": stats.loop.sent_bytes_by_address,
        "received": stats.loop.received_bytes_by_address,
        "again": stats.total.sent_again_packets,
        "avoided": stats.total.avoided_paths,
    }))
"""


def results(binds: list[str], **more: str) -> list[dict[str, Any]]:
    """Run the script on ranks that are bound to `binds`; return what each of them prints."""
    port, more = free_port(), {"SHOAL_SHARED_MEMORY": "0", **more}
    ended = outcomes(
        [
            start(rank, len(binds), port, SCRIPT, SHOAL_BIND=bind, **more)
            for rank, bind in enumerate(binds)
        ]
    )
    assert [status for status, _, _ in ended] == [0] * len(binds), ended
    return [json.loads(out) for _, out, _ in ended]


def check(found: list[dict[str, Any]], binds: list[str]) -> None:
    """Assert that sums are right and that every address has sent and received its share.

    On a busy machine a socket may overflow: a rank leaves that path alone then, and shares differ.
    """
    least_share = 0.0 if any(result["avoided"] for result in found) else 0.5
    for result, bind in zip(found, binds, strict=True):
        assert result["right"]
        assert 0.9 * len(binds) - 0.2 <= result["least"] <= len(binds)
        assert result["most"] == len(binds)
        for bytes_by_address in (result["sent"], result["received"]):
            assert list(bytes_by_address) == bind.split(",")
            equal_share = sum(bytes_by_address.values()) / len(bytes_by_address)
            assert min(bytes_by_address.values()) > equal_share * least_share


@pytest.mark.parametrize(
    "binds",
    seldom(
        [
            ["127.0.0.1,127.0.0.2"] * 2,
            ["127.0.0.1,127.0.0.2", "127.0.0.3"],
            ["127.0.0.1", "127.0.0.2,127.0.0.3", "127.0.0.4,127.0.0.5,127.0.0.6"],
        ],
        often=[["127.0.0.1", "127.0.0.2,127.0.0.3", "127.0.0.4,127.0.0.5,127.0.0.6"]],
    ),
)
def test_every_address_carries_its_share(binds: list[str]) -> None:
    check(results(binds), binds)


def test_source_ports_are_spread_over_the_addresses() -> None:
    binds = ["127.0.0.1,127.0.0.2"] * 2
    check(results(binds, SHOAL_PATHS="3"), binds)


def test_loss_on_one_of_two_addresses_is_repaired_or_bounded() -> None:
    binds = ["127.0.0.1,127.0.0.2"] * 2
    found = results(binds, LOSSY="127.0.0.2", SHARE="0.2")
    check(found, binds)
    assert all(result["again"] > 0 for result in found)


@pytest.mark.parametrize("dead", seldom(["127.0.0.1", "127.0.0.2"], often=["127.0.0.2"]))
def test_one_of_two_addresses_may_be_dead(dead: str) -> None:
    binds = ["127.0.0.1,127.0.0.2"] * 2
    found = results(binds, LOSSY=dead, SHARE="1", SIZE="10000")
    for result in found:
        assert result["right"]
        assert 1.8 - 0.2 <= result["least"] <= 2
        assert result["received"][dead] == 0


def test_of_a_machine_that_receives_on_all_addresses_one_is_told() -> None:
    (first, second) = results(["0.0.0.0", "127.0.0.2"])
    assert first["right"]
    assert second["right"]


def test_an_address_that_nobody_can_send_to_is_not_told() -> None:
    with pytest.raises(UsageError, match="SHOAL_ADVERTISE"):
        UdpEngine(0, 1, TransportConfig(), deadline_s=1.0, bind="0.0.0.0")
