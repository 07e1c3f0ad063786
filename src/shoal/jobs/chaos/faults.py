"""The faults there are: who is struck, in which phase of a job, and how; drawn by a seed.

Knows no process. A new role, phase or fault is a word here, a place in `places` that reaches it,
and a line on what is promised in `judge`.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from random import Random
from typing import Final

import msgspec

from shoal.errors import UsageError
from shoal.strategies import make_strategy


class Role(StrEnum):
    """The process that is struck."""

    WORKER = "worker"
    RANK_0 = "rank-0"
    CONTROL = "control"
    """The process of the control plane."""
    STANDBY = "standby"
    """The process of the control plane that stands by for it."""
    CONTROLS = "controls"
    """Both at once."""
    DONOR = "donor"
    """The worker that hands its state on to a newcomer."""
    NEWCOMER = "newcomer"


SERVICES: Final = (Role.CONTROL, Role.STANDBY, Role.CONTROLS)
"""Roles that are no workers: whoever comes to the phase is held there while they are struck."""


class Phase(StrEnum):
    """The point at which the job is when it happens."""

    START = "start"
    """The time between `init` and the first `DistributedOptimizer`."""
    JOINING = "joining"
    """The same of a newcomer, of which the control plane knows."""
    FIRST_STEP = "first-step"
    BACKWARD = "backward"
    AVERAGING = "averaging"
    """While a sum or a mean is under way."""
    NEXT_TRAINING = "next-training"
    """The same in a second training, after the job's first is over."""
    SIDE_BY_SIDE = "side-by-side"
    """The same where a script steps two optimizers in turn."""
    CHECKPOINT = "checkpoint"
    """While a worker writes a checkpoint, in a thread beside training."""
    TRANSFER = "transfer"
    """While a newcomer is given its state."""
    VIEW_CHANGE = "view-change"
    """The time between the proposal of a view and its installation."""
    FINISH = "finish"
    """The end: before, between or after `finish()` and `average_model()`, or in the latter."""


class Fault(StrEnum):
    """What happens to the process."""

    KILL = "kill"
    FREEZE = "freeze"
    """SIGSTOP, for good."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT after three seconds."""
    DELAY = "delay"
    """The thread that has come to the phase stands still, and the others of its process go on."""


SYNCS: Final = (
    "all-reduce",
    "ds-sync",
    "ripples-static",
    "hierarchical-sgd",
    "local-sgd",
    "diloco",
    "ripples",
    "ripples-random",
    "ds-sync,next-forward",
    "ds-sync,next-steps",
    "ripples,next-forward",
    "ripples,next-steps",
    "ad-psgd",
    "ps-bsp",
    "ps-ssp",
    "ps-asp",
)
"""The strategies that go on without lost workers, and what some of them hide exchanges behind."""

IN_EXCHANGES: Final = (Phase.AVERAGING, Phase.NEXT_TRAINING, Phase.SIDE_BY_SIDE)
"""The phases in which a sum or a mean is under way."""
_IN_TRAINING: Final = (Phase.FIRST_STEP, Phase.BACKWARD, Phase.AVERAGING)
_OF_MEMBERS: Final = (
    Phase.START,
    *_IN_TRAINING,
    Phase.NEXT_TRAINING,
    Phase.SIDE_BY_SIDE,
    Phase.CHECKPOINT,
    Phase.VIEW_CHANGE,
    Phase.FINISH,
)
_OF_SERVICES: Final = tuple(phase for phase in Phase if phase is not Phase.CHECKPOINT)
_SHARE_OF_DEATHS: Final = 0.5
PHASES: Final = {
    Role.WORKER: _OF_MEMBERS,
    Role.RANK_0: _OF_MEMBERS,
    Role.CONTROL: _OF_SERVICES,
    Role.STANDBY: tuple(phase for phase in _OF_SERVICES if phase is not Phase.START),
    Role.CONTROLS: (Phase.FIRST_STEP, Phase.BACKWARD, Phase.AVERAGING, Phase.FINISH),
    Role.DONOR: (Phase.TRANSFER,),
    Role.NEWCOMER: (
        Phase.JOINING,
        *_IN_TRAINING,
        Phase.TRANSFER,
        Phase.VIEW_CHANGE,
        Phase.FINISH,
    ),
}
"""The phases that each role comes to."""


