"""The strategies, group sizes and intervals that a plan compares, and each one's line of code."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from shoal.scenario.training_spec import SHOAL

if TYPE_CHECKING:
    from collections.abc import Mapping

_GROUP_SIZES: Final = (2, 3, 4, 8)
_INTERVALS: Final = (1, 4)
_LOCAL_INTERVALS: Final = (4, 8, 16)

_CLASSES: Final = {
    "ripples": "Ripples",
    "ripples-static": "RipplesStatic",
    "ripples-random": "RipplesRandom",
    "ds-sync": "DSSync",
    "local-sgd": "LocalSGD",
}


TCP: Final = "cubic"
"""The congestion control that Linux has unless told otherwise."""

_CARRIERS: Final = ((SHOAL, 0.0), (SHOAL, 0.1), (TCP, 0.0))

_LOSES_NOTHING: Final = ("ad-psgd",)
"""What makes no sums, so that a bound allows nothing."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy with its options; those that are not named have their defaults."""

    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    transport: str = ""
    """What carries it; "": whatever does."""
    loss_bound: float = 0.0
    """Share of a sum's contributions that may get lost."""

    @property
    def name(self) -> str:
        """What tables call it."""
        options = " ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.strategy} {options}".strip()

    @property
    def carrier(self) -> str:
        """What tables call its transport, with what that may lose."""
        bound = f" loss_bound={self.loss_bound:g}" if self.loss_bound else ""
        return f"{self.transport}{bound}"

    @property
    def line(self) -> str:
        """The line of a training script that selects it."""
        sync = repr(self.strategy).replace("'", '"')
        if self.options:
            options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
            sync = f"shoal.{_CLASSES[self.strategy]}({options})"
        if self.transport:  # gloo is what goes over TCP
            sync += f', transport="{SHOAL if self.transport == SHOAL else "gloo"}"'
        if self.loss_bound:
            sync += f", loss_bound={self.loss_bound:g}"
        return f"optimizer = shoal.DistributedOptimizer(optimizer, model, sync={sync})"


def candidates(workers: int) -> list[Candidate]:
    """Return what can be used among so many workers."""
    found = [Candidate("all-reduce")]
    found += [Candidate(f"ps-{mode}") for mode in ("bsp", "ssp", "asp")]
    if workers < 2:
        return found
    found.append(Candidate("ad-psgd"))
    found += [Candidate("local-sgd", {"interval": each}) for each in _LOCAL_INTERVALS]
    for interval in _INTERVALS:
        every = {} if interval == 1 else {"interval": interval}
        found += [Candidate(name, every) for name in ("ds-sync", "ripples-static")]
        found += [
            Candidate("ripples", {"group_size": size, **every})
            for size in _GROUP_SIZES
            if size <= workers
        ]
    return found


def carried(candidate: Candidate) -> list[Candidate]:
    """Return `candidate` over every transport, with every bound that allows it something."""
    return [
        replace(candidate, transport=transport, loss_bound=bound)
        for transport, bound in _CARRIERS
        if not (bound and candidate.strategy in _LOSES_NOTHING)
    ]
