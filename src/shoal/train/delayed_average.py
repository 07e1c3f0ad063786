"""Averaging a model as it was, while its worker computes on.

At a synchronization point the model is copied and a thread averages the copy with the others'
copies. The difference from copy to average is added to the model once it is known; the local
updates made meanwhile stay. So workers agree up to their local updates since the copies were taken.
(Delayed averaging: Zhou et al., DaSGD, arXiv:2006.00441; Wang et al., Overlap-Local-SGD, ICASSP
2020.)

The copies may be rounded to a narrower type, to be sent in half of the time. The difference added
is then that from the rounded copy, so a model keeps the digits that were not sent, and the mean of
all models moves by no more than the mean's own rounding; models whose copies agree stay as they
are.

Owns the copies, the thread and the difference. `strategies.periodic` decides when an average is
due, the strategy which workers average with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, TypeAlias

import torch

from shoal.carriers import HOST, HelperThread, round_to
from shoal.errors import ViewChanging
from shoal.trace import SpanKind
from shoal.train.model_hooks import ModelHook
from shoal.train.pairs.changes import subtract
from shoal.train.replica import Stopwatch

if TYPE_CHECKING:
    from shoal.train.replica import Replica

Average: TypeAlias = Callable[[Sequence[torch.Tensor], Stopwatch, str | None], None]
"""Replaces flat tensors by their mean with others', and accounts for its time. If the third
argument names a wire type, they are rounded to it already."""

_POLL_SECONDS = 0.5


class DelayedAverage:
    """One average at a time: `begin`, then `take_in` at the end of steps."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._helper = HelperThread("shoal-delayed-average")
        self._is_under_way = False
        self._is_wanted = True
        self._done = Event()
        self._failure: BaseException | None = None
        flats = replica.flat.buffers
        self._before = [torch.empty_like(flat, device=HOST) for flat in flats]
        self._average = [torch.empty_like(flat, device=HOST) for flat in flats]
        self._statistics = [slice(each.start, each.stop) for each in replica.flat.statistics]
        self._on_load = replica.model.register_load_state_dict_post_hook(
            ModelHook(lambda *_: self._forget())
        )

    def begin(self, average: Average) -> None:
        """Let `average` work on a copy of the model, in a thread.

        The previous one must have been taken in. The times that `average` takes are not counted as
        the training thread's.
        """
        with torch.no_grad():
            for flat, before, own in zip(
                self._replica.flat.buffers, self._before, self._average, strict=True
            ):
                before.copy_(flat)
                if self._replica.wire is not None:
                    round_to(before, self._replica.wire)
                own.copy_(before)
        self._done.clear()
        self._failure = None
        self._is_under_way = self._is_wanted = True
        elsewhere = Stopwatch(self._replica.stopwatch.rank)

        def run() -> None:
            try:
                average(self._average, elsewhere, self._replica.wire)
            except BaseException as error:  # noqa: BLE001 - carried over to the training thread
                self._failure = error
            finally:
                self._done.set()

        self._helper.start(run)

    def take_in(self, *, wait: bool) -> None:
        """Add the average's change to the model; if it is not known yet, `wait` or do nothing.

        Raises the error that the averaging raised.
        """
        if not self._is_under_way or not (wait or self._done.is_set()):
            return
        self._wait()
        self._is_under_way = False
        if self._failure is not None:
            raise self._failure
        if not self._is_wanted:
            return
        with torch.no_grad():
            for flat, before, average, part in zip(
                self._replica.flat.buffers,
                self._before,
                self._average,
                self._statistics,
                strict=True,
            ):
                subtract(average, before, part)
                flat.add_(average.to(flat.device))

    def _wait(self) -> None:
        """Wait for the thread, whose own waits have deadlines."""
        if self._done.is_set():
            return
        reason = "the average outlasts computing"
        with self._replica.stopwatch.span(SpanKind.EXCHANGE, (), reason):
            while not self._done.wait(_POLL_SECONDS):
                with suppress(ViewChanging):  # the thread hears of that itself, and ends
                    self._replica.communicator.check()

    def _forget(self) -> None:
        """Leave out the average under way: the model that it began with has been replaced."""
        self._is_wanted = False

    def close(self) -> None:
        """Take in the average under way, and begin no more."""
        self.take_in(wait=True)
        self._on_load.remove()
