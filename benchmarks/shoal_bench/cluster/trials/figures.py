"""What a trial was and what it came to, as the result file keeps it."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from shoal.diverged import Figure, restore
from shoal_bench.cluster.trials.traffic import Passed, Sent
from shoal_bench.cluster.trials.work import Work


class TrialKey(msgspec.Struct, frozen=True, kw_only=True):
    """What tells a trial from the others."""

    case: str
    variant: str
    repeat: int
    work: Work


class TrialFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a trial came to that did not fail. Times are of the steps that count."""

    step_ms: list[float]
    """The milliseconds from a step's beginning to the next one's, of the slowest worker; the last
    step has none."""

    iteration_ms: float
    """What a step takes on average: the time of all of them, of the worker that was last, over
    their number. Workers that wait for their group alone need not be late at the same steps."""

    front_wait_ms: list[float]
    """The milliseconds from the beginning of a step until its first layer had passed, of the
    slowest worker."""

    back_wait_ms: list[float]
    """The milliseconds from then until its last layer had passed."""

    accuracy: float
    """The accuracy of the mean of all workers' models after the last step, in percent."""

    consensus_distance: Figure
    """Root mean square distance of the workers' models from their mean then."""

    processors_busy: float
    """Share of this machine's processors, whatever they did."""

    switch_late_ms: float
    """The most by which the lab's switch was late."""

    sent: Sent | None = None
    """The traffic that all workers' transports counted, if they are ours."""

    to_hosts: list[Passed] = []
    """The counts of the switches' ports to workers."""

    to_spines: list[list[Passed]] = []
    """The counts of the leaves' ports to each spine; none on a star."""

    def __post_init__(self) -> None:
        """Read null as what was written so."""
        restore(self, "consensus_distance", write=force_setattr)

    @property
    def p99_ms(self) -> float:
        """99th percentile of the steps' times."""
        return float(np.percentile(self.step_ms, 99))


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial's figures, or why there are none."""

    key: TrialKey
    processor: str = ""
    """The processor that the trial ran on."""

    figures: TrialFigures | None = None
    failed: str = ""
