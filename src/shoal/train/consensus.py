"""How far the workers' models are apart, and the average of all at the end.

Consensus distance is the root mean square distance of the workers' parameters from their mean
(glossary), reported beside the loss because it says what the averaging leaves undone.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import torch

from shoal.carriers import HOST
from shoal.control import name_ranks
from shoal.errors import DeadlineExceeded, ViewChanging

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.membership import View
    from shoal.train.replica import Replica

_ROUNDING: Final = 1e-7
_POLL_S: Final = 0.01
_LOOK_S: Final = 1.0


class FinalAverage:
    """Averages the models of all members, who may come at very different times. Collective.

    A worker that is lost meanwhile is left out. All that are left then have the same mean: a mean
    counts if every member of the view in which it was made has said that it has it, and each asks
    for that before it goes on, or begins anew from the model that it brought.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._times = 0

    def take(self) -> float:
        """Replace the model by the mean of all; return the consensus distance before.

        Raises `WorkerLost` where a loss ends the job, and `DeadlineExceeded` if a worker is alive
        and has made no step for so long.
        """
        self._times += 1
        come = f"averaging/{self._times}"
        self._tell(come)
        means: list[Tensor] = []
        while True:
            view = self._meet(come)
            made = f"averaged/{self._times}/{view.epoch}"
            with suppress(ViewChanging):
                means, distance = self._mean(view)
                with self._replica.member.changed:  # said after a report, it would be no word of it
                    self._check(view)
                    self._tell(made)
                self._await_all(made, view)
            self._replica.member.settled_view()
            if self._have_told(made, view):
                break
        with torch.no_grad():
            for buffer, mean in zip(self._replica.flat.buffers, means, strict=True):
                buffer.copy_(mean)
        values = torch.cat([mean.flatten().double() for mean in means])
        length = float(values[values.isfinite()].norm())
        # Equal models differ from their own mean by the rounding of its sum: that is not distance.
        return 0.0 if distance < _ROUNDING * length else distance

    def _mean(self, view: View) -> tuple[list[Tensor], float]:
        """Return the mean of the members' models and their distance from it."""
        communicator, member = self._replica.communicator, self._replica.member
        means, squared = [], torch.zeros(1, dtype=torch.float64, device=HOST)
        if not member.begin(view.epoch):
            raise ViewChanging("The workers that take part have changed.")
        try:
            with torch.no_grad():
                for buffer in self._replica.flat.buffers:
                    mean = buffer.clone()
                    communicator.all_reduce(mean, exact_from=0).wait()
                    mean.div_(len(view))
                    apart = buffer.double() - mean.double()
                    apart.masked_fill_(buffer == mean, 0)  # two infinities have no difference
                    squared += apart.square().sum().cpu()
                    means.append(mean)
            communicator.all_reduce(squared, exact_from=0).wait()
        finally:
            member.end()
        return means, float((squared / len(view)).sqrt())

    def _meet(self, come: str) -> View:
        """Wait until every member has come, however long the slowest still trains."""
        look_at = time.monotonic() + self._replica.deadline_s
        while True:
            view = self._replica.member.settled_view()
            if self._have_told(come, view):
                return view
            with suppress(ViewChanging):
                self._replica.communicator.check()
            self._replica.groups.note_progress()  # whoever waits is not stuck
            if time.monotonic() > look_at:
                look_at += _LOOK_S
                self._check_nobody_is_stuck()
            time.sleep(_POLL_S)

    def _await_all(self, fact: str, view: View) -> None:
        """Wait until every member of `view` has told `fact`, within the deadline."""
        end = time.monotonic() + self._replica.deadline_s
        while not self._have_told(fact, view):
            self._check(view)
            if time.monotonic() > end:
                self._check_nobody_is_stuck()
            time.sleep(_POLL_S)

    def _check(self, view: View) -> None:
        self._replica.communicator.check()
        member = self._replica.member
        if member.is_fenced or member.view.epoch != view.epoch:
            raise ViewChanging("The workers that take part have changed.")

    def _tell(self, fact: str) -> None:
        replica = self._replica
        replica.facts.publish(f"{replica.session}/{fact}/{replica.communicator.rank}")

    def _have_told(self, fact: str, view: View) -> bool:
        replica = self._replica
        names = [f"{replica.session}/{fact}/{rank}" for rank in view.members]
        return all(replica.facts.are_published(names))

    def _check_nobody_is_stuck(self) -> None:
        deadline_s = self._replica.deadline_s
        stuck = self._replica.groups.stuck_workers(deadline_s)
        if stuck:
            message = (
                f"{name_ranks(stuck)} did not get on for {deadline_s:g} s, while the other workers"
                " waited to average the model: a longer deadline, or a look at what hangs there."
            )
            raise DeadlineExceeded(message)
