"""`shoal top`: a running job in a terminal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.cli.shown_job import PlaceArgument, looking_at, read_snapshot
from shoal.watch import in_ms

if TYPE_CHECKING:
    from rich.console import RenderableType

    from shoal.watch import ShownWorker, Snapshot

_BAR = 20
_LAST_EVENTS = 5


def top(
    place: PlaceArgument = None,
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Print it once; also where the output is no terminal.")
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.2, max=60.0, help="Seconds between two looks.")
    ] = 1.0,
) -> None:
    """Show a running job in the terminal.

    What holds it up comes first, then its workers, then what has happened.
    """
    console = Console(highlight=False)
    with looking_at(place) as look:
        first = picture_of(read_snapshot(look(), place))
        if once or not console.is_terminal:
            console.print(first)
            return
        with Live(first, console=console, auto_refresh=False, screen=True) as live:
            while True:
                time.sleep(interval)
                live.update(picture_of(read_snapshot(look(), place)), refresh=True)


def picture_of(shown: Snapshot) -> RenderableType:
    """Return a snapshot as a terminal shows it."""
    head = (
        f"{shown.strategy} over {shown.transport}, {len(shown.members)} workers, view {shown.epoch}"
        if shown.strategy
        else f"{len(shown.members)} workers that have told nothing yet"
    )
    lines: list[RenderableType] = [Text(head, style="bold")]
    for verdict in shown.verdicts:
        is_well = verdict.kind == "nothing" and not shown.lost
        mark, style = ("ok ", "green") if is_well else ("!  ", "bold red")
        lines.append(Text.assemble((mark, style), verdict.sentence))
    lines.append(_table(shown))
    lines.append(Text("own work #, waiting for others ., exchanging data =", style="dim"))
    if shown.distances:
        last = shown.distances[-1]
        apart = f"models {last.distance:.3g} from their mean, whose length is {last.length:.3g}"
        lines.append(Text(apart, style="dim"))
    for event in shown.events[-_LAST_EVENTS:]:
        at = time.strftime("%H:%M:%S", time.localtime(event.at_s))
        lines.append(Text(f"{at}  {event.text}", style="dim"))
    return Group(*lines)


def _table(shown: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("rank", justify="right")
    table.add_column("step", justify="right")
    table.add_column("a step", no_wrap=True)
    for name in ("own", "waits", "exchange", "for", "loss"):
        table.add_column(name, justify="right", min_width=len(name))
    table.add_column("state", no_wrap=True)
    longest = max((_total(each) for each in shown.workers), default=0.0)
    for each in shown.workers:
        state = each.state if each.rank in shown.members else f"{each.state}, no member"
        table.add_row(
            str(each.rank),
            "" if each.step is None else str(each.step),
            _bar(each, longest),
            *(_ms(part) for part in (each.own_ms, each.wait_ms, each.exchange_ms)),
            "" if each.waits_for is None else str(each.waits_for),
            "" if each.loss is None else f"{each.loss:.4g}",
            state,
        )
    return table


def _total(worker: ShownWorker) -> float:
    return sum(part or 0.0 for part in (worker.own_ms, worker.wait_ms, worker.exchange_ms))


def _bar(worker: ShownWorker, longest: float) -> str:
    parts = (worker.own_ms, worker.wait_ms, worker.exchange_ms)
    return "".join(
        mark * round(_BAR * (part or 0.0) / longest)
        for mark, part in zip("#.=", parts, strict=True)
        if longest
    )


def _ms(milliseconds: float | None) -> str:
    return "" if milliseconds is None else in_ms(milliseconds)
