"""The list of studies, which trials they are made of, and which of those are not done.

Variants take turns within a repeat of a case, so that a drift of the machine's speed meets all of
them, and ratios are of trials of one repeat.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from shoal_bench.cluster.trials import dlcp, ds_sync, hidden
from shoal_bench.cluster.trials.figures import TrialKey
from shoal_bench.cluster.trials.work import Work

if TYPE_CHECKING:
    from shoal_bench.cluster.cluster_file import ClusterFile
    from shoal_bench.cluster.trials.trial import Variant

_OVERHEAD_S: Final = 5.0
"""What a trial takes beside its steps."""

_WORK: Final = Work(
    dataset="digits",
    model="mlp:224x3",
    workers=8,
    steps=53,
    layer_ms=2.0,
    megabits=20,
    bucket_bytes=64 << 10,
    learning_rate=0.1,
)
_STEP_S: Final = 0.6
"""The approximate seconds that a step takes."""

_EVEN: Final = {"model": "mlp:704x5", "megabits": 400, "layer_ms": 125.0}
"""What makes the bytes of a step at one server (8 MB from and to each of seven hosts) take about as
long as its computing."""
_EVEN_AVERAGES: Final = {**_EVEN, "megabits": 100}
"""The same for averages of all eight, of which each sends and gets 14 MB of a step."""


class Variants(Protocol):
    """Makes a case's variants."""

    def __call__(self, work: Work, *, every: bool) -> Sequence[Variant]:
        """Return the variants; without `every`, only the ones that a quick look needs."""
        ...


@dataclass(frozen=True, slots=True)
class StudyCase:
    """Variants that are held against each other."""

    study: str
    name: str
    title: str
    variants: Variants
    steps: int
    quick_steps: int | None
    """The steps of a quick look; None: none is taken."""
    repeats: int
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Work` that this case sets in place of the usual."""
    step_s: float = _STEP_S
    """The approximate seconds that a step takes."""

    def work(self, *, quick: bool) -> Work:
        """Return what is trained."""
        steps = self.quick_steps if quick and self.quick_steps is not None else self.steps
        return msgspec.structs.replace(_WORK, steps=steps, **self.changes)


DLCP, DS_SYNC, HIDDEN = "dlcp", "ds-sync", "hidden"
STUDIES: Final = (DLCP, DS_SYNC, HIDDEN)
"""What `--only` may name."""

_STAR: Final = "7 to 1 at every port, ports that hold ten packets"
_BURSTS: Final = "two leaves and two spines, bursts of others' traffic"
_ENDS: Final = "all on, all off, until all is learnt"
_NARROW: Final = "two leaves behind trunks of a quarter of their rate"
_SERVER: Final = "one server of eight workers, with whatever pushes and pulls hide behind"
_AVERAGES: Final = "averages of all eight workers' models, with whatever they hide behind"
_LEARNT: Final = 100
"""Steps after which the model's accuracy changes by one image in 359 at most, in 200 more."""

CASES: Final = (
    StudyCase(DLCP, "dlcp-incast", f"direct all-reduce, {_STAR}", dlcp.INCAST.variants, 30, 8, 2),
    StudyCase(DLCP, "dlcp-push", f"parameter servers, {_STAR}", dlcp.PUSH.variants, 30, 8, 1),
    StudyCase(DLCP, "dlcp-bursts", f"direct all-reduce, {_BURSTS}", dlcp.BURSTS.variants, 24, 8, 1),
    *(
        StudyCase(DLCP, name + dlcp.TRAINED, _ENDS, ends, _LEARNT, None, 6)
        for name, ends in (
            ("dlcp-incast", dlcp.INCAST.ends),
            ("dlcp-push", dlcp.PUSH.ends),
            ("dlcp-bursts", dlcp.BURSTS.ends),
        )
    ),
    StudyCase(DS_SYNC, "ds-sync-oversubscribed", _NARROW, ds_sync.variants, 23, 8, 1),
    StudyCase(HIDDEN, "hidden-pushes", _SERVER, hidden.PUSHES, 23, 8, 1, _EVEN, 4.0),
    StudyCase(HIDDEN, "hidden-averages", _AVERAGES, hidden.AVERAGES, 23, 8, 1, _EVEN_AVERAGES, 4.0),
)
"""The cases in the order in which they are measured."""


@dataclass(frozen=True, slots=True)
class TrialPart:
    """A trial, as what shows progress sees it."""

    case: StudyCase
    variant: Variant
    key: TrialKey

    @property
    def name(self) -> str:
        """The case."""
        return self.case.name

    @property
    def summary(self) -> str:
        """The variant."""
        return self.variant.name

    def seconds(self, *, quick: bool) -> float:
        """Return about how long it takes."""
        return self.key.work.steps * self.case.step_s + _OVERHEAD_S


def make_trials(
    studies: Collection[str], *, quick: bool, repeats: int | None = None
) -> list[TrialPart]:
    """Return the trials of `studies`, or of cases of them, in their order.

    `quick` leaves out variants, steps and repeats; `repeats` is how often each is made, None for
    the usual.
    """
    parts = []
    for case in CASES:
        if not {case.study, case.name} & set(studies) or (quick and case.quick_steps is None):
            continue
        work = case.work(quick=quick)
        variants = case.variants(work, every=not quick)
        parts += [
            TrialPart(
                case,
                variant,
                TrialKey(case=case.name, variant=variant.name, repeat=repeat, work=work),
            )
            for repeat in range(repeats or (1 if quick else case.repeats))
            for variant in variants
        ]
    return parts


def left_to_try(parts: Sequence[TrialPart], file: ClusterFile) -> list[TrialPart]:
    """Return those of `parts` that have no figures in `file`."""
    done = {trial.key for trial in file.trials if trial.figures is not None}
    return [part for part in parts if part.key not in done]
