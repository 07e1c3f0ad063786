"""The control planes that run beside this worker: rank 0's, and those that stand by.

Owns their processes, and the address where one stands by: one of this machine that SHOAL_JOB names,
so that newcomers find it, else the address at which other workers reach this one, at the port of
the control plane that serves if that is free. In a job that goes on they outlive this worker.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Final

from shoal.control import VARIABLE, ControlProcess, addresses_of, wait_until_deserted
from shoal.errors import ResourceError, ShoalError
from shoal.wire import from_environment

if TYPE_CHECKING:
    from shoal.control import ControlClient, JobKey, StandBy
    from shoal.watch import WatchAddress

_ENDS_S: Final = 1.0
_LOOK_S: Final = 0.02

_log = logging.getLogger(__name__)


class Services:
    """The control planes of a job with this key; `first` is the one that the job begins with.

    The one that serves shows the job at `watch`. The key need not be left for newcomers if all are
    given it (`is_key_given`).
    """

    def __init__(
        self,
        key: JobKey,
        *,
        is_key_given: bool,
        first: ControlProcess | None = None,
        watch: WatchAddress | None = None,
    ) -> None:
        self._watch = watch
        self._key, self._is_key_given, self._first = key, is_key_given, first
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._is_closed = False
        self._started: list[ControlProcess] = []

    def stand_by(self, order: StandBy, control: ControlClient) -> None:
        """Start a standby in a thread, and report its address; or that there is none."""
        threading.Thread(target=self._begin, args=(order, control), daemon=True).start()

    def start_again(self) -> None:
        """Restart, in a thread, the control planes that have ended, to stand by where they were."""
        threading.Thread(target=self._start_again, daemon=True).start()

    def stop(self) -> None:
        """End the first, whether or not workers still need it."""
        if self._first is not None:
            self._first.stop()
            self._first = None

    def close(self, serving: str, *, waits_s: float | None, goes_on: bool) -> None:
        """Let go of all as if this process had ended: they end with the workers that follow them.

        Unless the job `goes_on`, the first ends now, or once all other workers are done: `waits_s`
        bounds the wait for a worker that makes no step. The first is not needed any more if another
        one is `serving`, at that address. Safe to call twice.
        """
        if self._first is not None and self._first.endpoint != serving:
            self._first.kill()
            self._first = None
        if self._first is not None:
            if waits_s is not None:
                wait_until_deserted(self._first.endpoint, self._key, waits_s)
            if goes_on:
                self._first.abandon()
                self._first = None
            self.stop()
        with self._lock:
            self._is_closed = True
            for process in self._started:
                process.abandon()

    def _start_again(self) -> None:
        end = time.monotonic() + _ENDS_S  # a process may have closed its connections and not ended
        tried: set[str] = set()
        with self._starting:
            while time.monotonic() < end:
                there = [*self._started, *filter(None, [self._first])]
                running = {each.endpoint for each in there if each.is_running}
                for each in there:
                    if each.endpoint not in running | tried:
                        tried.add(each.endpoint)
                        self._replace(each)
                time.sleep(_LOOK_S)

    def _replace(self, ended: ControlProcess) -> None:
        try:
            new = ended.again()
        except ShoalError as error:
            _log.warning("no control plane can be started again here: %s", error)
            return
        _log.warning("a control plane was started again at %s", new.endpoint)
        with self._lock:
            self._started = [each for each in self._started if each is not ended]
            self._started.append(new)
            if self._is_closed:
                new.abandon()

    def _begin(self, order: StandBy, control: ControlClient) -> None:
        try:
            process = self._start(order, control)
        except ShoalError as error:
            _log.warning("no control plane stands by here: %s", error)
            control.stand_by("")
            return
        with self._lock:
            self._started.append(process)
            if self._is_closed:
                process.abandon()
        _log.info("a control plane stands by at %s", process.endpoint)
        control.stand_by(process.endpoint)

    def _start(self, order: StandBy, control: ControlClient) -> ControlProcess:
        own = from_environment(os.environ).interfaces[0].advertise
        # A firewall may only let the job's own port through.
        same_port = int(control.endpoint.rpartition(":")[2])
        failure: ResourceError | None = None
        for host, port in (*addresses_of(os.environ), (own, same_port), (own, 0)):
            try:
                return ControlProcess.stand_by(
                    control.rank,
                    key=self._key,
                    terms=order.terms,
                    host=host,
                    port=port,
                    note=os.environ.get(VARIABLE, ""),
                    watch=self._watch,
                    is_key_given=self._is_key_given,
                )
            except ResourceError as error:  # that address is another machine's, or is in use
                failure = error
        assert failure is not None
        raise failure
