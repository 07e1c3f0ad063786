"""What really leaves a rank's sockets: source ports, tags, batches. Seen by relays between ranks.

Each rank is told that the others receive at a relay, which notes where a datagram came from, its
TOS byte and its header, and passes it on. So nothing here takes the sender's word for it.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from shoal.compiled.libc import UDP_GRO, UDP_SEGMENT
from shoal.errors import DeadlineExceeded, ResourceError, ShoalError, UsageError
from shoal.transport import wire
from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import FLOAT32
from shoal.transport.tables import Counter as Sent
from shoal.wire.engine import UdpEngine
from shoal.wire.group import Memory, TransportGroup
from shoal.wire.sum_options import SumOptions

SO_NO_CHECK = 11
"""Without checksums the kernel refuses to cut batches (EINVAL), as a device may that cannot."""
NOWHERE = ("255.255.255.255", 9)
"""No socket of ours may broadcast."""
FEW_UNDER_WAY = 32
"""Packets that a relay's socket surely has room for."""


@dataclass(frozen=True)
class Seen:
    """A data packet as it came to a relay."""

    port: int
    tos: int
    is_important: bool
    offset: int
    value: float
    """Its first element, where those are float32."""


class Relay:
    """Passes on what is meant for `target`, with the TOS byte `tos`; notes its data packets."""

    def __init__(self, target: tuple[str, int], tos: int) -> None:
        self.seen: list[Seen] = []
        self._target = target
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_IP, socket.IP_RECVTOS, 1)
        self._socket.setsockopt(socket.SOL_IP, socket.IP_TOS, tos)
        self.address: tuple[str, int] = self._socket.getsockname()
        self._is_closing = False
        self._thread = threading.Thread(target=self._pass_on, daemon=True)
        self._thread.start()

    def _pass_on(self) -> None:
        while not self._is_closing:
            if not select.select([self._socket], [], [], 0.05)[0]:
                continue
            data, ancillary, _, source = self._socket.recvmsg(65536, 256)
            header = np.frombuffer(data, wire.HEADER, 1)[0]
            if header["kind"] & 15 == wire.DATA:
                important = bool(header["flags"] & wire.IMPORTANT)
                tos = ancillary[0][2][0]
                value = float(np.frombuffer(data, np.float32, 1, wire.HEADER.itemsize)[0])
                seen = Seen(source[1], tos, important, int(header["offset"]), value)
                self.seen.append(seen)
            self._socket.sendto(data, self._target)

    def close(self) -> None:
        self._is_closing = True
        self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def engines(
    config: TransportConfig,
    *,
    deadline_s: float = 20.0,
    unreachable: int | None = None,
    is_relayed: bool = True,
    tos: int = 0,
    without_checksums: bool = False,
) -> Iterator[tuple[list[UdpEngine], list[Relay]]]:
    """Yield two started engines of this process, and the relays in front of them.

    The relays make all TOS bytes `tos`. Whatever goes to the rank `unreachable` is refused by the
    kernel. Rank 0 sends `without_checksums`.
    """
    with contextlib.ExitStack() as opened:
        pair = [UdpEngine(rank, 2, config, deadline_s=deadline_s) for rank in range(2)]
        for each in pair:
            opened.callback(each.close)
        cards = [each.card for each in pair]
        relays = [Relay(card.lanes[0].addresses[0], tos) for card in cards if is_relayed]
        for relay in relays:
            opened.callback(relay.close)
        addresses = [relay.address for relay in relays] or [
            card.lanes[0].addresses[0] for card in cards
        ]
        if unreachable is not None:
            addresses[unreachable] = NOWHERE
        told = [
            msgspec.structs.replace(
                card, lanes=[msgspec.structs.replace(card.lanes[0], addresses=[address])]
            )
            for card, address in zip(cards, addresses, strict=True)
        ]
        for sender in pair[0].lanes[0].sockets.senders if without_checksums else ():
            sender.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
        with ThreadPoolExecutor(2) as threads:  # each waits for the other
            list(threads.map(lambda engine: engine.start(told), pair))
        opened.callback(lambda: closing(pair))
        yield pair, relays


def closing(pair: Sequence[UdpEngine]) -> None:
    """Close both at once: each lingers for the other."""
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda engine: engine.close(), pair))


