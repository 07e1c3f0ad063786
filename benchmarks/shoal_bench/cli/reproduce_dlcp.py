"""`shoal reproduce dlcp`: the wording, the tables and the figures of that comparison."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import JobsOption, RayOption, RunsOption, SeedsOption, Sweeping, parse_seeds
from shoal.errors import UsageError
from shoal.report import Bar, BarPanel, draw_charts
from shoal.sweeps import with_deviation
from shoal_bench.cli.reproducing import (
    JsonOption,
    PlotOption,
    check_files,
    claims_panel,
    claims_sentence,
    claims_table,
    hand_over,
    load_data,
    origin,
    report_of,
    table_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rich.table import Table

    from shoal.sweeps import Spread
    from shoal_bench.reproduce.claim import Claim
    from shoal_bench.reproduce.dlcp import DlcpComparison, Measured, Tolerance, Trial

_SEEDS, _QUICK_SEEDS = "1-3", "1"
_CAVEAT = (
    "A re-implementation from partial sources; fabric, thresholds and compute times are assumed:"
    " compare who wins and by about how much. Rivals are judged with Linux's least timeout, 200 ms."
)
_TIMEOUT = "least timeout"
_SLOTS = {
    "DLCP": 3,
    "DLCP, layers by priority": 4,
    "DCTCP": 0,
    "pFabric-like": 1,
    "TCP, layers by priority": 8,
    "TCP (Cubic)": 9,
}


def dlcp(
    quick: Annotated[bool, typer.Option("--quick", help="16 hosts, one model: minutes.")] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART",
            help="Only flows, ablation, end-to-end, clock, gray or loss; may be repeated.",
        ),
    ] = None,
    seeds: SeedsOption = None,
    jobs: JobsOption = None,
    ray: RayOption = False,
    runs: RunsOption = None,
    json: JsonOption = None,
    plot: PlotOption = None,
) -> None:
    """Simulate the experiments of DLCP/MLT.

    Flow times, steps end to end, its three mechanisms one by one, loss and gray failure.
    """
    from shoal.sweeps import spread_of
    from shoal_bench.reproduce import dlcp as paper
    from shoal_bench.reproduce.dlcp_claims import claims as claims_of
    from shoal_bench.reproduce.learning import Learned

    check_files(json, plot)
    repeats = parse_seeds(seeds, _QUICK_SEEDS if quick else _SEEDS)
    whole = paper.plan(quick=quick, parts=only or paper.PARTS)
    if plot is not None and not (whole.flows or whole.end_to_end):
        raise UsageError("Only the parts flows and end-to-end have figures to plot.")
    load_data(each.dataset for each in whole.tolerances)
    sweeping = Sweeping(jobs, ray, runs)
    trials = whole.trials
    made = sweeping.make([paper.trial_run(each, repeats[0]) for each in trials], paper.Measured)
    measured = {trial: each.result for trial, each in zip(trials, made, strict=True)}
    taught = sweeping.make(paper.tolerance_runs(whole.tolerances, whole.losses, repeats), Learned)
    finals = iter(each.result.final for each in taught)
    learned = {
        (tolerance, loss): spread_of([next(finals) for _ in repeats])
        for tolerance in whole.tolerances
        for loss in whole.losses
    }
    found = claims_of(whole, measured, learned)
    files = {file for each in trials for file in each.files}
    files |= {"dlcp-lossy.toml"} if whole.tolerances else set()
    made_of = made_of_words(files, repeats)

    def report() -> dict[str, object]:
        return report_of(
            sorted(files),
            repeats,
            trials=[{"trial": trial, "measured": measured[trial]} for trial in trials],
            learned=[{"tolerance": t, "loss": x, "final": s} for (t, x), s in learned.items()],
            claims=found,
        )

    hand_over(
        (
            _flow_table("Flow times, a parameter server on every host", whole.flows, measured),
            _flow_table("The three steps", whole.ablation, measured),
            _step_table("Steps end to end", whole.end_to_end, measured),
            _step_table("The same, computing as a GPU was measured", whole.clock, measured),
            _step_table("Loss on one host's link", whole.gray, measured),
            _tolerance_table(whole, learned),
            claims_table(found),
        ),
        made_of,
        _CAVEAT,
        json=json,
        report=report,
        plot=plot,
        drawing=lambda: figures(whole.flows, whole.end_to_end, measured, found, made_of),
    )


def _flow_table(title: str, trials: Sequence[Trial], measured: Mapping[Trial, Measured]) -> Table:
    from shoal_bench.reproduce.dlcp import timeout_words

    times = ("mean ms", "99th ms")
    columns = ("hosts", "carried by", _TIMEOUT, *times, "flows", "packet-hops", "dropped", "lost")
    table = table_of(title, columns, words=3)
    for trial in trials:
        each = measured[trial]
        table.add_row(
            trial.cluster,
            trial.rival.name,
            timeout_words(trial),
            f"{each.flow_ms:.3f}",
            f"{each.flow_p99_ms:.3f}",
            str(each.flows),
            f"{each.hops / 1e6:.1f} M",
            str(each.dropped),
            str(each.lost),
        )
    return table


def _step_table(title: str, trials: Sequence[Trial], measured: Mapping[Trial, Measured]) -> Table:
    from shoal_bench.reproduce.dlcp import timeout_words

    times = "ms/step", "99th ms of flows"
    columns = ("job", "synchronised by", "carried by", _TIMEOUT, "loss", *times)
    table = table_of(title, columns, words=4)
    for trial in trials:
        each = measured[trial]
        table.add_row(
            trial.job,
            trial.servers_words,
            trial.rival.name,
            timeout_words(trial),
            f"{trial.loss:.2%}" if trial.loss else "",
            f"{each.step_ms:.1f}",
            f"{each.flow_p99_ms:.2f}",
        )
    return table


def _tolerance_table(
    plan: DlcpComparison, learned: Mapping[tuple[Tolerance, float], Spread]
) -> Table:
    columns = ("model", "data", *(f"{loss:.0%} lost" for loss in plan.losses))
    table = table_of("Metric after as many steps, mean (deviation)", columns, words=2)
    for each in plan.tolerances:
        cells = [with_deviation(learned[each, loss], ".4f") for loss in plan.losses]
        table.add_row(each.model, each.dataset, *cells)
    return table


def made_of_words(files: Iterable[str], seeds: Sequence[int]) -> str:
    """Return the sentences that say what was simulated."""
    return f"{origin(files, seeds)} Times are those of the first seed."


def figures(
    flow_trials: Sequence[Trial],
    end_to_end: Sequence[Trial],
    measured: Mapping[Trial, Measured],
    claims: Sequence[Claim],
    made_of: str,
) -> str:
    """Return the figures of the comparison as SVG."""
    clusters = list(dict.fromkeys(each.cluster for each in flow_trials))
    flows = [
        [
            BarPanel(
                f"{what} of a flow, {cluster} hosts",
                "virtual ms",
                [
                    Bar(each.rival.name, _slot(each), value(measured[each]))
                    for each in flow_trials
                    if each.cluster == cluster and each.is_usual
                ],
            )
            for what, value in (
                ("Mean time", attrgetter("flow_ms")),
                ("99th percentile", attrgetter("flow_p99_ms")),
            )
        ]
        for cluster in clusters
    ]
    kinds = list(dict.fromkeys((e.job, e.sync, e.servers) for e in end_to_end))
    steps = [
        BarPanel(
            f"{job}, {sync}" + (f", {servers} server" if servers else ""),
            "virtual ms per step, 8 hosts",
            [
                Bar(each.rival.name, _slot(each), measured[each].step_ms)
                for each in end_to_end
                if (each.job, each.sync, each.servers) == (job, sync, servers) and each.is_usual
            ],
        )
        for job, sync, servers in kinds
    ]
    rows = [*flows, *(steps[place : place + 2] for place in range(0, len(steps), 2))]
    description = claims_sentence("DLCP", claims)
    return draw_charts(rows, description, [made_of, _CAVEAT], claims_panel(claims))


def _slot(trial: Trial) -> int:
    return _SLOTS.get(trial.rival.name, 2)
