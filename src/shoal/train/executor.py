"""The contract of an executor: it carries out the acts of a course for one torch replica.

A family of strategies has one executor, which has the machinery that its acts need: hooks, threads,
memory. It does not decide which workers meet; it decides when each piece of an act moves. Its
life: made once, `step` per iteration, `finish` when this worker makes no more steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, final

from shoal.carriers import unasked
from shoal.errors import ViewChanging
from shoal.strategies import CHANGED, OWN_ACTS, Act, Group, Setting
from shoal.train.handing_on import Donor
from shoal.train.known_tensors import FrozenParameters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.membership import Decision, View
    from shoal.strategies import AbstractDefinition, Acts
    from shoal.train.awaited_pieces import AwaitedPieces
    from shoal.train.early_gradients import EarlyGradients
    from shoal.train.early_means import EarlyMeans
    from shoal.train.model_use import ModelUse
    from shoal.train.replica import Replica


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """What one worker adds to a checkpoint, which is whole once each of its parts is written."""

    epoch: int = 0
    """The view to whose members the parts belong."""

    number: int = 0
    count: int = 1
    """The number of parts; the first has the model, too."""

    state: dict[str, Any] = field(default_factory=dict)
    """What lies in this worker's servers alone."""


class AbstractExecutor(ABC):
    """Carries out one worker's course. The replica's parameters are the same on every worker.

    Raises `UsageError` where the job goes on without lost workers and the strategy cannot.
    """

    use: ModelUse
    """The strategy's use of the model; each executor makes it."""

    own_acts: ClassVar[tuple[type[Act], ...]] = OWN_ACTS
    """Acts that happen whatever becomes of the view: no other worker has a part in them, or the
    executor itself makes them again in the next view."""

    is_exact: ClassVar[bool] = False
    """Whether all members have the same parameters and optimizer state between two steps."""

    counts_each_step: ClassVar[bool] = True
    """Whether a step's batch counts when the step is over; else the executor counts it later."""

    _awaited: AwaitedPieces | None = None
    """The pieces of the model that the next forward pass waits for, if `step` puts any off."""

    _early: EarlyGradients | EarlyMeans | None = None
    """The user of gradients while backward is still running, if there is one."""

    def __init__(self, definition: AbstractDefinition, replica: Replica) -> None:
        if not replica.member.is_fixed:
            definition.check_goes_on()
        self.replica = replica
        setting = Setting(replica.view, replica.seed, replica.topology)
        self.course = definition.courses(setting)(replica.communicator.rank)
        self._donor = Donor(replica, is_exact=self.is_exact)
        self._frozen = FrozenParameters(replica.model.parameters())
        replica.hand_on = self.hand_on
        self._has_finished = False
        self.has_ended = False
        """Whether `finish` is over: no other worker can need this one."""
        self._update: Callable[[], None] = _nothing

    @property
    def view(self) -> View:
        """The members that this worker trains with."""
        return self.course.view

    @final
    def step(self, update: Callable[[], None], *, skipped: bool = False) -> None:
        """End one iteration: apply `update` (the local optimizer step) and synchronize.

        `skipped` says that mixed precision found gradients that are not finite: `update` does
        nothing then, and the synchronization still takes place, so that the workers stay in step.
        """
        self.check()
        self._update = update
        self.take_batch()
        try:
            self.carry_out(self.course.step(skipped=skipped))
        finally:
            self._update = _nothing
        if self.counts_each_step:
            self.count_batches()

    def take_batch(self) -> None:
        """Take the batch that the step uses, if a sampler deals them out."""
        if self.replica.samples is not None:
            self.replica.samples.take()

    def count_batches(self) -> None:
        """Count all batches that steps have used."""
        samples = self.replica.samples
        if samples is not None:
            samples.count(samples.num_taken)

    def check(self) -> None:
        """Raise any failure since the last step, before this one does anything."""
        self.use.check()
        self._frozen.check()

    @final
    def carry_out(self, acts: Acts, do: Callable[[Act], object] | None = None) -> None:
        """Carry out `acts` one by one, and send each its answer.

        In the training thread they are carried out by `self.do`, beside it by `do`.
        """
        is_beside, do = do is not None, do or self.do
        changed = self.replica.member.changed
        answer: object = None
        while True:
            with changed:
                epoch = self.view.epoch
                try:
                    act = acts.send(answer)
                except StopIteration:
                    return
            if isinstance(act, self.own_acts):
                answer = do(act)
                continue
            if not is_beside:
                self.replica.member.catch_up()
            answer = self._do_with_others(act, do, epoch)

    def _do_with_others(self, act: Act, do: Callable[[Act], object], epoch: int) -> object:
        """Carry out an act drawn in view `epoch`; return `CHANGED` if that view ends before it.

        An act that ends when the view is about to change did not happen either: the others have
        been told so. A group belongs to the view in which the generator formed it.
        """
        member = self.replica.member
        if not member.begin(epoch):
            return CHANGED
        answer: object = CHANGED
        try:
            answer = do(act)
        except ViewChanging:
            if not member.is_fenced:
                raise
        finally:
            member.end()
        if isinstance(answer, Group):
            epoch = answer.epoch
        return answer if member.settled_view().epoch == epoch else CHANGED

    def hand_on(self) -> None:
        """Give newcomers of the view the state they lack, at a border, in the training thread."""
        self._donor.hand_on(self)

    def come_in(self) -> Decision:
        """Begin in the present view as a newcomer, which lacks the state that its members have.

        Return the decision that made that view.
        """
        member = self.replica.member
        with member.changed:
            member.settled_view()
            return member.decision

    def handed_on(self) -> dict[str, Any]:
        """Return the course's state that a newcomer takes over, between two steps."""
        return self.course.handed_on()

    def take_over(self, state: dict[str, Any]) -> None:
        """Go on, as a newcomer, from the state that another worker has `handed_on`."""
        self.course.take_over(state)

    def report(self) -> int:
        """Return how far the course is; see `control.Participant`."""
        return self.course.report()

    def install(self, view: View, rounds: Mapping[int, int]) -> None:
        """Let the course go on in `view`; see `control.Participant`."""
        del rounds
        self.course.on_view(view)

    def catch_up(self, view: View) -> None:  # noqa: B027 - most drop what a change interrupts
        """Do with the other members what `view` needs first; see `control.Participant`."""

    @abstractmethod
    def do(self, act: Act) -> object:
        """Carry out one act of this family and return its answer."""

    def update(self) -> None:
        """Apply the local update of the present step."""
        self._update()

    def make_state(self, update: Callable[[], None]) -> None:
        """Have the local optimizer's state made by `update`, a step that changes no parameter."""
        update()

    def begin(self) -> None:
        """Carry out the acts that come before the first step."""
        self.carry_out(self.course.begin())

    def settle(self) -> None:  # noqa: B027 - most put nothing off
        """Finish what `step` put off, so that parameters and optimizer state are as after it."""

    def clearing(self, *, set_to_none: bool) -> AbstractContextManager[None]:
        """Return the context in which gradients are cleared; none may have been used early."""
        del set_to_none
        if self._early is not None:
            self._early.check_unused()
        return nullcontext() if self._awaited is None else unasked()  # clearing needs no values

    def accumulating(self) -> AbstractContextManager[None]:
        """Return the context in which backward only adds to the local gradients."""
        return nullcontext() if self._early is None else self._early.accumulating()

    @property
    def has_model(self) -> bool:
        """Whether the model is still this strategy's, and not a later one's."""
        return not self.use.has_ended

    @property
    def has_finished(self) -> bool:
        """Whether `finish` has been called."""
        return self._has_finished

    @property
    def is_ending(self) -> bool:
        """Whether this worker makes no more steps of its own; see `control.Participant`."""
        return self._has_finished

    @final
    def finish(self) -> None:
        """Make no more steps. Returns once no other worker can need this one for its own steps.

        Collective for a lock-step strategy. Frees threads, hooks and connections. A second call, as
        in a `finally`, does nothing: the others count on one farewell of each worker.
        """
        if not self._has_finished:
            self._has_finished = True
            self.end()
            self.has_ended = True
            self.count_batches()  # updates that no other worker has are in the mean of all models
            if self.replica.samples is not None:
                self.replica.samples.close()

    def end(self) -> None:
        """Carry out the end of the course, and free what this executor holds."""
        self.carry_out(self.course.finish())

    def checkpoint_part(self) -> CheckpointPart | None:
        """Return what this worker adds to a checkpoint, None if the others' suffices.

        To be called once `settle` has returned, between two steps.
        """
        is_first = self.replica.communicator.rank == self.view.members[0]
        return CheckpointPart() if is_first else None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue: the course's state."""
        return self.course.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        self.course.load_state_dict(state)


def _nothing() -> None:
    pass
