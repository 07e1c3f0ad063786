"""What a reader asks first, taken from the result files of three suites."""

from __future__ import annotations

import math
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Final

from shoal_bench.cluster.contenders import NAMED
from shoal_bench.cluster.outcome_rows import RATIO, TIME
from shoal_bench.loopback import DATAGRAMS, MEMORY
from shoal_bench.row_table import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shoal_bench.bench_file import BenchFile
    from shoal_bench.rows import Row

_GLOO: Final = ", gloo"
"""How the case of a row ends that is gloo's, on a network where nothing is taken side by side."""
_SECTIONS: Final = ("shaped-clean", "shaped-loss", "incast")
_OVER_IDEAL: Final = "time / ideal, "
_EXACT: Final = (", direct, p = 0%", ", direct", "")
"""How our rows of the same case end, sums and pushes, of which nothing may get lost."""
_BOUNDED: Final = ", direct, p = 5%"


_SCENARIOS: Final = {
    "clean": "nothing",
    "slow-worker-2x": "one worker is 2 times slower",
    "slow-worker-5x": "one worker is 5 times slower",
    "slow-link": "one link has a tenth of the rate",
    "loss-0.1": "0.1 % of packets get lost",
    "loss-1": "1 % of packets get lost",
    "loss-3": "3 % of packets get lost",
    "bursts": "1 % lost in bursts, other traffic",
    "oversubscribed": "trunks carry a quarter",
    "incast": "switches with tiny buffers",
    "gray-failure": "one link loses more and more",
    "delay": "10 ms between hosts",
    "wan": "20 Mbit/s, 30 ms, 0.5 % of packets get lost",
    "two-sites": "10 Mbit/s and 40 ms between two halves",
    "network-bound": "nothing; the model has 4 million parameters",
}
"""What is wrong in each scenario. One that is missing here is shown by its name."""
_CONTENDERS: Final = {
    "ddp-cubic": "DDP",
    "ddp-bbr": "DDP, TCP BBR",
    "ddp-fp16": "DDP, float16",
    "ddp-powersgd": "DDP, PowerSGD",
    "ddp-powersgd-bbr": "DDP, PowerSGD, TCP BBR",
    "ddp-powersgd-8": "DDP, PowerSGD of rank 8",
    "ddp-powersgd-fp16": "DDP, PowerSGD, float16",
    "ddp-powersgd-fp16-bbr": "DDP, PowerSGD, float16, TCP BBR",
    "post-local-sgd": "post-local SGD",
    **{f"post-local-sgd-{n}": f"post-local SGD, every {n} steps" for n in (1, 2, 8, 16)},
    **{f"post-local-sgd-{n}-bbr": f"post-local SGD, every {n} steps, BBR" for n in (1, 2, 8, 16)},
    "torchft-ddp": "torchft",
    "torchft-diloco": "torchft, DiLoCo",
    "hivemind": "Hivemind",
    "decent-dp": "Decent-DP",
    "decent-dp-one-peer": "Decent-DP, one peer",
    "shoal-ddp-powersgd": "DDP, PowerSGD over Shoal's transport",
    "shoal-ddp-powersgd-fp16": "DDP, PowerSGD, float16 over Shoal's transport",
    "shoal-low-rank-forward": "all-reduce of rank 8, hidden",
    "shoal-torchft-ddp": "torchft over Shoal's transport",
    "shoal-ripples-overlap": "Ripples, hidden averages",
    "shoal-ripples-overlap-fp16": "Ripples, hidden averages, float16",
    "shoal-local-sgd-overlap": "local SGD, hidden averages",
    "shoal-local-sgd-overlap-fp16": "local SGD, hidden averages, float16",
}
"""What a reader calls them. One that is missing here is shown by its name."""
_PLAIN: Final = "ddp-cubic"
BEFORE: Final = "shoal-ripples-overlap"
"""The one setting of the runs in which a step slept in one piece; `NAMED` is today's."""


def setting_name(contender: str) -> str:
    """Return what a reader calls a contender."""
    return _CONTENDERS.get(contender, contender)


def cluster_table(rows: Sequence[Row], setting: str) -> list[str]:
    """Return the Markdown of the time to the target in each scenario of the cluster suite.

    `setting` is the one of Shoal that has a column of its own.
    """
    times = {
        row.case: f"{'> ' if _never(row) else ''}{number(row.value)}"
        for row in rows
        if row.metric.startswith(TIME)
    }
    return [
        f"| what is wrong | DDP | best without Shoal | {setting_name(setting)} | best with Shoal |",
        "| --- | ---: | --- | ---: | --- |",
        *(_scenario(row, times, setting) for row in rows if row.metric == RATIO),
    ]


