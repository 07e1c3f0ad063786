"""Sweeps in one process: what is kept, what is made again, what a failure says."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shoal.errors import DataError, ProtocolError, ResourceError, ShoalError, UsageError
from shoal.sweeps import Journal, Run, make_runs, spread_of
from shoal.sweeps.keyed_run import code_version

made: list[int] = []


@dataclass(frozen=True, slots=True)
class Square:
    of: int
    value: int


def square(number: int, *, tick: Callable[[float], None]) -> Square:
    made.append(number)
    tick(0.5)
    if number < 0:
        raise ProtocolError("There is no run for a negative number.")
    if number == 999:
        raise MemoryError
    if number == 998:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to")
    if number > 1000:
        raise KeyError("large")
    return Square(number, number**2)


def squares(*numbers: int) -> list[Run]:
    made.clear()
    return [Run(f"square of {number}", square, {"number": number}) for number in numbers]


def sweep(runs: list[Run], journal: Path | None = None, **options: Any) -> list[int]:
    kept = None if journal is None else Journal(journal)
    found = make_runs(runs, Square, lambda _, __: None, journal=kept, **options)
    return [each.result.value for each in found]


def test_results_are_in_order_and_equal_runs_are_made_once() -> None:
    assert sweep(squares(3, 1, 3, 2)) == [9, 1, 9, 4]
    assert made == [3, 1, 2]


def test_what_a_journal_has_is_not_made_again(tmp_path: Path) -> None:
    kept = tmp_path / "deep" / "runs.jsonl"
    assert sweep(squares(1, 2), kept) == [1, 4]
    assert sweep(squares(2, 3, 1), kept) == [4, 9, 1]
    assert made == [3]
    assert len(kept.read_text().splitlines()) == 3


def test_a_line_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    sweep(squares(1, 2, 3), kept)
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-9])
    assert sweep(squares(1, 2, 3), kept) == [1, 4, 9]
    assert made == [3]
    assert sweep(squares(1, 2, 3), kept) == [1, 4, 9]
    assert made == []


def test_a_failure_names_its_run_and_what_has_ended_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "runs.jsonl"
    with pytest.raises(ProtocolError, match=r"^square of -1: There is no run for a neg"):
        sweep(squares(4, -1, 5), kept)
    assert made == [4, -1]
    with pytest.raises(ShoalError, match=r"^square of 2000: KeyError: 'large'$"):
        sweep(squares(4, 2000), kept)
    assert made == [2000]
    for number in (998, 999):
        wanted = rf"^square of {number}: This run needs more memory than the"
        with pytest.raises(ResourceError, match=wanted):
            sweep(squares(number))


def test_progress_comes_to_the_whole_and_never_goes_back() -> None:
    told: list[tuple[str, float]] = []
    runs = squares(1, 2)
    make_runs(runs, Square, lambda words, share: told.append((words, share)))
    shares = [share for _, share in told]
    assert shares == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert told[-1][0] == "2 of 2 runs, square of 2"


def test_a_key_is_of_everything_that_a_result_depends_on() -> None:
    one, other = squares(1, 2)
    assert one.key == squares(1)[0].key
    assert one.key != other.key
    assert Run("another name", square, {"number": 1}).key == one.key
    with pytest.raises(TypeError, match="an argument that is no value"):
        _ = Run("object", square, {"number": object()}).key
    assert len(code_version()) == 16


def test_files_that_cannot_serve_are_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("nothing of ours\n")
    with pytest.raises(DataError, match="holds no finished runs: name another file"):
        Journal(tmp_path / "text.txt")
    with pytest.raises(DataError, match="Cannot read the finished runs in"):
        Journal(tmp_path)
    with pytest.raises(ResourceError, match="Cannot write finished runs to"):
        sweep(squares(1), tmp_path / "text.txt" / "runs.jsonl")
    assert made == []
    with pytest.raises(UsageError, match="--jobs must be at least 1, not 0"):
        sweep(squares(1), jobs=0)


def test_intervals_are_students() -> None:
    assert spread_of([2.0]).half_width is None
    found = spread_of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.deviation == pytest.approx(2.5**0.5)
    assert found.half_width == pytest.approx(2.776 * 0.5**0.5)
    many = spread_of([float(k % 2) for k in range(1000)])
    assert many.half_width == pytest.approx(1.96 * 0.50025 / 1000**0.5, rel=1e-4)


class FakeRay(ModuleType):
    """As much of Ray as is used; one task ends at a time, the last one first."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.log: list[str] = []
        self.exceptions = SimpleNamespace(RayError=RuntimeError)
        self.loses = ""

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        self.log.append("init")

    def shutdown(self) -> None:
        self.log.append("shutdown")

    def remote(self, function: Callable[..., Any]) -> Any:
        def with_options(name: str) -> Any:
            return SimpleNamespace(remote=lambda run: (name, lambda: function(run)))

        return SimpleNamespace(options=with_options)

    def wait(self, refs: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        return refs[-num_returns:], refs[:-num_returns]

    def get(self, ref: Any) -> Any:
        if ref[0] == self.loses:
            raise RuntimeError("The node died.\nand more")
        return ref[1]()

    def cancel(self, ref: Any, force: bool) -> None:
        self.log.append(f"cancel {ref[0]}")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def test_ray_makes_the_runs_and_a_journal_keeps_them(ray: FakeRay, tmp_path: Path) -> None:
    assert sweep(squares(1, 2, 3), tmp_path / "runs.jsonl", ray=True) == [1, 4, 9]
    assert made == [3, 2, 1]
    assert ray.log == ["init", "shutdown"]
    assert sweep(squares(1, 2), tmp_path / "runs.jsonl") == [1, 4]
    assert made == []


def test_a_run_that_ray_loses_is_one_sentence(ray: FakeRay) -> None:
    ray.loses = "square of 2"
    with pytest.raises(ResourceError, match=r"^Ray lost a run \(RuntimeError: The node died\.\)"):
        sweep(squares(1, 2, 3), ray=True)
    assert ray.log == ["init", "cancel square of 1", "shutdown"]


def test_a_failure_on_ray_ends_the_rest(ray: FakeRay) -> None:
    with pytest.raises(ProtocolError, match="square of -1"):
        sweep(squares(5, -1), ray=True)
    assert ray.log == ["init", "cancel square of 5", "shutdown"]


def test_without_ray_it_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"^--ray needs Ray: pip install .*\[ray\]'\.$"):
        sweep(squares(1), ray=True)
