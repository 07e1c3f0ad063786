"""What a worker says of itself about once a second: one stream, which all that shows a job reads.

Owns the figures and their limits. A worker makes them from what it knows anyway; nothing here says
what follows from them (`picture`, `verdict`).
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

MOST_STEPS: Final = 32
"""The steps that a sample tells one by one: the last of its interval."""
MOST_LINKS: Final = 128
"""The links that a sample tells of: those over which most came."""
MOST_MEMBERS: Final = 256
"""The members of a group that a sample names."""
MOST_CLASSES: Final = 16
"""The layer classes of which a sample tells."""
LONGEST_SKETCH: Final = 1024
"""Bytes of a model's sketch; see `model_distance`."""
LONGEST_TEXT: Final = 200
BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""The upper bounds of the classes in which steps are counted by their length, in seconds."""

_Count: TypeAlias = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]
_Text: TypeAlias = Annotated[str, Meta(max_length=LONGEST_TEXT)]


class StepTimes(msgspec.Struct, frozen=True, array_like=True):
    """The time of one step of a worker, in microseconds."""

    own_us: _Count
    """What it needed for itself: computing, loading data, whatever the script does."""

    wait_us: _Count
    """What it was blocked for until others were ready, as far as it knows that."""

    exchange_us: _Count
    """What else it was blocked for: data moved, or a member of its group had not come yet."""


class LinkSample(msgspec.Struct, frozen=True, array_like=True):
    """What came from one other worker in the interval. Only Shoal's transport tells."""

    peer: _Count
    known_packets: _Count
    """The packets that it is known to have sent."""

    missing_packets: _Count
    """Packets of these that did not come."""

    placed_bytes: _Count
    """Payload that was of use."""

    moving_s: _Seconds
    """Time from the first to the last packet of its messages, added up, in seconds."""

    round_trip_s: _Seconds
    """Smoothed round trip time, in seconds; 0 if it is not known."""


class WorkerSample(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One interval of a worker's training, of about a second; it ends with a step."""

    training: _Text
    """The name of the training in the job."""

    strategy: _Text
    is_lock_step: bool
    """Whether all workers make the same steps together, so that each waits for the slowest."""

    transport: _Text
    """What the strategy goes over."""

    epoch: _Count
    """The epoch of the view in which it ended."""

    step: _Count
    """The steps that the model has behind it here."""

    num_steps: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    """The steps in the interval."""

    at_s: _Seconds
    """The time at which it ended, in seconds since 1970 on the worker's clock."""

    own_s: _Seconds
    """What all steps needed for themselves, in seconds; see `StepTimes`."""

    wait_s: _Seconds
    exchange_s: _Seconds
    loss: float | None = None
    """The last loss that the script has told."""

    effective_loss: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Share of others' contributions that sums were made without; None if none may be lost."""

    group: Annotated[tuple[_Count, ...], Meta(max_length=MOST_MEMBERS)] = ()
    """The group of the last exchange."""

    reason: _Text = ""
    """Why that group."""

    counts: Annotated[tuple[_Count, ...], Meta(max_length=len(BOUNDS_S) + 1)] = ()
    """The steps of the interval by their length; the last count is of those above all bounds."""

    dropped: _Count = 0
    """The samples of this worker so far that nobody got, since there was no room for them."""

    recent: Annotated[tuple[StepTimes, ...], Meta(max_length=MOST_STEPS)] = ()
    """The last steps of the interval, oldest first."""

    links: Annotated[tuple[LinkSample, ...], Meta(max_length=MOST_LINKS)] = ()
    hidden_s: _Seconds | None = None
    """The time in which exchanges were under way while it was at its own work, at most `own_s`;
    None if its transport does not tell."""

    effective_loss_by_class: Annotated[tuple[float, ...], Meta(max_length=MOST_CLASSES)] = ()
    """`effective_loss` by layer class, the most urgent first."""

    sketch: Annotated[bytes, Meta(max_length=LONGEST_SKETCH)] = b""
    """What tells how far its model is from the others'; nothing where all have the same model."""

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.own_s + self.wait_s + self.exchange_s
