"""What a job that goes on in other views goes over: one engine for all, until newcomers come.

An engine joins the ranks that it was opened among. For newcomers the members to come open another
one, beside whatever goes on over the present one, and move over when the view with them begins.
Nothing that a rank of an earlier view still sends reaches them there.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from shoal.errors import ShoalError
from shoal.session.card_exchange import over_board

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.control import ControlClient
    from shoal.membership import Preparation
    from shoal.session.engine_share import EngineShare
    from shoal.wire import UdpEngine

_log = logging.getLogger(__name__)


class Ways:
    """The engines that have been prepared on rank `control.rank`, and not been moved to yet.

    `await_ready` returns once this worker can go on over another one, within the deadline.
    """

    def __init__(
        self, control: ControlClient, await_ready: Callable[[], None], deadline_s: float
    ) -> None:
        self._control, self._await_ready = control, await_ready
        self._deadline_s = deadline_s
        self._prepared: dict[int, UdpEngine] = {}
        self._lock = threading.Lock()
        self.in_use = 0
        """The number of the preparation that has been moved to; 0 is what the job began with."""

    def prepare(self, preparation: Preparation) -> None:
        """Open what a preparation asks for, in a thread, and tell the control plane."""
        threading.Thread(target=self._prepare, args=(preparation,), daemon=True).start()

    def _prepare(self, preparation: Preparation) -> None:
        try:
            self._await_ready()
            engine = self._open(preparation)
        except ShoalError as error:
            _log.warning("the way to ranks %s is not open: %s", preparation.ranks, error)
            self._control.prepared(preparation.number, error)
            return
        with self._lock:
            self._prepared[preparation.number] = engine
        self._control.prepared(preparation.number)

    def _open(self, preparation: Preparation) -> UdpEngine:
        from shoal.session.transport_alone import open_engine  # as late as whoever uses it first

        rank, size = self._control.rank, preparation.ranks[-1] + 1
        exchange = over_board(
            self._control.facts,
            rank,
            size,
            self._deadline_s,
            name=f"way/{preparation.number}",
            ranks=preparation.ranks,
        )
        # What it counts is served once the engine before is closed, which may hold the port.
        return open_engine(rank, size, exchange, deadline_s=self._deadline_s, is_watched=False)

    def take(self, number: int) -> UdpEngine:
        """Return the engine of a preparation that is done; those before it are closed."""
        with self._lock:
            engine = self._prepared.pop(number)
            stale = [self._prepared.pop(each) for each in list(self._prepared) if each < number]
        self.in_use = number
        for each in stale:
            close_aside(each)
        return engine

    def close(self) -> None:
        """Close what nobody has moved to."""
        with self._lock:
            while self._prepared:
                close_aside(self._prepared.popitem()[1])


def open_apart(rank: int, size: int, deadline_s: float) -> EngineShare:
    """Return a share of an engine of `size` ranks of which none but `rank` is there."""
    from shoal.session.engine_share import EngineShare
    from shoal.session.transport_alone import open_engine

    def exchange(card: bytes) -> list[bytes]:
        return [card if each == rank else b"" for each in range(size)]

    engine = open_engine(rank, size, exchange, deadline_s=deadline_s, is_watched=False)
    return EngineShare.alone(engine, deadline_s)


def close_aside(engine: UdpEngine, then: Callable[[], None] | None = None) -> None:
    """Close an engine in a thread, for it says goodbye and lingers; and do something `then`."""

    def close() -> None:
        engine.close()
        if then is not None:
            then()

    threading.Thread(target=close, daemon=True).start()
