"""Collectives of tensors on GPUs: carried out on copies in host memory, then brought back.

Started without waiting for the GPU: a thread waits until the copies are there and starts the
collective among the hosts, under the numbers that it would have had at once. So it meets others'
whose tensors lie in host memory. A work is done when the tensors have their outcome, whatever
stream then uses them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from torch import Tensor

from shoal.adapters.torch_future import numbered_by
from shoal.adapters.torch_work import TransportWork, run_beside
from shoal.carriers import HostCopy, needs_host_copy

if TYPE_CHECKING:
    from shoal.adapters.torch_process_group import ShoalProcessGroup

_Others = ParamSpec("_Others")
_Written = TypeVar("_Written")
_Collective: TypeAlias = Callable[
    Concatenate["ShoalProcessGroup", _Written, _Others], TransportWork
]
_Tell: TypeAlias = Callable[[BaseException | None], None]


def _one(*_arguments: object, **_options: object) -> int:
    """Return one."""
    return 1


def through_host(
    *, overwrites: bool = False, operations: Callable[..., int] = _one
) -> Callable[[_Collective[_Written, _Others]], _Collective[_Written, _Others]]:
    """Return what makes a collective of host tensors one of tensors on GPUs as well.

    Its first argument, tensors or lists of them, is what it writes, and reads too unless it
    `overwrites` all of them; tensors in other arguments are read. `operations`, given the same
    arguments, says how many operations of the group it makes.
    """

    def extend(
        collective: _Collective[_Written, _Others],
    ) -> _Collective[_Written, _Others]:
        @functools.wraps(collective)
        def extended(
            group: ShoalProcessGroup,
            written: _Written,
            /,
            *others: _Others.args,
            **options: _Others.kwargs,
        ) -> TransportWork:
            if not any(needs_host_copy(tensor) for tensor in _tensors_in((written, others))):
                return collective(group, written, *others, **options)
            first = group.group.reserve(operations(written, *others, **options))
            inner, order = group.order_at(first), group.next_order()
            work = TransportWork(list(_tensors_in(written)), None, order)
            results: list[HostCopy] = []
            sources: list[HostCopy] = []
            on_host = _with_copies(written, results, filled=not overwrites)
            read = [_with_copies(other, sources) for other in others]
            tell = work.part()

            def start() -> None:
                try:
                    for copy in (*results, *sources):
                        copy.await_values()
                    with numbered_by(inner):
                        done = collective(group, on_host, *read, **options)
                    done.tell(_bringing_back(results, tell))
                except BaseException as error:  # noqa: BLE001 - whoever waits is to hear of it
                    tell(error)

            run_beside(start)
            return work.seal()

        return extended

    return extend


def receive_through_host(
    tensors: Sequence[Tensor], receive: Callable[[list[Tensor]], TransportWork]
) -> TransportWork:
    """Start receiving into tensors on GPUs; `receive` starts it for tensors of the host."""
    copies = [HostCopy(tensor, filled=False) for tensor in tensors]
    work = TransportWork(tensors)
    tell = work.part()
    inner = receive([copy.values for copy in copies])

    def landed(error: BaseException | None) -> None:
        work.source = inner.source
        tell(error)

    inner.tell(_bringing_back(copies, landed))
    return work.seal()


def _bringing_back(copies: Sequence[HostCopy], tell: _Tell) -> _Tell:
    """Return what to tell the end of the host's operation: it brings back, elsewhere, and tells."""

    def bring_back(error: BaseException | None) -> None:
        try:
            for copy in copies if error is None else ():
                copy.bring_back()
        except BaseException as problem:  # noqa: BLE001 - whoever waits is to hear of it
            error = problem
        tell(error)

    return lambda error: run_beside(functools.partial(bring_back, error))


def _tensors_in(argument: Any) -> Iterator[Tensor]:
    if isinstance(argument, Tensor):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _tensors_in(each)


def _with_copies(argument: Any, copies: list[HostCopy], *, filled: bool = True) -> Any:
    """Return `argument` with a copy in the place of each tensor; add these to `copies`."""
    if isinstance(argument, Tensor):
        copies.append(HostCopy(argument, filled=filled))
        return copies[-1].values
    if isinstance(argument, list | tuple):
        return [_with_copies(each, copies, filled=filled) for each in argument]
    return argument