def _scenario(row: Row, times: Mapping[str, str], setting: str) -> str:
    scenario, _, mode = row.case.partition(": ")
    plain, ours, peer, best = (
        times.get(f"{scenario}, {each}", "") for each in (_PLAIN, setting, row.peer, mode)
    )
    peer = f"{peer} ({setting_name(row.peer or '')})"
    best = f"{best} ({setting_name(mode)})"
    return f"| {_SCENARIOS.get(scenario, scenario)} | {plain} | {peer} | {ours} | {best} |"


_TROUBLE: Final = "slow-worker-5x"
"""The one scenario whose figure the README shows, beside that in which nothing is wrong."""


def one_setting_sentences(rows: Sequence[Row]) -> list[str]:
    """Return what one setting did beside DDP and the best without Shoal: the README's figure.

    That of one scenario, of the one in which nothing is wrong, and in how many others it is ahead.
    """
    times = {row.case: row for row in rows if row.metric.startswith(TIME)}
    verdicts = {row.case.partition(": ")[0]: row for row in rows if row.metric == RATIO}

    seconds = partial(_seconds, times)

    def figures(scenario: str) -> str:
        peer = verdicts[scenario].peer or ""
        return (
            f"**{seconds(scenario, NAMED)} with Shoal**, {seconds(scenario, _PLAIN)} with DDP, and"
            f" {seconds(scenario, peer)} with the best of the other libraries"
            f" ({setting_name(peer)})"
        )

    def is_faster(scenario: str) -> bool:
        ours, theirs = (
            times[f"{scenario}, {each}"] for each in (NAMED, verdicts[scenario].peer or "")
        )
        return ours.value < (math.inf if _never(theirs) else theirs.value)

    text = (
        "Eight emulated hosts with links of 50 Mbit/s train a small transformer up to a given loss."
        f" If {_SCENARIOS[_TROUBLE]}, that takes {figures(_TROUBLE)}. If nothing is wrong:"
        f" {figures('clean')}. In the {len(verdicts)} scenarios measured so far, this one setting"
        " of Shoal is ahead of the best of the others, picked afterwards for each, in"
        f" {sum(map(is_faster, verdicts))}."
    )
    return textwrap.wrap(text, 118, break_on_hyphens=False)


def _seconds(times: Mapping[str, Row], scenario: str, contender: str) -> str:
    """Return the time to the target in words: "more than" it where no run met it."""
    row = times[f"{scenario}, {contender}"]
    return f"{'more than ' if _never(row) else ''}{row.value:g} s"


def _never(row: Row) -> bool:
    """Return whether no run met the target."""
    return "(0 of" in row.metric


def winners_sentences(rows: Sequence[Row]) -> list[str]:
    """Return by what the scenarios are won, counted from the rows."""
    modes = [row.case.partition(": ")[2] for row in rows if row.metric == RATIO]
    hook = sum(mode.startswith("shoal-ddp-") for mode in modes)
    low_rank = sum("low-rank" in mode for mode in modes)
    hidden = sum("overlap" in mode for mode in modes)
    papers = len(modes) - hook - low_rank - hidden
    parts = [f"a method of the papers as published in {papers or 'none'}"]
    if hidden:
        parts.append(f'averages hidden behind computing (`overlap="next-steps"`) in {hidden}')
    if low_rank:
        parts.append(f"gradients of low rank (`shoal.AllReduce(low_rank=8)`) in {low_rank}")
    if hook:
        parts.append(f"PyTorch's own PowerSGD hook over Shoal's transport in {hook}")
    text = f"What is best with Shoal in these {len(modes)} scenarios: {', '.join(parts)}."
    return textwrap.wrap(text, 100, break_on_hyphens=False)


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
    """Return how gloo's time compares with ours where nothing but processors is short.

    A figure is the range over the machines that `files` are from: one does not hold on the next.
    """
    ratios: dict[str, dict[str, list[float]]] = {}
    for file in files:
        for row in file.rows:
            is_ours = row.bench == "loopback" and row.target is not None
            if is_ours and row.metric.startswith("time") and row.ratio is not None:
                ranks, size, *way = row.case.split(", ")
                column = MEMORY if MEMORY in way else DATAGRAMS
                of_case = ratios.setdefault(f"{ranks}, {size}", {MEMORY: [], DATAGRAMS: []})
                of_case[column].append(row.ratio)
    places = dict.fromkeys(file.environment.processor for file in files)
    return [
        "| on one machine, gloo's time / ours | through shared memory | by datagrams |",
        "| --- | ---: | ---: |",
        *(
            f"| {case} | {_range(found[MEMORY])} | {_range(found[DATAGRAMS])} |"
            for case, found in ratios.items()
        ),
        "",
        f"The machines: {'; '.join(places)}.",
    ]


def _range(values: Sequence[float]) -> str:
    if not values:
        return ""
    low, high = _figure(min(values)), _figure(max(values))
    return low if low == high else f"{low} to {high}"


def _figure(value: float | None) -> str:
    return "" if value is None else number(value)
