"""Section `incast`: many hosts push to one parameter server through one port with a small buffer.

The ideal is the time in which all that is pushed passes the server's port, at what its rate leaves
after headers. A transport that lets every sender send as it likes overruns the buffer, and more so
the more senders there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal_bench.emulated_network import EmulatedNetwork, Ports
from shoal_bench.rows import Row, at_most, figure
from shoal_bench.shaped import (
    is_possible,
    percentile_row,
    processor_row,
    processor_ticks,
    rate_row,
    ratios,
)
from shoal_bench.turns import GLOO, Contender, push_rounds

if TYPE_CHECKING:
    from shoal_bench.stand import Stand

NAME: Final = "incast"
SENDERS: Final = (7, 15, 31)
MEGABITS: Final = 100
PUSHED_BYTES: Final = 2_800_000
"""The bytes pushed by all senders together, so that a round takes as long whatever their number."""
BUFFER_BYTES: Final = 128 << 10
TARGET: Final = 1.2


def measure(stand: Stand) -> list[Row]:
    """Return the rows of both contenders for every number of senders."""
    if not is_possible(stand):
        return []
    rows: list[Row] = []
    for _, senders in stand.each({f"{number} senders": number for number in SENDERS}):
        rows += _rows(stand, senders)
    stand.close_pool()  # nobody else wants as many processes
    return rows


def _rows(stand: Stand, senders: int) -> list[Row]:
    share = PUSHED_BYTES // senders // 4 * 4
    ports = Ports(senders + 1, MEGABITS * 1_000_000, BUFFER_BYTES)
    contenders = [
        Contender("ours", stand.choose(full=100, quick=10)),
        Contender(GLOO, stand.choose(full=25, quick=3), limit_s=60.0),
    ]
    case = f"{senders} to 1, {MEGABITS} Mbit/s, {share / 1e6:.2g} MB each"
    with EmulatedNetwork(ports) as network:
        pool = stand.pool(senders + 1)
        rows = [rate_row(case, network, pool, receivers=[0])]
        before = processor_ticks()
        dropped = network.to_host(0).dropped
        by_rank = pool.call(push_rounds, network.hosts, share, contenders)
        dropped = network.to_host(0).dropped - dropped
    ideal_s = senders * share / ports.goodput
    again = sum(turns[0].counts["SENT_AGAIN"] for turns in by_rank)
    sent = sum(turns[0].counts["SENT"] for turns in by_rank)
    return [
        *rows,
        processor_row(case, before),
        percentile_row(case, ratios(by_rank[:1], 0, ideal_s), at_most(TARGET)),
        percentile_row(f"{case}, {GLOO}", ratios(by_rank[:1], 1, ideal_s)),
        figure(case, "packets sent again", "%", [100 * again / sent]),
        figure(case, "packets dropped by the server's port, both contenders'", "", [dropped]),
    ]
