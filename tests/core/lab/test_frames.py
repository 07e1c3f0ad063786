"""Frames as the software switch reads them, against frames made field by field."""

from __future__ import annotations

import ipaddress
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lab.network.frames import destination_of, flow_of, mark, tos_of

TCP, UDP = 6, 17


def checksum(header: bytes) -> int:
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ethernet(destination: int, kind: int, payload: bytes) -> bytes:
    to = bytes([2, 0, 0, 0, *destination.to_bytes(2, "big")])
    return to + bytes([2, 0, 0, 0, 0, 9]) + kind.to_bytes(2, "big") + payload


def ipv4(
    tos: int,
    source: str,
    target: str,
    *,
    protocol: int = UDP,
    ports: bytes = b"",
    fragment: int = 0,
) -> bytes:
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        tos,
        20 + len(ports),
        7,
        fragment,
        64,
        protocol,
        0,
        ipaddress.ip_address(source).packed,
        ipaddress.ip_address(target).packed,
    )
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + ports


def ipv6(traffic_class: int, source: str, target: str, ports: bytes) -> bytes:
    first = 6 << 28 | traffic_class << 20
    addresses = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    return struct.pack("!IHBB", first, len(ports), UDP, 64) + addresses + ports


def at(frame: bytes) -> tuple[np.ndarray, int, int]:
    """Return memory with the frame (keep it), its address and its length."""
    memory = np.frombuffer(frame, np.uint8).copy()
    return memory, memory.ctypes.data, len(memory)


PORTS = struct.pack("!HHHH", 4000, 5000, 8, 0)


@given(st.integers(0, 65_535), st.integers(0, 255))
def test_where_to_and_how_urgent(host: int, tos: int) -> None:
    for payload, kind in (
        (ipv4(tos, "10.0.0.1", "10.0.0.2", ports=PORTS), 0x0800),
        (ipv6(tos, "fe80::1", "fe80::2", PORTS), 0x86DD),
    ):
        memory, address, length = at(ethernet(host, kind, payload))
        assert destination_of(address, length) == host
        assert tos_of(address, length) == tos
        assert len(memory) == length


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x02\0\0\0\0\1",
        b"\xff" * 60,
        bytes([1, 0, 0x5E, 0, 0, 1]) + bytes(54),
        bytes([2, 0, 0, 1, 0, 1]) + bytes(54),
    ],
)
def test_what_is_for_nobody(frame: bytes) -> None:
    memory, address, length = at(frame + bytes(8))
    assert destination_of(address, length - 8) == -1
    assert len(memory) == length


@pytest.mark.parametrize("kind", [0x0806, 0x88CC, 0x0000])
def test_what_is_not_ip_has_no_tos_but_passes(kind: int) -> None:
    memory, address, length = at(ethernet(3, kind, bytes(46)))
    assert destination_of(address, length) == 3
    assert tos_of(address, length) == 0
    assert len(memory) == length


@pytest.mark.parametrize("length", range(14, 34))
def test_a_truncated_header_is_not_read(length: int) -> None:
    memory, address, _ = at(ethernet(3, 0x0800, ipv4(0xFF, "10.0.0.1", "10.0.0.2")))
    assert tos_of(address, length) == 0
    assert len(memory) > length


@given(tos=st.integers(0, 255), identity=st.integers(0, 65_535))
def test_marking_keeps_the_checksum_right(tos: int, identity: int) -> None:
    source = str(ipaddress.ip_address(0x0A000000 + identity))
    memory, address, length = at(ethernet(3, 0x0800, ipv4(tos, source, "10.0.0.2", ports=PORTS)))
    mark(address, length)
    frame = memory.tobytes()
    assert frame == ethernet(3, 0x0800, ipv4(tos | 3, source, "10.0.0.2", ports=PORTS))
    assert checksum(frame[14:34]) == 0


@given(tos=st.integers(0, 255))
def test_marking_a_frame_of_ipv6(tos: int) -> None:
    memory, address, length = at(ethernet(3, 0x86DD, ipv6(tos, "fe80::1", "fe80::2", PORTS)))
    mark(address, length)
    assert memory.tobytes() == ethernet(3, 0x86DD, ipv6(tos | 3, "fe80::1", "fe80::2", PORTS))


def flow(frame: bytes) -> int:
    memory, address, length = at(frame)
    found = int(flow_of(address, length))
    assert len(memory) == length
    return found


def test_a_flow_is_its_addresses_protocol_and_ports() -> None:
    base = {"tos": 0, "source": "10.0.0.1", "target": "10.0.0.2", "ports": PORTS}

    def made(**other: object) -> int:
        return flow(ethernet(3, 0x0800, ipv4(**(base | other))))  # type: ignore[arg-type]

    assert made() == made(tos=0xB8)
    assert made() == made(ports=PORTS + b"more")
    different = [
        made(),
        made(source="10.0.0.3"),
        made(target="10.0.0.3"),
        made(protocol=TCP),
        made(ports=struct.pack("!HH", 4000, 5001)),
        made(ports=struct.pack("!HH", 4001, 5000)),
        flow(ethernet(3, 0x86DD, ipv6(0, "fe80::1", "fe80::2", PORTS))),
        flow(ethernet(3, 0x0806, bytes(46))),
    ]
    assert len(set(different)) == len(different)


def test_fragments_of_a_packet_stay_together() -> None:
    first = ethernet(3, 0x0800, ipv4(0, "10.0.0.1", "10.0.0.2", ports=PORTS, fragment=0x2000))
    last = ethernet(3, 0x0800, ipv4(0, "10.0.0.1", "10.0.0.2", ports=bytes(8), fragment=0x00B9))
    assert flow(first) == flow(last)
