"""How a rank's transport is set up, as the environment says.

| variable | meaning | default |
| --- | --- | --- |
| SHOAL_BIND | address to receive on | the one that reaches MASTER_ADDR |
| SHOAL_ADVERTISE | address that others send to | SHOAL_BIND |
| SHOAL_PORTS | first-last port to receive on | any free |
| SHOAL_MTU | largest IP packet, bytes | 1500 |
| SHOAL_PATHS | source ports to spray over | 1 |
| SHOAL_RATE_CONTROL | credit, fixed, dctcp or timely | credit |
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.errors import UsageError
from shoal.transport.endpoint import TransportConfig
from shoal.transport.wire import segment_bytes_for


@dataclass(frozen=True, slots=True)
class Settings:
    """What a rank's transport needs to be told."""

    bind: str = "127.0.0.1"
    advertise: str | None = None
    ports: range | None = None
    transport: TransportConfig = field(default_factory=TransportConfig)


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that `environment` (default: this process's) asks for.

    Raises `UsageError` for values that mean nothing.
    """
    given = os.environ if environment is None else environment
    bind = given.get("SHOAL_BIND") or _address_towards(given.get("MASTER_ADDR", "127.0.0.1"))
    mtu = _number(given, "SHOAL_MTU", 1500, low=576)
    return Settings(
        bind=bind,
        advertise=given.get("SHOAL_ADVERTISE"),
        ports=_ports(given.get("SHOAL_PORTS")),
        transport=TransportConfig(
            segment_bytes=segment_bytes_for(mtu, ipv6=":" in bind),
            paths=_number(given, "SHOAL_PATHS", 1, low=1),
            rate_control=given.get("SHOAL_RATE_CONTROL", "credit"),
        ),
    )


def _address_towards(host: str) -> str:
    """Return the numeric address of this machine from which packets to `host` leave."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        message = f"MASTER_ADDR {host!r} cannot be resolved: {error.strerror}. Set SHOAL_BIND."
        raise UsageError(message) from error


def _number(given: Mapping[str, str], name: str, default: int, *, low: int) -> int:
    text = given.get(name, str(default))
    if not text.isdigit() or int(text) < low:
        message = f"{name} must be a whole number of at least {low}, not {text!r}."
        raise UsageError(message)
    return int(text)


def _ports(text: str | None) -> range | None:
    if not text:
        return None
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(first) > int(last or first):
        message = f"SHOAL_PORTS must look like 4000-4100, not {text!r}."
        raise UsageError(message)
    return range(int(first), int(last or first) + 1)
