"""Visits to labs that stay up, without a lab: what goes wrong with their sockets."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.cli.options import require_writable
from shoal.errors import ResourceError, UsageError
from shoal.lab.resident.__main__ import Resident
from shoal.lab.resident.visit import count, describe, execute, take_down
from shoal.lab.resident.visitor_messages import Connection, Refused, Request, Signal, address_of

NAME = f"test-of-visits-{os.getpid()}"
DEADLINE_S = 20.0


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(address_of(NAME))
        made.listen(1)
        yield made


def in_background(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class FullListener(socket.socket):
    """A socket that has no descriptor for its first visitors."""

    refusals = 2

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def ask(request: Request) -> bytes | None:
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with visitor:
        visitor.settimeout(DEADLINE_S)
        visitor.connect(address_of(NAME))
        connection = Connection(visitor)
        connection.send(request)
        return connection.receive()


def test_a_lab_outlives_that_it_has_no_descriptor_for_a_visitor() -> None:
    with FullListener(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address_of(NAME))
        listener.listen()
        resident = Resident(NAME, Path("a.toml"), None, listener)  # type: ignore[arg-type]
        ended: list[Connection] = []
        serving = in_background(lambda: ended.append(resident.serve()))
        assert b"Nothing runs" in (ask(Signal(2)) or b"")
        assert listener.refusals == 0
        ending = in_background(lambda: take_down(NAME))
        serving.join(DEADLINE_S)
        ended[0].close()
        ending.join(DEADLINE_S)
        assert not ending.is_alive()


def reset(listener: socket.socket) -> None:
    """Take a visitor and go without having read what it said, as a process does that is killed."""
    visitor, _ = listener.accept()
    visitor.recv(1, socket.MSG_PEEK)
    visitor.close()


@pytest.mark.parametrize("visit", [describe, count, lambda name: execute(name, "host0", ["true"])])
def test_a_lab_that_ends_meanwhile_is_one_sentence(
    listener: socket.socket, visit: Callable[[str], object]
) -> None:
    in_background(lambda: reset(listener))
    with pytest.raises(ResourceError, match=f"^The lab '{NAME}' has ended.$"):
        visit(NAME)


def test_a_lab_that_ends_meanwhile_has_been_taken_down(listener: socket.socket) -> None:
    in_background(lambda: reset(listener))
    take_down(NAME)
    listener.close()
    with pytest.raises(UsageError, match="No lab"):
        take_down(NAME)


def test_whoever_is_in_a_deleted_folder_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(UsageError, match="has been deleted"):
        execute(NAME, "host0", ["true"])
    with pytest.raises(ResourceError, match=r"counts\.json cannot be written"):
        require_writable(Path("counts.json"))


def test_what_a_lab_refuses_has_the_code_of_whose_fault_it_is(listener: socket.socket) -> None:
    def refuse(code: int) -> None:
        visitor, _ = listener.accept()
        with visitor:
            connection = Connection(visitor)
            connection.receive()
            connection.send(Refused("No.", code))
            connection.close()

    for kind in (UsageError, ResourceError):
        in_background(lambda kind=kind: refuse(kind.exit_code))
        with pytest.raises(kind, match=r"^No\.$"):
            execute(NAME, "host0", ["true"])
