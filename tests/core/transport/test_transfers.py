"""One message over a bad network: all of it, or what its bound asks for, and nothing else."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transfers import Transfer
from virtual_link import Faults, VirtualLink, joined

from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import FLOAT64, INT32, INT64, RAW
from shoal.transport.tables import ADD, WRITE, Counter
from thoroughness import examples

FAULTS = st.builds(
    Faults,
    loss=st.floats(0, 0.6),
    duplication=st.floats(0, 0.5),
    reordering=st.floats(0, 1),
    corruption=st.floats(0, 0.1),
    truncation=st.floats(0, 0.1),
    marks=st.floats(0, 1),
    refusal=st.sampled_from([0.0, 0.0, 0.1, 0.3]),
    delay_us=st.sampled_from([1, 50, 5_000, 60_000]),
    reorder_us=st.sampled_from([20, 3_000, 40_000]),
    host_delay_us=st.sampled_from([0, 500, 30_000]),
)
CONFIGS = st.builds(
    TransportConfig,
    segment_bytes=st.sampled_from([16, 64]),
    budget_packets=st.sampled_from([1, 16, 40, 512]),
    first_budget_packets=st.sampled_from([1, 16, 64]),
    stop_early=st.booleans(),
    largest_batch=st.sampled_from([1, 7, 44]),
    spray_unit=st.sampled_from([1, 10]),
    rate_control=st.sampled_from(["credit", "credit", "dctcp", "timely", "fixed"]),
    rate_bytes_per_us=st.just(5.0),
)
SLOW = 600_000_000
"""Microseconds: at 60 % loss hosts double their waits again and again."""


def conserved(link: VirtualLink) -> None:
    """Sent is delivered, lost, spoilt or refused, and both ends have counted the same."""
    for source, sender in enumerate(link.endpoints):
        for target, receiver in enumerate(link.endpoints):
            if source == target:
                continue
            happened = partial(_happened, link, f"{source}-{target}")
            sent, got = sender.counts(target), receiver.counts(source)
            assert sent[Counter.SENT] == happened("sent", "refused")
            assert sent[Counter.REFUSED] == happened("refused")
            lost = happened("lost", "dropped", "overrun", "corrupted")
            arrived = happened("delivered", "delivered spoilt")
            assert happened("sent", "duplicated") == arrived + lost
            assert happened("delivered") == got[Counter.RECEIVED] + got[Counter.REPLAYED]
            peer = sender.state.peers[target]
            assert peer["next_number"] == sent[Counter.SENT]
            assert peer["reported_received"] <= got[Counter.RECEIVED]
            assert peer["reported_highest"] <= sent[Counter.SENT]


def _happened(link: VirtualLink, pair: str, *names: str) -> int:
    return sum(link.counts[f"data {name} {pair}"] for name in names)


@given(
    faults=FAULTS,
    config=CONFIGS,
    seed=st.integers(0, 1 << 30),
    count=st.integers(1, 400),
    mode=st.sampled_from([WRITE, ADD]),
    early=st.integers(-50_000, 50_000),
)
@settings(max_examples=examples(80))
def test_without_a_bound_everything_arrives(
    faults: Faults, config: TransportConfig, seed: int, count: int, mode: int, early: int
) -> None:
    link, _ = joined(2, config, faults=faults, seed=seed, limit_us=SLOW)
    values = np.arange(1, count + 1, dtype=np.float32)
    transfer = Transfer(link, 0, 1, values, before=values * 2, mode=mode)
    transfer.post(sender_at=max(0, early), receiver_at=max(0, -early))
    link.run()
    assert transfer.arrived().all()
    transfer.check_places()
    conserved(link)


@given(
    faults=FAULTS,
    config=CONFIGS,
    seed=st.integers(0, 1 << 30),
    count=st.integers(1, 400),
    bound=st.floats(0.01, 0.9),
)
@settings(max_examples=examples(80))
def test_with_a_bound_enough_arrives_and_the_rest_is_reported(
    faults: Faults, config: TransportConfig, seed: int, count: int, bound: float
) -> None:
    link, _ = joined(2, config, faults=faults, seed=seed, limit_us=SLOW)
    values = np.arange(1, count + 1, dtype=np.float32)
    transfer = Transfer(link, 0, 1, values, before=-values, loss_bound=bound, keeps_missing=True)
    transfer.post()
    link.run()
    sizes = np.full(transfer.segments, config.segment_bytes)
    sizes[-1] = 4 * count - config.segment_bytes * (transfer.segments - 1)
    assert sizes[transfer.arrived()].sum() >= 4 * count * (1 - bound)
    np.testing.assert_array_equal(transfer.missing(), ~transfer.arrived())
    transfer.check_places()
    conserved(link)


@pytest.mark.parametrize("seed", range(5))
def test_only_what_the_network_lost_is_missing_if_stopping_early_is_off(seed: int) -> None:
    lost = set()

    def note(datagram: object) -> bool:
        if datagram.is_data and link.random.random() < 0.05:  # type: ignore[attr-defined]
            lost.add(int(datagram.header["offset"]) // 64)  # type: ignore[attr-defined]
            return True
        return False

    config = TransportConfig(segment_bytes=64, stop_early=False)
    link, _ = joined(2, config, seed=seed, drop=note)
    values = np.ones(16 * 200, np.float32)
    transfer = Transfer(link, 0, 1, values, loss_bound=0.2, keeps_missing=True)
    transfer.post()
    link.run()
    assert lost
    assert set(np.flatnonzero(transfer.missing())) == lost


def test_stopping_early_ends_a_message_at_its_bound() -> None:
    link, (sender, _) = joined(
        2, TransportConfig(segment_bytes=64, largest_batch=1, stop_early=True)
    )
    values = np.ones(16 * 100, np.float32)
    transfer = Transfer(link, 0, 1, values, loss_bound=0.25, keeps_missing=True)
    transfer.post()
    link.run()
    assert transfer.arrived().sum() == 75
    assert sender.counts(1)[Counter.SENT] <= 100


def test_a_stop_ends_what_is_still_being_sent() -> None:
    config = TransportConfig(
        segment_bytes=64, rate_control="fixed", rate_bytes_per_us=1.0, stop_early=True
    )
    link, (sender, _) = joined(2, config)  # 96 us for a packet, 100 for a round trip
    transfer = Transfer(link, 0, 1, np.ones(16 * 400, np.float32), loss_bound=0.5)
    transfer.post()
    link.run()
    assert transfer.arrived().sum() == 200
    assert 200 <= sender.counts(1)[Counter.SENT] <= 210


@pytest.mark.parametrize("form", [RAW, FLOAT64, INT32, INT64])
def test_every_form_goes_through(form: int) -> None:
    dtype = {RAW: np.uint8, FLOAT64: np.float64, INT32: np.int32, INT64: np.int64}[form]
    values = np.random.default_rng(0).integers(0, 200, 1001).astype(dtype)
    link, _ = joined(2, faults=Faults(loss=0.2, duplication=0.2, reordering=0.2), seed=3)
    mode = WRITE if form == RAW else ADD
    transfer = Transfer(link, 0, 1, values, before=values[::-1].copy(), form=form, mode=mode)
    transfer.post()
    link.run()
    transfer.check_places()


def test_the_largest_message_has_1024_segments() -> None:
    link, _ = joined(2, faults=Faults(loss=0.1), seed=4)
    transfer = Transfer(link, 0, 1, np.arange(16 * 1024, dtype=np.float32))
    transfer.post()
    link.run()
    assert transfer.segments == 1024
    transfer.check_places()


@pytest.mark.parametrize("seed", range(8))
def test_in_the_end_the_reports_say_what_arrived_and_what_did_not(seed: int) -> None:
    faults = Faults(loss=0.2, duplication=0.2, reordering=0.3, truncation=0.1, refusal=0.1)
    link, endpoints = joined(3, TransportConfig(segment_bytes=16), faults=faults, seed=seed)
    pairs = [(source, target) for source in range(3) for target in range(3) if source != target]
    for healed in (False, True):
        if healed:
            link.faults = Faults()
        for pair in pairs:
            # after the network has healed, a STOP that takes the last report along
            count = 1 if healed else 4 * 100
            values = np.ones(count, np.float32)
            Transfer(link, *pair, values, loss_bound=0.1, iteration=1 + healed).post()
        link.run()
    conserved(link)
    for source, target in pairs:
        peer = endpoints[source].state.peers[target]
        sent = endpoints[source].counts(target)
        received = endpoints[target].counts(source)[Counter.RECEIVED]
        assert peer["reported_highest"] == sent[Counter.SENT]
        assert peer["reported_received"] == received
        assert sent[Counter.SENT] - sent[Counter.REFUSED] > received >= 90
