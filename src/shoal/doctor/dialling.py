"""Trying to connect to several TCP ports at once, with one deadline for all."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import time
from typing import TYPE_CHECKING, Final

from shoal.doctor.probe_facts import Dialled

if TYPE_CHECKING:
    from collections.abc import Sequence

DIAL_S: Final = 3.0
"""How long a connection may take: longer than TCP's first two repetitions of a lost packet."""


def dial(host: str, ports: Sequence[int], deadline_s: float = DIAL_S) -> dict[int, Dialled]:
    """Return for every port of the numeric address `host` what became of a connection to it."""
    outcomes = dict.fromkeys(ports, Dialled.SILENT)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    deadline = time.monotonic() + deadline_s
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as waiting:
        for port in outcomes:
            caller = opened.enter_context(socket.socket(family, socket.SOCK_STREAM))
            caller.setblocking(False)
            number = caller.connect_ex((host, port))
            if number == errno.EINPROGRESS:
                waiting.register(caller, selectors.EVENT_WRITE, port)
            else:
                outcomes[port] = _outcome(number)
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                caller = key.fileobj  # type: ignore[assignment]
                outcomes[key.data] = _outcome(caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                waiting.unregister(caller)
    return outcomes


def explain(outcome: Dialled) -> str:
    """Return in words what became of a connection that was not made."""
    return {
        Dialled.REFUSED: os.strerror(errno.ECONNREFUSED),
        Dialled.SILENT: f"no answer within {DIAL_S:g} s",
    }.get(outcome, os.strerror(errno.EHOSTUNREACH))


def _outcome(number: int) -> Dialled:
    if number == 0:
        return Dialled.OPEN
    if number == errno.ECONNREFUSED:
        return Dialled.REFUSED
    return Dialled.SILENT if number == errno.ETIMEDOUT else Dialled.UNREACHABLE
