"""The address of this machine at which a job is shown, as given to `shoal.init(watch=...)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from shoal.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

WATCH_VARIABLE: Final = "SHOAL_WATCH"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_LARGEST_PORT: Final = 65535


class WatchAddress(msgspec.Struct, frozen=True):
    """An address at which a job is shown; port 0 is any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can look."""
        return self.host in LOOPBACK

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def watch_address(asked: str | int | None, environment: Mapping[str, str]) -> WatchAddress | None:
    """Return the address at which to show a job: the one `asked` for, else SHOAL_WATCH's.

    A port alone (8265 or ":8265") is one of 127.0.0.1. None, and an empty text: nowhere. Raises
    `UsageError` for an invalid address.
    """
    name = "watch" if asked is not None else WATCH_VARIABLE
    text = str(environment.get(WATCH_VARIABLE, "") if asked is None else asked).strip()
    if not text:
        return None
    host, _, port = text.rpartition(":")
    host = host.strip("[]") or LOOPBACK[0]
    if not (port.isascii() and port.isdigit() and int(port) <= _LARGEST_PORT):
        message = (
            f"{name} is a port or an address of this machine with a port, such as ':8265' or"
            f" '0.0.0.0:8265', not {text!r}."
        )
        raise UsageError(message)
    return WatchAddress(host, int(port))
