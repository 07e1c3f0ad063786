"""How a rank's transport is set up, as the environment says.

| variable | meaning | default |
| --- | --- | --- |
| SHOAL_BIND | address to receive on | the one that reaches MASTER_ADDR |
| SHOAL_ADVERTISE | address that others send to | SHOAL_BIND |
| SHOAL_PORTS | first-last port to receive on | any free |
| SHOAL_MTU | largest IP packet, bytes | 1500 |
| SHOAL_PATHS | source ports to spray over | 1 |
| SHOAL_RATE_CONTROL | credit, fixed, dctcp or timely | credit |
| SHOAL_ALL_REDUCE | direct, ring or hierarchical (hosts of LOCAL_WORLD_SIZE ranks) | direct |
| SHOAL_LOSS_BOUND | torch backend: share of each contribution to a sum that may get lost | 0 |
| SHOAL_HOLES | torch backend: zero, divide-by-count or error-feedback | zero |
| SHOAL_WIRE | torch backend: sums of floats are sent as float32, float16, bfloat16 | as is |
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shoal.collectives.graphs import ALGORITHMS
from shoal.errors import UsageError
from shoal.runtime.udp.group import EXACT, SumOptions
from shoal.transport.endpoint import TransportConfig
from shoal.transport.forms import WIRE_TYPES
from shoal.transport.holes import POLICIES
from shoal.transport.wire import segment_bytes_for


@dataclass(frozen=True, slots=True)
class Settings:
    """What a rank's transport needs to be told."""

    bind: str = "127.0.0.1"
    advertise: str | None = None
    ports: range | None = None
    transport: TransportConfig = field(default_factory=TransportConfig)
    sums: SumOptions = EXACT
    """How sums over all ranks are made, unless a call says otherwise."""


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
        sums=SumOptions(
            loss_bound=_share(given, "SHOAL_LOSS_BOUND"),
            policy=POLICIES[_choice(given, "SHOAL_HOLES", tuple(POLICIES))],
            algorithm=_choice(given, "SHOAL_ALL_REDUCE", ALGORITHMS),
            per_host=_number(given, "LOCAL_WORLD_SIZE", 1, low=1),
            wire=_choice(given, "SHOAL_WIRE", WIRE_TYPES) if given.get("SHOAL_WIRE") else None,
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


def _share(given: Mapping[str, str], name: str) -> float:
    text = given.get(name, "0")
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        message = f"{name} must be at least 0 and less than 1, not {text!r}."
        raise UsageError(message)
    return share


def _choice(given: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    text = given.get(name, choices[0])
    if text not in choices:
        message = f"{name} must be one of {', '.join(choices)}, not {text!r}."
        raise UsageError(message)
    return text


def _ports(text: str | None) -> range | None:
    if not text:
        return None
    first, _, last = text.partition("-")
    if not first.isdigit() or not (last or first).isdigit() or int(first) > int(last or first):
        message = f"SHOAL_PORTS must look like 4000-4100, not {text!r}."
        raise UsageError(message)
    return range(int(first), int(last or first) + 1)
