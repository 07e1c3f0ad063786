"""How a rank's transport is set up, as the environment says.

| variable | meaning | default |
| --- | --- | --- |
| SHOAL_BIND | addresses to send from and receive on, by commas | the one that reaches MASTER_ADDR |
| SHOAL_ADVERTISE | addresses that others send to, in the same order | SHOAL_BIND |
| SHOAL_PORTS | first-last port to receive on | any free |
| SHOAL_MTU | largest IP packet, bytes | 1500 |
| SHOAL_LANES | threads that move datagrams, each with its sockets | 1, or 2 (`opening.py`) |
| SHOAL_SHARED_MEMORY | 0: ranks of one host send datagrams to each other, too | 1; 0 (*) |
| SHOAL_PATHS | source ports to spray over, on each address | 8 |
| SHOAL_SPRAY | packets that go one path before the next is chosen | 44 |
| SHOAL_RATE_CONTROL | credit, fixed, dctcp or timely | credit |
| SHOAL_RATE | to each rank: what `fixed` keeps to and `timely` begins with | 1 Gbit/s |
| SHOAL_PARITY | 0: what got lost is always asked for | 1: parity follows where that pays |
| SHOAL_TAGS | what packets say to switches: both, layers, importance or none | both |
| SHOAL_ALL_REDUCE | auto, direct, ring or hierarchical (of LOCAL_WORLD_SIZE, if set) | auto |
| SHOAL_LOSS_BOUND | torch backend: share of each contribution to a sum that may get lost | 0 |
| SHOAL_HOLES | torch backend: zero, divide-by-count or error-feedback | zero |
| SHOAL_WIRE | torch backend: sums of floats are sent as float32, float16, bfloat16 | as is |

(*) with SHOAL_STOP_EARLY=1, or another rate control than credit: they are about datagrams.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from shoal.arguments import whole_number
from shoal.collectives import ALGORITHMS, AUTO
from shoal.errors import UsageError
from shoal.quantities import parse_rate
from shoal.transport import POLICIES, WIRE_TYPES, TransportConfig, segment_bytes_for
from shoal.wire.paths import Interface, is_wildcard, parse_interfaces
from shoal.wire.sum_options import EXACT, SumOptions

USUAL_PATHS: Final = 8
"""The source ports of each address. Switches that choose among equal links by ports then use most
of them: of two links, one stays unused for one pair of hosts in 128."""

_PORTS = 65535
"""The number of ports that an address has."""

_MOST_PACKETS = 2**31 - 1
_LEAST_RATE = 1000
"""The least rate in bits per second."""

_PACED = ("fixed", "timely")
"""Rate controls that have a rate of their own."""

_PER_HOST = "LOCAL_WORLD_SIZE"
_TAGS = ("both", "layers", "importance", "none")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a rank's transport needs to be told."""

    bind: str = "127.0.0.1"
    """One address, or several separated by commas."""
    advertise: str | None = None
    """The addresses that others send to, as many as in `bind`, in the same order; None if they are
    the same."""
    ports: range | None = None
    lane_count: int | None = None
    """The number of lanes; None: as `opening.usual_lane_count` says."""
    shares_memory: bool = True
    """Whether ranks of one host exchange messages through memory where they can."""
    transport: TransportConfig = field(default_factory=TransportConfig)
    sums: SumOptions = EXACT
    """How sums over all ranks are made, unless a call says otherwise."""

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """The addresses that `bind` and `advertise` name."""
        return parse_interfaces(self.bind, self.advertise)

    @property
    def by_interface(self) -> tuple[Settings, ...]:
        """The settings of a rank with only the first address, with only the second, and so on."""
        return tuple(replace(self, bind=b, advertise=a) for b, a in self.interfaces)


