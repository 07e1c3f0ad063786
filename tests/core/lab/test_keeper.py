"""The keeper of a command, where the system refuses what makes it a host of its own."""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING

from shoal.lab.hosts import keeper

if TYPE_CHECKING:
    import pytest


def refuse(*_details: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_what_a_host_cannot_have_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mounted: list[str] = []
    monkeypatch.setattr(socket, "sethostname", refuse)
    monkeypatch.setattr(keeper, "_mount", lambda _source, target, *_: mounted.append(target))
    keeper._furnish("host3", "10.77.0.1 host0\n")
    sentence = "host3 does not have a host name of its own (Operation not permitted).\n"
    assert capsys.readouterr().err == sentence
    assert mounted == ["/", "/proc", "/etc/hosts"]


def test_a_host_that_may_not_mount_changes_nothing_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[str] = []

    def refuse_mount(_source: str, target: str, *_details: object) -> None:
        tried.append(target)
        refuse()

    named: list[str] = []
    monkeypatch.setattr(socket, "sethostname", named.append)
    monkeypatch.setattr(keeper, "_mount", refuse_mount)
    keeper._furnish("host3", "10.77.0.1 host0\n")
    assert capsys.readouterr().err == (
        "host3 does not have a file with the names of all hosts (Operation not permitted).\n"
    )
    assert (named, tried) == (["host3"], ["/"])
