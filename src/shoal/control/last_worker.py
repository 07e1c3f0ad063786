"""Rank 0 stays until the last worker has gone: it serves the control plane to all.

Owns that wait. Knows nothing of the others' work: a worker that makes progress may take as long as
it likes, and the control plane knows a lost one within its liveness timeout.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import zmq

from shoal.control.connection import Connection
from shoal.control.messages import Dump, DumpRequest
from shoal.control.waiting import wait_for
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from shoal.control import JobKey

_ANSWER_S = 5.0
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.25


def wait_until_deserted(endpoint: str, key: JobKey, patience_s: float) -> None:
    """Return once no worker at `endpoint` is alive, one was lost, or the service has ended.

    A worker that has made no progress for `patience_s` seconds is stuck, and not waited for.
    """
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    connection = Connection(context, endpoint, key)
    pause_s = _FIRST_PAUSE_S
    try:
        while _is_needed(connection, patience_s):
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    except ShoalError:
        return  # it has ended, so no worker can need it
    finally:
        connection.close(0)
        context.term()


def _is_needed(connection: Connection, patience_s: float) -> bool:
    connection.send(DumpRequest())
    dump = wait_for(connection, Dump, _ANSWER_S, "The control plane does not answer.")
    return dump.lost is None and any(
        it.idle_ms is not None and it.idle_ms < 1000 * patience_s for it in dump.workers
    )
