"""`shoal doctor` across a network that drops, clears and marks: each fault is found, in its way."""

from __future__ import annotations

import json
import os

import pytest
from lab_commands import ForkedProcess, run_command
from meddling_network import ADDRESSES, Rules, meddling_network

from shoal.lab.network.namespaces import inside

LISTENER, CALLER = ADDRESSES
THERE, BACK = f"{CALLER} -> {LISTENER}", f"{LISTENER} -> {CALLER}"
BOTH = f"{CALLER} <-> {LISTENER}"


def be_inside(path: str, words: list[str]) -> None:
    """Be a command of a host."""
    with inside(path):
        run_command(words)


def examine(
    there: Rules, back: Rules, ports: str = ""
) -> tuple[int, dict[tuple[str, str], dict[str, str]]]:
    """Return the caller's exit code and its findings by (name, where)."""
    environment = {**os.environ, "SHOAL_JOB_KEY": "a key for this test", "SHOAL_PORTS": ports}
    listen = ["doctor", "--listen", "--bind", LISTENER, "--port", "29499", "--seconds", "50"]
    call = ["doctor", "--with", LISTENER, "--json", "-"]
    with meddling_network(to_first=there, to_second=back) as (first, second):
        listener = ForkedProcess(environment, be_inside, first.path, listen)
        caller = None
        try:
            assert listener.first_error_line().startswith("listening")
            caller = ForkedProcess(environment, be_inside, second.path, call)
            written, errors = caller.communicate(timeout=45)
        finally:
            for process in (listener, caller):
                if process is not None:
                    process.kill()
    assert written, errors
    findings = json.loads(written)["findings"]
    found = {(each["name"], each["where"]): each for each in findings}
    assert len(found) == len(findings)
    assert caller.returncode is not None
    return caller.returncode, found


@pytest.mark.long
def test_a_clean_network_is_in_order() -> None:
    code, found = examine(Rules(), Rules())
    assert code == 0
    for way in (THERE, BACK):
        assert found["path MTU", way]["found"].startswith("1500 bytes")
        for name in ("TCP ports", "UDP ports", "path MTU", "DSCP", "ECN"):
            assert found[name, way]["verdict"] == "ok"
    assert found["loss", BOTH]["found"] == "0 of 1000 packets lost there, 0 of 1000 back"
    assert found["interface", CALLER]["found"].startswith("wire")
    assert found["interface", LISTENER]["found"].startswith("wire")


def test_a_firewall_that_drops_all_udp_is_one_finding_each_way() -> None:
    code, found = examine(Rules(drop_udp=True), Rules(drop_udp=True))
    assert code == 9
    wrong = {key for key, each in found.items() if each["verdict"] == "wrong"}
    assert wrong == {("UDP ports", THERE), ("UDP ports", BACK)}
    assert found["TCP ports", THERE]["verdict"] == "ok"


@pytest.mark.long
def test_one_way_is_not_blamed_for_the_other() -> None:
    code, found = examine(Rules(drop_udp=True), Rules(clear_dscp=True, ecn={1: 0}))
    assert code == 9
    assert found["UDP ports", THERE]["verdict"] == "wrong"
    assert found["UDP ports", BACK]["verdict"] == "ok"
    assert ("DSCP", THERE) not in found
    assert "8, 16, 24, 32, 40, 48, 56 arrive as 0" in found["DSCP", BACK]["found"]
    assert "01 (ECT 1) arrive as 00 (not ECT)" in found["ECN", BACK]["found"]
    assert found["DSCP", BACK]["verdict"] == found["ECN", BACK]["verdict"] == "could be better"


def test_small_path_mtu_loss_marks_and_a_dropped_class() -> None:
    code, found = examine(Rules(largest=1321, lose_every=4), Rules(drop_dscp=56, ecn={1: 3, 2: 3}))
    assert code == 9
    assert found["path MTU", THERE]["found"].startswith("1321 bytes")
    assert "SHOAL_MTU=1321 " in found["path MTU", THERE]["advice"]
    assert found["path MTU", BACK]["found"].startswith("1500 bytes")
    assert found["DSCP", THERE]["verdict"] == "ok"
    assert found["DSCP", BACK]["found"].endswith("nothing arrives of 56")
    assert "11 (CE)" in found["ECN", BACK]["found"]
    assert found["loss", BOTH]["found"] == "250 of 1000 packets lost there, 0 of 750 back"
    assert found["loss", BOTH]["verdict"] == "wrong"


@pytest.mark.long
def test_ports_that_a_firewall_closes_are_named_and_the_rest_is_still_examined() -> None:
    code, found = examine(Rules(drop_ports=range(4000, 4003)), Rules(), "4000-4009")
    assert code == 9
    assert found["UDP ports", THERE]["found"] == "no UDP arrives at ports 4000 ... 4002, 3 of 10"
    assert "ports 4000 ... 4002 not reachable (silent)" in found["TCP ports", THERE]["found"]
    assert found["UDP ports", BACK]["found"] == "ports 4000 ... 4009 reachable"
    assert found["DSCP", THERE]["verdict"] == "ok"
