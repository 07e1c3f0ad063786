"""`shoal doctor`: what the transport meets here and between two machines, and what to change.

Owns the options and the table. What is looked at, and what it means, is `shoal.doctor`'s.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shoal.cli.display import output_console
from shoal.cli.options import require_positive, require_writable
from shoal.doctor import Finding, Verdict, is_anything_wrong
from shoal.errors import UsageError
from shoal.jobs.files import indented_json, write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.runtime.udp.settings import Settings

DEFAULT_PORT: Final = 29499
"""Next to those of torch's launchers."""

SOMETHING_IS_WRONG: Final = 9
"""Exit code if a finding is wrong."""

_STYLES: Final = {Verdict.OK: "green", Verdict.BETTER: "yellow", Verdict.WRONG: "bold red"}


def doctor(
    *,
    listen: Annotated[
        bool, typer.Option("--listen", help="Wait for `shoal doctor --with` on another machine.")
    ] = False,
    with_: Annotated[
        str | None,
        typer.Option(
            "--with", metavar="HOST:PORT", help="Examine the pair with who listens there."
        ),
    ] = None,
    bind: Annotated[
        str | None, typer.Option(help="Addresses to receive on; default: SHOAL_BIND, as for a job.")
    ] = None,
    port: Annotated[
        int, typer.Option(help="Where to listen; 0 for any free port.", min=0, max=65535)
    ] = DEFAULT_PORT,
    seconds: Annotated[float, typer.Option(help="How long to listen.")] = 600.0,
    json: Annotated[
        Path | None, typer.Option(help="Write the findings here as JSON; - for standard output.")
    ] = None,
) -> None:
    """Say what the transport meets on this machine, or between two, and what to change."""
    if listen and with_ is not None:
        raise UsageError("--listen waits on one machine, --with calls from the other: choose one.")
    require_positive(seconds=seconds)
    if json != Path("-"):
        require_writable(json)
    environment = dict(os.environ)
    if bind:
        environment["SHOAL_BIND"] = bind
    called = None if with_ is None else _parse_place(with_)
    if called is not None:  # as a job would that meets there
        environment["MASTER_ADDR"] = called[0]
    findings, may_examine = _look(environment)
    if listen and may_examine:
        _listen(environment, port, seconds, findings)
        return
    if called is not None and may_examine:
        findings += _examine(environment, called)
    elif called is not None or listen:
        _say("no pair is examined until this machine has an address and sockets")
    _write(findings, json)
    if is_anything_wrong(findings):
        raise typer.Exit(SOMETHING_IS_WRONG)


def _look(environment: dict[str, str]) -> tuple[list[Finding], bool]:
    """Return the findings on this machine, and whether it can take part in examining a pair."""
    from shoal.doctor.judge_machine import judge_interface, judge_machine, may_examine_pairs
    from shoal.doctor.machine import look_at_machine

    is_chosen = bool(environment.get("SHOAL_BIND") or environment.get("MASTER_ADDR"))
    first, *others = _settings(environment)
    findings = judge_machine(look_at_machine(first, is_chosen=is_chosen))
    for each in others:
        findings += judge_interface(look_at_machine(each, is_chosen=is_chosen))
    return findings, may_examine_pairs(findings)


def _settings(environment: dict[str, str]) -> tuple[Settings, ...]:
    """Return the settings for each of this machine's addresses."""
    from shoal.runtime.udp.settings import from_environment

    return from_environment(environment).by_interface


def _settings_of_pair(environment: dict[str, str]) -> Settings:
    first, *others = _settings(environment)
    if others:
        _say(f"of several addresses the pair is examined with {first.bind}; --bind takes another")
    return first


def _listen(
    environment: dict[str, str], port: int, seconds: float, findings: Sequence[Finding]
) -> None:
    from shoal.doctor.listener import Listener
    from shoal.runtime.rendezvous import job_key

    settings = _settings_of_pair(environment)
    key = job_key(environment, settings.bind)
    with Listener(settings, port, key, findings) as listener:
        sys.stderr.write(
            f"listening for {seconds:g} s; on the other machine:"
            f" shoal doctor --with {listener.endpoint}\n"
        )
        sys.stderr.flush()
        listener.serve(seconds, lambda caller: _say(f"examined by {caller}"))


def _examine(environment: dict[str, str], called: tuple[str, int]) -> list[Finding]:
    from shoal.doctor.pair import examine_pair
    from shoal.runtime.rendezvous import job_key

    host, port = called
    key, settings = job_key(environment, host), _settings_of_pair(environment)
    with Console(stderr=True).status(f"examining the pair with {host}"):
        return examine_pair(settings, host, port, key)


def _parse_place(text: str) -> tuple[str, int]:
    """Return the numeric address and the port of HOST:PORT; the port may be left out."""
    host, separator, number = text.rpartition(":")
    if not separator or text.endswith("]") or (":" in host and not host.startswith("[")):
        host, number = text, str(DEFAULT_PORT)
    if not number.isdigit() or not 0 < int(number) < 65536:
        message = f"--with takes HOST:PORT, such as 192.0.2.7:{DEFAULT_PORT}, not {text!r}."
        raise UsageError(message)
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(number), type=socket.SOCK_STREAM)
    except OSError as error:
        message = f"The host {host!r} cannot be resolved: {error.strerror}."
        raise UsageError(message) from error
    return str(found[0][4][0]), int(number)


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def _write(findings: Sequence[Finding], json: Path | None) -> None:
    """Write the table to standard output, unless it is the JSON that is wanted there."""
    encoded = indented_json(findings)
    if json == Path("-"):
        sys.stdout.write(encoded.decode())
        return
    _print(findings, output_console())
    if json is not None:
        write_whole(json, encoded)


def _print(findings: Sequence[Finding], console: Console) -> None:
    """Print a table for each place, and below them what to change, the worst first."""
    for part in _parts(findings):
        console.print(Text(part[0].where, style="bold"))
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
        for finding in part:
            verdict = Text(finding.verdict, style=_STYLES[finding.verdict])
            table.add_row(finding.name, verdict, Text(finding.found))
        console.print(table)
        console.print()
    worst_first = (Verdict.WRONG, Verdict.BETTER)
    advised = [each for verdict in worst_first for each in findings if each.verdict is verdict]
    if advised:
        console.print(Text("What to change", style="bold"))
    for finding in advised:
        mark = Text(f"{finding.name}, {finding.where}: ", style=_STYLES[finding.verdict])
        console.print(mark + Text(finding.advice))


def _parts(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Return `findings` by place: over loopback, two may have the same name."""
    parts: list[list[Finding]] = []
    for finding in findings:
        is_of_last = parts and parts[-1][0].where == finding.where
        if not is_of_last or finding.name in {each.name for each in parts[-1]}:
            parts.append([])
        parts[-1].append(finding)
    return parts
