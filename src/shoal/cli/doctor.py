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

from shoal.cli.options import require_positive, require_writable
from shoal.doctor import Finding, Verdict, is_anything_wrong
from shoal.errors import ShoalError, UsageError
from shoal.jobs import indented_json, write_whole
from shoal.report import output_console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.doctor import PairFigures
    from shoal.wire import Settings

DEFAULT_PORT: Final = 29499
"""Next to those of torch's launchers."""

SOMETHING_IS_WRONG: Final = 9
"""Exit code if a finding is wrong."""

_STDOUT: Final = Path("-")
"""What `--json` calls standard output: then nothing else is printed there."""

_STYLES: Final = {Verdict.OK: "green", Verdict.BETTER: "yellow", Verdict.WRONG: "bold red"}


def doctor(
    *,
    listen: Annotated[
        bool, typer.Option("--listen", help="Wait for `shoal doctor --with` on another machine.")
    ] = False,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="HOST:PORT",
            help="Check the network to the machine that listens there; may be repeated.",
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
        Path | None,
        typer.Option(help="Write findings and figures here as JSON; - for standard output."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(
            help="Write the hosts of all pairs here, as a star for `shoal plan`, in TOML."
        ),
    ] = None,
    pairs: Annotated[
        list[Path] | None,
        typer.Option(help="With --cluster: a report (--json) with more pairs; may be repeated."),
    ] = None,
) -> None:
    """Check this machine and the network for the transport.

    Examines this machine or, with --listen there and --with here, the network between two, as
    Shoal's transport would use them, and says what to change.
    """
    _check_options(listen=listen, calls=bool(with_), json=json, cluster=cluster, pairs=bool(pairs))
    calls = [_parse_place(each) for each in with_ or ()]
    require_positive(seconds=seconds)
    require_writable(None if json == _STDOUT else json, cluster)
    figures = _known(pairs or ())
    if pairs and not calls:
        _write_cluster(figures, cluster)
        return
    environment = dict(os.environ)
    if bind:
        environment["SHOAL_BIND"] = bind
    if calls:
        environment["MASTER_ADDR"] = calls[0][0]
    _check_key(environment, [host for host, _ in calls], bind if listen else None)
    findings, may_examine = _look(environment)
    if listen and may_examine:
        _write_json(findings, [], json)  # of this machine; the pair's are the caller's
        _listen(environment, port, seconds, findings)
        return
    measured: list[PairFigures] = []
    failure: ShoalError | None = None
    if calls and may_examine:
        failure = _examine_all(environment, calls, findings, measured)
    elif calls or listen:
        _say("no pair is examined until this machine has an address and sockets")
    _write_json(findings, measured, json)
    try:  # files first, for the table's reader may have gone
        if measured or failure is None:
            _write_cluster([*figures, *measured], cluster)
    finally:
        if json != _STDOUT:
            _print(findings, output_console())
    if failure is not None:
        raise failure
    if is_anything_wrong(findings):
        raise typer.Exit(SOMETHING_IS_WRONG)


def _check_key(environment: dict[str, str], called: Sequence[str], listens_at: str | None) -> None:
    """Raise `UsageError` for a missing job key before anything is looked at."""
    from shoal.control import job_key

    for host in (*called, *((listens_at or "").split(",") if listens_at else ())):
        job_key(environment, host)


def _check_options(
    *, listen: bool, calls: bool, json: Path | None, cluster: Path | None, pairs: bool
) -> None:
    if listen and calls:
        raise UsageError("--listen waits on one machine, --with calls from the other: choose one.")
    if pairs and cluster is None:
        raise UsageError("--pairs adds pairs to a cluster file; say which with --cluster FILE.")
    if cluster is not None and (listen or not (calls or pairs)):
        raise UsageError("--cluster needs pairs: from --with HOST:PORT, or --pairs REPORT.")
    if pairs and not calls and json is not None:
        raise UsageError("With --pairs alone nothing is examined that --json could hold.")


def _known(reports: Sequence[Path]) -> list[PairFigures]:
    """Return the pairs in reports that were written before."""
    from shoal.doctor import read_report

    return [pair for report in reports for pair in read_report(report).pairs]


