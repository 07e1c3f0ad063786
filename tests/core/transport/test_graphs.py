"""All-reduces as message graphs over a bad network: NumPy is the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transfers import Guarded, bits_at, tables_of
from virtual_link import Faults, VirtualLink, joined

from shoal.collectives import graphs
from shoal.collectives.message_graph import exact_from
from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import (
    FLOAT32,
    FLOAT32_AS_BFLOAT16,
    FLOAT32_AS_FLOAT16,
    FLOAT64,
    INT64,
    finish_sum,
)
from shoal.transport.holes import DIVIDE_BY_COUNT, ZERO
from shoal.transport.tables import Counter
from thoroughness import examples, seldom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from shoal.transport.messages import MessageTables

DTYPES: dict[int, Any] = {
    FLOAT32: np.float32,
    FLOAT64: np.float64,
    INT64: np.int64,
    FLOAT32_AS_BFLOAT16: np.float32,
    FLOAT32_AS_FLOAT16: np.float32,
}
FAULTS = st.builds(
    Faults,
    loss=st.floats(0, 0.4),
    duplication=st.floats(0, 0.4),
    reordering=st.floats(0, 1),
    corruption=st.floats(0, 0.05),
    marks=st.floats(0, 0.5),
    delay_us=st.sampled_from([1, 50, 2_000]),
    reorder_us=st.sampled_from([50, 3_000]),
    host_delay_us=st.sampled_from([0, 1_000]),
)


class AllReduce:
    """A mean over the hosts `ranks` of a link, each with its own values; checks what comes out."""

    def __init__(
        self,
        link: VirtualLink,
        ranks: Sequence[int],
        values: NDArray[Any],
        *,
        algorithm: str = "direct",
        piece_length: int = 64,
        form: int = FLOAT32,
        loss_bound: float = 0.0,
        policy: int = ZERO,
        per_host: int = 1,
        exact: int | None = None,
    ) -> None:
        self.link, self.ranks, self.values, self.form = link, ranks, values, form
        self.policy, self.exact = policy, exact
        self.guards: list[Guarded] = []
        self.tables: list[MessageTables] = []
        size, length = values.shape
        for me in range(size):
            graph = graphs.all_reduce(
                size, me, length, piece_length, algorithm=algorithm, per_host=per_host
            )
            if exact is not None:
                graph = exact_from(graph, exact)
            tables = tables_of(graph, link, ranks, form=form, loss_bound=loss_bound, policy=policy)
            guard = Guarded(values[me].nbytes)
            guard.bytes[:] = values[me].view(np.uint8)
            tables.place(guard.address)
            self.guards.append(guard)
            self.tables.append(tables)
        link.kept.append(self)

    def post(self, me: int, stream: int, iteration: int) -> None:
        self.link.post(self.ranks[me], self.tables[me], stream, iteration)

    def post_all(self, stream: int, iteration: int, latest: int = 0) -> None:
        """Post everyone's part, each at a random time up to `latest` from now."""
        for me, rank in enumerate(self.ranks):
            moment = self.link.now + self.link.random.randint(0, latest)
            self.link.at(moment, rank, lambda me=me: self.post(me, stream, iteration))

    def results(self) -> list[NDArray[Any]]:
        for guard in self.guards:
            guard.check()
        return [guard.bytes.view(self.values.dtype) for guard in self.guards]

    def check_exact(self) -> None:
        """Fail unless every member has the mean of all values, to the bit."""
        self._check(self.values.sum(axis=0, dtype=self.values.dtype))

    def check_direct_with_holes(self) -> float:
        """Fail unless everyone has the sum of what arrived; return the share that did not."""
        sums = np.zeros_like(self.values[0])
        counts = np.zeros(len(sums), np.int64)
        owned = np.zeros(len(sums), np.bool_)
        for me, tables in enumerate(self.tables):
            adding = tables.incoming[tables.incoming["mode"] == 1]
            for row in adding:
                sender = self.ranks.index(int(row["peer"]))
                start, size = int(row["start"]) // 4, int(row["size"]) // 4
                part = slice(start, start + size)
                if not owned[part].all():
                    owned[part] = True
                    sums[part] += self.values[me][part]
                    counts[part] += 1
                came = ~bits_at(int(row["seen"]), int(row["segments"]))
                per_segment = self.link.endpoints[0].config.segment_bytes // 4
                each = np.repeat(came, per_segment)[:size]
                sums[part] += np.where(each, self.values[sender][part], 0)
                counts[part] += each
        assert owned.all()
        size = len(self.ranks)
        assert self.exact is None or (counts[self.exact :] == size).all()
        if self.policy == DIVIDE_BY_COUNT:
            factors = (np.float64(size) / counts).astype(self.values.dtype)
            sums = np.where(counts == size, sums, sums * factors)
        self._check(sums)
        return 1 - counts.mean() / size

    def _check(self, sums: NDArray[Any]) -> None:
        expected = sums.astype(self.values.dtype)
        finish_sum(self.form, expected.ctypes.data, expected.nbytes, 1 / len(self.ranks))
        for result in self.results():
            assert result.tobytes() == expected.tobytes()


