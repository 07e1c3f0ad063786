"""Messages between workers and the control plane, and their encoding: MessagePack by msgspec.

Owns the messages and their limits. Knows no socket and no rule about which message is allowed when
(that is `handler`). A message is an array `[name, field, ...]`; a change of fields is a new version
of Shoal, which the job card compares before anything connects. Group metadata only: no model data,
ever (docs/papers.md, 3.4).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from shoal.control.terms import Terms
from shoal.groups import GeneratorConfig, GeneratorState
from shoal.membership import Decision, Position, Preparation, Proposal, Report, View
from shoal.watch import WorkerSample

MAX_FRAME_BYTES = 1 << 24
"""Longest message the service accepts; a connection that sends more is closed."""

SessionName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
RankNumber: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 20)]
Reason: TypeAlias = Annotated[str, Meta(max_length=2000)]
Endpoint: TypeAlias = Annotated[str, Meta(max_length=400)]
FactName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=400)]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of everything on the wire; the tag is the class name."""


class Join(Message, frozen=True):
    """Rank `rank` takes part in `session`. Answered `Done`."""

    session: SessionName
    rank: RankNumber
    host: RankNumber
    """Index of the machine the worker runs on."""

    config: GeneratorConfig
    """Rules for the group generator: the same from every worker of the session."""

    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
    """Seed of the generator's random numbers: the same from every worker of the session."""


class GroupRequest(Message, frozen=True):
    """Rank `rank` is ready to average. Answered `Assigned` once its whole group is ready."""

    session: SessionName
    rank: RankNumber
    step: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    """The worker's own step, for the dump."""


class Leave(Message, frozen=True):
    """Rank `rank` averages no more in `session`. Answered `Done`."""

    session: SessionName
    rank: RankNumber


class Heartbeat(Message, frozen=True):
    """Rank `rank` is alive. The first on a connection is answered `Welcome`, others `Heard`."""

    rank: RankNumber
    progress: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """A number that grows as the worker makes progress: a worker that is alive and stuck shows the
    same number."""

    blocked_ms: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None = None
    """How long its training has been blocked by now, by others or for data; None: it is not."""


class Goodbye(Message, frozen=True):
    """Rank `rank` leaves and will be silent. Answered `Done`."""

    rank: RankNumber
    is_finished: bool = True
    """Whether it had finished; if it leaves in the middle of a training, the others hear `Left`."""


class Arrive(Message, frozen=True):
    """A process wants to join the running job. Answered `Arrived`; it is watched from then on."""

    rank: RankNumber | None
    """The rank that the process was given; None: any free one."""

    version: Annotated[str, Meta(max_length=200)]
    """Its version of Shoal."""


class Apply(Message, frozen=True):
    """Rank `rank`, which has arrived and fits, asks to become a member. Answered `Done`.

    Later it hears `Decided`, or `Refused`.
    """

    rank: RankNumber
    host: RankNumber
    """Index of the machine it runs on."""


class Prepared(Message, frozen=True):
    """Rank `rank` has done what `Prepare` asks, or could not. Answered `Done`."""

    rank: RankNumber
    number: Annotated[int, Meta(ge=1, lt=1 << 32)]
    error: Reason = ""
    """Why it could not."""

    code: Annotated[int, Meta(ge=0, lt=256)] = 0
    """The exit code of that error."""


class Failed(Message, frozen=True):
    """Rank `rank` cannot go on, through `culprit` if it knows one. Answered `Done`."""

    rank: RankNumber
    culprit: RankNumber | None
    reason: Reason
    epoch: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    """The epoch of the view in which the culprit has failed: later another process may have its
    rank."""


class Reported(Message, frozen=True):
    """Rank `rank` has stopped the old view's operations, and reports. Answered `Done`."""

    rank: RankNumber
    number: Annotated[int, Meta(ge=1, lt=1 << 32)]
    """The number of the proposal that it answers."""

    report: Report | None
    """None from a newcomer that has not gone on in any view yet."""