def sum_up(groups: Sequence[TransportGroup], arrays: Sequence[Any], **options: Any) -> None:
    """Sum an array of each rank, in place."""
    transfers = [
        group.all_reduce(
            Memory(array.ctypes.data, array.size, FLOAT32, array), SumOptions(**options)
        )
        for group, array in zip(groups, arrays, strict=True)
    ]
    for transfer in transfers:
        assert transfer is not None
        transfer.wait()


def needs_offload(option: int) -> None:
    """Skip the test if this kernel does not know an option of UDP sockets."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.setsockopt(socket.SOL_UDP, option, 0)
        except OSError:
            pytest.skip("this kernel has no such offload for UDP")


def groups_of(pair: Sequence[UdpEngine]) -> list[TransportGroup]:
    return [TransportGroup(engine, (0, 1), stream=9) for engine in pair]


def test_every_path_has_a_source_port_of_its_own_for_all_classes() -> None:
    paths, unit = 3, 4
    config = TransportConfig(paths=paths, spray_unit=unit, budget_packets=FEW_UNDER_WAY)
    with engines(config) as (pair, relays):
        groups = groups_of(pair)
        for layer_class in (0, 5):
            sum_up(groups, [np.ones(100_000, np.float32) for _ in pair], layers=((0, layer_class),))
    for relay in relays:
        by_port = Counter(each.port for each in relay.seen)
        assert len(by_port) == paths
        assert min(by_port.values()) > 0.8 * max(by_port.values())  # turns may end early
        for port in by_port:
            assert {each.tos >> 5 for each in relay.seen if each.port == port} == {7, 2}


@pytest.mark.parametrize("layer_tags", [True, False])
@pytest.mark.parametrize("importance_tags", [True, False])
def test_tags_are_in_the_ip_header_and_can_be_turned_off(
    layer_tags: bool, importance_tags: bool
) -> None:
    config = TransportConfig(
        layer_tags=layer_tags, importance_tags=importance_tags, budget_packets=FEW_UNDER_WAY
    )
    with engines(config) as (pair, relays):
        groups = groups_of(pair)
        for _ in range(2):  # the first iteration sets the threshold
            for relay in relays:
                relay.seen.clear()
            arrays = [np.linspace(1.0, 2.0, 144_000, dtype=np.float32) for _ in pair]
            sum_up(groups, arrays, layers=((0, 3),), loss_bound=0.01, tensor="gradient")
    for relay in relays:
        assert {each.tos >> 5 for each in relay.seen} == {4 if layer_tags else 0}
        ecn = {(each.is_important, each.tos & 3) for each in relay.seen}
        if importance_tags:
            assert ecn == {(True, 1), (False, 0)}
        else:
            assert {bits for _, bits in ecn} == {1}, "nothing is to be dropped first"


def test_what_is_sent_ahead_to_a_newcomer_is_in_the_least_urgent_class() -> None:
    torch = pytest.importorskip("torch")
    from shoal.carriers import TransportCommunicator
    from shoal.membership import Preparation
    from shoal.train import sent_ahead

    preparation = Preparation(number=1, ranks=(0, 1), newcomers=(1,))
    told: dict[str, bytes] = {}
    facts = SimpleNamespace(set=told.__setitem__, read=lambda names: [*map(told.get, names)])
    config = TransportConfig(budget_packets=FEW_UNDER_WAY)
    with engines(config) as (pair, relays), ThreadPoolExecutor(2) as threads:
        communicators = [TransportCommunicator(engine) for engine in pair]
        models = [torch.nn.Linear(1024, 1024, bias=False).requires_grad_(False) for _ in pair]
        replicas: list[Any] = [
            SimpleNamespace(
                model=model,
                communicator=communicator,
                session="run-1",
                facts=facts,
                member=SimpleNamespace(is_preparing=lambda _: True),
                deadline_s=20.0,
            )
            for model, communicator in zip(models, communicators, strict=True)
        ]
        donor, newcomer = replicas
        given = threads.submit(
            sent_ahead.give, donor, preparation, lambda: communicators[0], is_exact=True
        )
        sent_ahead.take(newcomer, {}, preparation, lambda: communicators[1], is_exact=True)
        given.result()
        assert torch.equal(models[0].weight, models[1].weight)
    (seen,) = [relay.seen for relay in relays if relay.seen]
    assert len(seen) > models[0].weight.nbytes // 9000
    assert {each.tos >> 5 for each in seen} == {0}, "7 is the most urgent class"


def test_in_a_mean_of_parameters_those_that_have_changed_are_important() -> None:
    """What is trained is small here: by their size other packets would be important."""
    torch = pytest.importorskip("torch")
    from shoal.carriers import LossOptions, TransportCommunicator

    large, small, quarter = 1.0, 1e-3, 72_000
    config = TransportConfig(budget_packets=FEW_UNDER_WAY)
    with engines(config) as (pair, relays):
        loss = LossOptions(bound=0.01)
        communicators = [TransportCommunicator(engine, loss=loss) for engine in pair]
        quarters = [torch.full((quarter,), value) for value in 2 * (large, small)]
        models = [torch.cat(quarters) for _ in pair]
        for number in range(3):  # the first mean is kept, the second sets the threshold
            for relay in relays:
                relay.seen.clear()
            for model in models:
                model[model != large] += small
            works = [
                communicator.group_average(model, (0, 1), sequence=number)
                for communicator, model in zip(communicators, models, strict=True)
            ]
            for work in works:
                work.wait()
    for relay in relays:
        unimportant = [each.value for each in relay.seen if not each.is_important]
        assert set(unimportant) == {large}
        assert len(unimportant) > len(relay.seen) / 5, "of a half that is pushed, one in two"


def test_a_batch_leaves_in_one_call_where_the_kernel_cuts_it() -> None:
    needs_offload(UDP_SEGMENT)
    with engines(TransportConfig(budget_packets=FEW_UNDER_WAY)) as (pair, relays):
        sum_up(groups_of(pair), [np.ones(400_000, np.float32) for _ in pair])
        loop, counts = pair[0].stats().loop, pair[0].counts()
    assert loop.segmentation
    assert len(relays[1].seen) == counts[Sent.SENT], "the relay gets them one by one"
    assert loop.send_calls - counts[Sent.CONTROL_SENT] < counts[Sent.SENT]


def test_a_kernel_that_refuses_batches_gets_single_packets() -> None:
    needs_offload(UDP_SEGMENT)
    arrays = [np.full(50_000, 1.0 + rank, np.float32) for rank in range(2)]
    config = TransportConfig(budget_packets=FEW_UNDER_WAY)
    with engines(config, without_checksums=True) as (pair, _):
        sum_up(groups_of(pair), arrays)
        stats = [engine.stats() for engine in pair]
    for array in arrays:
        assert (array == 3.0).all()
    assert [each.loop.segmentation for each in stats] == [False, True]
    assert stats[0].total.refused_packets == 0, "they went out in another way"
    assert stats[0].loop.send_calls >= stats[0].total.sent_packets


def test_what_the_network_made_of_tags_is_noticed() -> None:
    marked = 1 << 5 | 3  # of the class before the last, and as a congested switch marks
    with engines(TransportConfig(budget_packets=FEW_UNDER_WAY), tos=marked) as (pair, _):
        sum_up(groups_of(pair), [np.ones(50_000, np.float32) for _ in pair])
        for rank, engine in enumerate(pair):
            traffic = engine.stats().total
            assert traffic.sent_packets_by_class[0] == traffic.sent_packets
            assert traffic.received_packets_by_class[6] == traffic.received_packets > 0
            assert engine.endpoint.state.peers["marked"][1 - rank] == traffic.received_packets


def test_joined_packets_are_received_in_few_calls_where_the_kernel_joins_them() -> None:
    needs_offload(UDP_SEGMENT)
    needs_offload(UDP_GRO)
    with engines(TransportConfig(), is_relayed=False) as (pair, _):
        sum_up(groups_of(pair), [np.ones(400_000, np.float32) for _ in pair])
        stats = pair[1].stats()
    assert stats.loop.coalescing
    assert stats.loop.receive_calls < stats.total.received_packets


def test_packets_that_the_kernel_does_not_take_are_counted_and_the_wait_ends() -> None:
    with engines(TransportConfig(), deadline_s=2.0, unreachable=1) as (pair, relays):
        with pytest.raises(DeadlineExceeded):
            sum_up(groups_of(pair), [np.ones(10_000, np.float32) for _ in pair])
        traffic = pair[0].stats().total
    assert traffic.refused_packets == traffic.sent_packets > 0  # rank 1's READY came
    assert not relays[1].seen


def test_credit_never_exceeds_what_the_receive_buffer_holds() -> None:
    engine = UdpEngine(0, 1, TransportConfig(budget_packets=1 << 20), deadline_s=5.0)
    try:
        sockets = engine.lanes[0].sockets
        assert engine.endpoint.config.budget_packets == sockets.budget_packets < 1 << 20
        assert sockets.budget_packets * 1_500 < sockets.receive_bytes
    finally:
        engine.start([engine.card])
        engine.close()


def test_more_sockets_than_may_be_open_are_refused_in_a_sentence() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for spare in (5, 300):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before + spare, hard))
        try:
            with pytest.raises(ResourceError, match=r"Too many open files.*SHOAL_PATHS.*\.$"):
                UdpEngine(0, 1, TransportConfig(paths=1000), deadline_s=5.0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_others_are_told_the_advertised_address() -> None:
    engine = UdpEngine(
        0, 1, TransportConfig(), deadline_s=5.0, bind="127.0.0.1", advertise="192.0.2.7"
    )
    try:
        card = engine.card
        (lane,) = card.lanes
        assert {host for host, _ in lane.addresses} == {card.links[0]} == {"192.0.2.7"}
        assert engine.lanes[0].sockets.receiver.getsockname()[0] == "127.0.0.1"
    finally:
        engine.close()


@pytest.mark.parametrize("mtu", [1_710, 8_230, 9_390, 32_800])
def test_batches_of_packets_of_any_size_are_taken_by_the_kernel(mtu: int) -> None:
    config = TransportConfig(segment_bytes=wire.segment_bytes_for(mtu))
    with engines(config, is_relayed=False) as (pair, _):
        arrays = [np.ones(300_000, np.float32) for _ in pair]
        sum_up(groups_of(pair), arrays)
        assert (arrays[0] == 2).all()
        assert (arrays[1] == 2).all()
        assert pair[0].stats().loop.refused_batches == 0


def test_a_real_time_clock_that_is_set_anew_is_followed() -> None:
    with engines(TransportConfig(), is_relayed=False) as (pair, _):
        row, groups = pair[1].lanes[0]._moving.row, groups_of(pair)
        before = int(row["clock_ahead"][0])
        row["clock_ahead"] = row["clock_seen"] = before + 3_600_000_000
        for _ in range(2):
            sum_up(groups, [np.ones(100_000, np.float32) for _ in pair])
        assert abs(int(row["clock_ahead"][0]) - before) < 1_000_000


def test_a_number_of_more_bits_than_a_packet_has_is_one_of_its_own() -> None:
    with engines(TransportConfig(), is_relayed=False) as (pair, _):
        groups = groups_of(pair)
        for number in (3, 3 + (1 << 32), 3 + (1 << 33)):
            arrays = [np.ones(100, np.float32) for _ in pair]
            transfers = [
                group.all_reduce(Memory(each.ctypes.data, 100, FLOAT32, each), iteration=number)
                for group, each in zip(groups, arrays, strict=True)
            ]
            for transfer in transfers:
                assert transfer is not None
                transfer.wait()
            assert (arrays[0] == 2).all()
        with pytest.raises(UsageError, match="whole number of at least 0"):
            groups[0].all_reduce(Memory(arrays[0].ctypes.data, 100, FLOAT32), iteration=-1)


def test_a_defect_in_a_lane_s_thread_ends_all_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def post(*_: object) -> int:
        raise OverflowError("too much")

    with engines(TransportConfig(), is_relayed=False) as (pair, _):
        monkeypatch.setattr(pair[0].endpoint, "post", post)
        for _ in range(2):
            values = np.ones(100, np.float32)
            transfer = groups_of(pair)[0].all_reduce(Memory(values.ctypes.data, 100, FLOAT32))
            assert transfer is not None
            with pytest.raises(ShoalError, match=r"failed \(OverflowError: too much\)"):
                transfer.wait()
