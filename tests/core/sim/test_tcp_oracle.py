"""Compiled transports do what a slow description does, to the picosecond."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_tcp import SlowTcp
from tcp_networks import FRAME, check_idle, fabric, network_of, port

from shoal.switching.settings import Link
from shoal.switching.tables import NEVER
from thoroughness import examples

SEEN: Counter[str] = Counter()


@given(
    flows=st.lists(
        st.tuples(
            st.integers(0, 2_000_000_000),
            st.integers(0, 3),
            st.integers(1, 3),
            st.sampled_from([1, 700, 2 * FRAME, 30 * FRAME, 90 * FRAME + 200]),
        ),
        min_size=1,
        max_size=4,
    ),
    loss=st.sampled_from([0.0, 0.02, 0.1, 0.3]),
    limit=st.sampled_from([None, 3, 8]),
    jitter_s=st.sampled_from([0.0, 1e-6, 1e-4]),
    reorder=st.sampled_from([0.0, 0.1]),
    spray=st.booleans(),
    min_timeout_s=st.sampled_from([1e-5, 1e-3]),
    reordering=st.sampled_from([1, 3]),
    seed=st.integers(0, 5),
)
@settings(max_examples=examples(120, share=8), deadline=None)
def test_every_flow_takes_the_same_course(
    flows: list[tuple[int, int, int, int]],
    loss: float,
    limit: int | None,
    jitter_s: float,
    reorder: float,
    spray: bool,
    min_timeout_s: float,
    reordering: int,
    seed: int,
) -> None:
    link = Link(1e-6, loss=loss, jitter_s=jitter_s, reorder=reorder, reorder_delay_s=5e-5)
    topology = fabric(4, 2, 2, port(limit=limit), link)
    fast = network_of(
        topology,
        spray=spray,
        seed=seed,
        most_window=64,
        min_timeout_s=min_timeout_s,
        max_timeout_s=0.02,
        reordering=reordering,
        most_reordering=20,
        tail_probes=False,
    )
    slow = SlowTcp(topology, fast.transport, seed=seed, spray=spray)
    for at, source, step, size in flows:
        target = (source + step) % 4
        fast.start(at, [source], [target], [size])
        slow.start(at, source, target, size, fast)
    while fast.run(NEVER):
        pass
    slow.run()
    check_idle(fast)
    records = fast.records
    for name in ("end", "retransmitted", "timeouts", "recoveries", "duplicates"):
        assert records[name].tolist() == [getattr(flow, name) for flow in slow.flows], name
        SEEN[name] += int(records[name].sum())
    assert np.array_equal(fast.state.counts, slow.heap.state.counts)


def test_both_have_lost_and_recovered() -> None:
    """Runs after it, in the same process."""
    if not SEEN:
        pytest.skip("the test above runs elsewhere")
    assert min(SEEN.values()) > 50, SEEN
