"""Tensors whose values are still under way: code that touches one waits for it transparently.

A parameter, a gradient or a buffer keeps its identity and its memory, and gets a class that torch
asks before every operation (its `__torch_function__` protocol). The first operation that needs the
values waits for them and gives the tensor its own class back. So nothing in Python can see
values that are not there yet: no regularizer, no average of parameters, no checkpoint. Code of
torch that runs in C++ alone does not ask; `train.layerwise_updates` says how that is handled.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn

from shoal.carriers import unasked
from shoal.errors import UsageError


@dataclass(frozen=True, slots=True)
class Awaited:
    """The wait for its values that an awaited tensor carries with it."""

    arrive: Callable[[], None]
    """Waits for the values; may be called again."""

    guards_gradient: bool = False
    """Whether asking for the tensor's `grad` counts as touching it."""


_descriptor: Any = Tensor.grad
_GRADIENT: Final = {_descriptor.__get__, _descriptor.__set__, _descriptor.__delete__}

_PROPERTIES: Final = (
    "device dtype grad_fn is_cpu is_cuda is_leaf is_sparse layout ndim requires_grad shape"
)
_METHODS: Final = (
    "dim element_size is_complex is_contiguous is_floating_point nelement numel register_hook"
    " register_post_accumulate_grad_hook size stride"
)
_HARMLESS: Final = {getattr(Tensor, name).__get__ for name in _PROPERTIES.split()} | {
    getattr(Tensor, name) for name in _METHODS.split()
}
"""Operations that need no values. All others wait, so a list too short costs only time."""


class _Asking:
    """The part of the classes below that torch calls before each operation."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        asks_for_gradient = func in _GRADIENT
        if func not in _HARMLESS:
            for tensor in list(_awaited_in((args, kwargs))):
                awaited: Awaited | None = getattr(tensor, "_shoal_awaited", None)
                if awaited is None:  # another tensor's arrival was this one's too
                    continue
                if awaited.guards_gradient or not asks_for_gradient:
                    awaited.arrive()
                    release(tensor)
        if func in _HARMLESS or asks_for_gradient:
            with unasked():  # torch's own way on
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    # torch's own versions of both note a tensor's class before they touch its values.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(_arrived(self), memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _arrived(self).__reduce_ex__(protocol)


class AwaitedTensor(_Asking, Tensor):
    """A gradient or a buffer under way."""


class AwaitedParameter(_Asking, nn.Parameter):
    """A parameter whose update is under way."""


_CLASSES: Final[dict[type, type]] = {Tensor: AwaitedTensor, nn.Parameter: AwaitedParameter}
_OWN_CLASSES: Final[dict[type, type]] = {mark: own for own, mark in _CLASSES.items()}


def check_can_await(tensor: Tensor, name: str) -> None:
    """Raise `UsageError` for a tensor of a class of its own, which cannot be swapped for ours."""
    if type(tensor) not in _CLASSES:
        message = (
            f"{name} is a {type(tensor).__name__}, and what is waited for layer by layer works with"
            f" plain tensors and parameters only; leave overlap out."
        )
        raise UsageError(message)


def await_values(tensor: Tensor, awaited: Awaited) -> None:
    """Have `awaited.arrive` called before anything touches the values of `tensor`.

    Tensors may share one `Awaited`, best made before the first step: a step awaits every tensor.
    """
    tensor._shoal_awaited = awaited  # type: ignore[attr-defined]  # noqa: SLF001 - ours
    tensor.__class__ = _CLASSES.get(type(tensor), type(tensor))


def release(tensor: Tensor) -> None:
    """Give `tensor` its own class back, if it is awaited."""
    own = _OWN_CLASSES.get(type(tensor))
    if own is not None:
        vars(tensor).pop("_shoal_awaited", None)  # another thread may be releasing it, too
        tensor.__class__ = own


def _arrived(tensor: Any) -> Any:
    """Return `tensor`, of its own class: it is not awaited any more."""
    awaited: Awaited | None = getattr(tensor, "_shoal_awaited", None)
    if awaited is not None:  # no other thread was faster
        awaited.arrive()
    release(tensor)
    return tensor


def _awaited_in(value: object) -> Iterator[Tensor]:
    """Yield the awaited tensors among arguments, however deep."""
    if isinstance(value, _Asking):
        assert isinstance(value, Tensor)
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _awaited_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _awaited_in(item)
