"""Asks which routers packets pass on their way to a machine, from several source ports.

Packets go out with few hops to live, and the router at which they end names itself. Routers that
choose among equal ways by port numbers lead some source ports past other routers: there are at
least as many ways as different ones have the same distance. Switches that do not route, and
routers that keep silent, do not show.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Final

from shoal.wire import USUAL_PATHS

if TYPE_CHECKING:
    from collections.abc import Sequence

_FARTHEST: Final = 16
"""The most hops that are looked at."""
_SILENT: Final = 2
"""Silent hops in a row after which none is expected to name itself any more: the other machine,
which takes the packets, is one."""
_WAIT_S: Final = 0.3
_GAP_S: Final = 0.002
_ERROR: Final = struct.Struct("=IBBBBII")
"""The kernel's `sock_extended_err`: errno, origin, type, code, padding, two numbers."""
_IPV6_HEADER_BYTES: Final = 8
_RECVERR: Final = {socket.AF_INET: (socket.SOL_IP, 11), socket.AF_INET6: (socket.IPPROTO_IPV6, 25)}
"""IP_RECVERR and IPV6_RECVERR, with their levels."""
_TIME_EXCEEDED: Final = {(2, 11), (3, 3)}
"""Origin and type of the news that a packet had no hops left, of ICMP and of ICMPv6."""


def routers_towards(bind: str, address: str, port: int) -> list[list[str]]:
    """Return the routers that name themselves at each distance, the nearest first.

    `bind` and `address` are numeric addresses of this machine and the other one, `port` a UDP port
    of that one, at which what arrives should mean nothing. Empty if no router names itself.
    """
    found: list[list[str]] = []
    with ExitStack() as stack, suppress(OSError):  # what the kernel refuses shows nothing
        senders = [stack.enter_context(_sender(bind)) for _ in range(USUAL_PATHS)]
        for hops in range(1, _FARTHEST + 1):
            for sender in senders:
                _send(sender, (address, port), hops)
                time.sleep(_GAP_S)
            found.append(sorted(_named(senders)))
            if len(found) >= _SILENT and not any(found[-_SILENT:]):
                break
    while found and not found[-1]:
        found.pop()
    return found


def _sender(bind: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    sender = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sender.bind((bind, 0))
    sender.setsockopt(*_RECVERR[family], 1)
    return sender


def _send(sender: socket.socket, to: tuple[str, int], hops: int) -> None:
    if sender.family == socket.AF_INET:
        sender.setsockopt(socket.SOL_IP, socket.IP_TTL, hops)
    else:
        sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, hops)
    with suppress(OSError):  # it may still have to tell of an error of the packet before
        sender.sendto(b"", to)


def _named(senders: Sequence[socket.socket]) -> set[str]:
    """Return the routers at which packets have just ended."""
    routers: set[str] = set()
    poller = select.poll()
    for sender in senders:
        poller.register(sender, select.POLLERR)
    by_fd = {sender.fileno(): sender for sender in senders}
    silent, deadline = len(senders), time.monotonic() + _WAIT_S
    while silent and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poller.poll(round(1000 * left)):
            routers |= set(_errors(by_fd[fd]))
            poller.unregister(fd)
            silent -= 1
    return routers


def _errors(sender: socket.socket) -> list[str]:
    """Return which routers say that a packet had no hops left."""
    found = []
    with suppress(BlockingIOError):
        while True:
            _, ancillary, _, _ = sender.recvmsg(0, 512, socket.MSG_ERRQUEUE)
            for level, kind, data in ancillary:
                if (level, kind) != _RECVERR[sender.family] or len(data) < _ERROR.size:
                    continue
                _, origin, what, *_ = _ERROR.unpack_from(data)
                if (origin, what) in _TIME_EXCEEDED:
                    found.append(_address_in(data[_ERROR.size :]))
    return found


def _address_in(sockaddr: bytes) -> str:
    """Return the address in the kernel's `sockaddr_in` or `sockaddr_in6`."""
    (family,) = struct.unpack_from("=H", sockaddr)
    start, size = (4, 4) if family == socket.AF_INET else (_IPV6_HEADER_BYTES, 16)
    return str(ipaddress.ip_address(sockaddr[start : start + size]))
