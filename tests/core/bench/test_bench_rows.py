"""Rows, targets, files, estimates and tables of the benchmark: figures against arithmetic."""

from __future__ import annotations

import io
import json
import statistics
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

pytest.importorskip("torch")

from shoal.cli.parts_progress import Estimate, duration
from shoal.errors import DataError, ResourceError, UsageError
from shoal.jobs.environment import describe_environment
from shoal_bench import control_service, group_average
from shoal_bench.accuracy import POINTS, row_of
from shoal_bench.bench_file import BenchFile, read_bench_file, write_bench_file
from shoal_bench.pairs import slowest
from shoal_bench.peers import library as library_module
from shoal_bench.peers.all_libraries import LIBRARIES, installed
from shoal_bench.row_table import print_rows
from shoal_bench.rows import Row, at_least, at_most, comparison, figure, of_section
from shoal_bench.stand import Stand
from shoal_bench.suite import SYNC_SECTIONS, TRANSPORT_SECTIONS, choose_sections

PAIRS = [(3.0, 2.0), (8.0, 4.0), (5.0, 5.0)]


def row(bench: str = "one", **changes: object) -> Row:
    fields = {"case": "a case", "metric": "time", "unit": "ms", "value": 1.5, **changes}
    return Row(bench=bench, **fields)  # type: ignore[arg-type]


def test_a_comparison_takes_its_ratio_pair_by_pair() -> None:
    made = comparison("c", "m", "ms", PAIRS, peer="peer")
    assert made.value == 5.0
    assert made.peer_value == 4.0
    assert made.ratio == 1.5  # of 1.5, 2 and 1; not 5 / 4
    assert made.spread == [1.0, 2.0]
    assert made.target is None
    assert made.met is None
    inverse = comparison("c", "m", "ms", PAIRS, peer="peer", inverse=True)
    assert inverse.ratio == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("target", "met"),
    [(at_most(1.5), True), (at_most(1.4), False), (at_least(1.5), True), (at_least(1.6), False)],
)
def test_a_target_bounds_the_ratio_of_a_comparison(target: object, met: bool) -> None:
    made = comparison("c", "m", "ms", PAIRS, peer="peer", target=target)  # type: ignore[arg-type]
    assert made.met is met


def test_a_target_bounds_the_value_of_a_figure() -> None:
    made = figure("c", "m", "ms", [4.0, 1.0, 2.0], at_most(2.0))
    assert (made.value, made.met, made.spread, made.peer) == (2.0, True, [1.0, 4.0], None)
    assert figure("c", "m", "ms", [4.0], at_most(2.0)).met is False


def test_each_part_of_a_section_is_told_as_it_begins() -> None:
    told: list[tuple[str, float]] = []
    with Stand(quick=True, on_progress=lambda text, share: told.append((text, share))) as stand:
        parts = stand.each({"first": 1, "second": 2})
        assert next(parts) == ("first", 1)
        assert told == [("first", 0.0)]
        assert list(parts) == [("second", 2)]
    assert told == [("first", 0.0), ("second", 0.5)]


def test_rows_are_of_the_section_that_was_run() -> None:
    made = of_section("one", [figure("c", "m", "ms", [4.0])], quick=True)
    assert [(each.bench, each.quick, each.value) for each in made] == [("one", True, 4.0)]


def test_an_accuracy_may_be_a_point_below_all_reduce_and_no_more() -> None:
    reference = [88.0, 90.0, 89.0]
    close = row_of("ripples", "case", [87.0, 89.0, 88.0], reference)
    assert close.value == close.target == 88.0
    assert close.met is True
    assert close.deviation == statistics.stdev([87.0, 89.0, 88.0]) == 1.0
    assert row_of("ripples", "case", [86.9, 89.0, 88.0], reference).met is False
    assert row_of("ripples", "case", [99.0], reference).met is True
    own = row_of("all-reduce", "case", reference, reference)
    assert (own.target, own.met, own.peer) == (None, None, None)
    assert POINTS == 1.0


def test_the_slowest_worker_counts_in_every_repeat() -> None:
    by_rank = [[(1.0, 9.0), (4.0, 2.0)], [(3.0, 8.0), (2.0, 5.0)]]
    assert slowest(by_rank) == [(3.0, 9.0), (4.0, 5.0)]


def test_the_file_is_an_object_with_environment_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    file = BenchFile(environment=describe_environment(), rows=[row()])
    write_bench_file(path, file)
    assert read_bench_file(path) == file
    written = json.loads(path.read_text())
    assert {"environment", "rows"} <= set(written)
    assert list(written["rows"][0])[:10] == [
        *("bench", "case", "metric", "unit", "value"),
        *("peer", "peer_value", "ratio", "target", "met"),
    ]
    assert written["rows"][0]["ratio"] is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["bench.json"]


def test_a_section_measured_again_replaces_its_rows_and_no_others() -> None:
    environment = describe_environment()
    file = BenchFile(environment=environment)
    file = file.merged(environment, "one", [row("one", value=1.0), row("one", value=2.0)], ["gone"])
    file = file.merged(environment, "two", [row("two", value=3.0)], ["absent"])
    file = file.merged(environment, "one", [row("one", value=4.0)], [])
    assert [(r.bench, r.value) for r in file.rows] == [("two", 3.0), ("one", 4.0)]
    assert file.skipped == ["two: absent"]
    assert file.sections() == {"one", "two"}


