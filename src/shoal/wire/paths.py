"""Which addresses of a rank take part, and between which of them each path goes: decisions only.

Every packet may take any path (docs/papers.md, 1.7). A path is one of this rank's
addresses, one of its source ports there, and one of the peer's addresses.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from shoal.errors import UsageError

LARGEST_PLAN: Final = 64
"""Paths beyond which shares need not be quite equal: tables have a row for each."""
_LARGEST_NUMBER: Final = 8
"""The most addresses of a rank."""


class Interface(NamedTuple):
    """One of a rank's addresses: datagrams leave from it and arrive at it."""

    bind: str
    advertise: str
    """What the others send to."""


class PathPlan(NamedTuple):
    """What each path of a rank uses."""

    senders: list[int]
    """The sender of each path: address + addresses * source port, the order of
    `RankSockets.send_fds`."""
    peers: list[list[int]]
    """The peer's address that each path uses: [peer][path], an index."""


def parse_interfaces(bind: str, advertise: str | None = None) -> tuple[Interface, ...]:
    """Return the interfaces that comma-separated addresses name, in their order.

    `advertise` has as many as `bind`, or is None if they are the same. Raises `UsageError` if
    several cannot be used together, or others could not send to what they are told. Whether a
    single one can be bound to, opening it will tell.
    """
    own = [address.strip() for address in bind.split(",")]
    told = own if advertise is None else [address.strip() for address in advertise.split(",")]
    if len(told) != len(own):
        message = (
            f"SHOAL_BIND has {len(own)} address{'es' * (len(own) > 1)} and SHOAL_ADVERTISE"
            f" {len(told)}; give as many, in the same order."
        )
        raise UsageError(message)
    if len(own) > 1:
        _check_several(own, "SHOAL_BIND")
        _check_several(told, "SHOAL_ADVERTISE")
    for address in told:
        if not _is_numeric(address) or "%" in address:  # the name of an interface is this host's
            name = "SHOAL_BIND" if advertise is None else "SHOAL_ADVERTISE"
            message = f"{name} must be a numeric address that others can send to, not {address!r}."
            raise UsageError(message)
    if (":" in own[0]) != (":" in told[0]):
        raise UsageError("SHOAL_BIND and SHOAL_ADVERTISE must be of the same version of IP.")
    return tuple(map(Interface, own, told))


def is_wildcard(address: str) -> bool:
    """Return whether `address` stands for all of a machine's: to bind to, not to send to."""
    try:
        return ipaddress.ip_address(address).is_unspecified
    except ValueError:
        return False


def check_reachable(interfaces: Sequence[Interface]) -> None:
    """Raise `UsageError` if others would be told an address that they cannot send to."""
    for interface in interfaces:
        if is_wildcard(interface.advertise):
            message = (
                f"Others cannot send to {interface.advertise}: set SHOAL_ADVERTISE to the address"
                " at which they reach this machine, or MASTER_ADDR to find it by."
            )
            raise UsageError(message)


def _check_several(addresses: list[str], name: str) -> None:
    """Raise `UsageError` if `addresses`, which the variable `name` holds, do not go together."""
    problem = ""
    if len(addresses) > _LARGEST_NUMBER:
        problem = f"must have {_LARGEST_NUMBER} addresses at most"
    elif len(set(addresses)) < len(addresses):
        problem = "must name each address once"
    elif any(is_wildcard(address) for address in addresses):
        problem = "cannot have one that stands for all interfaces among several"
    elif len({":" in address for address in addresses}) > 1:
        problem = "must have addresses of one version of IP"
    elif not all(map(_is_numeric, addresses)):
        problem = "must have numeric addresses, separated by commas"
    if problem:
        message = f"{name} {problem}, not {','.join(addresses)!r}."
        raise UsageError(message)


def _is_numeric(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def plan_paths(own: int, source_ports: int, peers: Sequence[int]) -> PathPlan:
    """Return the paths of a rank with `own` addresses and `source_ports` ports on each of them.

    `peers` has how many addresses each rank has. The k-th path goes from address k mod n of n, to
    address k mod m of m: between the same ones where both have as many, so that links that join no
    others are used in pairs. There are as many paths as it takes for equal shares, of source ports
    and of every peer's addresses.
    """
    sockets = own * source_ports
    count = math.lcm(sockets, *peers)
    if count > LARGEST_PLAN:  # whole rounds of the sockets, at least one of each peer's addresses
        count = -(-max(LARGEST_PLAN, *peers) // sockets) * sockets
    return PathPlan(
        senders=[path % sockets for path in range(count)],
        peers=[[path % number for path in range(count)] for number in peers],
    )
