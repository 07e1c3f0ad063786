"""The engines of a job whose views change: one engine for all, until newcomers come.

An engine joins the ranks that it was opened among. For newcomers the members to come open another
one, while the present one is used on, and move over when the view with the newcomers begins.
Messages that a rank of an earlier view still sends do not reach them there.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from shoal.errors import DeadlineExceeded, ShoalError
from shoal.session.card_exchange import over_board

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.control import ControlClient, Member
    from shoal.membership import Preparation
    from shoal.session.engine_share import EngineShare
    from shoal.wire import UdpEngine

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.01


class Ways:
    """The engines that this worker, a `member`, has prepared and not moved to yet."""

    def __init__(self, control: ControlClient, member: Member, deadline_s: float) -> None:
        self._control, self._member, self._deadline_s = control, member, deadline_s
        self._prepared: dict[int, UdpEngine] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self.in_use = 0
        """The number of the preparation whose engine is used; 0 is that of the job's beginning."""

    def prepare(self, preparation: Preparation) -> None:
        """Open the engine of a preparation, in a thread, and tell the control plane.

        Earlier preparations have come to nothing, except the one whose engine is moved to next.
        """
        self._drop(but=self._member.way)
        threading.Thread(target=self._prepare, args=(preparation,), daemon=True).start()

    def _prepare(self, preparation: Preparation) -> None:
        try:
            self._await_ready()
            engine = self._open(preparation)
            self._send_ahead(engine, preparation)
        except ShoalError as error:
            _log.warning("the way to ranks %s is not open: %s", preparation.ranks, error)
            self._control.prepared(preparation.number, error)
            return
        with self._lock:
            if not self._member.is_preparing(preparation):
                close_aside(engine)
                return
            self._prepared[preparation.number] = engine
        if self._is_closed:
            self.close()
        self._control.prepared(preparation.number)

    def _send_ahead(self, engine: UdpEngine, preparation: Preparation) -> None:
        """Let newcomers have what they can before the view changes; the rest comes then."""
        from shoal.session.engine_share import communicator_ahead

        try:
            self._member.send_ahead(preparation, partial(communicator_ahead, engine, preparation))
        except ShoalError as error:
            _log.info("not all that could be was sent ahead: %s", error)

    def _await_ready(self) -> None:
        """Return once this worker can go on in another view."""
        end = time.monotonic() + self._deadline_s
        while not (self._member.is_ready and self._member.has_begun):
            if time.monotonic() > end:
                message = (
                    f"Rank {self._control.rank} has not begun to train within"
                    f" {self._deadline_s:g} s."
                )
                raise DeadlineExceeded(message)
            time.sleep(_POLL_S)

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
        # Its metrics are served once the previous engine is closed, which may hold the port.
        return open_engine(rank, size, exchange, deadline_s=self._deadline_s, is_watched=False)

    def take(self, number: int) -> UdpEngine:
        """Return the engine of a finished preparation, to move to."""
        with self._lock:
            engine = self._prepared.pop(number)
        self.in_use = number
        return engine

    def close(self) -> None:
        """Close the engines that have not been moved to, now and later."""
        self._is_closed = True
        self._drop()

    def _drop(self, but: int | None = None) -> None:
        with self._lock:
            dropped = [self._prepared.pop(each) for each in list(self._prepared) if each != but]
        for engine in dropped:
            close_aside(engine)


def open_apart(rank: int, size: int, deadline_s: float) -> EngineShare:
    """Return a share of an engine of `size` ranks in which only `rank` is there."""
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
