"""Two small HTML tables on one run's workers: who waited for whom, and where their time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.jobs import who_waited_for_whom
from shoal.report.figures.timeline import worker_name
from shoal.report.wording import number
from shoal.units import ns_to_ms, ns_to_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.jobs import RunResult


def waiting_matrix(run: RunResult) -> str:
    """Return the seconds that each worker (row) waited for each other (column) in the trace.

    The last column is time spent waiting for nobody in particular, such as for a group to be
    formed; it is left out when there is none.
    """
    waiting = who_waited_for_whom(run.timeline, run.workers)
    rows = [
        [*of_worker, nobody]
        for of_worker, nobody in zip(waiting.for_worker_ns, waiting.unattributed_ns, strict=True)
    ]
    headings = [*(str(rank) for rank in range(run.workers)), "no one"]
    if not any(waiting.unattributed_ns):
        rows, headings = [row[:-1] for row in rows], headings[:-1]
    most_ns = max((ns for row in rows for ns in row), default=0)
    body = "".join(
        f'<tr><th scope="row">{rank}</th>{_cells(row, rank, most_ns)}</tr>'
        for rank, row in enumerate(rows)
    )
    columns = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    return (
        '<div class="scroll"><table class="matrix"><thead><tr>'
        f'<td class="corner">waited for&nbsp;→</td>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def worker_table(run: RunResult) -> str:
    """Return what every worker did in the whole of `run`: steps, and seconds by kind."""
    stale = {
        worker.rank: mean
        for worker in run.worker_results
        if (mean := run.counters.get(f"staleness.{worker.rank}")) is not None
    }
    headings = ["steps", "compute (s)", "wait (s)", "exchange (s)"]
    headings += ["mean staleness (steps)"] if stale else []
    rows = ""
    for worker in sorted(run.worker_results, key=lambda worker: worker.rank):
        seconds = (worker.compute_seconds, worker.wait_seconds, worker.exchange_seconds)
        texts = [f"{worker.steps:,}", *map(number, seconds)]
        texts += [number(stale.get(worker.rank, 0.0))] if stale else []
        cells = "".join(
            f'<td data-heading="{heading}">{text}</td>'
            for heading, text in zip(headings, texts, strict=True)
        )
        rows += f'<tr><th scope="row">{worker_name(run, worker.rank)}</th>{cells}</tr>'
    columns = "".join(f'<th scope="col">{heading}</th>' for heading in headings)
    return (
        '<div class="scroll"><table class="workers stacked"><thead><tr><th scope="col">Worker</th>'
        f"{columns}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _cells(row: Sequence[int], rank: int, most_ns: int) -> str:
    """Return one row of the matrix, shaded by its share of the largest value."""
    return "".join(
        '<td class="self"></td>' if column == rank else _cell(ns, most_ns)
        for column, ns in enumerate(row)
    )


def _cell(waited_ns: int, most_ns: int) -> str:
    seconds = ns_to_seconds(waited_ns)
    text = f"{seconds:.2f}" if seconds >= 0.005 else ""
    share = waited_ns / most_ns if most_ns else 0.0
    dark = ' class="full"' if share > 0.4 else ""
    exact = f"{number(ns_to_ms(waited_ns))} ms"
    return f'<td{dark} style="--share:{share:.2f}" title="{exact}">{text}</td>'
