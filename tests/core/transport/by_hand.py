"""Endpoints driven datagram by datagram: what one would send, and datagrams made field by field."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from outbox import Outbox

from shoal.transport.timers import on_timer

if TYPE_CHECKING:
    from shoal.transport.endpoint import Endpoint

CLOCK = 0x0501020304


def written(endpoint: Endpoint, *, now: int = 1, clock: int = CLOCK) -> list[bytes]:
    """Return all datagrams that `endpoint` sends now, timers first."""
    if now >= endpoint.state.core["timer_at"][0]:
        on_timer(endpoint.state, now)
    outbox, datagrams = Outbox(), []
    while batch := outbox.next(endpoint, now, clock):
        datagrams += batch
    return datagrams


def header(
    kind: int,
    *,
    flags: int = 0,
    length: int = 0,
    session: int = 0,
    number: int = 0,
    clock: int = CLOCK,
    stream: int = 7,
    iteration: int = 1,
    message: int = 0,
    source: int = 0,
    offset: int = 0,
    version: int = 1,
) -> bytes:
    """Return a header made of these fields, by the format's description and not by its code."""
    return struct.pack(
        "<BBHIIIIIHHI",
        version << 4 | kind,
        flags,
        length,
        session,
        number,
        clock & 0xFFFFFFFF,
        stream,
        iteration,
        message,
        source,
        offset,
    )


def agreement(size: int, messages: int = 1) -> int:
    """Return what an operation is of which nothing is agreed on but what is sent."""
    return (size * 0x9E3779B1 + messages * 0x85EBCA6B) & 0xFFFFFFFF


def ready(size: int, **fields: int) -> bytes:
    """Return the header of a READY for a message of `size` bytes, the only one."""
    return header(2, length=24, offset=agreement(size), **fields)


def feedback(
    *,
    highest: int = 0,
    received: int = 0,
    marked: int = 0,
    grant: int = 0,
    echo: int = 0,
    held: int = 0,
) -> bytes:
    """Return a feedback block made of these fields."""
    return struct.pack("<IIIIII", highest, received, marked, grant, echo, held)