def _write_cluster(pairs: Sequence[PairFigures], cluster: Path | None) -> None:
    from shoal.doctor import cluster_text, doubts, links_of

    if cluster is not None:
        links = links_of(pairs)
        for sentence in doubts(pairs, links):
            _say(f"note: {sentence}")
        write_whole(cluster, cluster_text(pairs, links).encode())


def _look(environment: dict[str, str]) -> tuple[list[Finding], bool]:
    """Return the findings on this machine, and whether it can take part in examining a pair."""
    from shoal.doctor import judge_interface, judge_machine, look_at_machine, may_examine_pairs

    is_chosen = bool(environment.get("SHOAL_BIND") or environment.get("MASTER_ADDR"))
    first, *others = _settings(environment)
    findings = judge_machine(look_at_machine(first, is_chosen=is_chosen))
    for each in others:
        findings += judge_interface(look_at_machine(each, is_chosen=is_chosen))
    return findings, may_examine_pairs(findings)


def _settings(environment: dict[str, str]) -> tuple[Settings, ...]:
    """Return the settings for each of this machine's addresses."""
    from shoal.wire import from_environment

    return from_environment(environment).by_interface


def _settings_of_pair(environment: dict[str, str]) -> Settings:
    first, *others = _settings(environment)
    if others:
        _say(f"of several addresses the pair is examined with {first.bind}; --bind takes another")
    return first


def _listen(
    environment: dict[str, str], port: int, seconds: float, findings: Sequence[Finding]
) -> None:
    from shoal.control import job_key
    from shoal.doctor import Listener

    settings = _settings_of_pair(environment)
    key = job_key(environment, settings.bind)
    with Listener(settings, port, key, findings) as listener:
        sys.stderr.write(
            f"listening for {seconds:g} s; on the other machine:"
            f" shoal doctor --with {listener.endpoint}\n"
        )
        sys.stderr.flush()
        listener.serve(seconds, lambda caller: _say(f"examined by {caller}"))


def _examine_all(
    environment: dict[str, str],
    calls: Sequence[tuple[str, int]],
    findings: list[Finding],
    measured: list[PairFigures],
) -> ShoalError | None:
    """Examine one pair after another, so that none disturbs another; add to what is known.

    Returns why a pair could not be examined, the first of them: what the others gave is kept.
    """
    failure = None
    for called in calls:
        try:
            # as a job would that meets there
            found, figures = _examine(environment | {"MASTER_ADDR": called[0]}, called)
        except ShoalError as error:
            failure = failure or error
            continue
        findings += found
        measured += [] if figures is None else [figures]
    return failure


def _examine(
    environment: dict[str, str], called: tuple[str, int]
) -> tuple[list[Finding], PairFigures | None]:
    from shoal.control import job_key
    from shoal.doctor import examine_pair

    host, port = called
    key, settings = job_key(environment, host), _settings_of_pair(environment)
    with Console(stderr=True).status(f"examining the pair with {host}"):
        return examine_pair(settings, host, port, key)


def _parse_place(text: str) -> tuple[str, int]:
    """Return the numeric address and the port of HOST:PORT; the port may be left out."""
    host, separator, number = text.rpartition(":")
    if not separator or text.endswith("]") or (":" in host and not host.startswith("[")):
        host, number = text, str(DEFAULT_PORT)
    if not (number.isascii() and number.isdigit()) or not 0 < int(number) < 65536:
        message = f"--with takes HOST:PORT, such as 192.0.2.7:{DEFAULT_PORT}, not {text!r}."
        raise UsageError(message)
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(number), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter of names that are none, as "a..b"
        why = getattr(error, "strerror", None) or "it is no host's name"
        message = f"The host {host!r} cannot be resolved: {why}."
        raise UsageError(message) from error
    return str(found[0][4][0]), int(number)


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()


def _write_json(findings: list[Finding], pairs: list[PairFigures], json: Path | None) -> None:
    """Write findings and figures to the file that is named, or to standard output."""
    from shoal.doctor import Report

    encoded = indented_json(Report(findings, pairs))
    if json == _STDOUT:
        sys.stdout.write(encoded.decode())
        sys.stdout.flush()
    elif json is not None:
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
