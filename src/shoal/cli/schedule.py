"""`shoal schedule`: who meets whom at which step, and how fast that mixes.

Owns the wording. Everything shown is computed in `groups`; no process is started.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from shoal.errors import UsageError
from shoal.groups import (
    LinkKind,
    Topology,
    contraction_per_step,
    flows_per_link,
    make_schedule,
    period_rounds,
    product,
    reaches_consensus,
)
from shoal.jobs import indented_json, write_whole

if TYPE_CHECKING:
    from shoal.groups import AbstractGroupSchedule, Round

MAX_STEPS_SHOWN = 8
"""Steps shown unless a number is given."""

MAX_MATRIX_WORKERS = 12
"""Largest world whose mixing matrix is shown."""

MAX_GROUPS_SHOWN = 16
"""Groups of a step that the text shows; the JSON holds all."""

MAX_MEASURED_WORK = 2048
"""Largest product of workers and period for which the contraction is measured.

That takes ten seconds for a ring, which mixes slowest, and a tenth of one for most others.
"""

MAX_EXACT_WORK = 1_000_000
"""Largest product of workers and period for which consensus is tested: seconds at most."""

MAX_SAMPLED_WORKERS = 128
"""Largest world in which a random schedule's contraction is sampled."""


class StepReport(msgspec.Struct, frozen=True):
    """One step."""

    step: int
    """The step's number."""

    groups: list[list[int]]
    """Members of each group."""

    weights: list[list[int]]
    """Weights of each group's members; an empty list means equal weights."""

    flows_per_nic: int
    """Most groups that cross one host's network card."""

    flows_per_uplink: int
    """Most groups that cross one rack's uplink."""


class ScheduleReport(msgspec.Struct, frozen=True):
    """What `shoal schedule` shows."""

    schedule: str
    """The schedule's name."""

    workers: int
    """World size."""

    hosts: int
    """Hosts the workers are on."""

    racks: int
    """Racks the hosts are in."""

    period: int | None
    """Steps after which the groups repeat; null for a random schedule."""

    steps: list[StepReport]
    """The first steps."""

    matrix: list[list[str]] | None
    """Product of the mixing matrices of `matrix_steps` steps, in fractions; null if large."""

    matrix_steps: int
    """Steps that `matrix` covers: one period, or those shown of a random schedule."""

    is_exact: bool | None
    """Whether one period gives every worker the exact mean; null if random or too large to test."""

    contraction_per_step: float | None
    """Factor by which a step shrinks the distance from consensus; null if too large to measure."""

    spectral_gap: float | None
    """One less the second singular value of a period (of a step if random); null likewise."""


def describe_schedule(
    schedule: AbstractGroupSchedule, topology: Topology, num_steps: int | None = None
) -> ScheduleReport:
    """Return the report on `schedule`, its first `num_steps` or a period of at most eight steps."""
    num_steps = num_steps or min(schedule.period or MAX_STEPS_SHOWN, MAX_STEPS_SHOWN)
    rounds = [schedule.round_at(step) for step in range(num_steps)]
    matrix_steps = schedule.period or num_steps
    is_exact = _is_exact(schedule)
    contraction = 0.0 if is_exact else _contraction(schedule)
    return ScheduleReport(
        schedule=schedule.name,
        workers=schedule.world_size,
        hosts=len(topology.hosts),
        racks=len(topology.racks),
        period=schedule.period,
        steps=[_step_report(step, groups, topology) for step, groups in enumerate(rounds)],
        matrix=_matrix(schedule, matrix_steps),
        matrix_steps=matrix_steps,
        is_exact=is_exact,
        contraction_per_step=contraction,
        spectral_gap=None if contraction is None else 1 - contraction ** (schedule.period or 1),
    )


def _step_report(step: int, groups: Round, topology: Topology) -> StepReport:
    flows = flows_per_link(groups, topology)
    most = {
        kind: max((count for link, count in flows.items() if link.kind is kind), default=0)
        for kind in LinkKind
    }
    return StepReport(
        step=step,
        groups=[list(group.members) for group in groups],
        weights=[list(group.weights) for group in groups],
        flows_per_nic=most[LinkKind.NIC],
        flows_per_uplink=most[LinkKind.UPLINK],
    )


def _matrix(schedule: AbstractGroupSchedule, num_steps: int) -> list[list[str]] | None:
    if schedule.world_size > MAX_MATRIX_WORKERS:
        return None
    rows = product([schedule.round_at(step) for step in range(num_steps)])
    return [[str(value) for value in row] for row in rows]


def _is_exact(schedule: AbstractGroupSchedule) -> bool | None:
    if schedule.period is None or schedule.period * schedule.world_size > MAX_EXACT_WORK:
        return None
    return reaches_consensus(period_rounds(schedule))


def _contraction(schedule: AbstractGroupSchedule) -> float | None:
    if schedule.period is None:
        is_known = schedule.expected_second_eigenvalue is not None
        is_measured = is_known or schedule.world_size <= MAX_SAMPLED_WORKERS
    else:
        is_measured = schedule.period * schedule.world_size <= MAX_MEASURED_WORK
    return contraction_per_step(schedule) if is_measured else None


