"""The C library's calls that compiled socket loops make, and the records they take.

Resolved by symbol when the compiled code is loaded, so that it can be kept on disk. Layouts are
those of 64-bit Linux.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from shoal.compiled.functions import compiled
from shoal.compiled.memory import I4, rows_at


class Foreign:
    """A function of the C library, for compiled code to call. Types are named as numba does."""

    def __init__(self, name: str, result: str, *arguments: str) -> None:
        self._name, self._result, self._arguments = name, result, arguments

    @property
    def _numba_type_(self) -> Any:
        from numba import types

        result, *arguments = (getattr(types, each) for each in (self._result, *self._arguments))
        return types.ExternalFunction(self._name, result(*arguments))


_int, _long, _address = "int32", "int64", "int64"

sendmsg: Any = Foreign("sendmsg", _long, _int, _address, _int)
recvmsg: Any = Foreign("recvmsg", _long, _int, _address, _int)
sendmmsg: Any = Foreign("sendmmsg", _int, _int, _address, _int, _int)
recvmmsg: Any = Foreign("recvmmsg", _int, _int, _address, _int, _int, _address)
ppoll: Any = Foreign("ppoll", _int, _address, _long, _address, _address)
clock_gettime: Any = Foreign("clock_gettime", _int, _int, _address)
ioctl: Any = Foreign("ioctl", _int, _int, _long, _address)
read: Any = Foreign("read", _long, _int, _address, _long)
write: Any = Foreign("write", _long, _int, _address, _long)
errno_location: Any = Foreign("__errno_location", _address)

MSGHDR: Final = np.dtype(
    [
        ("name", "<i8"),
        ("name_bytes", "<i8"),  # socklen_t and its padding
        ("vectors", "<i8"),
        ("vector_count", "<i8"),
        ("control", "<i8"),
        ("control_bytes", "<i8"),
        ("flags", "<i8"),  # int and its padding
    ],
    align=True,
)
MMSGHDR: Final = np.dtype([("header", MSGHDR), ("length", "<u4"), ("pad", "<u4")], align=True)
IOVEC: Final = np.dtype([("base", "<i8"), ("length", "<i8")], align=True)
CMSGHDR: Final = np.dtype([("length", "<i8"), ("level", "<i4"), ("kind", "<i4")], align=True)
TIMESPEC: Final = np.dtype([("seconds", "<i8"), ("nanoseconds", "<i8")], align=True)
POLLFD: Final = np.dtype([("fd", "<i4"), ("events", "<i2"), ("revents", "<i2")], align=True)

CLOCK_REALTIME: Final = 0
CLOCK_MONOTONIC: Final = 1
MSG_DONTWAIT: Final = 0x40
POLLIN: Final = 1
POLLOUT: Final = 4
EINTR: Final = 4
EIO: Final = 5
EAGAIN: Final = 11
EINVAL: Final = 22
EMSGSIZE: Final = 90
SOL_SOCKET: Final = 1
SOL_IP: Final = 0
SOL_IPV6: Final = 41
SOL_UDP: Final = 17
IP_TOS: Final = 1
IPV6_TCLASS: Final = 67
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
SO_TIMESTAMPNS: Final = 35
SIOCOUTQ: Final = 0x5411
"""Bytes that the kernel still has of what a socket has sent."""
CMSG_BYTES: Final = CMSGHDR.itemsize


@compiled
def errno() -> int:
    """Return this thread's error number."""
    return rows_at(errno_location(), 1, I4)[0]


@compiled
def nanoseconds(clock: int, memory: int) -> int:
    """Return the time of `clock` in nanoseconds; `memory` is the address of a TIMESPEC."""
    clock_gettime(clock, memory)
    time = rows_at(memory, 1, TIMESPEC)[0]
    return time.seconds * 1_000_000_000 + time.nanoseconds


@compiled
def microseconds(clock: int, memory: int) -> int:
    """Return the time of `clock` in microseconds; `memory` is the address of a TIMESPEC."""
    return nanoseconds(clock, memory) // 1_000