def random_values(size: int, length: int, form: int, seed: int) -> NDArray[Any]:
    """Small integers, whose sums are exact in every order, and in 16 bits."""
    integers = np.random.default_rng(seed).integers(-20, 20, (size, length))
    return integers.astype(DTYPES[form])


@given(
    algorithm=st.sampled_from(graphs.ALGORITHMS),
    size=st.sampled_from([2, 3, 4, 5, 6]),
    length=st.integers(1, 700),
    piece_length=st.sampled_from([16, 50, 200]),
    form=st.sampled_from(sorted(DTYPES)),
    faults=FAULTS,
    seed=st.integers(0, 1 << 30),
    latest=st.sampled_from([0, 20_000]),
    stop_early=st.booleans(),
    cut=st.none() | st.integers(0, 700),
)
@settings(max_examples=examples(50))
def test_an_all_reduce_is_the_mean_of_everyone(
    algorithm: str,
    size: int,
    length: int,
    piece_length: int,
    form: int,
    faults: Faults,
    seed: int,
    latest: int,
    stop_early: bool,
    cut: int | None,
) -> None:
    config = TransportConfig(segment_bytes=64, stop_early=stop_early)
    link, endpoints = joined(size, config, faults=faults, seed=seed, limit_us=600_000_000)
    values = random_values(size, length, form, seed)
    hosts = [each for each in range(1, size + 1) if size % each == 0]
    per_host = hosts[seed % len(hosts)]
    if 1 < per_host < size:
        for rank, endpoint in enumerate(endpoints):
            first = rank // per_host * per_host
            endpoint.note_host([each for each in range(first, first + per_host) if each != rank])
    case = AllReduce(
        link,
        range(size),
        values,
        algorithm=algorithm,
        piece_length=piece_length,
        form=form,
        per_host=per_host,
        exact=cut,
    )
    case.post_all(7, 1, latest)
    link.run()
    case.check_exact()


@given(
    size=st.integers(2, 5),
    length=st.integers(1, 900),
    bound=st.floats(0.05, 0.7),
    policy=st.sampled_from([ZERO, DIVIDE_BY_COUNT]),
    form=st.sampled_from([FLOAT32]),
    faults=FAULTS,
    seed=st.integers(0, 1 << 30),
    stop_early=st.booleans(),
    exact=st.none() | st.integers(0, 900),
)
@settings(max_examples=examples(50, least=5))
def test_with_a_bound_everyone_has_the_same_sum_of_what_arrived(
    size: int,
    length: int,
    bound: float,
    policy: int,
    form: int,
    faults: Faults,
    seed: int,
    stop_early: bool,
    exact: int | None,
) -> None:
    config = TransportConfig(segment_bytes=16, stop_early=stop_early)
    link, _ = joined(size, config, faults=faults, seed=seed, limit_us=600_000_000)
    values = random_values(size, length, form, seed)
    case = AllReduce(
        link,
        range(size),
        values,
        form=form,
        loss_bound=bound,
        policy=policy,
        piece_length=80,
        exact=exact,
    )
    case.post_all(7, 1)
    link.run()
    assert case.check_direct_with_holes() <= bound


