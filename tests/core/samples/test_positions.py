"""Positions of several workers come to the samples that none of them has used."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from shoal.samples.ledger import Ledger
from shoal.samples.spans import merged
from shoal.train.sample_counts import in_common, ledger_of, position_of

SIZE = 12


@pytest.mark.parametrize("seed", range(50))
def test_what_is_left_is_what_all_have_left(seed: int) -> None:
    draw = random.Random(seed)
    ledgers = []
    for _ in range(draw.randint(1, 4)):
        fresh = draw.randint(0, 4)
        pools = {
            epoch: merged((n, n + 1) for n in range(SIZE) if draw.random() < 0.6)
            for epoch in range(fresh)
            if draw.random() < 0.8
        }
        ledgers.append(Ledger(0, (), {e: spans for e, spans in pools.items() if spans}, fresh))

    def left(ledger: Ledger) -> set[tuple[int, int]]:
        old = {
            (e, n)
            for e, spans in ledger.pools.items()
            for low, high in spans
            for n in range(low, high)
        }
        return old | {(e, n) for e in range(ledger.fresh, 6) for n in range(SIZE)}

    found = ledger_of(in_common([position_of(each) for each in ledgers]), 0, ())
    assert left(found) == set.intersection(*map(left, ledgers))
    assert list(found.pools) == sorted(found.pools)
    assert all(spans == merged(spans) != () for spans in found.pools.values())
