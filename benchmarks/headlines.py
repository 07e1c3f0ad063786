"""The README's figures: what a reader asks first, taken from the result files of three suites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.bench.cluster.verdict import RATIO
from shoal.bench.table import number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.bench.bench_file import BenchFile
    from shoal.bench.rows import Row

_GLOO: Final = ", gloo"
"""How the case of a row ends that is gloo's, on a network where nothing is taken side by side."""
_SECTIONS: Final = ("shaped-clean", "shaped-loss", "incast")
_OVER_IDEAL: Final = "time / ideal, "
_EXACT: Final = (", direct, p = 0%", ", direct", "")
"""How our rows of the same case end, sums and pushes, of which nothing may get lost."""
_BOUNDED: Final = ", direct, p = 5%"


def cluster_table(rows: Sequence[Row]) -> list[str]:
    """Return the Markdown of the time to the target in each scenario of the cluster suite."""
    return [
        "| scenario | best peer | s | Shoal's best | s | times as fast | target |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: |",
        *(_scenario(row) for row in rows if row.metric == RATIO),
    ]


def _scenario(row: Row) -> str:
    scenario, _, mode = row.case.partition(": ")
    verdict = "" if row.met else " (missed)"
    return (
        f"| {scenario} | {row.peer} | {_figure(row.peer_value)} | {mode} | {number(row.value)} |"
        f" {_figure(row.ratio)}{verdict} | {_figure(row.target)} |"
    )


def transport_table(rows: Sequence[Row]) -> list[str]:
    """Return the Markdown of what a sum or push takes over the ideal time, beside gloo's."""
    values = {(row.bench, row.case, _statistic(row)): row.value for row in rows}
    lines = [
        "| network | time / ideal | gloo | Shoal, exact | Shoal, 5 % may get lost |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for section in _SECTIONS:
        for row in rows:
            case, statistic = row.case.removesuffix(_GLOO), _statistic(row)
            if row.bench != section or case == row.case:
                continue
            ours = [
                next((values[key] for key in keys if key in values), None)
                for keys in (
                    [(section, f"{case}{way}", statistic) for way in _EXACT],
                    [(section, f"{case}{_BOUNDED}", statistic)],
                )
            ]
            shown = " | ".join(map(_figure, [row.value, *ours]))
            lines.append(f"| {case} | {statistic} | {shown} |")
    return lines


def _statistic(row: Row) -> str:
    """Return what of the rounds' times over the ideal a row holds; empty if it holds others."""
    if not row.metric.startswith(_OVER_IDEAL):
        return ""
    return row.metric.removeprefix(_OVER_IDEAL).partition(" of ")[0]


def loopback_table(files: Sequence[BenchFile]) -> list[str]:
    """Return how gloo's time compares with ours where nothing but processors is short, by these."""
    ratios = [
        {
            row.case.partition(", ring")[0]: _figure(row.ratio)
            for row in file.rows
            if row.bench == "loopback" and row.target is not None and row.metric.startswith("time")
        }
        for file in files
    ]
    processors = " | ".join(file.environment.processor for file in files)
    return [
        f"| clean loopback: gloo's time / ours | {processors} |",
        f"| --- |{' ---: |' * len(files)}",
        *(f"| {case} | {' | '.join(each[case] for each in ratios)} |" for case in ratios[0]),
    ]


def targets_sentence(rows: Sequence[Row], link: str) -> str:
    """Return how many targets of `shoal bench sync` are met, and where they stand."""
    judged = [row for row in rows if row.met is not None]
    met = sum(bool(row.met) for row in judged)
    return (
        f"`shoal bench sync` measures the synchronization itself over loopback, beside DDP and"
        f" other libraries: {met} of {len(judged)} targets are met ([all of them]({link}))."
    )


def _figure(value: float | None) -> str:
    return "" if value is None else number(value)
