"""Outer steps of one replica: an outer optimizer for each of its flat tensors.

Acts `Anchor` and `OuterStep` say when; `workloads.outer_sgd` is the arithmetic. Statistics have no
outer step: they stay the workers' mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.carriers import HOST
from shoal.strategies import Anchor, Mean, OuterStep
from shoal.workloads import OuterSGD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.train.flat_parameters import FlatParameters


class OuterSteps:
    """Carries out outer steps, of the flat tensors themselves or of copies `in_host_memory`."""

    def __init__(self, flat: FlatParameters, *, in_host_memory: bool) -> None:
        self._flat, self._in_host_memory = flat, in_host_memory
        self._trained = [slice(each.start) for each in flat.statistics]
        """The parameters in each flat tensor."""
        self.optimizers: list[OuterSGD] = []
        """The optimizers of the flat tensors, in their order; none before there is an anchor."""

    def do(self, act: Anchor | OuterStep, flats: Sequence[Tensor]) -> None:
        """Carry out `act` on `flats`; an anchor that a checkpoint has given is kept."""
        if isinstance(act, OuterStep):
            for flat, trained, each in zip(flats, self._trained, self.optimizers, strict=True):
                each.step(flat[trained], act.learning_rate, act.momentum)
        elif not self.optimizers:
            self._begin(flats)

    def _begin(self, flats: Sequence[Tensor]) -> None:
        for flat, trained in zip(flats, self._trained, strict=True):
            at = HOST if self._in_host_memory else flat.device
            self.optimizers.append(OuterSGD(flat[trained].to(at)))

    @property
    def num_tensors(self) -> int:
        """The number of tensors that `averaged_in` returns, if any."""
        return 2 * len(self.optimizers)

    def averaged_in(self, mean: Mean) -> list[Tensor]:
        """Return the anchors and velocities that are averaged in `mean` with the parameters."""
        if not mean.outer:
            return []
        return [tensor for each in self.optimizers for tensor in (each.anchor, each.velocity)]

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs; nothing if no outer steps are made."""
        kept = [{"anchor": each.anchor, "velocity": each.velocity} for each in self.optimizers]
        return {"outer": kept} if kept else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state in `state`, if it has any."""
        if "outer" not in state:
            return
        self.optimizers.clear()
        self._begin(self._flat.buffers)
        for each, kept in zip(self.optimizers, state["outer"], strict=True):
            each.anchor.copy_(kept["anchor"])
            each.velocity.copy_(kept["velocity"])
