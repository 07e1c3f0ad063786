"""Paths: so many packets each, one after another, whatever batches and messages they are in."""

from __future__ import annotations

from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transfers import Transfer
from virtual_link import Datagram, Faults, joined

from shoal.transport.endpoint import TransportConfig
from thoroughness import examples

SEGMENT = 64


def paths_taken(config: TransportConfig, lengths: list[int], loss: float) -> list[int]:
    """Return the path of every data packet that rank 0 sends, in order."""
    taken: list[int] = []
    link, _ = joined(2, config, faults=Faults(loss=loss), seed=len(lengths))

    def note(datagram: Datagram) -> None:
        if datagram.is_data and datagram.source == 0:
            taken.append(int(link._outbox.transmit["path"]))

    link.watch = note
    for number, length in enumerate(lengths):
        values = np.ones(length * SEGMENT // 4, np.float32)
        Transfer(link, 0, 1, values, iteration=number).post()
    link.run()
    assert len(taken) >= sum(lengths)
    return taken


@settings(max_examples=examples(40))
@given(
    paths=st.integers(1, 5),
    unit=st.integers(1, 60),
    batch=st.sampled_from([1, 7, 44]),
    lengths=st.lists(st.integers(1, 150), min_size=1, max_size=4),
    loss=st.sampled_from([0.0, 0.1]),
)
def test_every_path_gets_its_unit_in_turn_unless_something_is_sent_again(
    paths: int, unit: int, batch: int, lengths: list[int], loss: float
) -> None:
    config = TransportConfig(
        segment_bytes=SEGMENT, paths=paths, spray_unit=unit, largest_batch=batch
    )
    taken = paths_taken(config, lengths, loss)
    if len(taken) == sum(lengths):
        assert taken == [number // unit % paths for number in range(len(taken))]
    runs = [(path, len(list(run))) for path, run in groupby(taken)]
    if paths > 1:
        assert all(length <= unit for _, length in runs)
        assert all((path + 1) % paths == after for (path, _), (after, _) in pairwise(runs))


@pytest.mark.parametrize("rate_control", ["dctcp", "timely", "fixed"])
def test_rate_control_does_not_keep_packets_to_one_path(rate_control: str) -> None:
    config = TransportConfig(
        segment_bytes=SEGMENT, paths=3, spray_unit=5, rate_control=rate_control
    )
    taken = paths_taken(config, [200], 0.0)
    assert taken == [number // 5 % 3 for number in range(200)]
