"""Ripples/Prague for any framework: groups that the generator forms at run time, without torch.

Owns one job's control plane beside a `NumpyCommunicator`: rank 0 serves it, everyone asks. What is
averaged in the groups, and how, is the caller's (`array_means`). (docs/papers.md, 3.4.)
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from msgspec.structs import replace

from shoal.control import (
    ControlClient,
    ControlProcess,
    job_key,
    meeting_place,
    usual_liveness_timeout_s,
    wait_until_deserted,
)
from shoal.errors import MismatchError, ResourceError
from shoal.groups import GeneratorConfig
from shoal.launch import read_launch
from shoal.membership import View
from shoal.strategies import Ripples
from shoal.trace import NullSink, Span, SpanKind, TracedWorker
from shoal.watch import Course, Sampler, Whereabouts, trace_file, watch_address

if TYPE_CHECKING:
    from types import TracebackType

    from shoal.control import Assigned
    from shoal.session import NumpyCommunicator
    from shoal.watch import TraceFile

_SESSION: Final = "groups"
_LONGEST: Final = 1024
"""Bytes of what rank 0 tells the others."""
_FAILED: Final = "error: "


class GeneratedGroups:
    """This rank's place among the ranks that a group generator divides; a context manager.

    Made by all ranks of `communicator`, with the same `config` and `seed`. In the body,

        for group in groups.owed():
            parameters = means.parameters(parameters, group.members, sequence=group.group_id)

    after each local step. Several models are averaged in the groups of one of these, since those of
    two could wait for each other in a circle. A rank that is lost ends the others' waits, for
    groups and in `communicator`, with `WorkerLost`. The job is shown where SHOAL_WATCH says, and
    traced where SHOAL_TRACE says. Raises `ResourceError` if rank 0 cannot serve the control plane
    or a trace cannot be written, `MismatchError` if ranks disagree.
    """

    def __init__(
        self,
        communicator: NumpyCommunicator,
        config: GeneratorConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        host, _ = meeting_place(os.environ)
        self._key = job_key(os.environ, host)
        self._step, self._has_left = 0, False
        self._rank, self._number = communicator.rank, next(communicator.generator_numbers)
        self._deadline_s = communicator.deadline_s
        self._service: ControlProcess | None = None
        self._trace: TraceFile | None = None
        endpoint, mark = self._serve(communicator, host)
        try:
            about = partial(self._about, mark, config or GeneratorConfig(), seed)
            self._trace = trace_file(about, NullSink())
            self._client = ControlClient(
                endpoint,
                self._key,
                communicator.rank,
                communicator.deadline_s,
                communicator.abort,
            )
            self._join(communicator, config or GeneratorConfig(), seed)
        except BaseException:
            self._close_trace()
            self._stop_service()
            raise
        self._loss: float | None = None
        course = Course(self._training, Ripples.word, Ripples.is_lock_step, "shoal")
        self._sampler = Sampler(course, communicator.stats, self._client.tell_sample)

    def owed(self) -> Iterator[Assigned]:
        """Yield the groups that this rank is to average in before its next step, in their order.

        To be called once for each step and gone through to the end, each group's mean made before
        the next is asked for. A group of this rank alone is left out. Raises `WorkerLost` and
        `DeadlineExceeded`.
        """
        more, wait_ns, exchange_ns = True, 0, 0
        while more:
            begin_ns = time.monotonic_ns()
            assigned = self._client.request_group(_SESSION, self._step)
            granted_ns = time.monotonic_ns()
            wait_ns += self._record(SpanKind.WAIT, begin_ns, granted_ns, assigned)
            if len(assigned.members) > 1:
                number = self._number << 32 | assigned.group_id  # another generator's has another
                yield replace(assigned, group_id=number)
                end_ns = time.monotonic_ns()  # the caller has averaged
                exchange_ns += self._record(SpanKind.EXCHANGE, granted_ns, end_ns, assigned)
            more = assigned.more
        self._step += 1
        where = Whereabouts(0, assigned.members, assigned.reason)
        blocked_ns = wait_ns, exchange_ns
        self._sampler.end_step(self._step, time.monotonic_ns(), blocked_ns, where, self._take_loss)

    def _record(self, kind: SpanKind, start_ns: int, end_ns: int, assigned: Assigned) -> int:
        """Trace a stretch of this rank's time, and return how long it is."""
        took_ns = end_ns - start_ns
        if self._trace is not None:
            group = assigned.members, assigned.reason
            self._trace.record(Span(kind, self._rank, self._step, start_ns, took_ns, *group))
        return took_ns

    def _about(self, mark: str, config: GeneratorConfig, seed: int) -> TracedWorker:
        return TracedWorker(
            job=mark,
            training=self._training,
            rank=self._rank,
            host=socket.gethostname(),
            at_ns=time.monotonic_ns(),
            date_ns=time.time_ns(),
            script=Path(sys.argv[0]).name,
            model="arrays",
            parameters=0,
            strategy=Ripples.word,
            options={"group_size": config.group_size},
            seed=seed,
        )

    @property
    def _training(self) -> str:
        return f"{_SESSION}-{self._number}"

    def tell_loss(self, loss: float) -> None:
        """Let whoever looks at the job see the loss of this rank's step."""
        self._loss = float(loss)

    def _take_loss(self) -> float | None:
        loss, self._loss = self._loss, None
        return loss

    def requests_by_rank(self) -> dict[int, int]:
        """Return how often each rank has asked: a slow one less often than the others."""
        return self._client.requests_by_rank(_SESSION)

    def leave(self) -> None:
        """Make no more steps: no group that has not started waits for this rank. Safe to repeat."""
        if not self._has_left:
            self._has_left = True
            self._client.leave(_SESSION)

    def close(self) -> None:
        """Leave the control plane; on rank 0, which serves it, once the others have."""
        self._close_trace()
        self._client.close()
        if self._service is not None:
            wait_until_deserted(self._service.endpoint, self._key, self._deadline_s)
            self._stop_service()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.leave()
            else:
                self._client.__exit__(kind, error, trace)
        finally:
            self.close()

    def _join(self, communicator: NumpyCommunicator, config: GeneratorConfig, seed: int) -> None:
        """Join, and return once all have: a rank that begins early would average alone.

        All hear of a refusal, since those that were let in would wait for the refused.
        """
        try:
            refusal = self._refusal(config, seed)
            is_in = communicator.all_gather(np.array([refusal is None]))
            if refusal is not None:
                raise refusal
            if not is_in.all():
                who = int(np.argmin(is_in))
                message = f"Rank {who} was refused: all ranks must bring the same config and seed."
                raise MismatchError(message)
        except BaseException:
            self._client.close()
            raise

    def _refusal(self, config: GeneratorConfig, seed: int) -> MismatchError | None:
        try:
            self._client.join(_SESSION, read_launch().host, config, seed)
        except MismatchError as error:
            return error
        return None

    def _serve(self, communicator: NumpyCommunicator, host: str) -> tuple[str, str]:
        """Serve the control plane on rank 0; return where, and a name that no other job has.

        Rank 0 tells the others both.
        """
        said, failure = np.zeros(_LONGEST, np.uint8), None
        if communicator.rank == 0:
            try:
                self._service = ControlProcess.start(
                    host=host,
                    key=self._key,
                    view=View.first(communicator.world_size),
                    liveness_timeout_s=usual_liveness_timeout_s(communicator.deadline_s),
                    watch=watch_address(None, os.environ),
                )
                text = f"{self._service.endpoint} {secrets.token_hex(6)}"
            except ResourceError as error:
                failure, text = error, f"{_FAILED}{error}"
            told = np.frombuffer(text.encode()[:_LONGEST], np.uint8)
            said[: told.size] = told
        communicator.broadcast(said, 0)
        if failure is not None:
            raise failure
        found = said.tobytes().rstrip(b"\0").decode(errors="replace")
        if found.startswith(_FAILED):
            raise ResourceError(found.removeprefix(_FAILED))
        endpoint, mark = found.split()
        return endpoint, mark

    def _close_trace(self) -> None:
        if self._trace is not None:
            self._trace.close()

    def _stop_service(self) -> None:
        if self._service is not None:
            self._service.stop()
            self._service = None
