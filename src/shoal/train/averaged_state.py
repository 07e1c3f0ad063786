"""The local optimizer's state as flat tensors, to be averaged beside the parameters.

State stays local unless asked for otherwise (docs/papers.md, 2.9: an option, as an ablation). Which
state an optimizer keeps is learnt from a step of a stand-in, so that the tensors are the same on
all workers from the first average on, whether or not each has made a step by then.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from shoal.errors import UsageError
from shoal.workloads import averaged_state, has_mean

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of the state `key` of `parameter` in a flat tensor."""

    parameter: Tensor
    key: str
    part: Tensor


class AveragedState:
    """The state of `optimizer` that can be averaged: momentum, Adam's two moments.

    Counts of steps stay local. Raises `UsageError` for an optimizer whose state cannot be learnt.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._flats: list[Tensor] = []
        self._places: list[_Place] = []
        kinds: dict[tuple[torch.dtype, torch.device], list[tuple[Tensor, str, int]]] = {}
        for parameter, key, like in _kept(optimizer):
            kinds.setdefault((like.dtype, like.device), []).append((parameter, key, like.numel()))
        for (dtype, device), owners in kinds.items():
            lengths = [length for _, _, length in owners]
            flat = torch.zeros(sum(lengths), dtype=dtype, device=device)
            self._flats.append(flat)
            for (parameter, key, _), part in zip(owners, flat.split(lengths), strict=True):
                self._places.append(_Place(parameter, key, part))

    def gather(self) -> list[Tensor]:
        """Return flat copies of the state as it is; state not made yet counts as zero."""
        with torch.no_grad():
            for place in self._places:
                kept = self._kept_at(place)
                if kept is None:
                    place.part.zero_()
                else:
                    place.part.view(kept.shape).copy_(kept)
        return self._flats

    def scatter(self) -> None:
        """Put the flat tensors' values into the state, where there is any."""
        with torch.no_grad():
            for place in self._places:
                kept = self._kept_at(place)
                if kept is not None:
                    kept.copy_(place.part.view(kept.shape))

    def _kept_at(self, place: _Place) -> Tensor | None:
        kept: Tensor | None = self._optimizer.state.get(place.parameter, {}).get(place.key)
        return kept


def _kept(optimizer: torch.optim.Optimizer) -> Iterator[tuple[Tensor, str, Tensor]]:
    """Yield each parameter's state by name, with a tensor that is like it."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if has_mean(parameter):
                kept = _state_after_a_step(optimizer, group, parameter)
                yield from ((parameter, key, like) for key, like in averaged_state(kept).items())


def _state_after_a_step(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: Tensor
) -> dict[str, Any]:
    """Return the state that `optimizer` has for a stand-in for `parameter` after its first step."""
    stand_in = torch.nn.Parameter(torch.zeros_like(parameter, requires_grad=False))
    stand_in.grad = torch.zeros_like(stand_in)
    kind = type(optimizer)
    probe = object.__new__(kind)
    vars(probe).update(vars(optimizer))
    vars(probe).update({name: OrderedDict() for name in vars(probe) if name.endswith("_hooks")})
    # Some optimizers make state beforehand: the stand-in begins with all that `parameter` has.
    own = optimizer.state.get(parameter)
    probe.state = defaultdict(dict, {stand_in: deepcopy(own)} if own else {})
    probe.param_groups = [{**group, "params": [stand_in]}]
    try:
        kind.step(probe)
    except Exception as error:
        message = f"average_state cannot learn which state {kind.__name__} keeps: {error}"
        raise UsageError(message) from error
    return dict(probe.state[stand_in])
