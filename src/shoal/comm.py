"""The boundary between strategies and the world: the `Communicator` protocol.

A strategy reaches other workers only through this, so it runs unchanged over torch.distributed,
over Shoal's own transport and in simulation. The array type is the implementation's own (a torch
tensor, a NumPy array): this file imports neither.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from shoal.membership import View
    from shoal.wire import TransportStats

Buffer: TypeAlias = Any
"""A contiguous one-dimensional array of the implementation's own kind."""


class Work(Protocol):
    """An operation under way."""

    def wait(self) -> None:
        """Block until done. Raises `WorkerLost` or `DeadlineExceeded`, never hangs."""
        ...


class Layers(NamedTuple):
    """The layers of a model that a buffer holds, each counted from the input.

    From element `starts[k]` on, up to the next start, it holds layer `numbers[k]` of `depth`.
    `starts` begin with 0 and increase.
    """

    starts: tuple[int, ...]
    numbers: tuple[int, ...]
    depth: int

    @property
    def front(self) -> int:
        """The front-most of the layers."""
        return min(self.numbers)

    def within(self, first: int, last: int) -> Layers:
        """Return the layers of the elements from `first` on and before `last`."""
        begin, end = bisect_right(self.starts, first) - 1, bisect_left(self.starts, last)
        starts = tuple(max(0, start - first) for start in self.starts[begin:end])
        return Layers(starts, self.numbers[begin:end], self.depth)


class Communicator(Protocol):
    """What one worker can do together with others. Waits for what a worker owes have a deadline.

    `channel` keeps independent conversations between the same two workers apart (the training
    thread's, a parameter server's, a background gossip's); within one channel, messages between two
    workers are matched in order. `sequence` names the one collective all its members mean, and is
    used once by them: members that disagree get an error, not a wrong sum.
    """

    @property
    def rank(self) -> int:
        """This worker's index."""
        ...

    @property
    def view(self) -> View:
        """The workers that take part; "all workers" below are its members."""
        ...

    def stats(self) -> TransportStats | None:
        """Return what the transport has done so far, None if it does not tell."""
        ...

    def all_reduce(
        self,
        buffer: Buffer,
        *,
        layers: Layers | None = None,
        exact_from: int | None = None,
    ) -> Work:
        """Start summing `buffer` over all workers, in place. Same order on every worker.

        `layers` says which layers of the model are where in it: where messages compete, those of
        front layers go first. It may differ between workers.
        Elements from index `exact_from` on are summed without loss, whatever may be lost of others.
        """
        ...

    def group_average(
        self,
        buffer: Buffer,
        members: Sequence[int],
        *,
        sequence: int,
        weights: Sequence[int] = (),
        channel: int = 0,
        wire: str | None = None,
        layers: Layers | None = None,
    ) -> Work:
        """Start taking the mean of `buffer` over `members`; `wait` of the result writes it there.

        Until then `buffer` is as it was; it must not be written to meanwhile. After an error each
        element is as it was, or the mean.
        The mean is bitwise equal on all members.
        Only members call it and nobody else is involved: a group costs nothing to form. They start
        those of one channel in the same order.
        `weights` (one per member, default equal) make it a weighted mean. `wire` is a narrower type
        that floats may be sent as, and rounded to, where the transport can; not if there are
        weights. `layers` are as in `all_reduce`.
        """
        ...

    def cuts_freely(self, buffer: Buffer) -> bool:
        """Return whether a mean of `buffer` has the same bits in whatever pieces it is made."""
        ...

    def send(
        self,
        buffer: Buffer,
        destination: int,
        *,
        channel: int,
        lossy: bool = False,
        renew_bound: float = 0.0,
        layers: Layers | None = None,
    ) -> Work:
        """Start sending `buffer`; it must stay unchanged until the work is done.

        `lossy` says that it is a contribution to a sum, of which a transport with a loss bound may
        lose some. `renew_bound` says that it is a newer version of what the receiver has, and which
        share of it such a transport may leave as it is there. The receiver says the same. `layers`
        are as in `all_reduce`.
        """
        ...

    def receive(
        self,
        buffer: Buffer,
        source: int,
        *,
        channel: int,
        lossy: bool = False,
        renew_bound: float = 0.0,
    ) -> Work:
        """Start receiving into `buffer` from `source`.

        What got lost of a contribution is zero, and of a newer version what it was in `buffer`.
        """
        ...

    def receive_any(
        self,
        buffer: Buffer,
        *,
        channel: int,
        senders: Collection[int] | None = None,
        epoch: int | None = None,
    ) -> int:
        """Receive into `buffer` from the rank that sends first on `channel`; return that rank.

        `senders` are those who may send on it from now on, by default all others: once they have
        left it, nothing of this conversation stays behind, and the next one on the channel may have
        messages of another size.
        Whoever acts in a view whatever the training thread does says its `epoch`: nothing is
        received in another, and `ViewChanging` is raised then.
        The one wait without a deadline: a server is idle for as long as nobody asks. It ends with
        the communicator's abort.
        """
        ...

    def check_contributions(self) -> None:
        """Raise `UsageError` if contributions to a receiver's sums cannot be sent as was asked."""
        ...

    def broadcast(self, buffer: Buffer, source: int) -> None:
        """Overwrite `buffer` with that of `source` on every worker."""
        ...

    def check(self) -> None:
        """Raise the error that this communicator was aborted with, if it was."""
        ...

    def barrier(self) -> None:
        """Return once every worker has called it."""
        ...


class FactStore(Protocol):
    """Small facts that workers publish for each other; a fact once published stays."""

    def set(self, name: str, value: bytes) -> None:
        """Publish `value` under `name`."""
        ...

    def get(self, name: str) -> bytes:
        """Return what is under `name`, which has been published."""
        ...

    def publish(self, fact: str) -> None:
        """Make `fact` known. Publishing it twice is the same as once."""
        ...

    def are_published(self, facts: Sequence[str]) -> list[bool]:
        """Return which of `facts` are published, all at the same moment."""
        ...

    def read(self, names: Sequence[str]) -> tuple[bytes | None, ...]:
        """Return what is under each of `names`, all at the same moment; None where nothing is."""
        ...