def test_bounded_loss_does_happen() -> None:
    link, _ = joined(4, TransportConfig(segment_bytes=16), faults=Faults(loss=0.1), seed=1)
    case = AllReduce(link, range(4), random_values(4, 4_000, FLOAT32, 1), loss_bound=0.3)
    case.post_all(7, 1)
    link.run()
    assert 0.05 < case.check_direct_with_holes() < 0.3


@pytest.mark.parametrize("seed", seldom(range(12), often=range(2)))
@pytest.mark.parametrize("size", [2, 3, 5])
def test_no_contribution_is_added_twice_in_a_ring_with_losses(size: int, seed: int) -> None:
    faults = Faults(loss=0.2, duplication=0.4, reordering=0.5, reorder_us=5_000)
    link, _ = joined(size, TransportConfig(segment_bytes=16), faults=faults, seed=seed)
    values = np.repeat(2.0 ** np.arange(size), 400).reshape(size, 400).astype(np.float64)
    case = AllReduce(link, range(size), values, algorithm="ring", form=FLOAT64, loss_bound=0.3)
    case.post_all(7, 1, 5_000)
    link.run()
    results = case.results()
    assert all(result.tobytes() == results[0].tobytes() for result in results)
    sums = np.rint(results[0] * size).astype(np.int64)
    np.testing.assert_allclose(results[0] * size, sums, atol=1e-9)
    # each rank's contribution is one bit: added twice, it would carry or pass 2^size
    assert ((sums >= 1) & (sums < 2**size)).all()
    assert (sums == 2**size - 1).any()


@given(
    seed=st.integers(0, 1 << 30),
    faults=FAULTS,
    operations=st.lists(
        st.tuples(
            st.permutations(range(5)).map(lambda ranks: ranks[:3]),
            st.integers(2, 3),
            st.sampled_from(graphs.ALGORITHMS),
            st.integers(1, 150),
        ),
        min_size=2,
        max_size=8,
    ),
)
@settings(max_examples=examples(50))
def test_overlapping_groups_at_once_posted_in_any_order(
    seed: int, faults: Faults, operations: list[tuple[list[int], int, str, int]]
) -> None:
    link, _ = joined(5, TransportConfig(segment_bytes=32), faults=faults, seed=seed)
    cases = []
    for number, (ranks, size, algorithm, length) in enumerate(operations):
        members = ranks[:size]
        values = random_values(size, length, FLOAT32, seed + number)
        case = AllReduce(link, members, values, algorithm=algorithm, piece_length=40)
        # every member posts it when it likes, so in an order of its own
        case.post_all(stream=number % 2, iteration=number // 2 + 1, latest=30_000)
        cases.append(case)
    link.run()
    for case in cases:
        case.check_exact()


@pytest.mark.long
def test_many_iterations_on_the_same_tables() -> None:
    faults = Faults(loss=0.05, duplication=0.1, reordering=0.3)
    link, endpoints = joined(3, TransportConfig(segment_bytes=64), faults=faults, seed=3)
    values = random_values(3, 300, FLOAT32, 1)
    case = AllReduce(link, range(3), values)
    for iteration in range(60):
        for guard, row in zip(case.guards, values, strict=True):
            guard.bytes[:] = row.view(np.uint8)
        case.post_all(7, iteration)
        link.run(lambda: link.running() == 0 and link.now > 0 and not _posting(link, case))
        case.check_exact()
    assert sum(each.counts()[Counter.STALE] for each in endpoints) > 0


def _posting(link: VirtualLink, case: AllReduce) -> bool:
    """Whether some member has still to post its part, or has not finished it."""
    done = [len(each) for each in link.finished]
    if min(done) == 0:
        return True
    for each in link.finished:
        each.clear()
    return False