FAMILIES: Final[tuple[set[str], ...]] = (set(SYNCS), set(Role), set(Phase), set(Fault))
WORDS: Final = frozenset[str]().union(*FAMILIES)
"""All words that `draw` can be told."""


class Case(msgspec.Struct, frozen=True):
    """One fault in one job."""

    sync: str
    role: Role
    phase: Phase
    fault: Fault
    number: int
    """What else of it is drawn: with the same number everything is the same but the machine."""

    def __str__(self) -> str:
        return f"{self.sync}/{self.role}/{self.phase}/{self.fault}/{self.number}"

    @property
    def words(self) -> tuple[str, Role, Phase, Fault]:
        """What kind of a fault it is."""
        return self.sync, self.role, self.phase, self.fault

    @property
    def chance(self) -> Random:
        """Return the dice of this case, each time from the beginning."""
        return Random(str(self))

    @property
    def has_newcomer(self) -> bool:
        """Whether a process joins the job while the others train."""
        is_asked = self.role in (Role.DONOR, Role.NEWCOMER)
        changes = self.phase is Phase.VIEW_CHANGE and not self.has_death
        return is_asked or changes or self.phase in (Phase.JOINING, Phase.TRANSFER)

    @property
    def has_death(self) -> bool:
        """Whether another worker dies before, so that the view changes."""
        of_members = self.phase is Phase.VIEW_CHANGE and self.role is not Role.NEWCOMER
        return of_members and Random(f"{self} death").random() < _SHARE_OF_DEATHS

    def bystanders(self, size: int) -> tuple[int, int]:
        """Return two of `size` ranks other than 0: who comes to the place, and who dies before."""
        first, second = Random(f"{self} bystanders").sample(range(1, size), 2)
        return first, second


def all_cases(number: int = 0) -> list[Case]:
    """Return one case of each kind.

    Of the control plane no thread is delayed. If it stands still with the one that stands by,
    nobody can know that it will not come to itself: the job ends. Checkpoints are written by rank 0
    alone, but for those of parameter servers. Strategies that drop rounds are refused side by side.
    """
    return [
        Case(sync, role, phase, fault, number)
        for sync in SYNCS
        for role, phases in PHASES.items()
        for phase in phases
        for fault in Fault
        if fault is Fault.KILL or role is not Role.CONTROLS
        if fault is not Fault.DELAY or role not in SERVICES
        if phase is not Phase.CHECKPOINT or role is Role.RANK_0 or sync.startswith("ps-")
        if phase is not Phase.SIDE_BY_SIDE or not _drops_rounds(sync)
    ]


@cache
def _drops_rounds(sync: str) -> bool:
    return make_strategy(sync.partition(",")[0]).drops_rounds


def case_of(text: str) -> Case:
    """Return the case that its text, such as "ripples/donor/transfer/kill/3", names.

    Raises `UsageError` if there is none.
    """
    for case in all_cases():
        kind, _, number = text.rpartition("/")
        if f"{case}".rpartition("/")[0] == kind and number.isdecimal():
            return msgspec.structs.replace(case, number=int(number))
    message = (
        f"There is no fault {text!r}: it is STRATEGY/ROLE/PHASE/FAULT/NUMBER, such as"
        " ripples/donor/transfer/kill/3, and not every role comes to every phase."
    )
    raise UsageError(message)


def draw(seed: int, count: int, only: frozenset[str] = frozenset()) -> list[Case]:
    """Return `count` cases: all kinds in an order by chance, then all again with other numbers.

    `only` are words: of each family of words (strategies, roles, phases, faults) of which it has
    some, no others are drawn. Raises `UsageError` for an unknown word, or if nothing is left.
    """
    if unknown := only - WORDS:
        message = f"There is no {', '.join(sorted(unknown))}; words are {', '.join(sorted(WORDS))}."
        raise UsageError(message)
    wanted = [family & only or family for family in FAMILIES]
    cases: list[Case] = []
    number = seed * 1000
    while len(cases) < count:
        kinds = all_cases(number)
        turn = [case for case in kinds if all(map(set.__contains__, wanted, case.words))]
        if not turn:
            message = f"No fault is all of {', '.join(sorted(only))}."
            raise UsageError(message)
        Random(number).shuffle(turn)
        cases += turn
        number += 1
    return cases[:count]