class Refresh(Message, frozen=True):
    """Rank `rank` asks that all members agree anew, on what they have measured. Answered `Done`."""

    rank: RankNumber
    reason: Reason


class Standing(Message, frozen=True):
    """Rank `rank` has been asked to `StandBy`, and does so at `endpoint`. Answered `Done`."""

    rank: RankNumber
    endpoint: Endpoint
    """The address; empty if the worker cannot start one."""


class StandbyLost(Message, frozen=True):
    """No control plane stands by at `endpoint` any more, as rank `rank` hears. Answered `Done`."""

    rank: RankNumber
    endpoint: Endpoint


class Follow(Message, frozen=True):
    """Rank `rank` tells the control plane that stands by how far the membership has come.

    The first on a connection is answered `Welcome`, others `Heard`.
    """

    rank: RankNumber
    position: Position
    has_moved: bool = False
    """Whether it has gone over, since it hears nothing from the control plane."""


class Unfollow(Message, frozen=True):
    """Rank `rank` follows another control plane that stands by. Answered `Done`."""

    rank: RankNumber


class Moved(Message, frozen=True):
    """Rank `rank` has gone over to the standby, having heard nothing. Not answered."""

    rank: RankNumber


class SetFact(Message, frozen=True):
    """Someone publishes `value` under `name`, in place of an earlier value. Answered `Done`.

    None takes the earlier value back.
    """

    name: FactName
    value: bytes | None


class ReadFacts(Message, frozen=True):
    """Someone asks for the present values under `names`. Answered `Facts`."""

    names: tuple[FactName, ...]


class Sampled(Message, frozen=True):
    """Rank `rank` says how its training goes, for viewers of the job. Not answered."""

    rank: RankNumber
    sample: WorkerSample


class ShowRequest(Message, frozen=True):
    """Someone wants to look at the job. Answered `Shown`."""

    date_s: Annotated[float, Meta(ge=0, le=1e12)]
    """The seconds since 1970 on the viewer's clock, to which times are converted."""


class DumpRequest(Message, frozen=True):
    """Someone wants to look inside. Answered `Dump`."""


class Assigned(Message, frozen=True):
    """The group to average with now; all members get the same one."""

    session: str
    group_id: int
    """Counts up within the session: the same group has the same number on all its members."""

    members: tuple[int, ...]
    """Ranks, ascending."""

    reason: str
    """Why this group, as the generator gave it."""

    more: bool
    """Whether another group is already planned for this worker."""

    epoch: int = 0
    """The epoch of the view in which it was formed: in a later one a member may be lost."""


class Done(Message, frozen=True):
    """The message was acted upon."""


class Heard(Message, frozen=True):
    """The heartbeat has come: the control plane is alive, too."""


class Facts(Message, frozen=True):
    """The values under the names asked for, in their order; None for names not published."""

    values: tuple[bytes | None, ...]


class Shown(Message, frozen=True):
    """The job at this moment, as far as its workers tell: a `Snapshot`, as JSON."""

    snapshot: bytes


class Left(Message, frozen=True):
    """Worker `rank` has left in the middle of a training, without an error."""

    rank: int


class Welcome(Message, frozen=True):
    """The worker is being watched; it must be heard from within every `timeout_ms`."""

    timeout_ms: int


class Arrived(Message, frozen=True):
    """The newcomer is being watched; it must be heard from within every `timeout_ms`."""

    rank: int
    size: int
    """The number of workers with which the job began."""

    view: View
    """The present members."""

    timeout_ms: int


class Prepare(Message, frozen=True):
    """Newcomers are there: all members to come prepare an engine. Answered by `Prepared`.

    Training goes on meanwhile.
    """

    preparation: Preparation


class StandBy(Message, frozen=True):
    """This worker must start a control plane that stands by. Answered by `Standing`."""

    terms: Terms


class Successor(Message, frozen=True):
    """Another control plane stands by at `endpoint`; a worker that hears this `Follow`s it."""

    endpoint: str


class Succeeded(Message, frozen=True):
    """The control plane that stood by serves now, and a worker that hears this comes over."""


