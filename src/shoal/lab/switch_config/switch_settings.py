"""What configurations are written from and what they come as. Knows no format.

The queues are those of `shoal.switching`: eight of a port, strict priority, queue 0 the most
urgent. Devices count the other way round, see `traffic_class`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.switching import DSCPS, QUEUES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal.switching import Port

_PORT_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]{0,63}")


@dataclass(frozen=True, slots=True)
class SwitchSettings:
    """One switch: what its ports do with the packets that leave through them."""

    ports: Mapping[str, Port]
    """The ports by the name that the device has for each. Rates are in bits per second, limits and
    thresholds in bytes of packets."""
    queues: Sequence[int]
    """The queue of every port for each of the 64 DSCPs."""
    shared_buffer_bytes: int | None = None
    """What the ports share; None: each queue has its own limit."""
    remarks: tuple[str, ...] = ()
    """Sentences that come before the notes."""

    def __post_init__(self) -> None:
        """Raise `UsageError` for what no device can be told."""
        if not self.ports:
            message = "A switch without ports has no configuration."
            raise UsageError(message)
        for name in self.ports:
            if _PORT_NAME.fullmatch(name) is None:
                message = f"A port is named by letters, digits and _ . : / -, not {name!r}."
                raise UsageError(message)
        if len(self.queues) != DSCPS or not all(0 <= queue < QUEUES for queue in self.queues):
            message = f"The map of DSCPs has {DSCPS} queues from 0 to {QUEUES - 1}."
            raise UsageError(message)
        if self.shared_buffer_bytes is not None and self.shared_buffer_bytes < 1:
            message = f"A shared buffer has at least 1 byte, not {self.shared_buffer_bytes}."
            raise UsageError(message)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The text for a device, and a sentence for everything that it does not say as the spec does.

    Where the format has comments, the sentences are in the text, too.
    """

    text: str
    notes: tuple[str, ...]


class Notes:
    """Sentences on what is said differently or not at all, each with where that is so."""

    def __init__(self, remarks: Sequence[str] = ()) -> None:
        self._places: dict[str, dict[str, list[int]]] = {remark: {} for remark in remarks}

    def add(self, sentence: str, port: str = "", queue: int | None = None) -> None:
        """Note `sentence`, which ends in a full stop, of a port's queue, of a port or of all."""
        ports = self._places.setdefault(sentence, {})
        queues = ports.setdefault(port, []) if port else []
        if queue is not None:
            queues.append(queue)

    def lines(self) -> tuple[str, ...]:
        """Return the sentences in the order in which they came up, each with its places."""
        return tuple(
            f"{sentence} [{_places(ports)}]" if ports else sentence
            for sentence, ports in self._places.items()
        )


def _places(ports: dict[str, list[int]]) -> str:
    """Return ports and queues in words; ports with the same queues together."""
    together: dict[tuple[int, ...], list[str]] = {}
    for port, queues in ports.items():
        together.setdefault(tuple(sorted(queues)), []).append(port)
    words = []
    for numbers, names in together.items():
        listed = ", ".join(map(str, numbers))
        of = f" queue{'s' * (len(numbers) > 1)} {listed}" if numbers else ""
        words.append(", ".join(names) + of)
    return "; ".join(words)


def traffic_class(queue: int) -> int:
    """Return the number that devices have for `queue`: they serve 7 first, not 0."""
    return QUEUES - 1 - queue


def by_queue(queues: Sequence[int]) -> dict[int, list[int]]:
    """Return the DSCPs of every queue that has some, the most urgent queue first."""
    return {
        queue: dscps
        for queue in range(QUEUES)
        if (dscps := [dscp for dscp, its in enumerate(queues) if its == queue])
    }
