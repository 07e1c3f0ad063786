"""What can be had counts caches that give way, and a container's limit."""

from __future__ import annotations

from pathlib import Path

from shoal.memory import available_bytes

MEMINFO = "MemTotal:  24000000 kB\nMemFree:  300000 kB\nMemAvailable:  9000000 kB\n"
MIB = 1 << 20


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
