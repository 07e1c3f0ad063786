"""Flows as rows: what one host sends is what the other expects, and all of it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.sim.transports.transfer_tables import Flows, transfer_tables
from shoal.transport.endpoint import TransportConfig
from shoal.transport.tables import WRITE

HOSTS = 4
CONFIG = TransportConfig()

PAIRS = st.tuples(st.integers(0, HOSTS - 1), st.integers(0, HOSTS - 1)).filter(
    lambda pair: pair[0] != pair[1]
)
FLOWS = st.lists(st.tuples(PAIRS, st.integers(0, 300_000)), max_size=12)


@given(FLOWS, st.integers(0, 7), st.sampled_from([0.0, 0.2]))
def test_both_sides_of_every_flow_fit(
    wanted: list[tuple[tuple[int, int], int]], layer_class: int, loss_bound: float
) -> None:
    starts = np.cumsum([0, *[count for _, count in wanted]])[:-1]
    flows = Flows(
        np.array([source for (source, _), _ in wanted], np.int64),
        np.array([target for (_, target), _ in wanted], np.int64),
        starts,
        np.array([count for _, count in wanted], np.int64),
        layer_class=layer_class,
        loss_bound=loss_bound,
        is_tagged=True,
    )
    found = transfer_tables(flows, HOSTS, CONFIG)
    assert list(found) == sorted({host for pair, count in wanted if count for host in pair})
    for source in range(HOSTS):
        for target in range(HOSTS):
            sent = [
                (int(row["start"]), int(row["size"]), int(row["message"]))
                for row in (found[source].outgoing if source in found else ())
                if row["peer"] == target
            ]
            received = [
                (int(row["start"]), int(row["size"]), int(row["message"]))
                for row in (found[target].incoming if target in found else ())
                if row["peer"] == source
            ]
            assert sent == received
            moved = [np.arange(start, start + size, 4) for start, size, _ in sent]
            expected = [
                4 * np.arange(start, start + count)
                for start, (pair, count) in zip(starts, wanted, strict=True)
                if pair == (source, target)
            ]
            nothing = np.zeros(0, np.int64)
            assert np.array_equal(
                np.concatenate([nothing, *moved]), np.concatenate([nothing, *expected])
            )
    for each in found.values():
        assert (each.incoming["mode"] == WRITE).all()
        assert (each.outgoing["layer_class"] == layer_class).all()
        assert (each.outgoing["important"] != 0).all()
        assert (each.outgoing["rotates"] == (loss_bound > 0)).all()
        whole = each.outgoing["segments"] * CONFIG.segment_bytes
        assert (each.outgoing["size"] <= whole).all()


def test_all_hosts_rows_lie_in_few_blocks() -> None:
    hosts = 16
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    sources, targets = np.array(pairs, np.int64).T
    counts = np.full(len(pairs), 1_000_000)
    found = transfer_tables(Flows(sources, targets, 0 * counts, counts), hosts, CONFIG)
    blocks = {_block_of(table) for each in found.values() for table in (each.outgoing, each.times)}
    assert len(blocks) < hosts


def _block_of(table: np.ndarray) -> int:
    """Return what was allocated for the table, and for others."""
    while isinstance(table.base, np.ndarray):
        table = table.base
    return id(table)