@pytest.mark.parametrize("text", ["", "[1, 2", '{"rows": 3}', '{"schema_version": 1, "runs": []}'])
def test_another_file_is_refused_with_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(DataError, match="is not a file of `shoal bench`"):
        read_bench_file(path)


def test_a_file_that_cannot_be_had_or_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Cannot read"):
        read_bench_file(tmp_path / "absent.json")
    with pytest.raises(ResourceError, match="Cannot write"):
        write_bench_file(tmp_path / "no" / "f.json", BenchFile(environment=describe_environment()))


def test_sections_have_names_of_their_own_and_run_in_one_order() -> None:
    names = [section.name for section in SYNC_SECTIONS]
    assert len(set(names)) == len(names)
    assert choose_sections(SYNC_SECTIONS, []) == list(SYNC_SECTIONS)
    assert choose_sections(SYNC_SECTIONS, [names[3], names[1]]) == [
        SYNC_SECTIONS[1],
        SYNC_SECTIONS[3],
    ]
    assert all(0 < s.quick_s <= s.full_s for s in (*SYNC_SECTIONS, *TRANSPORT_SECTIONS))
    with pytest.raises(UsageError, match="Did you mean 'accuracy'"):
        choose_sections(SYNC_SECTIONS, ["accurcy"])


@given(st.lists(st.floats(1, 1000), min_size=1, max_size=8), st.data())
def test_the_estimate_of_a_suite_comes_to_the_pace_that_it_has(
    seconds: list[float], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(seconds) - 1))
    share = data.draw(st.floats(0, 1))
    pace = data.draw(st.floats(0.5, 4))
    estimate = Estimate(seconds)
    done_s = sum(seconds[:index]) + share * seconds[index]
    left_s = estimate.left_s(index, share, elapsed_s=pace * done_s)
    rest_s, share_done = sum(seconds) - done_s, estimate.share(index, share)
    assert 0 <= share_done <= 1 + 1e-9
    expected, real = rest_s, pace * rest_s
    if share_done < 0.01:
        assert left_s == pytest.approx(expected, rel=0.2, abs=1e-6)
    assert abs(left_s - real) <= abs(expected - real) / (1 + 4 * share_done) + 1e-6


def test_a_slow_beginning_does_not_make_the_rest_endless() -> None:
    assert Estimate([60]).left_s(0, 0.05, elapsed_s=60) < 4 * 60


def test_a_duration_has_about_two_digits() -> None:
    assert [duration(s) for s in (0, 89, 100, 3600, 6000)] == [
        *("0 s", "89 s", "2 min", "60 min", "1 h 40 min")
    ]


def test_a_table_outside_a_terminal_is_markdown_and_folds_nothing() -> None:
    rows = [
        row(peer="a peer", peer_value=3.0, ratio=0.5, spread=[0.4, 0.6], target=1.2, met=True),
        row(case="another " * 12, value=12345.6, target=2.0, met=False, quick=True),
        row("two", unit="%", value=88.123, deviation=0.25),
    ]
    text = io.StringIO()
    print_rows(rows, Console(file=text, width=400))
    lines = [line for line in text.getvalue().splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 2 + 2 + 1  # two tables with headings
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[2][2:] == ["1.5 ms", "a peer: 3", "0.50 (0.40 to 0.60)", "1.2", "yes"]
    assert cells[3][2:] == ["12,346 ms", "", "", "2", "no"]
    assert cells[6][2] == "88.1 % +-0.25"


@pytest.mark.parametrize(("world_size", "size"), [(10, 2), (10, 3), (10, 4), (10, 8), (5, 4)])
def test_no_measured_group_comes_twice(world_size: int, size: int) -> None:
    count = 5 if world_size == 5 else 40
    fresh = group_average.fresh_groups(world_size, size, count)
    assert len(set(fresh)) == count
    assert all(len(set(group)) == size for group in fresh)


def test_latency_counts_from_the_last_request_of_a_group() -> None:
    answers = [(1, 10, 100), (1, 60, 110), (2, 500, 530), (3, 5, 8)]
    latencies = control_service.latencies_ns(answers, since_ns=50)
    assert sorted(latencies) == [30, 40, 50]  # 100 - 60, 110 - 60, 530 - 500; group 3 was early


def test_a_library_that_is_not_installed_is_skipped_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def version(package: str) -> str:
        if package == "torch":
            return "2.13.0+cpu"
        raise PackageNotFoundError(package)

    monkeypatch.setattr(library_module, "version", version)
    with Stand(quick=True) as stand:
        there = list(installed(stand))
    assert {each.package for each in there} == {"torch"}
    assert there[0].name == "PyTorch DDP 2.13.0"
    assert len(stand.skipped) == len(LIBRARIES) - len(there)
    assert all("is not installed" in text and "\n" not in text for text in stand.skipped)
