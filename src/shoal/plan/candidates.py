"""The strategies, group sizes and intervals that a plan compares, and each one's line of code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy with its options; those that are not named have their defaults."""

    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What tables call it."""
        options = " ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.strategy} {options}".strip()

    @property
    def line(self) -> str:
        """The line of a training script that selects it."""
        sync = repr(self.strategy).replace("'", '"')
        if self.options:
            options = ", ".join(f"{key}={value!r}" for key, value in self.options.items())
            sync = f"shoal.{_CLASSES[self.strategy]}({options})"
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
