"""Paths: so many packets each, one after another, but for paths on which packets get lost."""

from __future__ import annotations

from collections import Counter
from itertools import groupby, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transfers import Transfer
from virtual_link import Datagram, Faults, joined

from shoal.transport.endpoint import TransportConfig
from thoroughness import examples, seldom

SEGMENT = 64


def paths_taken(
    config: TransportConfig, lengths: list[int], loss: float
) -> tuple[list[int], list[int]]:
    """Return the path of every data packet that rank 0 sends, in order, and its batches' sizes."""
    taken: list[int] = []
    batches: list[int] = []
    link, _ = joined(2, config, faults=Faults(loss=loss), seed=len(lengths))

    def note(datagram: Datagram) -> None:
        if datagram.is_data and datagram.source == 0:
            transmit = link._outbox.transmit
            taken.append(int(transmit["path"]))
            if sum(batches) < len(taken):
                batches.append(int(transmit["packets"]))

    link.watch = note
    for number, length in enumerate(lengths):
        values = np.ones(length * SEGMENT // 4, np.float32)
        Transfer(link, 0, 1, values, iteration=number).post()
    link.run()
    assert len(taken) >= sum(lengths)
    return taken, batches


@settings(max_examples=examples(40))
@given(
    paths=st.integers(1, 5),
    unit=st.integers(1, 60),
    batch=st.sampled_from([1, 7, 44]),
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    loss=st.sampled_from([0.0, 0.1]),
)
def test_paths_have_turns_of_a_unit_at_most_and_no_batch_is_cut_for_them(
    paths: int, unit: int, batch: int, lengths: list[int], loss: float
) -> None:
    config = TransportConfig(
        segment_bytes=SEGMENT, paths=paths, spray_unit=unit, largest_batch=batch
    )
    taken, batches = paths_taken(config, lengths, loss)
    check_turns(taken, paths, unit)
    if loss == 0 and unit >= batch:
        one = TransportConfig(segment_bytes=SEGMENT, paths=1, largest_batch=batch)
        assert batches == paths_taken(one, lengths, loss)[1]


def check_turns(taken: list[int], paths: int, unit: int) -> None:
    """Fail unless paths take turns of at most `unit` packets."""
    runs = [(path, len(list(run))) for path, run in groupby(taken)]
    if paths > 1:
        assert all(length <= unit for _, length in runs)
        assert all((path + 1) % paths == after for (path, _), (after, _) in pairwise(runs))


@pytest.mark.parametrize("rate_control", ["dctcp", "timely", "fixed"])
def test_rate_control_does_not_keep_packets_to_one_path(rate_control: str) -> None:
    config = TransportConfig(
        segment_bytes=SEGMENT, paths=3, spray_unit=5, rate_control=rate_control
    )
    taken, _ = paths_taken(config, [200], 0.0)
    check_turns(taken, paths=3, unit=5)
    assert min(Counter(taken).values()) > 50


class Fabric:
    """A link of `size` hosts with paths of which some lose packets, and sums over it."""

    def __init__(self, size: int, paths: int, unit: int = 8, seed: int = 1) -> None:
        config = TransportConfig(segment_bytes=SEGMENT, paths=paths, spray_unit=unit)
        self.link, self.endpoints = joined(size, config, seed=seed)
        self.link.drop, self.link.watch = self._is_lost, self._note
        self.loss: dict[tuple[int, int], float] = {}
        """The share that gets lost, by receiver and path of rank 0."""
        self.taken: dict[int, Counter[int]] = {rank: Counter() for rank in range(size)}
        """How many data packets of rank 0 took each path, by receiver."""
        self._random = Random(seed)
        self._sums = 0

    def send(self, times: int, *, segments: int = 400, target: int = 1) -> None:
        """Send as many messages from rank 0 to `target`, one after another."""
        for _ in range(times):
            self._sums += 1
            values = np.arange(segments * SEGMENT // 4, dtype=np.float32)
            transfer = Transfer(self.link, 0, target, values, iteration=self._sums)
            transfer.post()
            self.link.run()
            assert (transfer.received == transfer.sent).all()

    def forget(self) -> None:
        """Count from here on."""
        for each in self.taken.values():
            each.clear()

    def _path(self, datagram: Datagram) -> int:
        return int(self.link._outbox.transmit["path"]) if datagram.source == 0 else -1

    def _is_lost(self, datagram: Datagram) -> bool:
        loss = self.loss.get((datagram.target, self._path(datagram)), 0.0)
        return self._random.random() < loss

    def _note(self, datagram: Datagram) -> None:
        if datagram.is_data and datagram.source == 0:
            self.taken[datagram.target][self._path(datagram)] += 1


@pytest.mark.parametrize("loss", seldom([1.0, 0.1, 0.02], often=[0.02]))
@pytest.mark.parametrize("bad", [{3}, {0, 5}, {1, 2, 3, 4, 6, 7}])
def test_paths_that_lose_packets_are_left_alone(bad: set[int], loss: float) -> None:
    fabric = Fabric(2, paths=8)
    fabric.loss = {(1, path): loss for path in bad}
    fabric.send(20)  # that makes 125 turns of each path
    fabric.forget()
    fabric.send(5)
    taken = fabric.taken[1]
    assert set(taken) == set(range(8)) - bad
    assert max(taken.values()) < 1.2 * min(taken.values())


@pytest.mark.parametrize("loss", [0.001, 0.02, 0.1, 0.5])
@pytest.mark.parametrize("seed", seldom(range(5), often=[0]))
def test_where_all_paths_lose_alike_all_are_used(loss: float, seed: int) -> None:
    fabric = Fabric(2, paths=8, seed=seed)
    fabric.loss = {(1, path): loss for path in range(8)}
    fabric.send(20)
    assert fabric.link.counts["data dropped 0-1"] > 0
    assert set(fabric.taken[1]) == set(range(8))
    assert max(fabric.taken[1].values()) < 1.3 * min(fabric.taken[1].values())


def test_a_burst_of_losses_on_one_path_says_little_of_it() -> None:
    fabric = Fabric(2, paths=4, unit=40)
    for path in (0, 1, 2, 3):  # each loses all packets of a whole turn, once
        fabric.loss = {(1, path): 1.0}
        fabric.send(1, segments=100)
        fabric.loss = {}
        fabric.send(5)
    fabric.forget()
    fabric.send(5)
    assert set(fabric.taken[1]) == {0, 1, 2, 3}


def test_a_path_is_avoided_to_those_alone_that_it_does_not_reach() -> None:
    fabric = Fabric(3, paths=4)
    fabric.loss = {(1, 2): 1.0}
    for _ in range(10):
        fabric.send(1, target=1)
        fabric.send(1, target=2)
    fabric.forget()
    fabric.send(3, target=1)
    fabric.send(3, target=2)
    assert set(fabric.taken[1]) == {0, 1, 3}
    assert set(fabric.taken[2]) == {0, 1, 2, 3}


def test_a_path_that_works_again_is_used_again_and_one_that_does_not_is_avoided_for_longer() -> (
    None
):
    fabric = Fabric(2, paths=4)
    fabric.loss = {(1, 2): 1.0}
    fabric.send(20)
    fabric.forget()
    waited = []
    for _ in range(3):
        began = fabric.link.now
        while 2 not in fabric.taken[1]:
            fabric.link.pass_time(100_000)
            fabric.send(1)
        waited.append(fabric.link.now - began)
        fabric.send(20)  # it stands out again
        fabric.forget()
    assert waited[0] < waited[1] < waited[2]
    fabric.loss = {}
    fabric.link.pass_time(20_000_000)
    fabric.send(20)
    assert set(fabric.taken[1]) == {0, 1, 2, 3}
    assert max(fabric.taken[1].values()) < 1.2 * min(fabric.taken[1].values())


def test_answers_and_questions_do_not_take_a_path_that_is_avoided() -> None:
    fabric = Fabric(2, paths=4)
    fabric.loss = {(1, 2): 1.0}
    fabric.send(20)
    dropped = fabric.link.counts["dropped"]
    fabric.send(5)
    assert fabric.link.counts["dropped"] == dropped
