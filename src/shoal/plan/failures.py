"""What machines that die cost a job: its goodput, by formulas.

Goodput is how many samples count per second, over those of the same job on machines that never die.
A strategy that goes on loses a little of everybody's time with each death, and the dead machine
until it is back; others start again from their last checkpoint, with all machines. Deaths are
independent and as likely at any time (exponential), and a machine that dies falls silent.

Sources: the runtime's own timeouts (`control.usual_liveness_timeout_s`); for jobs that start again
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006). The formulas of jobs that go on are derived in
docs/planner.md, and held to the simulator in tests/core/plan/test_goodput.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shoal.control import usual_liveness_timeout_s
from shoal.errors import UsageError


@dataclass(frozen=True, slots=True)
class Pace:
    """What a worker's time goes into between two exchanges, seconds."""

    compute_s: float
    """Computing and waiting, all steps together."""
    exchange_s: float
    """What the exchange takes, while all machines are there."""
    steps: int = 1
    is_served: bool = False
    """Whether it is exchanged with parameter servers, which move when a machine is missing."""

    @property
    def step_s(self) -> float:
        """The time of one step without the exchange."""
        return self.compute_s / self.steps


@dataclass(frozen=True, slots=True)
class Failures:
    """How machines die and come back. Times are seconds.

    Raises `UsageError` for times that cannot be.
    """

    machines: int
    fails_every_s: float
    """The mean time for which one machine runs until it dies."""
    back_s: float
    """The time from a machine's death until it, or another one in its place, is back."""
    checkpoint_every_s: float
    """The time between two checkpoints of a job that starts again; writing them takes none."""
    restart_s: float
    """The time from when all machines are there until such a job trains again."""
    deadline_s: float
    """`shoal.init`'s deadline: half of it, or less, is the silence after which one is lost."""

    def __post_init__(self) -> None:
        for what, seconds in (
            ("A machine runs", self.fails_every_s),
            ("Checkpoints are written", self.checkpoint_every_s),
        ):
            if not seconds > 0:
                message = f"{what} for more than 0 s between two times, not {seconds:g} s."
                raise UsageError(message)

    def goodput_going_on(self, pace: Pace, hand_on_s: float) -> float:
        """Return the goodput of a strategy that goes on without lost workers.

        A newcomer's state takes `hand_on_s` on its way. Of every strategy this is what it is at
        least: where not all need the dead one at once, the others lose less.
        """
        there = self.fails_every_s / (self.fails_every_s + self.back_s)
        deaths_per_s = self.machines * there / self.fails_every_s
        silence_s = usual_liveness_timeout_s(self.deadline_s, is_fixed=False)
        lost_s = lost_by_death(silence_s, pace) + lost_by_newcomer(hand_on_s, pace)
        if pace.is_served:
            there *= self._pace_of_servers(pace, there)
        return there / (1 + deaths_per_s * lost_s)

    def _pace_of_servers(self, pace: Pace, there: float) -> float:
        """Return the mean pace with parameter servers over that of all machines that are there.

        Each of them is `there` so often, so that any number may be missing.
        """
        mean = self.machines * (1 - there)
        spread = _FURTHEST * math.sqrt(mean * there) + 1
        first, last = max(0, math.floor(mean - spread)), math.ceil(mean + spread)
        all_s, chances, found = pace.compute_s + pace.exchange_s, 0.0, 0.0
        for missing in range(first, min(last, self.machines - 1) + 1):
            chance = _chance(self.machines, missing, there)
            step_s = pace.compute_s + pace.exchange_s * slower_exchange(self.machines, missing)
            chances += chance * (self.machines - missing)
            found += chance * (self.machines - missing) * all_s / step_s
        return found / chances

    @property
    def goodput_starting_again(self) -> float:
        """Return the goodput of a job that starts again from its last checkpoint."""
        silence_s = usual_liveness_timeout_s(self.deadline_s)
        down_s = silence_s + self.back_s + self.restart_s
        between_s = self.fails_every_s / self.machines
        exponent = down_s / between_s + self.checkpoint_every_s / between_s
        if exponent > _HOPELESS:
            return 0.0
        tries = math.exp(down_s / between_s) * math.expm1(self.checkpoint_every_s / between_s)
        return self.checkpoint_every_s / (between_s * tries)


_FURTHEST = 8.0
"""The standard deviations beyond which no number of missing machines is looked at."""
_HOPELESS = 500.0
"""The exponent from which on no checkpoint is ever reached."""


def lost_by_death(known_s: float, pace: Pace) -> float:
    """Return the seconds that those who are left lose, on the mean, by a death known after so long.

    They need the dead one at their next exchange, and make one again that it interrupts.
    """
    compute_s, exchange_s = pace.compute_s, pace.exchange_s
    if known_s >= compute_s:
        return known_s + (exchange_s - compute_s) / 2
    return (known_s + exchange_s) ** 2 / (2 * (compute_s + exchange_s))


def lost_by_newcomer(hand_on_s: float, pace: Pace) -> float:
    """Return the seconds that the others lose, on the mean, by a worker that comes.

    At the first exchange they wait for its state and its step; one that is under way when it
    becomes a member is made again with it.
    """
    again_s = pace.exchange_s**2 / (2 * (pace.compute_s + pace.exchange_s))
    return hand_on_s + pace.step_s + again_s


def slower_exchange(machines: int, missing: int = 1) -> float:
    """Return how much longer an exchange with parameter servers takes while machines are missing.

    As a factor. Their servers move to the others (`strategies.next_places`), and the port of those
    that are the most servers has to carry the parts of as many for each of the rest.
    """
    left = machines - missing
    return -(-machines // left) * (left - 1) / max(1, machines - 1)


def _chance(machines: int, missing: int, there: float) -> float:
    """Return how likely it is that so many machines are missing of all."""
    ways = math.lgamma(machines + 1) - math.lgamma(missing + 1)
    ways -= math.lgamma(machines - missing + 1)
    gone = missing * math.log(1 - there) if missing else 0.0
    return math.exp(ways + gone + (machines - missing) * math.log(there))