class Refused(Message, frozen=True):
    """The newcomer does not become a member; `code` is the exit code of its error."""

    reason: str
    code: int


class Lost(Message, frozen=True):
    """Worker `rank` is gone (None: unknown which) and the job cannot go on."""

    rank: int | None
    reason: str


class Proposed(Message, frozen=True):
    """Members change: a worker that hears this stops the old view's work, answers `Reported`."""

    proposal: Proposal


class Decided(Message, frozen=True):
    """All members to come have reported: they go on in the new view."""

    decision: Decision


class RefusalKind(StrEnum):
    """Why a message was not acted upon; the service counts each."""

    MALFORMED = "malformed"
    """The message is not one of this protocol."""

    MISMATCH = "mismatch"
    """The message contradicts another worker's."""

    NO_SUCH_WORKER = "no such worker"
    """The rank is not one of the job's."""

    DUPLICATE = "duplicate"
    """The worker is already connected, has joined or waits for its group."""

    NOT_JOINED = "not joined"
    """The worker has not joined the session, or not over this connection."""

    STANDS_BY = "stands by"
    """The service only stands by, and does not serve."""

    TOO_MANY = "too many"
    """A limit of the service is reached."""


class Rejected(Message, frozen=True):
    """The message was not acted upon; `reason` is one sentence."""

    kind: RefusalKind
    reason: str


class WorkerState(StrEnum):
    """What the control plane knows of a worker."""

    EXPECTED = "expected"
    ALIVE = "alive"
    FINISHED = "finished"
    LEFT = "left"
    LOST = "lost"


class WorkerDump(msgspec.Struct, frozen=True):
    """One worker, as seen by the control plane."""

    rank: int
    state: WorkerState
    silent_ms: int | None
    """Time since it was last heard; None unless alive."""

    idle_ms: int | None
    """Time since its progress was last heard to grow; None unless alive."""


class Waiting(msgspec.Struct, frozen=True):
    """A worker whose request has no answer yet."""

    rank: int
    step: int
    waited_ms: int


class SessionDump(msgspec.Struct, frozen=True):
    """One training run inside the job."""

    session: str
    seed: int
    joined: tuple[int, ...]
    left: tuple[int, ...]
    waiting: tuple[Waiting, ...]
    """Longest wait first."""

    compared: dict[int, int]
    """How often each worker has asked, in an interval that is the same for all of them."""

    generator: GeneratorState


class Dump(Message, frozen=True):
    """Everything the control plane knows, at one moment."""

    view: View
    """The present view."""

    up_ms: int
    handled: int
    """Messages acted upon so far."""

    workers: tuple[WorkerDump, ...]
    sessions: tuple[SessionDump, ...]
    lost: Lost | None
    """The first loss, if any."""

    rejected: dict[str, int]
    """Messages not acted upon, by `RefusalKind`."""

    strangers: int
    """Connections that did not complete the handshake, most likely without the job key."""


FactRequest: TypeAlias = SetFact | ReadFacts
WorkerRequest: TypeAlias = (
    Join
    | GroupRequest
    | Leave
    | Heartbeat
    | Goodbye
    | Failed
    | Reported
    | Apply
    | Prepared
    | Refresh
    | Standing
    | StandbyLost
    | Follow
    | Unfollow
    | Moved
)
"""The messages that the control plane accepts from workers that it knows."""
Request: TypeAlias = WorkerRequest | Arrive | Sampled | ShowRequest | DumpRequest | FactRequest
Reply: TypeAlias = (
    Assigned
    | Done
    | Welcome
    | Arrived
    | Heard
    | Facts
    | Shown
    | Left
    | Lost
    | Prepare
    | Proposed
    | Decided
    | StandBy
    | Successor
    | Succeeded
    | Refused
    | Rejected
    | Dump
)

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)

encode = _encoder.encode
"""Return a message as bytes."""

decode_request = _request_decoder.decode
"""Return the request in some bytes; to be called by way of `shoal.decoding.decoded`."""

decode_reply = _reply_decoder.decode
"""Return the reply in some bytes; to be called by way of `shoal.decoding.decoded`."""
