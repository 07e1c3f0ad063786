"""A job's metrics for Prometheus, from a snapshot: over every carrier, without a package.

Owns the names of these metrics and their text form. Names and units follow Prometheus' conventions.
A worker has at most 40 series; links have none here (`metrics` serves a transport's counts).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from shoal.watch.worker_sample import BOUNDS_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.watch.snapshot import ShownWorker, Snapshot

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of the text format."""


@dataclass(frozen=True, slots=True)
class _OfWorkers:
    """A metric of each worker that has a value for it."""

    name: str
    kind: str
    text: str
    value: Callable[[ShownWorker], float | None]


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


_OF_WORKERS: Final = (
    _OfWorkers("steps", "gauge", "Steps that a worker's model has behind it.", lambda w: w.step),
    _OfWorkers(
        "step_own_seconds",
        "gauge",
        "Mean time that a step of a worker takes for its own work, over its last ten samples.",
        lambda w: _seconds(w.own_ms),
    ),
    _OfWorkers(
        "step_wait_seconds",
        "gauge",
        "Mean time that a step of a worker waits for other workers, over its last ten samples.",
        lambda w: _seconds(w.wait_ms),
    ),
    _OfWorkers(
        "step_exchange_seconds",
        "gauge",
        "Mean time that a step of a worker is blocked while data moves, over its last ten samples.",
        lambda w: _seconds(w.exchange_ms),
    ),
    _OfWorkers(
        "step_hidden_seconds",
        "gauge",
        "Mean time of a step in which exchanges were under way while a worker was at its own work.",
        lambda w: _seconds(w.hidden_ms),
    ),
    _OfWorkers("loss", "gauge", "Last loss that a worker's script has told.", lambda w: w.loss),
    _OfWorkers(
        "effective_loss_ratio",
        "gauge",
        "Share of others' contributions that the sums of a worker were made without.",
        lambda w: w.effective_loss,
    ),
    _OfWorkers(
        "sample_age_seconds",
        "gauge",
        "Time since a worker has told of its training.",
        lambda w: w.age_s,
    ),
    _OfWorkers(
        "samples_dropped_total",
        "counter",
        "Samples of a worker that found no room on their way.",
        lambda w: w.dropped if w.step is not None else None,
    ),
    _OfWorkers(
        "worker_up",
        "gauge",
        "Whether a worker that has not finished is alive, as far as the control plane knows.",
        lambda w: None if w.state == "finished" else float(w.state == "alive"),
    ),
)


def exposition(shown: Snapshot) -> str:
    """Return a snapshot in the text format of Prometheus."""
    lines: list[str] = []

    def family(name: str, kind: str, text: str, rows: Iterable[tuple[str, str, float]]) -> None:
        lines.append(f"# HELP shoal_{name} {text}")
        lines.append(f"# TYPE shoal_{name} {kind}")
        lines.extend(f"shoal_{name}{end}{labels} {value:.10g}" for end, labels, value in rows)

    about = {"version": shown.version, "strategy": shown.strategy, "transport": shown.transport}
    family("info", "gauge", "What trains: always 1.", [("", _labels(about), 1)])
    family("members", "gauge", "Workers that take part in the job.", [("", "", len(shown.members))])
    family("view_epoch", "gauge", "Changes of the members so far.", [("", "", shown.epoch)])
    text = "Steps by which the first worker is ahead of the last: how stale a model may be."
    spreads = [] if shown.spread is None else [("", "", float(shown.spread))]
    family("staleness_steps", "gauge", text, spreads)
    text = "Root mean square distance of the workers' models from their mean, told from sketches."
    apart = [("", "", each.distance) for each in shown.distances[-1:]]
    family("consensus_distance", "gauge", text, apart)
    for metric in _OF_WORKERS:
        rows = [
            ("", _labels({"rank": str(each.rank)}), float(value))
            for each in shown.workers
            if (value := metric.value(each)) is not None
        ]
        family(metric.name, metric.kind, metric.text, rows)
    text = "Own time of a worker's steps over the median of all workers': above 1.15 it is slow."
    family("slow_ratio", "gauge", text, _slow_ratios(shown))
    text = "What holds the job up, by the verdict on its page: what it costs a step of the others."
    costs = [
        ("", _labels({"kind": v.kind, "rank": "" if v.rank is None else str(v.rank)}), v.cost_ms)
        for v in shown.verdicts
        if v.kind != "nothing"
    ]
    family("held_up_seconds", "gauge", text, [(e, x, (ms or 0.0) / 1000) for e, x, ms in costs])
    family("step_seconds", "histogram", "Length of a worker's steps.", _histogram(shown))
    return "\n".join(lines) + "\n"


def _slow_ratios(shown: Snapshot) -> list[tuple[str, str, float]]:
    own_ms = {each.rank: each.own_ms for each in shown.workers if each.own_ms is not None}
    usual_ms = statistics.median(own_ms.values()) if own_ms else 0.0
    return [
        ("", _labels({"rank": str(rank)}), each / usual_ms)
        for rank, each in own_ms.items()
        if usual_ms
    ]


def _histogram(shown: Snapshot) -> list[tuple[str, str, float]]:
    rows: list[tuple[str, str, float]] = []
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    for each in shown.workers:
        rank = str(each.rank)
        if not each.counts:
            continue
        for bound, count in zip(bounds, accumulate(each.counts), strict=True):
            rows.append(("_bucket", _labels({"rank": rank, "le": bound}), count))
        rows.append(("_sum", _labels({"rank": rank}), each.total_s))
        rows.append(("_count", _labels({"rank": rank}), sum(each.counts)))
    return rows


def _labels(labels: dict[str, str]) -> str:
    escaped = {
        name: text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        for name, text in labels.items()
    }
    return "{" + ",".join(f'{name}="{text}"' for name, text in escaped.items()) + "}"
