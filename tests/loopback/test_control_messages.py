"""Everything on the wire survives the trip, and nothing else is taken for it."""

from __future__ import annotations

import msgspec
import pytest

from control_handlers import handler_of
from shoal.control.messages import (
    Assigned,
    Done,
    Dump,
    DumpRequest,
    Failed,
    Goodbye,
    GroupRequest,
    Heartbeat,
    Join,
    Leave,
    Lost,
    Message,
    RefusalKind,
    Rejected,
    Sampled,
    Shown,
    ShowRequest,
    Welcome,
    decode_reply,
    decode_request,
    encode,
)
from shoal.groups import GeneratorConfig
from shoal.watch import MOST_STEPS, LinkSample, StepTimes, WorkerSample

REQUESTS = [
    Join("run-1", 3, 1, GeneratorConfig(slowdown_threshold=None), -5),
    GroupRequest("run-1", 3, 2**62),
    Leave("run-1", 3),
    Heartbeat(0),
    Goodbye(7),
    Failed(1, None, "out of memory"),
    Failed(1, 2, "connection reset"),
    DumpRequest(),
    ShowRequest(1.8e9),
    Sampled(
        3,
        WorkerSample(
            training="run-1",
            strategy="ripples",
            is_lock_step=False,
            transport="shoal",
            epoch=2,
            step=9,
            num_steps=4,
            at_s=1.8e9,
            own_s=0.4,
            wait_s=0.1,
            exchange_s=0.2,
            loss=0.5,
            effective_loss=0.01,
            group=(0, 3),
            reason="division",
            recent=(StepTimes(100_000, 25_000, 50_000),) * MOST_STEPS,
            links=(LinkSample(0, 100, 2, 140_000, 0.05, 0.001),),
        ),
    ),
]
REPLIES = [
    Assigned("run-1", 17, (0, 3, 5), "division", more=True),
    Done(),
    Shown(b"{}"),
    Welcome(10_000),
    Lost(None, "gone"),
    Lost(3, "gone"),
    Rejected(RefusalKind.MISMATCH, "no"),
]


@pytest.mark.parametrize("message", REQUESTS, ids=repr)
def test_requests_survive_the_trip(message: Message) -> None:
    assert decode_request(encode(message)) == message


@pytest.mark.parametrize("message", REPLIES, ids=repr)
def test_replies_survive_the_trip(message: Message) -> None:
    assert decode_reply(encode(message)) == message


def test_a_dump_survives_the_trip() -> None:
    handler = handler_of(2, 10**9)
    handler.handle(b"a", Heartbeat(0), 0)
    handler.handle(b"b", Join("run", 0, 0, GeneratorConfig(), 1), 0)
    handler.handle(b"c", Join("run", 1, 0, GeneratorConfig(), 1), 0)
    handler.handle(b"b", GroupRequest("run", 0, 3), 0)
    dump = handler.dump(2_000_000)
    assert dump.sessions[0].waiting[0].waited_ms == 2
    assert decode_reply(encode(dump)) == dump
    assert isinstance(decode_reply(encode(dump)), Dump)


def test_the_encoding_is_compact_and_fixed() -> None:
    assert msgspec.msgpack.decode(encode(GroupRequest("run-1", 3, 9))) == [
        "GroupRequest",
        "run-1",
        3,
        9,
    ]


@pytest.mark.parametrize(
    "fields",
    [
        ["GroupRequest", "run", -1, 0],
        ["GroupRequest", "run", 2**40, 0],
        ["GroupRequest", "", 0, 0],
        ["GroupRequest", "x" * 201, 0, 0],
        ["GroupRequest", "run", 0],
        ["GroupRequest", "run", 0, 0, "one too many"],
        ["GroupRequest", "run", "0", 0],
        ["GroupRequest", "run", 0, 2**64 - 1],
        ["Join", "run", 0, 0, {"group_size": 1}, 0],
        ["Join", "run", 0, 0, {"group_size": "many"}, 0],
        ["Failed", 0, None, "x" * 2001],
        ["Assigned", "run", 0, [0], "a reply", False],
        ["Unheard", 1],
        [],
        {},
        7,
    ],
)
def test_what_breaks_a_limit_is_no_message(fields: object) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_request(msgspec.msgpack.encode(fields))
