"""What is said between a lab that stays up and the commands that visit it: lines of JSON.

They meet at a socket without a file, which ends with the lab's process: nothing can be left behind.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Final

import msgspec

from shoal.decoding import decoded
from shoal.errors import ProtocolError, UsageError
from shoal.lab.count_rows import CableCounts

_PREFIX: Final = "shoal-lab"
_CHUNK_BYTES: Final = 1 << 16
_MOST_BYTES: Final = 16 << 20
_CREDENTIALS: Final = struct.Struct("=iII")
STREAMS: Final = 3
"""Descriptors that come along with a command."""


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Ask for a `Description`."""


class AskCounts(msgspec.Struct, frozen=True, tag=True):
    """Ask for `Counts`."""


class Down(msgspec.Struct, frozen=True, tag=True):
    """Ask the lab to end; the connection is closed when it has."""


class Execute(msgspec.Struct, frozen=True, tag=True):
    """Run a command on a host with the three streams that come along; answered by `Ended`.

    It is killed if the connection is closed before. Everything is as the system has it, in bytes:
    not all of that is UTF-8.
    """

    host: bytes
    command: list[bytes]
    environment: list[tuple[bytes, bytes]]
    directory: bytes


class Signal(msgspec.Struct, frozen=True, tag=True):
    """Send a signal to the command that runs."""

    number: int


class Description(msgspec.Struct, frozen=True, tag=True):
    """What the lab is."""

    name: str
    spec: bytes
    """The path of its file."""
    hosts: dict[str, str]
    """The address of each host, by name."""
    seconds: float
    """The seconds for which it has been up."""
    doubts: list[str] = []
    """Why what happens in it is not what its spec says, if it is not."""


class Counts(msgspec.Struct, frozen=True, tag=True):
    """What its switches have counted."""

    rows: list[CableCounts]


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The command has ended."""

    code: int


class Refused(msgspec.Struct, frozen=True, tag=True):
    """What was asked for cannot be done."""

    sentence: str
    code: int = UsageError.exit_code
    """The exit code that says whose fault it is, as in `shoal.errors`."""


Request = Describe | AskCounts | Down | Execute | Signal
Answer = Description | Counts | Ended | Refused

_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def decode_request(line: bytes) -> Request:
    """Return the request in a line; raise `ProtocolError` for another line."""
    return decoded(
        _requests.decode, line, "What the lab was asked is no request", raises=ProtocolError
    )


def decode_answer(line: bytes) -> Answer:
    """Return the answer in a line; raise `ProtocolError` for another line."""
    advice = "it may be of another version of Shoal: start it again"
    return decoded(
        _answers.decode, line, "The lab's answer makes no sense", advice, raises=ProtocolError
    )


def address_of(name: str) -> str:
    """Return the address of the lab `name` of this user; it begins with a zero byte."""
    return f"\0{_PREFIX}-{_user()}-{name}"


def names_of_labs() -> list[str]:
    """Return the names of this user's labs that are up."""
    start = f"@{_PREFIX}-{_user()}-"
    known = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace")
    words = [line.rpartition(" ")[2] for line in known.splitlines()]
    return sorted({word.removeprefix(start) for word in words if word.startswith(start)})


def is_ours(connection: socket.socket) -> bool:
    """Return whether the other end belongs to this user: the address alone protects nothing."""
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(option)[1] == os.geteuid())


class Connection:
    """One end of a conversation."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.files: list[int] = []
        """Descriptors that came along and have not been taken yet."""
        self._heard = bytearray()

    def send(self, message: Request | Answer, files: tuple[int, ...] = ()) -> None:
        """Send a message, and copies of descriptors."""
        line = msgspec.json.encode(message) + b"\n"
        sent = socket.send_fds(self.socket, [line], files)
        if sent < len(line):  # to send nothing would fail once the other end has answered and gone
            self.socket.sendall(line[sent:])

    def receive(self) -> bytes | None:
        """Return the next line; None at the end. Raises `ProtocolError` for one without end."""
        while b"\n" not in self._heard:
            heard, files, _, _ = socket.recv_fds(self.socket, _CHUNK_BYTES, STREAMS)
            self.files += files
            if not heard:
                return None
            self._heard += heard
            if len(self._heard) > _MOST_BYTES:
                raise ProtocolError("A message to a lab is too long.")
        line, _, rest = bytes(self._heard).partition(b"\n")
        self._heard[:] = rest
        return line

    def close(self) -> None:
        """Close it, and what came along."""
        for file in self.files:
            os.close(file)
        self.files.clear()
        self.socket.close()


def _user() -> int:
    """Return this user's number outside of any user namespace of its own."""
    here = os.geteuid()
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        inside, outside, length = map(int, line.split())
        if inside <= here < inside + length:
            return outside + here - inside
    return here
