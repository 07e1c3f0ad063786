"""Things made or loaded before a training, which takes them up when it begins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class NextTraining:
    """The things that the next training of a session takes up, and removes from here."""

    sampler: object | None = None
    """The sampler from which its steps take their batches."""

    loaded: tuple[int, str] | None = None
    """The steps and the strategy of the checkpoint that it goes on from."""
