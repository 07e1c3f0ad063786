"""The replay window against a slow oracle: a set of all numbers ever accepted."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.transport.replay import WINDOW, WORDS, accept_number, advance
from thoroughness import examples


class Oracle:
    """Accepts every number once, unless it is older than the window."""

    def __init__(self) -> None:
        self.end = 0
        self.accepted: set[int] = set()

    def accept(self, number: int) -> bool:
        if number < self.end - WINDOW or number in self.accepted:
            return False
        self.accepted.add(number)
        self.end = max(self.end, number + 1)
        return True

    def advance(self, end: int) -> None:
        self.end = max(self.end, end)


NEAR = st.integers(-70, 70)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("near the end"), NEAR),
        st.tuples(st.just("near the window's other edge"), NEAR),
        st.tuples(st.just("near the last one"), NEAR),
        st.tuples(st.just("a jump"), st.integers(0, 3 * WINDOW)),
        st.tuples(st.just("advance"), st.integers(0, 2 * WINDOW)),
        st.tuples(st.just("advance"), st.integers(0, 200)),
    ),
    max_size=80,
)


@given(steps=STEPS, start=st.sampled_from([0, 1, 63, WINDOW - 1, WINDOW, (1 << 32) - 5]))
@settings(max_examples=examples(400))
def test_the_window_is_the_oracle(steps: list[tuple[str, int]], start: int) -> None:
    seen, oracle = np.zeros(WORDS, np.uint64), Oracle()
    oracle.end = end = last = start
    for what, by in steps:
        if what == "advance":
            advance(seen, end, end + by)
            end += by
            oracle.advance(end)
            continue
        base = {"near the end": end, "a jump": end, "near the last one": last}.get(
            what, end - WINDOW
        )
        number = max(0, base + by)
        assert accept_number(seen, end, number) == oracle.accept(number), (what, number, end)
        end, last = max(end, number + 1), number
        assert end == oracle.end


def test_numbers_in_random_order_are_accepted_once_each() -> None:
    generator = np.random.default_rng(0)
    seen, end = np.zeros(WORDS, np.uint64), 0
    numbers = np.arange(100_000)
    for start in range(0, len(numbers), 1_000):
        generator.shuffle(numbers[start : start + 1_000])
    for number in map(int, numbers):
        assert accept_number(seen, end, number)
        end = max(end, number + 1)
        assert not accept_number(seen, end, number)
