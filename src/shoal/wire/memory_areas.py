"""Areas of memory that the ranks of a host share, and how they hand them to one another.

An area is an anonymous file: it needs no /dev/shm, which is small in containers, and goes when its
last user does. Its descriptor goes over a local socket, to processes of the same user that know the
tag which the area's owner gave them. Ranks of a host that cannot reach each other so (containers,
other users) go on with datagrams, and then all ranks of that host do: the connections between them
(`links`) tell what each could do.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import secrets
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from shoal.errors import ResourceError
from shoal.transport import Area

MOST_RANKS: Final = 64
"""The most ranks of a host that share memory: each looks into the mailboxes of all."""

_SHARE: Final = 8
"""The blocks that a rank has for each other one where cores are few: what is written is then still
in a cache when it is read."""

_BLOCKS: Final = 64
"""The least number of blocks in all where every rank has a core: no rank sleeps then while another
is about to read. Among 2 ranks on 2 cores sums took half as long as with 8; among 4 ranks, which
share the cores, 8 for each were faster by a sixth than 16."""

_HELLO: Final = struct.Struct("<4sHI")
"""Magic, the caller's rank, the tag that the one called has given it."""
_MAGIC: Final = b"shm1"
_CREDENTIALS: Final = struct.Struct("3i")
"""What SO_PEERCRED tells: process, user and group."""
_YES: Final = b"y"
_NO: Final = b"n"


