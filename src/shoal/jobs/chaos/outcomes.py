"""What became of a job with a fault, and whether that is what docs/failures.md promises.

A pure decision over what workers have told and what was seen of their processes.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.jobs.chaos.faults import Case, Fault, Phase, Role
from shoal.jobs.result import Environment

if TYPE_CHECKING:
    from collections.abc import Collection

_ALIKE: Final = ("all-reduce", "ps-bsp")
"""Strategies under which all have the same model after each step."""
LARGEST: Final = 10.0
"""No parameter grows so large unless a part of a mean was taken for all of it."""


class Ended(StrEnum):
    """How a worker has ended."""

    FINISHED = "finished"
    NAMED = "named-error"
    """It got one of Shoal's errors in its training thread."""
    RAISED = "raised"
    """It got another exception, or ended without a word: a bug."""
    HUNG = "hung"
    WRONG = "wrong-sum"
    STRUCK = "struck"
    """It was killed, or frozen for good."""


class Told(msgspec.Struct, frozen=True):
    """What a worker says at its end."""

    ended: Ended
    sentence: str = ""
    model: str = ""
    """A hash of its parameters after `average_model()`."""
    largest: float = 0.0
    states: dict[int, str] = {}
    """A hash of its model and buffers after each step."""
    saved: str = ""
    """The same hash of the newest checkpoint, as it is loaded; empty where none is written."""
    saved_steps: int = 0
    """The number of steps that this checkpoint is said to be of; 0 where none is whole."""
    members: tuple[int, ...] = ()


class WorkerOutcome(msgspec.Struct, frozen=True):
    """What became of one worker."""

    rank: int
    ended: Ended
    sentence: str = ""
    members: tuple[int, ...] = ()


class Row(msgspec.Struct, frozen=True):
    """One fault, and what became of the job."""

    sync: str
    role: Role
    phase: Phase
    fault: Fault
    number: int
    fired: bool
    """Whether the process stood in the phase when the fault struck, and was seen to be struck."""
    place: str
    """The phase in which it stood, and where in it."""
    workers: list[WorkerOutcome]
    left: list[str]
    """Command lines of processes that were left when all workers had ended."""
    is_as_promised: bool
    went_on_after_s: float | None
    """The seconds from the signal to the next step of the last of those that live, if all made
    one."""
    seconds: float

    @property
    def case(self) -> Case:
        """The fault that was drawn."""
        return Case(self.sync, self.role, self.phase, self.fault, self.number)


class ChaosFile(msgspec.Struct, kw_only=True):
    """A file of rows: `shoal chaos --json`."""

    environment: Environment
    rows: list[Row]


def judge(case: Case, told: dict[int, Told], struck: Collection[int]) -> list[WorkerOutcome]:
    """Return what became of each worker: `told` is what they say, and `struck` who is to be gone.

    Sums are wrong if survivors have ended with different models, or under `all-reduce` have had
    different ones after the same step, or if a parameter is too large or not a number.
    """
    finished = {rank: each for rank, each in told.items() if each.ended is Ended.FINISHED}
    wrong = _wrong(case, finished)
    outcomes = []
    for rank, each in sorted(told.items()):
        ended, sentence = each.ended, each.sentence
        if rank in struck and ended in (Ended.HUNG, Ended.RAISED):
            ended, sentence = Ended.STRUCK, ""
        elif ended is Ended.FINISHED and rank in wrong:
            ended, sentence = Ended.WRONG, wrong[rank]
        outcomes.append(WorkerOutcome(rank, ended, sentence, each.members))
    return outcomes


def is_as_promised(case: Case, outcomes: list[WorkerOutcome], *, fired: bool) -> bool:
    """Return whether each worker has ended in a way that the pages promise."""
    allowed = _promised(case) if fired else {Ended.FINISHED}
    return all(each.ended in allowed or each.ended is Ended.STRUCK for each in outcomes)


def _promised(case: Case) -> set[Ended]:
    """Return the ways in which workers may end that were not struck down."""
    strikes_down = case.fault in (Fault.KILL, Fault.FREEZE)
    if strikes_down and case.phase is Phase.START:
        return {Ended.NAMED}  # until the first training has begun the job needs all
    if strikes_down and (case.role, case.phase) == (Role.CONTROL, Phase.FIRST_STEP):
        return {Ended.NAMED, Ended.FINISHED}  # perhaps nobody stands by yet
    return {Ended.FINISHED}


def _wrong(case: Case, finished: dict[int, Told]) -> dict[int, str]:
    """Return for each of some ranks why what it has ended with is wrong."""
    found = {
        rank: f"a parameter is {each.largest:g}"
        for rank, each in finished.items()
        if not math.isfinite(each.largest) or each.largest > LARGEST
    }
    if len({each.model for each in finished.values()}) > 1:
        found |= dict.fromkeys(finished, "the models at the end differ")
    if case.phase is Phase.CHECKPOINT:
        found |= _badly_saved(case, finished)
    if case.sync == "all-reduce":
        for step in sorted({step for each in finished.values() for step in each.states}):
            states = {each.states[step] for each in finished.values() if step in each.states}
            if len(states) > 1:
                found |= dict.fromkeys(finished, f"the models differ after step {step}")
                break
    return found


def _badly_saved(case: Case, finished: dict[int, Told]) -> dict[int, str]:
    """Return for each of some ranks what is wrong with the checkpoint that it has loaded."""
    found = {}
    for rank, each in finished.items():
        if not each.saved_steps:
            found[rank] = "no checkpoint is whole"
        elif case.sync in _ALIKE and each.saved != each.states.get(each.saved_steps):
            found[rank] = f"the checkpoint of step {each.saved_steps} has another model"
    return found
