"""Records of steps in elastic jobs, and what `shoal bench elastic` makes of them: arithmetic."""

from __future__ import annotations

import struct
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from shoal.errors import UsageError
from shoal_bench.elastic import accuracy, deaths, goodput, joining
from shoal_bench.elastic.contenders import CONTENDERS, installed
from shoal_bench.elastic.hivemind import Hivemind
from shoal_bench.elastic.ours import Shoal
from shoal_bench.elastic.record import (
    Line,
    Record,
    RecordWriter,
    first_average,
    first_without,
    longest_pause_s,
    second_step,
)
from shoal_bench.elastic.suite import sections
from shoal_bench.elastic.torchft import TUNED, TorchFT
from shoal_bench.stand import Stand

if TYPE_CHECKING:
    from pathlib import Path

S = 1_000_000_000


def record_of(*lines: Line) -> Record:
    from pathlib import Path

    record = Record(Path("there is none"))
    record.lines = list(lines)
    return record


def steady(steps: int, *, members: int = 8, interval: int = 1, begin_s: float = 0.0) -> Record:
    """Return the record of a worker that makes a step a second, averaged every `interval`."""
    return record_of(
        *(
            Line(round((begin_s + number) * S), number, number // interval * interval, members)
            for number in range(1, steps + 1)
        )
    )


# ---- records ------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1 << 40), max_size=8), st.integers(0, 31), st.randoms())
def test_a_record_is_read_as_it_was_written_up_to_its_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], torn: int, chance: Random
) -> None:
    path = tmp_path_factory.mktemp("records") / "record"
    record, writer = Record(path), RecordWriter(path)
    written = []
    for number, at_ns in enumerate(times):
        written.append(Line(at_ns, number, number // 2, 8))
        writer.write(written[-1])
        if chance.random() < 0.5:
            assert record.refresh().lines == written
    with path.open("ab") as file:  # a worker that was killed while it wrote
        file.write(bytes(torn))
    assert record.refresh().lines == written


def test_a_record_that_nobody_has_begun_is_empty(tmp_path: Path) -> None:
    record = Record(tmp_path / "record").refresh()
    assert record.lines == []
    assert record.at(5) == Line(5, 0, 0, 0)
    assert first_without(record, 0, 8) is None
    assert longest_pause_s(record, 0) == 0


def test_a_line_has_a_length_that_a_pipe_writes_in_one_piece() -> None:
    assert struct.calcsize("<qqqq") <= 512


LINES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 1), st.integers(0, 1), st.integers(6, 8)),
    max_size=20,
)


def grown(deltas: list[tuple[int, int, int, int]]) -> list[Line]:
    lines, at_ns, done, kept = [], 0, 0, 0
    for later, more, keeps, members in deltas:
        at_ns, done = at_ns + later, done + more
        kept = done if keeps else kept
        lines.append(Line(at_ns, done, kept, members))
    return lines


@given(LINES, st.integers(0, 500))
def test_what_is_read_off_a_record_is_what_a_slow_look_finds(
    deltas: list[tuple[int, int, int, int]], since: int
) -> None:
    lines = grown(deltas)
    record = record_of(*lines)
    completed = [
        line
        for number, line in enumerate(lines)
        if line.done > (lines[number - 1].done if number else 0)
    ]
    after = [line for line in completed if line.at_ns > since]
    without = [line.at_ns for line in after if line.members < 8]
    assert first_without(record, since, 8) == (without[0] if without else None)
    assert second_step(record, since) == (after[1].at_ns if len(after) > 1 else None)
    kept = max((line.kept for line in lines if line.at_ns <= since), default=0)
    averages = [line.at_ns for line in lines if line.at_ns > since and line.kept > kept]
    assert first_average(record, since) == (averages[0] if averages else None)
    pauses = [b.at_ns - a.at_ns for a, b in pairwise(completed) if b.at_ns > since]
    assert longest_pause_s(record, since) == max(pauses, default=0) / 1e9


def test_a_step_that_did_not_count_is_none() -> None:
    """torchft calls the step over that it does not commit; a death costs it that one."""
    record = record_of(Line(S, 1, 1, 8), Line(2 * S, 1, 1, 7), Line(4 * S, 2, 2, 7))
    assert first_without(record, S, 8) == 4 * S
    assert longest_pause_s(record, S) == 3.0


# ---- deaths -------------------------------------------------------------------------------------


def test_rows_have_the_median_the_worst_and_every_value() -> None:
    found = deaths.Found(killed=[0.1, 3.0, 0.2], frozen=[4.0], service=[0.5])
    rows = deaths.rows_of(Shoal("ripples"), found)
    killed, worst = rows[0], rows[1]
    assert (killed.value, killed.target, killed.met) == (0.2, deaths.MEDIAN_S, True)
    assert killed.values == [0.1, 3.0, 0.2]
    assert (worst.value, worst.target, worst.met) == (3.0, deaths.WORST_S, False)
    assert [row.value for row in rows if row.metric.startswith("SIGSTOP")] == [4.0, 4.0]
    assert [row.target for row in rows if row.metric.startswith("SIGSTOP")] == [None, 5.0]
    assert not any("started again" in row.metric for row in rows), "nothing was measured of it"


