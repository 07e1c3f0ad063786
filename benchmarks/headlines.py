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
_ONE_SETTING: Final = "shoal-ripples-overlap"
"""The one setting of the earlier runs, which has one in every scenario; `NAMED` is today's."""


def cluster_table(rows: Sequence[Row]) -> list[str]:
    """Return the Markdown of the time to the target in each scenario of the cluster suite."""
    times = {
        row.case: f"{'> ' if '(0 of' in row.metric else ''}{number(row.value)}"
        for row in rows
        if row.metric.startswith(TIME)
    }
    return [
        "| what is wrong | DDP | best without Shoal | Ripples, hidden averages | best with Shoal |",
        "| --- | ---: | --- | ---: | --- |",
        *(_scenario(row, times) for row in rows if row.metric == RATIO),
    ]


def _scenario(row: Row, times: Mapping[str, str]) -> str:
    scenario, _, mode = row.case.partition(": ")
    plain, ours = (times.get(f"{scenario}, {each}", "") for each in (_PLAIN, _ONE_SETTING))
    peer = f"{_figure(row.peer_value)} ({_CONTENDERS.get(row.peer or '', row.peer)})"
    best = f"{number(row.value)} ({_CONTENDERS.get(mode, mode)})"
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
        verdict = verdicts[scenario]
        name = _CONTENDERS.get(verdict.peer or "", verdict.peer)
        return (
            f"**{seconds(scenario, _ONE_SETTING)} with Shoal**, {seconds(scenario, _PLAIN)} with"
            f" DDP, and {verdict.peer_value:g} s with the best of the other libraries ({name})"
        )

    faster = sum(
        times[f"{scenario}, {_ONE_SETTING}"].value < (verdict.peer_value or math.inf)
        for scenario, verdict in verdicts.items()
    )
    text = (
        "Eight emulated hosts with links of 50 Mbit/s train a small transformer up to a given loss."
        f" If {_SCENARIOS[_TROUBLE]}, that takes {figures(_TROUBLE)}. If nothing is wrong:"
        f" {figures('clean')}. In {len(verdicts)} scenarios with slow workers, slow links, lost"
        " packets, bursts and long delays this one setting of Shoal is ahead of the best of the"
        f" others, picked afterwards for each, in {faster}."
    )
    return textwrap.wrap(text, 118, break_on_hyphens=False)


def _seconds(times: Mapping[str, Row], scenario: str, contender: str) -> str:
    """Return the time to the target in words: "more than" it where no run met it."""
    row = times[f"{scenario}, {contender}"]
    return f"{'more than ' if '(0 of' in row.metric else ''}{row.value:g} s"


def anew_sentences(rows: Sequence[Row]) -> list[str]:
    """Return what has been measured since computing sleeps in every layer, a line a scenario."""
    times = {row.case: row for row in rows if row.metric.startswith(TIME)}
    lines = []
    for row in rows:
        if row.metric != RATIO:
            continue
        scenario, _, mode = row.case.partition(": ")
        lines.append(
            f"- {_SCENARIOS[scenario]}: {_seconds(times, scenario, _PLAIN)} with DDP,"
            f" {_seconds(times, scenario, row.peer or '')} with the best without Shoal"
            f" ({_CONTENDERS.get(row.peer or '', row.peer)}),"
            f" {_seconds(times, scenario, NAMED)} with the setting of Shoal that was named"
            f" beforehand (`{NAMED}`), {row.value:g} with its best"
            f" ({_CONTENDERS.get(mode, mode)})"
        )
    return lines


def winners_sentences(rows: Sequence[Row]) -> list[str]:
    """Return by what the scenarios are won, counted from the rows."""
    modes = [row.case.partition(": ")[2] for row in rows if row.metric == RATIO]
    hook = sum(mode.startswith("shoal-ddp-") for mode in modes)
    hidden = sum("overlap" in mode for mode in modes)
    papers = sum("low-rank" not in mode for mode in modes) - hook - hidden
    first = f"Of these {len(modes)} scenarios, {papers} are won by a method of the papers:"
    if papers == 0:
        first = f"No method of the papers wins any of these {len(modes)} scenarios as published:"
    return [
        first,
        f"{hook} go to PyTorch's own PowerSGD hook over Shoal's transport, {hidden} to averages",
        'that are hidden behind computing (`overlap="next-steps"`), which is Shoal\'s addition.',
    ]


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
    places = [file.environment.processor for file in files]
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
