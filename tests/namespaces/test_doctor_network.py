"""`shoal doctor` across a network that drops, clears and marks: each fault is found, in its way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "two_hosts.py"
UNSHARE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
LISTENER, CALLER = "10.77.0.1", "10.77.0.2"
THERE, BACK = f"{CALLER} -> {LISTENER}", f"{LISTENER} -> {CALLER}"
BOTH = f"{CALLER} <-> {LISTENER}"


def why_not() -> str:
    """Return what is missing for network namespaces of one's own, or an empty text."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            return f"the tool {tool} is not installed"
    trial = [*UNSHARE, "ip", "link", "add", "port0", "type", "veth", "peer", "name", "port1"]
    done = subprocess.run(trial, capture_output=True, timeout=20, check=False)
    return "network namespaces with veth links may not be made here" if done.returncode else ""


pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")


def examine(
    there: dict[str, Any] | None = None, back: dict[str, Any] | None = None
) -> tuple[int, dict[tuple[str, str], dict[str, str]]]:
    """Return the caller's exit code and its findings by (name, where)."""
    rules = json.dumps({"there": there or {}, "back": back or {}})
    done = subprocess.run(
        [*UNSHARE, sys.executable, SCRIPT, rules],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["findings"], result["complaint"]
    found = {(each["name"], each["where"]): each for each in result["findings"]}
    assert len(found) == len(result["findings"])
    return result["code"], found


def test_a_clean_network_is_in_order() -> None:
    code, found = examine()
    assert code == 0
    for way in (THERE, BACK):
        assert found["path MTU", way]["found"].startswith("1500 bytes")
        for name in ("TCP ports", "UDP ports", "path MTU", "DSCP", "ECN"):
            assert found[name, way]["verdict"] == "ok"
    assert found["loss", BOTH]["found"] == "0 of 200 packets lost there, 0 of 200 back"
    assert found["interface", CALLER]["found"].startswith("wire")
    assert found["interface", LISTENER]["found"].startswith("wire")


def test_a_firewall_that_drops_all_udp_is_one_finding_each_way() -> None:
    code, found = examine({"drop_udp": True}, {"drop_udp": True})
    assert code == 9
    wrong = {key for key, each in found.items() if each["verdict"] == "wrong"}
    assert wrong == {("UDP ports", THERE), ("UDP ports", BACK)}
    assert found["TCP ports", THERE]["verdict"] == "ok"


def test_one_way_is_not_blamed_for_the_other() -> None:
    code, found = examine({"drop_udp": True}, {"clear_dscp": True, "set_ecn": {"1": 0}})
    assert code == 9
    assert found["UDP ports", THERE]["verdict"] == "wrong"
    assert found["UDP ports", BACK]["verdict"] == "ok"
    assert ("DSCP", THERE) not in found
    assert "8, 16, 24, 32, 40, 48, 56 arrive as 0" in found["DSCP", BACK]["found"]
    assert "01 (ECT 1) arrive as 00 (not ECT)" in found["ECN", BACK]["found"]
    assert found["DSCP", BACK]["verdict"] == found["ECN", BACK]["verdict"] == "could be better"


def test_small_path_mtu_loss_marks_and_a_dropped_class() -> None:
    code, found = examine(
        {"largest": 1321, "lose_every": 4}, {"drop_dscp": [56], "set_ecn": {"1": 3, "2": 3}}
    )
    assert code == 9
    assert found["path MTU", THERE]["found"].startswith("1321 bytes")
    assert "SHOAL_MTU=1321 " in found["path MTU", THERE]["advice"]
    assert found["path MTU", BACK]["found"].startswith("1500 bytes")
    assert found["DSCP", THERE]["verdict"] == "ok"
    assert found["DSCP", BACK]["found"].endswith("nothing arrives of 56")
    assert "11 (CE)" in found["ECN", BACK]["found"]
    assert found["loss", BOTH]["found"] == "50 of 200 packets lost there, 0 of 150 back"
    assert found["loss", BOTH]["verdict"] == "wrong"
