"""Futures whose callbacks may start operations of the group that they wait for.

Members of a group match their operations by the order in which they start them. A callback starts
some when its future is done, which is sooner on one rank than on another and so at another place
among those that the main thread starts. Therefore what a callback starts has an order of its own,
named after the callback: by the operation whose future it was chained to, and its place among those
chained there. Hooks of DDP that start one operation when another ends (PowerSGD) need this as soon
as there are two buckets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Self

from torch import Tensor
from torch.futures import Future

from shoal.carriers import read_with, tensor_of_nothing
from shoal.wire import TransportGroup, stream_of


@dataclass(eq=False)
class Order:
    """The order in which one thread, or one callback, starts operations of a group.

    `group` numbers them; `name` is the same on all members: the numbers that lead to a callback.
    """

    home: TransportGroup
    """The group outside of callbacks."""
    group: TransportGroup
    name: tuple[int, ...] = ()
    _operations: Iterator[int] = field(default_factory=count)
    _callbacks: Iterator[int] = field(default_factory=count)

    def of_operation(self) -> Order:
        """Return the order in which what is chained to the next operation is numbered."""
        return self._inner(next(self._operations))

    def of_callback(self) -> Order:
        """Return that of the next callback that is chained to this operation or callback."""
        return self._inner(-1 - next(self._callbacks))

    def begin(self) -> None:
        """Start numbering: the callback that this is the order of is about to run."""
        stream = stream_of(self.home.stream, "callback", *self.name)
        self.group = replace(self.home, stream=stream, _next=0)

    def _inner(self, number: int) -> Order:
        return Order(self.home, self.group, (*self.name, number))


_thread = threading.local()


@contextmanager
def numbered_by(order: Order | None) -> Iterator[None]:
    """Have operations that this thread starts within follow `order`; None: their group's order."""
    previous, _thread.order = current_order(), order
    try:
        yield
    finally:
        _thread.order = previous


def current_order() -> Order | None:
    """Return the order of the callback that runs in this thread; None if none does."""
    found: Order | None = getattr(_thread, "order", None)
    return found


class ChainedFuture(Future[Any]):
    """A future of what an operation, or a callback chained to one, results in.

    Callbacks follow an order of their own if there is an `order` of the operation's.
    """

    def __init__(self, order: Order | None) -> None:
        super().__init__()
        self._order = order

    def then(self, callback: Callable[[Future[Any]], Any]) -> ChainedFuture:
        """Return a future of what `callback` makes of this one once it is done."""
        order = self._order.of_callback() if self._order else None
        following = ChainedFuture(order)

        def run(_done: Any) -> None:
            if order is not None:
                order.begin()
            try:
                with numbered_by(order):
                    value = callback(self)
            except BaseException as error:  # noqa: BLE001 - whoever waits is to hear of it
                following.fail(error)
            else:
                following.set_result(value)

        self.add_done_callback(run)
        return following

    def fail(self, error: BaseException) -> None:
        """Make this done, with `error` for all that ask for its value, in Python or in C++."""

        def raise_error(_value: Any) -> None:
            raise error

        read_with(self, raise_error)
        self.set_result(FailedTensor(error))


class FailedTensor(Tensor):
    """What a failed future holds: torch's C++ asks no Python future why it failed.

    Raises `error` as soon as anything is done with it.
    """

    error: BaseException

    @staticmethod
    def __new__(cls, error: BaseException) -> Self:
        """Return a tensor of nothing."""
        made: Self = tensor_of_nothing(cls)
        made.error = error
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types it without defaults
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raise the error of the first failed tensor among the arguments."""
        raise next(each.error for each in args if isinstance(each, FailedTensor))

    def __repr__(self) -> str:  # type: ignore[override]
        """Return what failed."""
        return f"FailedTensor({self.error!r})"
