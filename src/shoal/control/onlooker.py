"""Looks at a running job, with its key, without taking part in it.

Owns one connection to the control plane, and its address: it is looked for again when it has moved.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

import zmq

from shoal.control.connection import Connection
from shoal.control.messages import Shown, ShowRequest
from shoal.control.running_job import MOVING_S, VARIABLE, find_running_job
from shoal.control.waiting import wait_for
from shoal.errors import ResourceError, ShoalError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANSWER_S: Final = 2.0


class Onlooker:
    """Looks at the job to which SHOAL_JOB points in `environment`; a context manager.

    `job_key` is the job's key, unless a file holds it. Raises `UsageError` if no job is named,
    `ResourceError` if none runs there.
    """

    def __init__(self, environment: Mapping[str, str], job_key: str | None) -> None:
        self._environment, self._job_key = dict(environment), job_key
        if not environment.get(VARIABLE):
            message = (
                "Which job? Name the address of its page, such as 127.0.0.1:8265, or let"
                f" {VARIABLE} say where it is found."
            )
            raise UsageError(message)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connection: Connection | None = None
        try:
            self._connect(0.0)
        except BaseException:
            self.close()
            raise

    def look(self) -> bytes:
        """Return the job at this moment: a `Snapshot`, as JSON. Raises `ResourceError`."""
        try:
            return self._ask()
        except ShoalError:
            self._connect(MOVING_S)
            return self._ask()

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        if self._connection is not None:
            self._connection.close(0)
            self._connection = None
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def _ask(self) -> bytes:
        assert self._connection is not None
        self._connection.send(ShowRequest(time.time()))
        late = "The control plane does not answer."
        return wait_for(self._connection, Shown, _ANSWER_S, late).snapshot

    def _connect(self, patience_s: float) -> None:
        found = find_running_job(self._environment, self._job_key, patience_s)
        if found is None:
            message = f"No job runs where {VARIABLE}={self._environment[VARIABLE]} points."
            raise ResourceError(message)
        if self._connection is not None:
            self._connection.close(0)
        self._connection = Connection(self._context, found.endpoint, found.key)