def from_environment(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings that `environment` (default: this process's) asks for.

    Raises `UsageError` for values that mean nothing.
    """
    given = os.environ if environment is None else environment
    bind, advertise = _addresses(given)
    mtu = _number(given, "SHOAL_MTU", 1500, low=576)
    usual, tags = TransportConfig(), _choice(given, "SHOAL_TAGS", _TAGS)
    rate_control = given.get("SHOAL_RATE_CONTROL", usual.rate_control)
    stop_early = _choice(given, "SHOAL_STOP_EARLY", ("0", "1")) == "1"
    words = ("0", "1") if stop_early or rate_control != usual.rate_control else ("1", "0")
    return Settings(
        bind=bind,
        advertise=advertise,
        ports=_ports(given.get("SHOAL_PORTS")),
        lane_count=_number(given, "SHOAL_LANES", 1, low=1) if given.get("SHOAL_LANES") else None,
        shares_memory=_choice(given, "SHOAL_SHARED_MEMORY", words) == "1",
        transport=TransportConfig(
            segment_bytes=segment_bytes_for(mtu, ipv6=":" in bind),
            paths=_number(given, "SHOAL_PATHS", USUAL_PATHS, low=1, high=_PORTS),
            spray_unit=_number(given, "SHOAL_SPRAY", usual.spray_unit, low=1, high=_MOST_PACKETS),
            rate_control=rate_control,
            rate_bytes_per_us=_rate(given, rate_control) or usual.rate_bytes_per_us,
            layer_tags=tags in ("both", "layers"),
            importance_tags=tags in ("both", "importance"),
            stop_early=stop_early,
            parity=_choice(given, "SHOAL_PARITY", ("1", "0")) == "1",
        ),
        sums=SumOptions(
            loss_bound=_share(given, "SHOAL_LOSS_BOUND"),
            policy=POLICIES[_choice(given, "SHOAL_HOLES", tuple(POLICIES))],
            algorithm=_choice(given, "SHOAL_ALL_REDUCE", (AUTO, *ALGORITHMS)),
            per_host=_number(given, _PER_HOST, 1, low=1) if _PER_HOST in given else 0,
            wire=_choice(given, "SHOAL_WIRE", WIRE_TYPES) if given.get("SHOAL_WIRE") else None,
        ),
    )


def _addresses(given: Mapping[str, str]) -> tuple[str, str | None]:
    """Return what to bind to and what others are told instead, if anything.

    Of a machine that receives on all its addresses, others are told the one towards MASTER_ADDR.
    """
    bind, advertise = given.get("SHOAL_BIND"), given.get("SHOAL_ADVERTISE") or None
    master = given.get("MASTER_ADDR")
    if not bind:
        bind = _address_towards(master or "127.0.0.1")
    elif advertise is None and master and is_wildcard(bind):
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        advertise = _address_towards(master, family, "SHOAL_ADVERTISE")
    parse_interfaces(bind, advertise)
    return bind, advertise


def _address_towards(host: str, family: int = 0, otherwise: str = "SHOAL_BIND") -> str:
    """Return the numeric address of this machine from which packets to `host` leave.

    `family` is the version of IP, 0 for either; `otherwise` the variable that says it instead.
    """
    try:
        found = socket.getaddrinfo(host, 9, family, socket.SOCK_DGRAM)[0]
        with socket.socket(found[0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[4])
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError) as error:  # the latter of names that are none, as "a..b"
        version = "" if family == 0 else " over IPv6" if family == socket.AF_INET6 else " over IPv4"
        message = (
            f"MASTER_ADDR {host!r} cannot be resolved or reached{version}:"
            f" {getattr(error, 'strerror', None) or 'it is no name of a host'}. Set {otherwise}."
        )
        raise UsageError(message) from error


def _number(
    given: Mapping[str, str], name: str, default: int, *, low: int, high: int | None = None
) -> int:
    text = given.get(name, str(default))
    return whole_number(int(text) if text.isdecimal() else text, name, low=low, high=high)


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


def _rate(given: Mapping[str, str], rate_control: str) -> float | None:
    """Return bytes per microsecond, or None if the environment does not say."""
    text = given.get("SHOAL_RATE")
    if not text:
        return None
    if rate_control not in _PACED:
        message = f"SHOAL_RATE is for SHOAL_RATE_CONTROL={' or '.join(_PACED)}: leave it out."
        raise UsageError(message)
    try:
        rate = parse_rate(text)
    except UsageError as error:
        message = f"SHOAL_RATE: {error}"
        raise UsageError(message) from None
    if rate < _LEAST_RATE:
        message = f"SHOAL_RATE must be at least 1 kbit/s, not {text!r}."
        raise UsageError(message)
    return rate / 8e6


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
    ends = [int(end) if end.isdecimal() else 0 for end in (first, last or first)]
    if not 1 <= ends[0] <= ends[1] <= _PORTS:
        message = (
            f"SHOAL_PORTS must look like 4000-4100, of ports from 1 to {_PORTS}, not {text!r}."
        )
        raise UsageError(message)
    return range(ends[0], ends[1] + 1)
