"""What can be had counts caches that give way, and a container's limit; more is refused."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest

from shoal import memory
from shoal.errors import ResourceError
from shoal.lab.lab import Lab
from shoal.memory import available_bytes, check_room
from shoal.scenario.cluster_spec import ClusterSpec
from shoal.switching.settings import Link, Port
from shoal.switching.topology import Materials, host_names, star

MEMINFO = "MemTotal:  24000000 kB\nMemFree:  300000 kB\nMemAvailable:  9000000 kB\n"
MIB = 1 << 20
REMEDY = "take less"


def container(folder: Path, limit: str, taken: int = 700 * MIB) -> Path:
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{taken}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {100 * MIB}\nsock 0\n")
    return folder


def test_caches_of_the_system_give_way(tmp_path: Path) -> None:
    system = tmp_path / "meminfo"
    system.write_text(MEMINFO)
    assert available_bytes(system, tmp_path) == 9_000_000 * 1024
    assert available_bytes(system, container(tmp_path, "max")) == 9_000_000 * 1024


def test_a_container_has_what_is_left_of_its_limit(tmp_path: Path) -> None:
    system = tmp_path / "meminfo"
    system.write_text(MEMINFO)
    assert available_bytes(system, container(tmp_path, str(1024 * MIB))) == (1024 - 600) * MIB
    assert available_bytes(system, container(tmp_path, str(512 * MIB))) == 0


def test_a_system_that_does_not_say_is_asked_for_free_pages(tmp_path: Path) -> None:
    assert 0 < available_bytes(tmp_path / "none", tmp_path) < 1 << 50


class Circle:
    """Holds itself, and counts as 100 bytes."""

    def __init__(self) -> None:
        self.itself = self


def test_what_only_holds_itself_goes_before_large_tables_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    circle = Circle()
    gone = weakref.ref(circle)
    del circle
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000 - (0 if gone() is None else 100))
    check_room(100, "Little", REMEDY)
    assert gone() is not None
    check_room(950, "Much", REMEDY)
    assert gone() is None
    with pytest.raises(ResourceError, match=r"^Too much would .* are free: take less.$"):
        check_room(1001, "Too much", REMEDY)


def test_a_lab_for_which_there_is_no_room_is_a_sentence_before_any_host_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = Port(10**9, limit_bytes=10**9)
    spec = ClusterSpec(star(host_names(2), Materials(port, port, Link(1e-4))))
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    with pytest.raises(
        ResourceError, match=r"^This lab .* 1,000 MB are free: .* 'port_buffer' first.$"
    ):
        Lab(spec)
