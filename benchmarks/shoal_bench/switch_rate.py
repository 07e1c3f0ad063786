"""Section `switch`: packets per second through the lab's software switch, and how true it is then.

The shapes' links are so fast that nothing but the machine holds packets back; senders and receivers
are on the same machine, as in every lab. Hosts hand over 16 packets as one frame, as they do for
programs that send much, and in one case each by itself, as they do for others and where the kernel
knows nothing else. Every round climbs from a small load until one is too much, and then comes down
again. A load counts as held if both the rate and the median delay at it are within their targets
on the way down, and at it and every smaller one on the way up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.lab import DELAY_TOLERANCE_S, RATE_TOLERANCE, Ladder, LoadTest, Step, climb, why_not
from shoal.switching import Link, Materials, Port, host_names, leaf_spine, star
from shoal_bench.rows import Row, Target, at_least, at_most, figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal_bench.stand import Stand

NAME: Final = "switch"
RATE_TARGET: Final = 200_000.0
"""Packets of 1,500 bytes per second; the stretch is twice that."""
BACKLOGS: Final = 5
"""Times in a round that the processor time of a packet is taken."""

_ANY: Final = Port(1_000_000_000)
_LINK: Final = Link(delay_s=0.0001)
_MATERIALS: Final = Materials(_ANY, _ANY, _LINK)
_STAR: Final = star(host_names(4), _MATERIALS)
_SPINES: Final = leaf_spine(host_names(4), 2, 2, _MATERIALS)
CASES: Final = {
    "star of 4": (_STAR, True),
    "leaf-spine of 4, spraying": (_SPINES, True),
    "star of 4, each packet a frame": (_STAR, False),
}
"""Shapes, and whether hosts have offloads."""


def measure(stand: Stand) -> list[Row]:
    """Return the rows of each case: medians over the rounds."""
    reason = why_not()
    if reason is not None:
        stand.skip(reason)
        return []
    rounds = stand.choose(full=5, quick=2)
    step_s = stand.choose(full=1.0, quick=0.3)
    rows: list[Row] = []
    for done, (name, (shape, offloads)) in enumerate(CASES.items()):
        with LoadTest(shape, spray=True, offloads=offloads) as test:
            if offloads and not test.has_offloads:
                stand.skip(f"{name}: the kernel does not let hosts hand over many packets at once.")
                continue
            ladders, steps, backlogs_s = [], [], []
            for number in range(rounds):
                place = done * rounds + number
                stand.note(f"{name}, round {number + 1}", place, len(CASES) * rounds)
                ladders.append(climb(test, step_s))
                steps.append(held_again(test, ladders[-1], step_s))
                backlogs_s += [test.backlog_s() for _ in range(BACKLOGS)]
            rows += rows_of(name, ladders, steps, backlogs_s)
    return rows


def held_again(test: LoadTest, ladder: Ladder, step_s: float) -> Step:
    """Return what happens at the largest load that is held twice; at the smallest if none is.

    A rate that is held by chance, at the edge of what the machine carries, is not held again.
    """
    loads = {step.offered for step in ladder.steps}
    held = ladder.holds_up_to(0.5)
    for load in sorted((load for load in loads if load <= held), reverse=True):
        step = test.step(load, step_s)
        if step.is_right(0.5):
            return step
    return test.step(min(loads), step_s)


def rows_of(
    case: str, ladders: Sequence[Ladder], steps: Sequence[Step], backlogs_s: Sequence[float]
) -> list[Row]:
    """Return the rows of one case; `steps` are what `held_again` has found in each round.

    `backlogs_s` is processor time per packet when there is always one.
    """
    held = [step.offered if step.is_right(0.5) else 0.0 for step in steps]
    carried = [ladder.carried for ladder in ladders]
    per_core = [1 / seconds for seconds in backlogs_s]
    rate, at_held = "packets/s", "at the load held"
    bare = "what one core would carry: packets per second of processor time"

    def of_steps(
        metric: str, unit: str, value_of: Callable[[Step], float], target: Target | None = None
    ) -> Row:
        return figure(case, metric, unit, [value_of(step) for step in steps], target)

    rate_most, delay_most = at_most(100 * RATE_TOLERANCE), at_most(1e3 * DELAY_TOLERANCE_S)
    return [
        figure(case, "load held: rate and delay", rate, held, at_least(RATE_TARGET)),
        figure(case, "load carried: rate alone", rate, carried),
        of_steps(f"rate error {at_held}", "%", lambda s: 100 * abs(s.rate_error), rate_most),
        of_steps(f"delay error {at_held}, median", "ms", lambda s: 1e3 * s.p50_error_s, delay_most),
        of_steps(f"delay error {at_held}, p99", "ms", lambda s: 1e3 * s.p99_error_s),
        of_steps(f"the switch late by at most, {at_held}", "ms", lambda s: 1e3 * s.lateness_s),
        figure(case, bare, rate, per_core, at_least(RATE_TARGET)),
    ]
