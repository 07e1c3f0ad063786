"""A worker's samples of itself, about once a second: one stream, which all displays of a job read.

Owns the figures and their limits. A worker makes them from data that it has anyway; `picture` and
`verdict` draw the conclusions.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

MOST_STEPS: Final = 32
"""The most steps that a sample tells one by one: the last of its interval."""
MOST_LINKS: Final = 128
"""The most links that a sample tells of: the busiest ones."""
MOST_MEMBERS: Final = 256
"""The most members of a group that a sample names."""
MOST_CLASSES: Final = 16
"""The most layer classes of which a sample tells."""
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
    """The worker's own time: computing, loading data, and other work of the script."""

    wait_us: _Count
    """The time blocked until others were ready, as far as the worker knows it."""

    exchange_us: _Count
    """The other time blocked: data moved, or a member of its group had not come yet."""


class LinkSample(msgspec.Struct, frozen=True, array_like=True):
    """Packets from one other worker in the interval. Only Shoal's transport tells."""

    peer: _Count
    known_packets: _Count
    """The packets that the peer is known to have sent."""

    missing_packets: _Count
    """Packets of these that did not come."""

    placed_bytes: _Count
    """The bytes of payload that were of use."""

    moving_s: _Seconds
    """Time from the first to the last packet of the peer's messages, added up, in seconds."""

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
    """The transport of the strategy."""

    epoch: _Count
    """The epoch of the view in which the interval ended."""

    step: _Count
    """The number of steps that led to this worker's model."""

    num_steps: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    """The steps in the interval."""

    at_s: _Seconds
    """The time at which the interval ended, in seconds since 1970 on the worker's clock."""

    own_s: _Seconds
    """The own time of all steps together, in seconds; see `StepTimes`."""

    wait_s: _Seconds
    exchange_s: _Seconds
    loss: float | None = None
    """The last loss that the script has told."""

    effective_loss: Annotated[float, Meta(ge=0, le=1)] | None = None
    """The share of others' contributions that sums lacked; None if none may be lost."""

    group: Annotated[tuple[_Count, ...], Meta(max_length=MOST_MEMBERS)] = ()
    """The group of the last exchange."""

    reason: _Text = ""
    """Why that group was formed."""

    counts: Annotated[tuple[_Count, ...], Meta(max_length=len(BOUNDS_S) + 1)] = ()
    """The steps of the interval by their length; the last count is of steps above all bounds."""

    dropped: _Count = 0
    """The samples of this worker so far that were dropped, since there was no room for them."""

    recent: Annotated[tuple[StepTimes, ...], Meta(max_length=MOST_STEPS)] = ()
    """The last steps of the interval, oldest first."""

    links: Annotated[tuple[LinkSample, ...], Meta(max_length=MOST_LINKS)] = ()
    hidden_s: _Seconds | None = None
    """The time in which exchanges were under way while the worker did its own work, at most
    `own_s`; None if its transport does not tell."""

    effective_loss_by_class: Annotated[tuple[float, ...], Meta(max_length=MOST_CLASSES)] = ()
    """`effective_loss` by layer class, the most urgent first."""

    sketch: Annotated[bytes, Meta(max_length=LONGEST_SKETCH)] = b""
    """The sketch of its model, to compare with the others'; empty if all have the same model."""

    @property
    def seconds(self) -> float:
        """Length of the interval."""
        return self.own_s + self.wait_s + self.exchange_s
