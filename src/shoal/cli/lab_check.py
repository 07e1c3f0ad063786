"""`shoal lab check`: whether a lab on this machine is what its spec says.

Owns the option's meaning, the progress and the table. What is measured is `shoal.lab`'s.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.doctor import SOMETHING_IS_WRONG
from shoal.cli.options import require_writable
from shoal.errors import UsageError
from shoal.jobs import indented_json, write_whole
from shoal.report import output_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.lab import Check
    from shoal.scenario import ClusterSpec

_TABLE_WIDTH: Final = 240
"""Columns of a table that goes to a file: nothing is folded."""

_STYLES: Final = {"ok": "green", "outside tolerance": "bold red", "not measured": "yellow"}


def check(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="[SPEC.toml]", help="Default: a star and a leaf-spine."),
    ] = None,
    *,
    json: Annotated[
        Path | None, typer.Option(help="Write the rows here as JSON; - for standard output.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer packets, for an indication only.")
    ] = False,
) -> None:
    """Measure whether a lab is what its file says.

    Sends real packets through it. Exit code 9 if something is not.
    """
    from shoal.lab import have_rights, is_anything_outside

    if json != Path("-"):
        require_writable(json)
    labs = _labs(spec)
    have_rights(sys.argv[1:])
    checks: list[Check] = []
    with Console(stderr=True).status("starting") as status:
        for name, wanted in labs.items():
            checks += _measure(name, wanted, status.update, quick=quick)
    _write(checks, json)
    if is_anything_outside(checks):
        raise typer.Exit(SOMETHING_IS_WRONG)


def _labs(spec: Path | None) -> dict[str, ClusterSpec]:
    """Return what is to be measured, by its name."""
    from shoal.scenario import read_spec, usual_labs

    if spec is None:
        return usual_labs()
    wanted = read_spec(spec)
    if wanted.topology.hosts < 2:
        message = f"{spec} has a single host: there is nothing to measure."
        raise UsageError(message)
    return {spec.stem: wanted}


def _measure(
    name: str, spec: ClusterSpec, show: Callable[[str], None], *, quick: bool
) -> list[Check]:
    """Return all rows of one lab; say meanwhile what is being measured."""
    from shoal.lab import QUICK, QUICK_STEP_S, STEP_S, Effort, check_lab, check_load, of_lab

    def tell(text: str) -> None:
        show(f"{name}: {text}")

    effort, step_s = (QUICK, QUICK_STEP_S) if quick else (Effort(), STEP_S)
    checks: list[Check] = []
    for rows in (check_lab(spec, effort, tell), check_load(spec, step_s, tell)):
        with contextlib.closing(rows):
            checks += [of_lab(name, row) for row in rows]
    return checks


def _write(checks: Sequence[Check], json: Path | None) -> None:
    """Write the table to standard output, unless it is the JSON that is wanted there."""
    encoded = indented_json(checks)
    if json == Path("-"):
        sys.stdout.write(encoded.decode())
        return
    if json is not None:
        write_whole(json, encoded)
    console = output_console(_TABLE_WIDTH)
    for name, rows in itertools.groupby(checks, lambda row: row.lab):
        console.print(Text(name, style="bold"))
        console.print(_table(list(rows)))
        console.print()


def _table(checks: Sequence[Check]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("what", "where"):
        table.add_column(column, overflow="fold")
    for column in ("specified", "measured", "error"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("how", overflow="fold", style="dim")
    for row in checks:
        table.add_row(
            row.what,
            row.where,
            _specified(row),
            _amount(row.measured, row.unit),
            _amount(row.error, row.error_unit, sign="+"),
            Text(row.verdict, style=_STYLES.get(row.verdict, "")),
            "" if row.verdict == "ok" else row.note,
        )
    return table


def _specified(row: Check) -> str:
    if row.interval is None:
        return _amount(row.specified, row.unit)
    return f"{_amount(row.interval[0], '')} to {_amount(row.interval[1], row.unit)}"


def _amount(value: float | None, unit: str, sign: str = "") -> str:
    if value is None:
        return ""
    digits = ".0f" if value == round(value) or abs(value) >= 1000 else ".3g"
    number = f"{value:{sign}{digits}}" if value else "0"
    return f"{number} {unit}".rstrip()
