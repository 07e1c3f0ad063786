"""Frames cut into packets and joined again, against packets made field by field."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.lab.network.bundles import BUNDLE, join, write_headers
from shoal.lab.network.segments import (
    NEEDS_CHECKSUM,
    OFFLOAD,
    OFFLOAD_BYTES,
    TCP4,
    TCP6,
    UDP,
    WHOLE,
    cut,
    segments_in,
)

ACK, PUSH, FIN, SYN, ECHO, REDUCED = 16, 8, 1, 2, 64, 128
SLOT = 2048
MOST = 1514


def ones_sum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) // 2 * 2]))
    total += data[-1] << 8 if len(data) % 2 else 0
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@dataclass(frozen=True)
class Packet:
    """What of a packet or frame differs from flow to flow, and from packet to packet."""

    payload: bytes
    is_tcp: bool = True
    is_ipv6: bool = False
    identity: int = 7
    sequence: int = 1
    flags: int = ACK
    options: bytes = b""
    tos: int = 0
    fragment: int = 0x4000
    port: int = 4000
    target: int = 80
    window: int = 500

    @property
    def start(self) -> int:
        return 14 + (40 if self.is_ipv6 else 20)

    @property
    def headers(self) -> int:
        return self.start + (20 + len(self.options) if self.is_tcp else 8)

    def transport(self, checksum: int) -> bytes:
        if not self.is_tcp:
            return struct.pack("!HHHH", self.port, self.target, 8 + len(self.payload), checksum)
        offset = (20 + len(self.options)) // 4 << 4
        fields = (
            self.port,
            self.target,
            self.sequence,
            9,
            offset,
            self.flags,
            self.window,
            checksum,
            0,
        )
        return struct.pack("!HHIIBBHHH", *fields) + self.options

    def frame(self) -> bytes:
        """Return it as the kernel hands it over: with the sum of what stands for addresses."""
        protocol = 6 if self.is_tcp else 17
        length = self.headers - self.start + len(self.payload)
        if self.is_ipv6:
            ends = ipaddress.ip_address("fd00::1").packed + ipaddress.ip_address("fd00::2").packed
            first = 6 << 28 | self.tos << 20 | 5
            network = struct.pack("!IHBB", first, length, protocol, 64) + ends
            kind = b"\x86\xdd"
        else:
            ends = bytes([10, 0, 0, 1, 10, 0, 0, 2])
            fields = (0x45, self.tos, 20 + length, self.identity, self.fragment, 64, protocol)
            bare = struct.pack("!BBHHHBB", *fields)
            network = bare + struct.pack("!H", ~ones_sum(bare + ends) & 0xFFFF) + ends
            kind = b"\x08\x00"
        checksum = ones_sum(ends + struct.pack("!II", length, protocol))
        ethernet = bytes([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]) + kind
        return ethernet + network + self.transport(checksum) + self.payload

    def offload(self, segment: int = 0) -> np.ndarray:
        """Return what the kernel says of it, to be cut into so many bytes; 0: it is a packet."""
        about = np.zeros(1, OFFLOAD)
        about["flags"], about["checksum_start"] = NEEDS_CHECKSUM, self.start
        about["checksum_offset"] = 16 if self.is_tcp else 6
        if segment:
            tcp = TCP6 if self.is_ipv6 else TCP4
            about["kind"], about["segment_bytes"] = tcp if self.is_tcp else UDP, segment
            about["header_bytes"] = self.headers
        return about

    def cut(self, segment: int) -> list[Packet]:
        """Return the packets that a card makes of it."""
        starts = range(0, len(self.payload), segment)
        packets = []
        for number, start in enumerate(starts):
            flags = self.flags & ~(REDUCED if number else 0)
            flags &= ~(0 if start == starts[-1] else PUSH | FIN)
            packets.append(
                replace(
                    self,
                    payload=self.payload[start : start + segment],
                    identity=(self.identity + number) & 0xFFFF,
                    sequence=(self.sequence + start) & 0xFFFFFFFF,
                    flags=flags,
                )
            )
        return packets


def kernel_cut(frame: bytes, about: np.ndarray) -> list[bytes]:
    """Return what the code under test makes of a frame: packets, each behind its OFFLOAD."""
    source, slot = np.frombuffer(frame, np.uint8).copy(), np.zeros(SLOT, np.uint8)
    address, target = source.ctypes.data, slot.ctypes.data + OFFLOAD_BYTES
    packets = segments_in(address, len(frame), about[0], MOST)
    assert packets > 0
    found = []
    for number in range(packets):
        size = cut(address, len(frame), about[0], number, target)
        found.append(slot[: OFFLOAD_BYTES + size].tobytes())
    assert source.tobytes() == frame
    return found


def joined(packets: list[tuple[bytes, int]]) -> list[bytes]:
    """Return what a host is given of (packet behind its OFFLOAD, flow)."""
    rows = [np.frombuffer(packet, np.uint8).copy() for packet, _ in packets]
    bundles, count = np.zeros(len(packets), BUNDLE), 0
    members: dict[int, list[int]] = {}
    for number, (packet, flow) in enumerate(packets):
        address = rows[number].ctypes.data + OFFLOAD_BYTES
        length = len(packet) - OFFLOAD_BYTES
        place, count = join(bundles, count, address, length, np.uint64(flow))
        members.setdefault(place, []).append(number)
    assert sorted(members) == list(range(count))
    found = []
    for place in range(count):
        numbers = members[place]
        assert len(numbers) == bundles[place]["packets"]
        if len(numbers) == 1:
            found.append(packets[numbers[0]][0])
            continue
        headers = int(bundles[place]["headers"])
        scratch = np.zeros(256, np.uint8)
        write_headers(bundles[place], scratch.ctypes.data + OFFLOAD_BYTES)
        payloads = [packets[number][0][OFFLOAD_BYTES + headers :] for number in numbers]
        found.append(scratch[: OFFLOAD_BYTES + headers].tobytes() + b"".join(payloads))
    return found


def packets_of(frame: bytes) -> list[bytes]:
    """Return the packets of what a host is given, each behind its OFFLOAD."""
    about = np.frombuffer(frame[:OFFLOAD_BYTES], OFFLOAD)
    return kernel_cut(frame[OFFLOAD_BYTES:], about)


OPTIONS = st.sampled_from([b"", b"\1\1\x08\n" + bytes(range(8))])


@st.composite
def frames(draw: st.DrawFn) -> tuple[Packet, int]:
    segment = draw(st.integers(1, 1_400))
    length = draw(st.integers(1, min(60_000, 64 * segment)))
    is_tcp, start = draw(st.booleans()), draw(st.integers(0, 255))
    packet = Packet(
        payload=bytes((start + k * k) & 0xFF for k in range(length)),
        is_tcp=is_tcp,
        is_ipv6=draw(st.booleans()),
        identity=draw(st.integers(0, 65_535)),
        sequence=draw(st.integers(0, 2**32 - 1)),
        flags=ACK | draw(st.sampled_from([0, PUSH, FIN | PUSH, ECHO, REDUCED])),
        options=draw(OPTIONS) if is_tcp else b"",
        tos=draw(st.integers(0, 255)),
    )
    return packet, segment


@given(frames())
def test_a_frame_is_cut_as_a_card_cuts_it(made: tuple[Packet, int]) -> None:
    frame, segment = made
    found = kernel_cut(frame.frame(), frame.offload(segment))
    right = [each.offload().tobytes() + each.frame() for each in frame.cut(segment)]
    assert found == right
    for packet in found:
        whole = packet[OFFLOAD_BYTES:]
        if not frame.is_ipv6:
            assert ones_sum(whole[14:34]) == 0xFFFF


@given(frames())
def test_what_has_been_cut_is_joined_to_what_it_was(made: tuple[Packet, int]) -> None:
    frame, segment = made
    if frame.flags & REDUCED:
        frame = replace(frame, flags=frame.flags & ~REDUCED)
    packets = kernel_cut(frame.frame(), frame.offload(segment))
    found = joined([(packet, 5) for packet in packets])
    about = frame.offload(segment if len(packets) > 1 else 0)
    assert found == [about.tobytes() + frame.frame()]


BASE = Packet(bytes(range(100)))
SECOND = replace(BASE, sequence=101, identity=8)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (BASE, replace(SECOND, sequence=102)),  # something is missing
        (BASE, replace(SECOND, sequence=1)),  # again the same
        (BASE, replace(SECOND, payload=bytes(101))),  # longer than the first
        (BASE, replace(SECOND, payload=b"")),  # an acknowledgement
        (replace(BASE, payload=b""), replace(SECOND, sequence=1)),
        (BASE, replace(SECOND, tos=3)),  # marked on the way
        (BASE, replace(SECOND, port=4001)),  # of another flow with the same hash
        (BASE, replace(SECOND, target=81)),
        (BASE, replace(SECOND, window=501)),
        (BASE, replace(SECOND, flags=ACK | ECHO)),
        (BASE, replace(SECOND, flags=ACK | REDUCED)),
        (BASE, replace(SECOND, flags=ACK | SYN)),
        (BASE, replace(SECOND, options=b"\1\1\1\1")),
        (replace(BASE, flags=ACK | SYN), replace(SECOND, flags=ACK | SYN)),
        (replace(BASE, flags=0), replace(SECOND, flags=32)),  # urgent
        (replace(BASE, fragment=0x2000), replace(SECOND, fragment=0x2000)),
        (replace(BASE, fragment=0x00FF), replace(SECOND, fragment=0x00FF)),
        (replace(BASE, flags=ACK | PUSH), SECOND),  # it was to be handed on
        (replace(BASE, is_tcp=False), replace(SECOND, is_tcp=False, tos=1)),
        (replace(BASE, is_tcp=False), replace(SECOND, is_tcp=False, port=4001)),
        (replace(BASE, is_tcp=False), replace(SECOND, is_tcp=False, payload=bytes(101))),
        (replace(BASE, is_ipv6=True), replace(SECOND, is_ipv6=True, tos=4)),
        (BASE, replace(SECOND, is_ipv6=True)),
    ],
)
def test_what_does_not_follow_stays_by_itself(first: Packet, second: Packet) -> None:
    packets = [each.offload().tobytes() + each.frame() for each in (first, second)]
    assert joined([(packet, 5) for packet in packets]) == packets


def test_packets_that_follow_are_joined_though_others_come_in_between() -> None:
    other = replace(BASE, is_tcp=False)
    packets = [each.offload().tobytes() + each.frame() for each in (BASE, other, SECOND)]
    found = joined(list(zip(packets, [1, 2, 1], strict=True)))
    both = replace(BASE, payload=BASE.payload + SECOND.payload)
    assert found == [both.offload(100).tobytes() + both.frame(), packets[1]]


def test_a_short_packet_is_the_last_of_its_frame() -> None:
    short = replace(SECOND, payload=bytes(60))
    third = replace(BASE, sequence=161, payload=bytes(60))
    packets = [each.offload().tobytes() + each.frame() for each in (BASE, short, third)]
    found = joined([(packet, 5) for packet in packets])
    both = replace(BASE, payload=BASE.payload + short.payload)
    assert found == [both.offload(100).tobytes() + both.frame(), packets[2]]


def test_sequence_numbers_begin_anew() -> None:
    first, second = replace(BASE, sequence=2**32 - 100), replace(SECOND, sequence=0)
    packets = [each.offload().tobytes() + each.frame() for each in (first, second)]
    both = replace(first, payload=first.payload + second.payload)
    assert joined([(packet, 5) for packet in packets]) == [
        both.offload(100).tobytes() + both.frame()
    ]


@pytest.mark.parametrize("is_tcp", [True, False])
def test_a_frame_is_never_larger_than_the_kernel_takes(is_tcp: bool) -> None:
    packets = []
    for number in range(60):
        packet = Packet(
            bytes(1_400), is_tcp=is_tcp, identity=7 + number, sequence=1 + 1_400 * number
        )
        packets.append(packet.offload().tobytes() + packet.frame())
    found = joined([(packet, 5) for packet in packets])
    longest = max(map(len, found)) - OFFLOAD_BYTES
    assert 14 + 65_535 - 1_400 < longest <= 14 + 65_535
    assert [each for one in found for each in packets_of(one)] == packets


def test_headers_that_go_beyond_their_packet_are_not_read() -> None:
    frame = bytearray(BASE.frame()[: BASE.headers + 20])
    frame[BASE.start + 12] = 15 << 4  # sixty bytes, of which forty are there
    assert refused(bytes(frame), BASE.offload(10))
    packet = BASE.offload().tobytes() + bytes(frame)
    assert joined([(packet, 5), (packet, 5)]) == [packet, packet]


@given(st.data())
def test_no_packet_is_lost_changed_or_overtaken_in_its_flow(data: st.DataObject) -> None:
    """Packets of three flows in any order, each the next or not: cut again, they are the same."""
    flows: dict[int, list[bytes]] = {}
    packets, places = [], dict.fromkeys(range(3), 1)
    for _ in range(data.draw(st.integers(1, 30))):
        flow = data.draw(st.integers(0, 2))
        packet = Packet(
            bytes(data.draw(st.sampled_from([0, 40, 100, 100, 100]))),
            is_tcp=flow != 1,
            is_ipv6=flow == 2,
            identity=len(flows.get(flow, [])) + 1,
            sequence=places[flow],
            flags=ACK | data.draw(st.sampled_from([0, 0, 0, 0, PUSH, FIN, SYN, ECHO])),
            tos=data.draw(st.sampled_from([0, 0, 0, 0, 3])),
            port=5_000 + flow,
        )
        places[flow] += len(packet.payload) + data.draw(st.sampled_from([0, 0, 0, 0, 100]))
        whole = packet.offload().tobytes() + packet.frame()
        flows.setdefault(flow, []).append(whole)
        packets.append((whole, flow))
    found: dict[int, list[bytes]] = {}
    for frame in joined(packets):
        for packet in packets_of(frame):
            port = int(np.frombuffer(packet[OFFLOAD_BYTES:], np.uint8)[35])
            is_ipv6 = packet[OFFLOAD_BYTES + 12] == 0x86
            flow = 2 if is_ipv6 else port - 5_000 % 256
            found.setdefault(flow, []).append(_renumbered(packet))
    assert found == {flow: list(map(_renumbered, some)) for flow, some in flows.items()}


def _renumbered(packet: bytes) -> bytes:
    """Return a packet without IPv4's identification and checksum, which joining may change."""
    frame = packet[OFFLOAD_BYTES:]
    if frame[12] == 0x86:
        return packet
    return packet[:OFFLOAD_BYTES] + frame[:18] + bytes(2) + frame[20:24] + bytes(2) + frame[26:]


