"""`shoal lab check` finds a lab as it should be, and finds out one that is not."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lab_commands import forked, run_command, shoal_lab

from shoal.cli import lab_check
from shoal.lab.check import load
from shoal.lab.check.check import Checker, Effort, check_lab
from shoal.lab.check.fidelity import Check, Verdict
from shoal.lab.check.load import LoadTest
from shoal.lab.check.probes import (
    FULL_BYTES,
    HEADERS_BYTES,
    Probe,
    Stream,
    payload_in,
    wait_until_empty,
)
from shoal.lab.check.set_aside import set_aside
from shoal.lab.check.ways import ways_over_all
from shoal.lab.lab import Lab
from shoal.lab.network.fabric import Fabric
from shoal.scenario.lab_presets import usual_labs
from shoal.scenario.spec_file import parse_spec
from shoal.switching.settings import Link, Port, Queue
from shoal.switching.tables import QUEUES
from shoal.switching.topology import Materials, host_names, star

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.scenario.cluster_spec import ClusterSpec

pytestmark = pytest.mark.timeout(300)  # the first test compiles

SHORT = Effort(0.2, 40, 400, 0.3, 400, 0.1)
SPEC = """
hosts.count = 4
topology = { shape = "leaf-spine", leaves = 2, spines = 2 }
access = { rate = "20 Mbit/s", delay = "1 ms", loss = "1 %" }
switch.port_buffer = "40 kB"
switch.forwarding = "packet"
switch.queue = [{ plain = { from = "20 kB" }, capable = { from = "10 kB" } }]
"""
DETERMINED = {
    "packets kept of a burst, plain",
    "packets kept of a burst, ECN",
    "place of the first mark",
    "order of priorities",
    "packets sprayed",
    "path of a flow",
    "lost at a sender's own port",
    "lost by the machine",
    "loss",
}
"""What does not depend on how busy the machine is: chance has a seed, and queues have no clock."""


def quiet(_text: str) -> None:
    """Say nothing."""


def test_a_lab_is_as_its_spec_says() -> None:
    told: list[str] = []
    spec = SPEC.replace("hosts.count = 4", "hosts.count = 2")
    rows = list(check_lab(parse_spec(spec), SHORT, told.append))
    wrong = [row for row in rows if row.what in DETERMINED and row.verdict is not Verdict.OK]
    assert wrong == []
    assert {row.what for row in rows} == DETERMINED - {"path of a flow"} | {
        "rate", "delay, median", "delay, p99",
    }  # fmt: skip
    kept = {row.what: row.measured for row in rows if "leaf0-host0" in row.where}
    assert kept["packets kept of a burst, plain"] == 1 + 14  # 20 kB are reached by 14 packets
    assert kept["packets kept of a burst, ECN"] == 1 + 26  # 40 kB hold 26
    assert kept["place of the first mark"] == 1 + 7  # it finds 10 kB before it
    assert any(text.startswith("way 1 of ") for text in told)


def checker_of(text: str, fabric_text: str) -> contextlib.AbstractContextManager[Checker]:
    """Return what holds a lab of `fabric_text` against the spec `text`."""

    @contextlib.contextmanager
    def both() -> Iterator[Checker]:
        with Lab(parse_spec(fabric_text)) as lab:
            yield Checker(parse_spec(text), lab.fabric, SHORT)

    return both()


def first_port(checker: Checker, spec: ClusterSpec) -> Iterator[Check]:
    names = [cable.name for cable in spec.topology.cables]
    return checker.check_port(names.index("leaf0-host0"), [0])


@pytest.mark.parametrize(
    ("said", "is_really", "what"),
    [
        pytest.param(
            *('port_buffer = "40 kB"', 'port_buffer = "37 kB"', "packets kept of a burst, ECN"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *('"20 kB" }, capable', '"17 kB" }, capable', "packets kept of a burst, plain"),
            marks=pytest.mark.long,
        ),
        ('"10 kB"', '"12 kB"', "place of the first mark"),
        pytest.param(
            *("hosts.count = 4", "hosts.count = 4\nswitch.dscp.56 = 7", "order of priorities"),
            marks=pytest.mark.long,
        ),
    ],
    ids=["limit", "drops", "marks", "order"],
)
def test_queues_other_than_the_spec_says_are_found_out(
    said: str, is_really: str, what: str
) -> None:
    """In each case one setting of the fabric is another, and only its row is outside."""
    assert said in SPEC
    with checker_of(SPEC, SPEC.replace(said, is_really)) as checker:
        rows = list(first_port(checker, parse_spec(SPEC)))
    assert {row.what for row in rows if row.verdict is Verdict.OUTSIDE} == {what}


def test_another_rate_delay_loss_or_forwarding_is_found_out() -> None:
    other = SPEC.replace("20 Mbit/s", "15 Mbit/s").replace("1 ms", "2 ms").replace("1 %", "9 %")
    spec = parse_spec(SPEC)
    with checker_of(SPEC, other.replace('"packet"', '"flow"')) as checker:
        way = ways_over_all(spec.topology)[0][0]
        rows = {row.what: row for row in checker.check_way(way)}
        spread = list(checker.check_balance())
    for what in ("rate", "delay, median", "delay, p99", "loss"):
        assert rows[what].verdict is Verdict.OUTSIDE, rows[what]
    assert rows["rate"].error is not None
    assert rows["rate"].error < -10
    assert [row.verdict for row in spread] == [Verdict.OUTSIDE] * 2


def test_flows_keep_their_path_and_divide_themselves() -> None:
    text = SPEC.replace('"packet"', '"flow"')
    with checker_of(text, text) as checker:
        rows = list(checker.check_balance())
    assert [row.what for row in rows] == ["path of a flow", "flows by hash", "flows by hash"]
    assert {row.verdict for row in rows} == {Verdict.OK}


def test_what_was_set_aside_comes_back() -> None:
    queue = Queue(limit_packets=3, limit_bytes=9_000)
    port = Port(10**7, (queue,) * QUEUES, limit_bytes=20_000)
    topology = star(host_names(2), Materials(port, port, Link(delay_s=0.01, loss=0.1)))
    with Fabric(topology) as fabric:

        def look(state):
            return [
                table.copy() for table in (state.ports, state.queues, state.profiles, state.links)
            ]

        before = fabric.change(look)
        restore = fabric.change(lambda state: set_aside(state, 1, 1_000, [0, 3], 10**8))
        meanwhile = fabric.change(look)
        assert meanwhile[0]["rate"].tolist() == [10**8, 1_000, 10**7, 10**8]
        assert meanwhile[3]["loss"].tolist()[0] == meanwhile[3]["loss"].tolist()[1] == 0
        assert (meanwhile[1]["limit_bytes"][8:16] == 9_000).all()
        fabric.change(restore)
        after = fabric.change(look)
    for old, new in zip(before, after, strict=True):
        assert (old == new).all()


def test_probes_are_numbered_timed_and_marked() -> None:
    spec = usual_labs()["star"]
    with Lab(spec) as lab, Probe(lab.fabric, 0, 1) as probe:
        probe.send(range(20), FULL_BYTES, gap_s=0.0)
        wait_until_empty(lab.fabric, 10)
        time.sleep(0.2)
        lost = 20 - len(probe.heard)
    assert lost <= 5
    numbers = [each.number for each in probe.heard]
    assert numbers == sorted(numbers)
    # Two links of 100 us, and two ports of 100 Mbit/s: a packet is never early.
    assert min(each.delay_s for each in probe.heard) > 2 * 100e-6 + 2 * FULL_BYTES * 8 / 100e6


def test_a_stream_counts_what_it_sends_and_keeps_its_rate() -> None:
    """With a rate, never more than is due; what it has sent arrives, as the ports are fast."""
    port = Port(10**9)
    with Fabric(star(host_names(3), Materials(port, port, Link()))) as fabric:
        began = time.monotonic()
        with Stream(fabric, [(0, 1), (0, 2)], 2_000) as stream:
            time.sleep(0.3)
        assert 0 < stream.sent <= 2_000 * (time.monotonic() - began)
        wait_until_empty(fabric, 10)
        received = payload_in(fabric, 1) + payload_in(fabric, 2)
    assert received == stream.sent * (FULL_BYTES - HEADERS_BYTES)


def test_a_load_that_is_carried_comes_out() -> None:
    spec = usual_labs()["leaf-spine"]
    with LoadTest(spec.topology, spray=True) as test:
        step = test.step(2_000, 0.3)
        backlog_s = test.backlog_s()
    assert step.sent > 0
    assert abs(step.rate_error) < 0.2
    assert 0 < step.busy < 1
    assert 0 < backlog_s < 0.001
    assert step.packet_s > 0
    assert step.p50_error_s <= step.p99_error_s


def check_in_haste(words: list[str]) -> None:
    """Be the command, with even less effort than `--quick` asks for."""
    lab_check.QUICK, lab_check.QUICK_STEP_S, load.RUNG = SHORT, 0.05, 3.0  # type: ignore[misc]
    run_command(words)


@pytest.mark.long
def test_the_command_says_that_a_lab_asks_for_too_much(tmp_path: Path) -> None:
    """Three hosts at 20 Gbit/s: five million packets per second are too many for any switch."""
    spec, rows = tmp_path / "fast.toml", tmp_path / "rows.json"
    spec.write_text('hosts.count = 3\naccess.rate = "20 Gbit/s"\n')
    words = ["lab", "check", str(spec), "--quick", "--json", str(rows)]
    done = forked(check_in_haste, words)
    assert done.returncode == 9, done.stderr
    load = next(row for row in json.loads(rows.read_text()) if row["what"] == "load")
    assert load["lab"] == "fast"
    assert load["verdict"] == "outside tolerance"
    assert load["specified"] == pytest.approx(3 * 20e9 / 8 / FULL_BYTES)
    assert "times what this machine carries" in done.stdout


def test_a_single_host_is_no_lab_to_check(tmp_path: Path) -> None:
    spec = tmp_path / "one.toml"
    spec.write_text('hosts.count = 1\naccess.rate = "1 Gbit/s"\n')
    done = shoal_lab("check", str(spec))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
