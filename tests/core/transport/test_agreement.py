"""Ranks that mean different operations by one number: each hears of it, and nothing is moved."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_state import check_consistency
from transfers import Transfer
from virtual_link import Datagram, Faults, joined

from shoal.collectives import graphs
from shoal.transport import graph_tables
from shoal.transport.forms import FLOAT32
from shoal.transport.graph_tables import GraphOptions
from shoal.transport.tables import Counter
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.transport.endpoint import Endpoint
    from shoal.transport.messages import MessageTables

RANKS = 3
ODD = 2
"""The rank that means something else."""


def sum_of(rank: int, *, count: int = 1_000, agreed: int = 7, piece: int = 64) -> MessageTables:
    """Return a rank's part in a direct all-reduce of `count` elements, `piece` to a message."""
    graph = graphs.all_reduce(RANKS, rank, count, piece, algorithm="direct")
    tables = graph_tables.tables_of(graph, range(RANKS), RANKS, 64, FLOAT32, GraphOptions())
    tables.operation["agreed"] = agreed
    return tables


def misfits_of(endpoint: Endpoint) -> list[int]:
    """Return the ranks that took one of this one's operations for another."""
    found = [endpoint.misfit(slot) for slot in range(len(endpoint.state.operations))]
    return [rank for rank in found if rank is not None]


@pytest.mark.parametrize("order", list(permutations(range(RANKS))))
@pytest.mark.parametrize(
    "different",
    [{"count": 1_024}, {"count": 4}, {"agreed": 8}, {"piece": 32}],
    ids=["longer", "shorter", "another sum", "cut otherwise"],
)
@pytest.mark.parametrize("apart_us", [0, 20, 2_000, 200_000])
def test_all_hear_of_a_rank_that_means_something_else(
    order: tuple[int, ...], different: dict[str, int], apart_us: int
) -> None:
    moved: list[tuple[int, int]] = []

    def watch(datagram: Datagram) -> None:
        if datagram.is_data:
            moved.append((datagram.source, datagram.target))

    link, endpoints = joined(RANKS, watch=watch)
    tables = [sum_of(rank, **(different if rank == ODD else {})) for rank in range(RANKS)]
    memory = [np.full(2_000, 1 + rank, np.float32) for rank in range(RANKS)]
    link.kept += [tables, memory]
    for place, rank in enumerate(order):
        tables[rank].place(memory[rank].ctypes.data)
        link.at(1 + place * apart_us, rank, partial(link.post, rank, tables[rank]))
    link.run()
    for rank, endpoint in enumerate(endpoints):
        (other,) = misfits_of(endpoint)
        assert other == ODD or (rank == ODD and other in {0, 1})
        assert endpoint.counts()[Counter.MISFITS] > 0
        check_consistency(endpoint)
    assert not [pair for pair in moved if ODD in pair]
    assert (memory[ODD] == 1 + ODD).all()


def test_ranks_that_mean_the_same_are_let_be() -> None:
    for loss in (0.0, 0.2):
        link, endpoints = joined(RANKS, faults=Faults(loss=loss, duplication=0.2))
        tables = [sum_of(rank) for rank in range(RANKS)]
        memory = [np.full(1_000, 1 + rank, np.float32) for rank in range(RANKS)]
        link.kept += [tables, memory]
        for rank in range(RANKS):
            tables[rank].place(memory[rank].ctypes.data)
            link.post(rank, tables[rank])
        link.run()
        assert all((each == 6).all() for each in memory)
        assert not any(endpoint.counts()[Counter.MISFITS] for endpoint in endpoints)


@pytest.mark.parametrize("sender_first", [True, False])
def test_who_only_receives_hears_of_it_from_the_sender(sender_first: bool) -> None:
    link, endpoints = joined(2)
    longer = Transfer(link, 0, 1, np.ones(40, np.float32))
    shorter = Transfer(link, 0, 1, np.ones(30, np.float32))
    ends = [longer.post_sender, shorter.post_receiver]
    for place, post in enumerate(ends if sender_first else ends[::-1]):
        link.at(1 + 1_000 * place, post == shorter.post_receiver, post)
    link.run()
    for rank, endpoint in enumerate(endpoints):
        assert misfits_of(endpoint) == [1 - rank]
        check_consistency(endpoint)
    assert not shorter.received.any()


@settings(max_examples=examples(60))
@given(
    count=st.integers(1, 60),
    loss=st.floats(0.05, 0.6),
    apart_us=st.sampled_from([0, 300, 30_000]),
    sender_first=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_all_hear_of_it_whatever_gets_lost(
    count: int, loss: float, apart_us: int, sender_first: bool, seed: int
) -> None:
    faults = Faults(loss=loss, duplication=0.1, reordering=0.2)
    link, endpoints = joined(2, faults=faults, seed=seed)
    longer = Transfer(link, 0, 1, np.ones(61, np.float32))
    shorter = Transfer(link, 0, 1, np.ones(count, np.float32))
    ends = [longer.post_sender, shorter.post_receiver]
    for place, post in enumerate(ends if sender_first else ends[::-1]):
        link.at(1 + apart_us * place, post == shorter.post_receiver, post)
    link.run()
    for rank, endpoint in enumerate(endpoints):
        assert misfits_of(endpoint) == [1 - rank]
        check_consistency(endpoint)
    assert not shorter.received.any()


@pytest.mark.parametrize("seed", range(10))
def test_all_members_of_a_sum_hear_of_it_whatever_gets_lost(seed: int) -> None:
    link, endpoints = joined(RANKS, faults=Faults(loss=0.5), seed=seed)
    tables = [sum_of(rank, count=1_000 + 24 * (rank == ODD)) for rank in range(RANKS)]
    memory = [np.full(2_000, 1 + rank, np.float32) for rank in range(RANKS)]
    link.kept += [tables, memory]
    for rank in range(RANKS):
        tables[rank].place(memory[rank].ctypes.data)
        link.at(1 + 1_000 * rank, rank, partial(link.post, rank, tables[rank]))
    link.run()
    assert all(misfits_of(endpoint) for endpoint in endpoints)
    assert (memory[ODD] == 1 + ODD).all()


def test_who_comes_late_hears_of_it_from_the_one_that_means_something_else() -> None:
    """Both others have ended by then; the one that means the same does not refuse it."""
    link, endpoints = joined(RANKS)
    tables = [sum_of(rank, count=1_000 + 24 * (rank == ODD)) for rank in range(RANKS)]
    memory = [np.full(2_000, 1 + rank, np.float32) for rank in range(RANKS)]
    link.kept += [tables, memory]
    for rank in (0, ODD):
        tables[rank].place(memory[rank].ctypes.data)
        link.post(rank, tables[rank])
    link.pass_time(1_000)
    tables[1].place(memory[1].ctypes.data)
    link.post(1, tables[1])
    link.run()
    assert misfits_of(endpoints[1]) == [ODD]
    assert endpoints[0].counts()[Counter.MISFITS] == 1
