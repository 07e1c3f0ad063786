"""What is made or loaded before a training, which takes it up when it begins."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class NextTraining:
    """The things that the next training of a session takes up. It leaves nothing of them here."""

    sampler: object | None = None
    """What its steps take their batches from."""

    loaded: tuple[int, str] | None = None
    """The steps and the strategy of the checkpoint that it goes on from."""
