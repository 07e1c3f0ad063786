"""Takes settings of ports and links out of the way for a measurement, and puts them back.

Only what is named is written: what is measured stays as the lab was made. While it is done, nothing
may be waiting at the port.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from shoal.switching import COLORS, NEVER, QUEUES, rate_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from shoal.switching import State

_NO_LINK: Final = {
    "delay": 0,
    "jitter": 0,
    "reorder": 0,
    "loss": 0,
    "bad_loss": 0,
    "to_bad": 0,
    "down": 0,
}
_NO_LIMITS: Final = {"limit_bytes": NEVER, "limit_packets": NEVER}


def set_aside(
    state: State, tested: int, rate: int, others: Sequence[int], others_rate: int
) -> Callable[[State], None]:
    """Let the port `tested` send at `rate`, and its link and the ports `others` do no harm.

    Return what puts everything back. Averages of the tested queues begin anew.
    """
    back = _Back()
    back.write(state.ports[tested : tested + 1], rate_fields(rate))
    back.write(state.links[tested : tested + 1], _NO_LINK)
    state.queues[tested * QUEUES : (tested + 1) * QUEUES]["average"] = 0
    for port in others:
        free = {**rate_fields(others_rate), "buffer": -1, **_NO_LIMITS}
        back.write(state.ports[port : port + 1], free)
        back.write(state.links[port : port + 1], _NO_LINK)
        back.write(state.queues[port * QUEUES : (port + 1) * QUEUES], _NO_LIMITS)
        profiles = state.profiles[port * QUEUES * COLORS : (port + 1) * QUEUES * COLORS]
        back.write(profiles, {"least": NEVER, "most": NEVER})
    return lambda _state: back.undo()


def without_loss(state: State, ports: Sequence[int]) -> Callable[[State], None]:
    """Let the links of `ports` lose nothing; return what puts that back."""
    back = _Back()
    for port in ports:
        back.write(state.links[port : port + 1], {"loss": 0, "bad_loss": 0})
    return lambda _state: back.undo()


class _Back:
    """What was written over."""

    def __init__(self) -> None:
        self._before: list[tuple[NDArray[Any], str, NDArray[Any]]] = []

    def write(self, rows: NDArray[Any], values: dict[str, int]) -> None:
        """Write `values` into all rows."""
        for name, value in values.items():
            self._before.append((rows, name, rows[name].copy()))
            rows[name] = value

    def undo(self) -> None:
        """Write back what was there, the last first."""
        for rows, name, before in reversed(self._before):
            rows[name] = before