@pytest.mark.parametrize("kind", [2, 3, 6, 0x7F])
def test_what_nobody_can_cut_is_refused(kind: int) -> None:
    frame, about = replace(BASE, payload=bytes(3_000)), BASE.offload(1_000)
    about["kind"] = kind
    assert refused(frame.frame(), about)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("flags", 0),
        ("segment_bytes", 0),
        ("segment_bytes", 1_500),  # does not fit a row
        ("checksum_start", 0),
        ("checksum_start", 33),
        ("checksum_start", 3_040),
        ("checksum_start", 65_535),
        ("checksum_offset", 0),
        ("checksum_offset", 65_535),
    ],
)
def test_frames_with_senseless_descriptions_are_refused(field: str, value: int) -> None:
    frame = replace(BASE, payload=bytes(3_000))
    about = frame.offload(1_000)
    assert not refused(frame.frame(), about)
    about[field] = value
    assert refused(frame.frame(), about)


def refused(frame: bytes, about: np.ndarray) -> bool:
    memory = np.frombuffer(frame, np.uint8).copy()
    return segments_in(memory.ctypes.data, len(frame), about[0], MOST) < 0


def test_a_packet_that_fits_passes_whatever_it_is_and_a_larger_one_does_not() -> None:
    about = np.zeros(1, OFFLOAD)
    assert about["kind"] == WHOLE
    assert kernel_cut(b"\2" * MOST, about) == [about.tobytes() + b"\2" * MOST]
    assert refused(b"\2" * (MOST + 1), about)
