"""Where a running job is found: what SHOAL_JOB may say, and what stands there."""

from __future__ import annotations

import os
import socket
import stat
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control_handlers import service_of
from shoal.control import (
    ControlClient,
    JobKey,
    Member,
    RunningJob,
    find_running_job,
    note_of,
    wanted_address,
)
from shoal.control.running_job import leave_note, remove_note
from shoal.errors import MismatchError, ResourceError, UsageError
from shoal.membership import GoingOn, View

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = JobKey("the key of this test job")
DEADLINE_S = 20.0


@contextmanager
def running(*, has_worker: bool = True, has_finished: bool = False) -> Iterator[str]:
    """Run the control plane of an elastic job; yield its host and port."""
    read_end, write_end = os.pipe()
    view = View.first(2)
    service = service_of(KEY, view, 60.0, min_members=1)
    thread = threading.Thread(target=service.run, args=(read_end,))
    thread.start()
    clients = []
    for rank in range(2 if has_finished else int(has_worker)):
        member = Member(view, DEADLINE_S, GoingOn())
        member.is_ready = True
        clients.append(
            ControlClient(service.endpoint, KEY, rank, DEADLINE_S, lambda _: None, member)
        )
    if has_finished:
        clients.pop().close()
    try:
        yield service.endpoint.removeprefix("tcp://")
    finally:
        for client in clients:
            client.close()
        os.write(write_end, b"stop")
        thread.join()
        service.close()
        os.close(read_end)
        os.close(write_end)


def test_a_job_is_found_at_one_of_several_addresses() -> None:
    with socket.socket() as nobody, running() as address:
        nobody.bind(("127.0.0.1", 0))
        text = f"127.0.0.1:{nobody.getsockname()[1]}, {address}"
        found = find_running_job({"SHOAL_JOB": text}, KEY.reveal())
        assert found is not None
        assert found.endpoint == f"tcp://{address}"
        assert found.key == KEY


def test_a_file_says_where_the_job_is_and_its_key(tmp_path: Path) -> None:
    path = tmp_path / "job"
    environment = {"SHOAL_JOB": str(path)}
    assert find_running_job(environment, None) is None, "a job that has yet to begin"
    with running() as address:
        leave_note(environment, note_of(f"tcp://{address}", KEY, is_given=False))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, "the key is in it"
        found = find_running_job(environment, None)
        assert found is not None
        assert found.key == KEY
    assert find_running_job(environment, None) is None, "it has ended, and left the file"


def test_a_note_of_a_job_that_moves_is_read_again(tmp_path: Path) -> None:
    environment = {"SHOAL_JOB": str(tmp_path / "job")}
    with socket.socket() as nobody, running() as address:
        nobody.bind(("127.0.0.1", 0))
        old = note_of(f"tcp://127.0.0.1:{nobody.getsockname()[1]}", KEY, is_given=False)
        leave_note(environment, old)
        assert find_running_job(environment, None) is None, "it is not looked for again"
        found: list[RunningJob | None] = []
        looking = threading.Thread(
            target=lambda: found.append(find_running_job(environment, None, DEADLINE_S))
        )
        looking.start()
        leave_note(environment, note_of(f"tcp://{address}", KEY, is_given=False))
        looking.join()
        assert found == [RunningJob(f"tcp://{address}", KEY)]


def test_a_job_that_is_about_to_end_is_not_waited_for(tmp_path: Path) -> None:
    environment = {"SHOAL_JOB": str(tmp_path / "job")}
    with running(has_finished=True) as address:
        leave_note(environment, note_of(f"tcp://{address}", KEY, is_given=False))
        assert find_running_job(environment, None, 1e9) is None


def test_only_the_own_note_is_removed(tmp_path: Path) -> None:
    environment = {"SHOAL_JOB": str(tmp_path / "job")}
    first, second = (note_of(f"tcp://127.0.0.1:{port}", KEY, is_given=True) for port in (1, 2))
    leave_note(environment, second)
    remove_note(environment, first)
    assert (tmp_path / "job").read_bytes() == second
    remove_note(environment, second)
    remove_note(environment, second)
    assert not (tmp_path / "job").exists()


def test_a_file_holds_no_key_that_everybody_is_given(tmp_path: Path) -> None:
    path = tmp_path / "job"
    leave_note({"SHOAL_JOB": str(path)}, note_of("tcp://127.0.0.1:1", KEY, is_given=True))
    assert KEY.reveal() not in path.read_text()


@pytest.mark.parametrize("how", [{"has_worker": False}, {"has_finished": True}])
def test_a_job_without_workers_or_about_to_end_is_none(how: dict[str, bool]) -> None:
    with running(**how) as address:
        assert find_running_job({"SHOAL_JOB": address}, KEY.reveal()) is None


def test_a_job_with_another_key_is_named() -> None:
    with running() as address, pytest.raises(MismatchError, match="has another job key"):
        find_running_job({"SHOAL_JOB": address}, "some other key of 16 or more")


def test_addresses_need_a_key_that_is_given() -> None:
    with pytest.raises(UsageError, match="set SHOAL_JOB_KEY"):
        find_running_job({"SHOAL_JOB": "127.0.0.1:29400"}, None)


@pytest.mark.parametrize("text", ["here", "host:", ":29400", "host:70000", "host:x,other:1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is a list of addresses"):
        find_running_job({"SHOAL_JOB": text}, KEY.reveal())


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.write_text("hello")
    with pytest.raises(UsageError, match="no file of Shoal's"):
        find_running_job({"SHOAL_JOB": str(path)}, None)
    with pytest.raises(ResourceError, match="cannot be written"):
        leave_note({"SHOAL_JOB": str(tmp_path / "no" / "folder")}, b"")


def test_a_job_that_begins_is_to_be_found_at_the_first_address() -> None:
    assert wanted_address({"SHOAL_JOB": "10.0.0.1:29400,10.0.0.2:29400"}) == ("10.0.0.1", 29400)
    assert wanted_address({"SHOAL_JOB": "/shared/job"}) is None
    assert wanted_address({}) is None
