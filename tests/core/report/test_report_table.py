"""The table marks the best of each column, writes what is missing, and fits a terminal."""

from __future__ import annotations

import io

import msgspec
import pytest
from report_samples import ENVIRONMENT, make_results, make_run
from rich.console import Console

from shoal.jobs.result import ResultFile, RunResult
from shoal.report.comparison_table import Block, make_block
from shoal.report.markup_table import html_table, markdown_table
from shoal.report.reported_scenario import group_scenarios
from shoal.report.terminal_table import TERMINAL_WIDTH, print_table
from shoal.report.wording import Metric, number, padding_sentence

BASE = make_run("all-reduce", duration_ms=300)
SAMPLES = make_results(duration_ms=800)


def changed(**fields: object) -> RunResult:
    return msgspec.structs.replace(BASE, **fields)


def block_of(*runs: RunResult) -> Block:
    return make_block(group_scenarios(ResultFile(environment=ENVIRONMENT, runs=list(runs)))[0])


def column(block: Block, *heading: str) -> list[tuple[str, bool]]:
    place = [h[: len(heading)] for h in block.headings].index(heading)
    return [(row.cells[place].text, row.cells[place].is_best) for row in block.rows]


def printed(width: int, runs: ResultFile = SAMPLES) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_table(runs, console)
    return console.file.getvalue().splitlines()


def test_lower_times_and_higher_accuracy_are_best():
    block = block_of(
        changed(strategy="a", iteration_ms_median=25.0, final_averaged=0.91),
        changed(strategy="b", iteration_ms_median=21.0, final_averaged=0.97),
    )

    assert column(block, "Iteration", "median") == [("25.0", False), ("21.0", True)]
    assert column(block, "Accuracy", "averaged") == [("91.0", False), ("97.0", True)]


def test_lower_loss_is_best():
    block = block_of(
        changed(strategy="a", metric="loss", final_averaged=0.5),
        changed(strategy="b", metric="loss", final_averaged=0.7),
    )

    assert column(block, "Loss", "averaged") == [("0.500", True), ("0.700", False)]


def test_what_reads_the_same_is_marked_the_same():
    block = block_of(
        changed(strategy="a", wait_share=0.1001),
        changed(strategy="b", wait_share=0.1002),
        changed(strategy="c", wait_share=0.3),
    )

    assert column(block, "Waiting") == [("10.0", True), ("10.0", True), ("30.0", False)]


def test_nothing_is_best_where_all_are_equal_or_alone():
    assert not any(cell.is_best for cell in block_of(BASE).rows[0].cells)
    block = block_of(changed(strategy="a"), changed(strategy="b"))
    assert not any(cell.is_best for row in block.rows for cell in row.cells)


def test_a_target_not_reached_is_told_from_no_target():
    missed = block_of(
        changed(time_to_target_seconds=None), changed(strategy="b", time_to_target_seconds=3.0)
    )
    aimless = block_of(changed(target=None, time_to_target_seconds=None))

    assert column(missed, "Time to") == [("not reached", False), ("3.00", True)]
    assert column(aimless, "Time to") == [("–", False)]


def test_steps_to_the_target_are_those_of_the_point_that_met_it():
    point = BASE.curve[7]
    by_the_end = BASE.duration_seconds + 1
    block = block_of(
        changed(time_to_target_seconds=point.seconds),
        changed(strategy="b", time_to_target_seconds=by_the_end),
        changed(strategy="c", time_to_target_seconds=None),
    )
    whole = sum(worker.steps for worker in BASE.worker_results) / BASE.workers

    found = [text for text, _ in column(block, "Steps to")]
    assert found == [f"{point.mean_step:,.0f}", f"{whole:,.0f}", "–"]


def test_staleness_is_shown_where_some_run_counted_it():
    counted = changed(strategy="b", counters={"max.staleness": 12.0})

    assert column(block_of(changed(), counted), "Staleness") == [("–", False), ("12.0", False)]
    less = changed(strategy="c", counters={"max.staleness": 3.0})
    marked = column(block_of(changed(), counted, less), "Staleness")
    assert marked == [("–", False), ("12.0", False), ("3.00", True)]
    assert not any(heading[0] == "Staleness" for heading in block_of(changed()).headings)


def test_null_is_a_dash():
    block = block_of(changed(final_averaged=None), changed(strategy="b", final_averaged=0.9))

    assert column(block, "Accuracy", "averaged") == [("–", False), ("90.0", True)]


def test_a_run_that_stopped_early_has_a_note():
    block = block_of(changed(stopped_early="worker 3 was lost"))

    assert block.rows[0].label == "all-reduce†"
    assert block.notes == ("† all-reduce stopped early: worker 3 was lost",)


def test_the_terminal_table_fits_without_leaving_anything_out():
    lines = printed(TERMINAL_WIDTH)

    assert max(map(len, lines)) <= TERMINAL_WIDTH
    text = "\n".join(lines)
    for word in ("p99", "rank 0", "not reached", "Worker 5 is 5× slower", "ripples-static"):
        assert word in text
    assert "Too narrow" not in text


def test_the_best_is_starred_so_that_no_color_is_needed():
    row = next(line for line in printed(TERMINAL_WIDTH) if line.startswith("all-reduce"))

    assert "0*" in row
    assert "\x1b" not in row


def test_a_narrow_terminal_says_what_it_leaves_out():
    lines = printed(80)

    assert max(map(len, lines)) <= 80
    assert any("Too narrow for p99" in line for line in lines)
    assert sum(line.startswith("ripples-static ") for line in lines) == 2


def test_markup_in_names_is_text():
    odd = changed(strategy="[bold]a|b<i>")
    file = ResultFile(environment=ENVIRONMENT, runs=[odd])

    assert any("[bold]a|b<i>" in line for line in printed(TERMINAL_WIDTH, file))
    assert "[bold]a\\|b<i>" in markdown_table(file)
    table = html_table(group_scenarios(file)[0], lambda label: "")
    assert "a|b&lt;i&gt;" in table
    assert "<i>" not in table


def test_markdown_has_a_row_per_run_and_the_conditions():
    text = markdown_table(SAMPLES)

    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables) == len(SAMPLES.runs) + 2 * 2
    assert {line.count("|") for line in tables} == {10}
    assert text.count("padded to 20 ms by sleeping, so that 8 workers on 2 cores stand for 8") == 1
    assert "Python 3.11.9" in text


def test_steps_that_were_not_padded_are_not_said_to_be():
    sentence = padding_sentence(changed(compute_ms=None), ENVIRONMENT)

    assert "not padded" in sentence
    assert "stand for" not in sentence


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (25.84, "25.8"),
        (1234.5, "1,234"),
        (0.01234, "0.0123"),
        (3.14e-7, "3.14e-07"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
    ],
)
def test_numbers_have_three_digits_and_a_full_whole_part(value: float, text: str):
    assert number(value) == text


def test_metrics_are_written_in_their_units():
    assert Metric("accuracy").text(0.9) == "90 %"
    assert Metric("AUC").goal(0.75) == "AUC 0.75"
    assert Metric("loss").bare(0.12345) == "0.123"
