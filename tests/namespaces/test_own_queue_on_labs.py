"""A rank sees what of its data the kernel still holds, where a link holds it up, and only there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shoal.lab.lab import Lab
from shoal.lab.network.host_interfaces import address_of
from shoal.scenario.spec_file import parse_spec
from shoal.transport.own_queue import PACKET_BYTES

pytestmark = pytest.mark.timeout(200)  # the first test compiles

SPEC = 'hosts.count = 2\naccess = { rate = "20 Mbit/s" }\n'
FRAMES_PER_US = 20 / 8 / 1514
"""What the links carry."""

PROGRAM = """
import numpy as np
import shoal

with shoal.connect() as comm:
    for _ in range(4):
        comm.all_reduce(np.ones(250_000, np.float32))
    print("rate", float(comm._engine.endpoint.state.core[0]["own_rate"]))
"""


def rates_on(lab: Lab, hosts: tuple[int, int], addresses: tuple[str, str]) -> list[float]:
    """Return what two ranks on `hosts` have found their links to carry, in charged bytes per us."""
    started = []
    for rank, (host, address) in enumerate(zip(hosts, addresses, strict=True)):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "MASTER_ADDR": addresses[0],
            "MASTER_PORT": "29400",
            "SHOAL_BIND": address,
            "SHOAL_JOB_KEY": "0" * 64,
        }
        command = ["env", *(f"{name}={value}" for name, value in variables.items())]
        command += [sys.executable, "-c", PROGRAM]
        started.append(lab.start(host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
    rates = []
    for process in started:
        with process:
            written = process.stdout.read().decode()
        last = written.splitlines()[-1]
        assert last.startswith("rate "), written
        rates.append(float(last.removeprefix("rate ")))
    return rates


def test_the_rate_of_a_link_is_found() -> None:
    with Lab(parse_spec(SPEC)) as lab:
        if not lab.fabric.paces_hosts:
            pytest.skip("Needs a token bucket of the kernel's (htb or tbf).")
        over_links = rates_on(lab, (0, 1), (address_of(0), address_of(1)))
    usual = FRAMES_PER_US * PACKET_BYTES
    assert all(usual / 4 < rate < 4 * usual for rate in over_links), over_links


@pytest.mark.long
def test_there_is_no_rate_on_loopback() -> None:
    with Lab(parse_spec(SPEC)) as lab:
        if not lab.fabric.paces_hosts:
            pytest.skip("Needs a token bucket of the kernel's (htb or tbf).")
        assert rates_on(lab, (0, 0), ("127.0.0.1", "127.0.0.1")) == [0.0, 0.0]
