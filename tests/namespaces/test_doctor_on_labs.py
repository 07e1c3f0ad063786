"""`shoal doctor` on the hosts of a lab writes the cluster that the lab emulates."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from shoal.doctor.doctor_report import read_report
from shoal.lab.lab import Lab
from shoal.lab.network.host_interfaces import address_of
from shoal.scenario.spec_file import parse_spec, read_scenario

DOCTOR = (sys.executable, "-m", "shoal.cli", "doctor")
STAR = """
seed = 2
hosts.count = 3

[access]
rate = "20 Mbit/s"
delay = "3 ms"

[[link]]
from = "host1"
to = "switch"
rate = "8 Mbit/s"
loss = "4 %"

[[link]]
between = ["host2", "switch"]
delay = "8 ms"
"""
ETHERNET = 14 / 1514
"""Of a frame, which takes time on the lab's links and is no part of the IP packet."""
SOFTWARE_S = 2e-3
"""What the doctors' reading and answering, on a busy machine, may put on a way."""
RATES_WITHIN = 0.06
"""Of a stream of 170 packets about 4 % get lost on the slow link, give or take 1.5 %."""


def listen(lab: Lab, host: int, opened: ExitStack) -> None:
    command = [*DOCTOR, "--listen", "--bind", address_of(host), "--seconds", "100"]
    process = opened.enter_context(
        lab.start(host, command, stderr=subprocess.PIPE, environment=environment())
    )
    assert process.stderr.readline().startswith(b"listening")


def call(lab: Lab, host: int, others: list[int], *options: str) -> None:
    calls = [part for other in others for part in ("--with", address_of(other))]
    command = [*DOCTOR, "--bind", address_of(host), *calls, *options]
    with lab.start(
        host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, environment=environment()
    ) as process:
        said = process.stdout.read().decode()
        assert process.wait(60) == 0, said


def environment() -> dict[str, str]:
    return {**os.environ, "SHOAL_JOB_KEY": "the key of this test"}


@pytest.mark.long
def test_a_long_way_is_no_loss(tmp_path: Path) -> None:
    """What is still under way when the last packet has left has not got lost."""
    report = tmp_path / "report.json"
    far = 'hosts.count = 2\n[access]\nrate = "20 Mbit/s"\ndelay = "90 ms"\n'
    with Lab(parse_spec(far)) as lab, ExitStack() as opened:
        listen(lab, 1, opened)
        call(lab, 0, [1], "--json", str(report))
    (pair,) = read_report(report).pairs
    assert (pair.shortest_us or 0) > 360_000
    assert (pair.there.lost, pair.back.lost) == (0, 0)


@pytest.mark.long  # test_doctor_pair.py has files of several pairs, test_doctor_network.py faults
def test_the_doctor_writes_the_star_that_the_lab_is(tmp_path: Path) -> None:
    spec, report, cluster = parse_spec(STAR), tmp_path / "of-host0.json", tmp_path / "all.toml"
    with Lab(spec) as lab, ExitStack() as opened:
        listen(lab, 1, opened)
        listen(lab, 2, opened)
        call(lab, 0, [1, 2], "--json", str(report))
        call(lab, 1, [2], "--pairs", str(report), "--cluster", str(cluster))
    found = read_scenario(cluster).cluster.topology
    assert found.host_names == tuple(address_of(host).replace(".", "-") for host in range(3))
    assert len(found.cables) == len(spec.topology.cables) == 6
    for mine, theirs in zip(found.cables, spec.topology.cables, strict=True):
        assert (mine.source, mine.target) == (theirs.source, theirs.target)
        rate = theirs.port.rate * (1 - ETHERNET) * (1 - theirs.link.loss)
        assert mine.port.rate == pytest.approx(rate, rel=RATES_WITHIN), mine.name
        assert mine.link.delay_s == pytest.approx(theirs.link.delay_s, abs=SOFTWARE_S), mine.name
    losses = [cable.link.loss for cable in found.cables if cable.name.startswith("10-77-0-2-")]
    assert losses[0] == pytest.approx(0.04, abs=0.02)  # of 1,700 packets: 4 deviations
    assert sum(cable.link.loss for cable in found.cables) < losses[0] + 0.02