@pytest.mark.parametrize("contender", [Hivemind(), TorchFT(TUNED)])
def test_others_are_held_against_no_target_of_ours(
    contender: Hivemind | TorchFT, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal_bench.elastic.contender.version", lambda _: "1.2+cpu")
    found = deaths.Found(killed=[0.1], frozen=[4.0], service=[deaths.GIVEN_UP_S])
    rows = deaths.rows_of(contender, found)
    assert all(row.target is None and row.met is None for row in rows)
    assert all(row.case.endswith(" 1.2") for row in rows)
    (given_up,) = [row for row in rows if "given up" in row.metric]
    assert given_up.value == 1
    assert contender.service in given_up.metric


# ---- goodput ------------------------------------------------------------------------------------


def test_all_steps_count_where_nobody_dies() -> None:
    records = {f"{rank}-1": steady(100) for rank in range(4)}
    lives = [goodput.Life(name, 0, 100 * S, is_dead=False) for name in records]
    assert goodput.undisturbed_rate(records, 4, 10 * S, 40 * S) == 1.0
    assert goodput.counted_and_lived(records, lives, 40 * S, 100 * S) == (240, 240.0)


@given(st.integers(41, 99), st.integers(0, 20), st.integers(0, 5), st.sampled_from([1, 8]))
def test_goodput_counts_what_is_kept_over_the_time_that_workers_live(
    dies_s: int, away_s: int, late_s: int, interval: int
) -> None:
    """One of two workers dies, is away, and makes its first step late after it has begun again."""
    back_s = dies_s + away_s
    records = {
        "0-1": steady(100),
        "1-1": steady(dies_s, interval=interval),
        "1-2": steady(max(0, 100 - back_s - late_s), begin_s=back_s + late_s),
    }
    lives = [
        goodput.Life("0-1", 0, 100 * S, is_dead=False),
        goodput.Life("1-1", 0, dies_s * S, is_dead=True),
        goodput.Life("1-2", back_s * S, 100 * S, is_dead=False),
    ]
    kept = dies_s // interval * interval
    again = max(0, 100 - back_s - late_s)
    lived_s = 60 + dies_s - 40 + max(0, 100 - back_s)
    found = goodput.counted_and_lived(records, lives, 40 * S, 100 * S)
    assert found == (60 + kept - 40 + again, pytest.approx(lived_s))


@pytest.mark.parametrize(
    ("period_s", "total_s", "count"), [(30, 600, 20), (30, 45, 1), (30, 46, 2), (12, 24, 2)]
)
def test_a_plan_has_a_death_in_the_middle_of_each_period(
    period_s: float, total_s: float, count: int
) -> None:
    plan = goodput.Plan(period_s, total_s)
    assert plan.deaths == count
    assert plan.period_s * (plan.deaths - 0.5) < total_s <= plan.period_s * (plan.deaths + 0.5)


@pytest.mark.parametrize(("period_s", "total_s"), [(5.0, 600.0), (30.0, 20.0), (-1.0, 10.0)])
def test_a_plan_in_which_nobody_dies_or_comes_back_is_refused(
    period_s: float, total_s: float
) -> None:
    with pytest.raises(UsageError, match="choose a period longer"):
        sections(period_s, total_s)


# ---- joining ------------------------------------------------------------------------------------


def test_lost_steps_are_those_that_waiting_took_the_time_of() -> None:
    times = [number * S for number in range(10)] + [12 * S, 13 * S, 14 * S]
    assert joining.lost_steps(times, 9 * S, 13 * S) == 2.0
    assert joining.lost_steps([number * S for number in range(14)], 9 * S, 13 * S) == 0.0


@given(st.integers(50, 400), st.floats(0.05, 1.0))
def test_the_share_of_a_port_is_that_of_the_middle_of_the_state(looks: int, share: float) -> None:
    """Other packets come before and after; the state itself at a steady rate."""
    size, rate = 1_000_000, 1e6 * share
    took_ns = round(size / rate * S)
    arrivals = [(number * S // 100, number * 10) for number in range(100)]
    arrivals += [
        (S + took_ns * look // looks, 1000 + size * look // looks) for look in range(looks + 1)
    ]
    arrivals += [(2 * S + took_ns + number * S, 1000 + size) for number in range(3)]
    assert joining.share_of_port(arrivals, size, 1e6) == pytest.approx(share, rel=0.01)


# ---- accuracy -----------------------------------------------------------------------------------


def test_an_accuracy_is_held_against_the_noise_of_the_undisturbed_or_a_point() -> None:
    near = accuracy.row_of("c", 20, [89.2, 89.4, 89.0], [90.0, 90.1, 89.9])
    assert near.met
    assert near.target == pytest.approx(89.0)
    noisy = accuracy.row_of("c", 20, [85.0, 86.0, 87.0], [84.0, 90.0, 96.0])
    assert noisy.met
    assert noisy.target == pytest.approx(84.0)
    assert not accuracy.row_of("c", 20, [88.9], [90.0]).met
    assert near.values == [89.2, 89.4, 89.0]
    assert near.peer_value == pytest.approx(90.0)


# ---- who is measured ----------------------------------------------------------------------------


def test_what_is_not_installed_is_skipped_with_a_line_for_each_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for kind in (TorchFT, Hivemind):
        monkeypatch.setattr(kind, "is_installed", lambda _self: False)
    stand = Stand(quick=True)
    assert [each.title for each in installed(stand)] == [
        each.title for each in CONTENDERS if each.is_ours
    ]
    assert [text.partition(" is not")[0] for text in stand.skipped] == ["hivemind", "torchft"]


def test_titles_tell_all_contenders_apart() -> None:
    titles = [each.title for each in CONTENDERS]
    assert len(set(titles)) == len(titles)
