"""The faults that a trial may have, and whether a verdict names them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from shoal.watch import Verdict

What = Literal["slow worker", "slow port", "loss", "bursts", "delay"]
WORKERS: Final = "slow worker"
NETWORK: Final[tuple[What, ...]] = ("slow port", "loss", "bursts", "delay")
BURST: Final = 8
"""The packets that a link in its bad state loses one after another, on average."""


class Fault(msgspec.Struct, frozen=True):
    """One thing that is wrong with a rank or its host's link to the switch, both directions."""

    what: What
    rank: int
    size: float
    """Times slower, of a worker or a port; the share of lost packets; or seconds of delay."""

    def rate(self, usual: float) -> int | None:
        """Return the rate that its host's link has instead of the usual one; None: the same."""
        return round(usual / self.size) if self.what == "slow port" else None

    def link(self) -> tuple[tuple[str, float], ...]:
        """Return what else its host's link has instead."""
        match self.what:
            case "loss":
                return (("loss", self.size),)
            case "bursts":
                to_bad = self.size / (1 - self.size) / BURST
                return (("bad_loss", 1.0), ("to_bad", to_bad), ("to_good", 1 / BURST))
            case "delay":
                return (("delay_s", self.size),)
        return ()

    def is_named_by(self, verdict: Verdict) -> bool:
        """Return whether a verdict says this: the kind of fault, and whose."""
        kinds = {"slow worker"} if self.what == WORKERS else {"slow link", "lossy link", "long way"}
        return verdict.kind in kinds and self.rank in (verdict.rank, verdict.to)


def draw(random: Random, size: int) -> tuple[Fault, ...]:
    """Return the faults of a trial: none in a quarter, two in a tenth, else one."""
    chance = random.random()
    if chance < 0.25:
        return ()
    if chance < 0.35:
        return (_draw_one(random, size, (WORKERS,)), _draw_one(random, size, NETWORK))
    return (_draw_one(random, size, (WORKERS, WORKERS, *NETWORK)),)


def _draw_one(random: Random, size: int, among: tuple[What, ...]) -> Fault:
    what = random.choice(among)
    low, high = {
        "slow worker": (1.2, 5.0),
        "slow port": (3.0, 10.0),
        "loss": (0.001, 0.03),
        "bursts": (0.005, 0.03),
        "delay": (0.005, 0.04),
    }[what]
    size_of = math.exp(random.uniform(math.log(low), math.log(high)))
    return Fault(what, random.randrange(size), size_of)


class Score(msgspec.Struct, kw_only=True):
    """How often verdicts were right."""

    num_faults: int = 0
    num_found: int = 0
    num_verdicts: int = 0
    num_right: int = 0
    num_healthy: int = 0
    num_false_alarms: int = 0

    def add(self, faults: Iterable[Fault], verdicts: Iterable[Verdict]) -> None:
        """Count a trial."""
        faults = tuple(faults)
        said = [each for each in verdicts if each.kind != "nothing"]
        self.num_faults += len(faults)
        self.num_found += sum(any(fault.is_named_by(v) for v in said) for fault in faults)
        self.num_verdicts += len(said)
        self.num_right += sum(any(fault.is_named_by(v) for fault in faults) for v in said)
        if not faults:
            self.num_healthy += 1
            self.num_false_alarms += bool(said)

    @property
    def precision(self) -> float:
        """The share of verdicts that were right."""
        return self.num_right / self.num_verdicts if self.num_verdicts else 1.0

    @property
    def recall(self) -> float:
        """The share of faults that were named."""
        return self.num_found / self.num_faults if self.num_faults else 1.0