def blocks_of_each(ranks: int) -> int:
    """Return how many blocks each of a host's `ranks` ranks has for each of the others.

    The same on all of them.
    """
    has_cores = (os.cpu_count() or 1) >= ranks
    return max(_SHARE, _BLOCKS // (ranks - 1)) if has_cores else _SHARE


class OwnArea:
    """The area of one lane of this rank, of `size` bytes.

    Raises `OSError` if the system has no memory for it.
    """

    def __init__(self, size: int) -> None:
        self._file = os.memfd_create("shoal", os.MFD_CLOEXEC)
        try:
            # now or never: a page that is missing later would end the process
            os.posix_fallocate(self._file, 0, size)
            self.memory = mmap.mmap(self._file, size)
        except BaseException:
            os.close(self._file)
            raise

    def descriptors(self, wake_fd: int) -> tuple[int, int]:
        """Return what another rank needs: the file, and the eventfd that wakes its owner."""
        return self._file, wake_fd

    def close(self) -> None:
        """Close the file; memory that is mapped stays."""
        os.close(self._file)


def area_at(rank: int, memory: mmap.mmap, wake_fd: int = -1) -> Area:
    """Return the area of `rank` that is mapped as `memory`."""
    array = np.frombuffer(memory, np.uint8)
    return Area(rank, array.ctypes.data, wake_fd, array)


class Handover:
    """The local socket at which rank `me` hands its areas to the other ranks of its host.

    Its `name` goes into the rank's card; `exchange` does the rest, once.
    """

    def __init__(self, me: int) -> None:
        self._me = me
        self.name = f"shoal-{secrets.token_hex(12)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self._socket.bind(b"\0" + self.name.encode())
        self._socket.listen(MOST_RANKS)
        self._calls: dict[int, socket.socket] = {}
        self._callers: list[socket.socket] = []
        self._found: dict[int, list[tuple[mmap.mmap, int]]] = {}

    def close(self) -> None:
        """End all calls, and let nobody call any more."""
        for each in (self._socket, *self._calls.values(), *self._callers):
            each.close()

    def exchange(
        self,
        descriptors: Sequence[int],
        names: Mapping[int, str],
        links: Mapping[int, socket.socket],
        *,
        size: int,
        tags_in: Sequence[int],
        tags_out: Sequence[int],
        deadline_s: float,
    ) -> dict[int, list[tuple[mmap.mmap, int]]] | None:
        """Hand over areas; return those of the others with their eventfds, or None.

        `descriptors` are a file and an eventfd for each lane, an empty list if this rank has none;
        `names` are where the other ranks of this host wait, and `links` the connections to them.
        `size` is that of every area. None means that not all of the host's ranks have reached each
        other: all of them hear so. Raises `ResourceError` if one does not answer.
        """
        deadline = time.monotonic() + deadline_s
        below = [rank for rank in names if rank < self._me]
        above = [rank for rank in names if rank > self._me]
        for rank in below:
            if descriptors:
                self._call(rank, names[rank], tags_out[rank], descriptors)
            _tell(links[rank], rank in self._calls)
        for rank in above:
            if _hear(rank, links[rank], deadline) and descriptors:
                self._answer(rank, tags_in[rank], descriptors, size)
            _tell(links[rank], rank in self._found)
        for rank in below:
            if _hear(rank, links[rank], deadline):
                self._take_areas(rank, size)
        for rank in names:
            _tell(links[rank], len(self._found) == len(names))
        answers = [_hear(rank, links[rank], deadline) for rank in names]
        if len(self._found) == len(names) and all(answers):
            return self._found
        for areas in self._found.values():
            for _, wake_fd in areas:
                os.close(wake_fd)
        return None

    def _call(self, rank: int, name: str, tag: int, descriptors: Sequence[int]) -> None:
        """Hand this rank's areas to `rank`, if it can be reached."""
        call = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        try:
            call.connect(b"\0" + name.encode())
            socket.send_fds(call, [_HELLO.pack(_MAGIC, self._me, tag)], descriptors)
        except OSError:
            call.close()
        else:
            self._calls[rank] = call

    def _answer(self, rank: int, tag: int, descriptors: Sequence[int], size: int) -> None:
        """Take the areas of `rank`, which has called, and hand it this rank's."""
        with contextlib.suppress(BlockingIOError):  # when all who have called are there
            while True:
                self._callers.append(self._socket.accept()[0])
        for caller in self._callers:
            caller.setblocking(False)
            if _is_from(caller, rank, tag):
                self._callers.remove(caller)
                self._calls[rank] = caller
                self._take_areas(rank, size)
                with contextlib.suppress(OSError):
                    socket.send_fds(caller, [_MAGIC], descriptors)
                return

    def _take_areas(self, rank: int, size: int) -> None:
        """Map the areas that `rank` has handed over, if that can be done."""
        descriptors: list[int] = []
        with contextlib.suppress(OSError):
            _, descriptors, *_ = socket.recv_fds(self._calls[rank], _HELLO.size, 2 * MOST_RANKS)
        files, wake_fds = descriptors[::2], descriptors[1::2]
        try:
            memories = [mmap.mmap(file, size) for file in files]
        except (OSError, ValueError):  # the latter of a file that is too short
            memories = []
        for each in files if memories else descriptors:
            os.close(each)
        if memories:
            self._found[rank] = list(zip(memories, wake_fds, strict=True))


def _tell(link: socket.socket, answer: bool) -> None:
    with contextlib.suppress(OSError):  # of one that is gone: hearing it says so
        link.sendall(_YES if answer else _NO)


def _hear(rank: int, link: socket.socket, deadline: float) -> bool:
    """Return the next answer of `rank`."""
    link.settimeout(max(0.001, deadline - time.monotonic()))
    try:
        answer = link.recv(1)
    except OSError:
        answer = b""
    finally:
        link.settimeout(None)
    if not answer:
        message = f"Rank {rank}, which is on this host, did not answer while the job started."
        raise ResourceError(message)
    return answer == _YES


def _is_from(caller: socket.socket, rank: int, tag: int) -> bool:
    """Return whether a caller is `rank`: it knows its tag, and is a process of the same user.

    What it hands over is not taken yet.
    """
    credentials = caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    try:
        said = caller.recv(_HELLO.size, socket.MSG_PEEK)
    except OSError:
        return False
    is_of_this_user = _CREDENTIALS.unpack(credentials)[1] == os.geteuid()
    return is_of_this_user and said == _HELLO.pack(_MAGIC, rank, tag)