def render_report(report: ScheduleReport) -> str:
    """Return `report` as text for a person, without a final newline."""
    lines = [_title(report), ""]
    for step in report.steps:
        lines.append(f"step {step.step:>3}  {_groups(step)}")
        if report.hosts > 1:
            lines.append(f"          {_flows(report, step)}")
    if report.matrix is not None:
        lines += ["", f"Mixing matrix of {_count(report.matrix_steps, 'step')}:"]
        width = max(len(value) for row in report.matrix for value in row)
        lines += ["  " + "  ".join(v.rjust(width) for v in row) for row in report.matrix]
    return "\n".join([*lines, "", *_verdict(report)])


def _title(report: ScheduleReport) -> str:
    period = "random" if report.period is None else f"period {report.period}"
    place = _count(report.hosts, "host")
    if report.racks > 1:
        place += f" in {_count(report.racks, 'rack')}"
    return f"{report.schedule}: {_count(report.workers, 'worker')} on {place}, {period}"


def _groups(step: StepReport) -> str:
    shown = list(zip(step.groups, step.weights, strict=True))[:MAX_GROUPS_SHOWN]
    texts = []
    for members, weights in shown:
        text = " ".join(map(str, members))
        texts.append(f"[{text} weighing {' '.join(map(str, weights))}]" if weights else f"[{text}]")
    hidden = len(step.groups) - len(shown)
    return " ".join(texts) + (f" and {_count(hidden, 'more group')}" if hidden else "")


def _flows(report: ScheduleReport, step: StepReport) -> str:
    text = f"flows on a network card: {step.flows_per_nic}"
    return text + (f", on an uplink: {step.flows_per_uplink}" if report.racks > 1 else "")


def _verdict(report: ScheduleReport) -> list[str]:
    lines = []
    if report.is_exact is not None:
        answer = "gives every worker the exact mean" if report.is_exact else "only nears the mean"
        lines.append(f"One period of {_count(report.period or 0, 'step')} {answer}.")
    if report.contraction_per_step is None or report.spectral_gap is None:
        lines.append("The contraction is not measured for a world this large; try fewer workers.")
    else:
        span = "step in expectation" if report.period is None else "period"
        lines.append(f"Spectral gap of a {span}: {report.spectral_gap:.4f}.")
        if not report.is_exact:
            percent = 100 * report.contraction_per_step
            lines.append(f"A step leaves {percent:.2f} % of the distance from consensus.")
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def schedule(
    name: Annotated[str, typer.Argument(help="Schedule, such as ds-sync or ripples-static.")],
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 8,
    hosts: Annotated[int, typer.Option(help="Hosts; ranks are numbered host by host.")] = 1,
    hosts_per_rack: Annotated[
        int | None, typer.Option(help="Hosts in a rack; default: all in one.")
    ] = None,
    oversubscription: Annotated[
        float, typer.Option(help="Speed of a rack's hosts together over that of its uplink.")
    ] = 1.0,
    group_size: Annotated[int | None, typer.Option(help="Largest group.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps to show; default: a period, 8 at most.", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of a random schedule.")] = 0,
    json: Annotated[
        Path | None, typer.Option(help="Write the report here as JSON; - for standard output.")
    ] = None,
) -> None:
    """Show who meets whom in each step, and how fast that mixes."""
    workers_per_host = _workers_per_host(workers, hosts)
    topology = Topology.uniform(
        workers, workers_per_host, hosts_per_rack, oversubscription_ratio=oversubscription
    )
    chosen = make_schedule(
        name,
        workers,
        workers_per_host=workers_per_host,
        group_size=group_size,
        seed=seed,
        topology=topology,
    )
    with Console(stderr=True).status("measuring how fast it mixes"):
        report = describe_schedule(chosen, topology, steps)
    _write(report, json)


def _workers_per_host(workers: int, hosts: int) -> int:
    """Return how many share a host if all hosts but the last hold equally many."""
    if not 1 <= hosts <= workers:
        message = f"{_count(workers, 'worker')} cannot be on {_count(hosts, 'host')}."
        raise UsageError(message)
    workers_per_host = math.ceil(workers / hosts)
    needed = math.ceil(workers / workers_per_host)
    if needed < hosts:
        message = (
            f"{workers} workers fill only {_count(needed, 'host')} at {workers_per_host} per host;"
            f" ask for {needed} or fewer."
        )
        raise UsageError(message)
    return workers_per_host


def _write(report: ScheduleReport, json: Path | None) -> None:
    """Write the text to standard output, unless it is the JSON that is wanted there."""
    encoded = indented_json(report)
    if json == Path("-"):
        sys.stdout.write(encoded.decode())
        return
    if json is not None:
        write_whole(json, encoded)
    sys.stdout.write(render_report(report) + "\n")
