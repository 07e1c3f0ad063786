"""EOS: the lines are those that Arista's own generator writes for the same content.

Needs pyavd (arista.avd): `pip install pyavd`.
"""

from __future__ import annotations

from typing import Any

import pytest
from switch_readers import Read, ours, read
from switch_samples import sharing, typical

from shoal.lab.switch_config import switch_config
from shoal.lab.switch_config.switch_settings import SwitchSettings
from shoal.switching.settings import CLASS_SELECTORS, DSCPS, Port, Profile, Queue
from shoal.switching.tables import QUEUES


@pytest.fixture(scope="module")
def pyavd() -> Any:
    return pytest.importorskip("pyavd")


def blocks(text: str) -> dict[str, list[str]]:
    """Return the lines below each line that is not indented, without comments."""
    found: dict[str, list[str]] = {}
    body: list[str] = []
    for line in text.splitlines():
        if line.startswith(" "):
            if line.strip() != "!":
                body.append(line)
        elif not line.startswith("!"):
            body = found.setdefault(line, [])
    return {line: body for line, body in found.items() if line.startswith(("qos", "interface"))}


def globals_of(lines: dict[str, list[str]]) -> set[str]:
    """Return the lines that hold for the whole switch; their order says nothing."""
    return {line for line in lines if not line.startswith(("qos profile", "interface"))}


def marking() -> SwitchSettings:
    """Return a switch that drops nothing early."""
    queue = Queue(average_weight=7, capable=Profile(9_000, 90_000, 0.004))
    return SwitchSettings({"Ethernet7": Port(25_000_000_000, (queue,) * QUEUES)}, CLASS_SELECTORS)


def scrambled() -> SwitchSettings:
    """Return a switch with an odd map, which leaves a queue without any DSCP."""
    wanted = typical("eos")
    return SwitchSettings(wanted.ports, [(3 * dscp + dscp // 9) % 7 for dscp in range(DSCPS)])


def as_model(wanted: Any, result: Read, weights: dict[tuple[str, int], int]) -> dict[str, Any]:
    """Return what was read in the words of Arista's model, a profile for every port."""
    profiles = []
    for name in wanted.ports:
        queues = []
        for number in range(QUEUES):
            queue: dict[str, Any] = {"id": number, "priority": "priority strict"}
            place = name, ours(number)
            if place in result.thresholds:
                least, most, chance, _ = result.thresholds[place]
                threshold = {"units": "bytes", "min": least, "max": most}
                threshold |= {"max_probability": round(100 * chance), "weight": weights[place]}
                queue["random_detect"] = {"ecn": {"threshold": threshold}}
            queues.append(queue)
        rate = f"{result.rates[name] // 1000} kbps"
        profile = {"name": name, "trust": "dscp", "shape": {"rate": rate}, "tx_queues": queues}
        profiles.append(profile)
    classes = [
        f"{' '.join(str(dscp) for dscp in range(DSCPS) if wanted.queues[dscp] == queue)}"
        f" to traffic-class {ours(queue)}"
        for queue in sorted(set(wanted.queues))
    ]
    maps = {"dscp": classes, "traffic_class": [f"{k} to tx-queue {k}" for k in range(QUEUES)]}
    qos: dict[str, Any] = {"map": maps}
    drops = [each[3] for each in result.thresholds.values()]
    if drops and not any(drops):
        qos["random_detect"] = {"ecn": {"allow_non_ect": {"enabled": True}}}
    return {
        "qos": qos,
        "qos_profiles": profiles,
        "ethernet_interfaces": [{"name": name, "service_profile": name} for name in wanted.ports],
    }


def check(pyavd: Any, wanted: Any) -> None:
    text = switch_config(wanted, "eos").text
    weights = {
        (name, number): queue.average_weight
        for name, port in wanted.ports.items()
        for number, queue in enumerate(port.queues)
    }
    model = as_model(wanted, read("eos", text), weights)
    validated = pyavd.validate_structured_config(model)
    assert not validated.validation_result.violations, validated.validation_result.violations
    mine, theirs = blocks(text), blocks(pyavd.get_device_config(model))
    assert globals_of(mine) == globals_of(theirs)
    for name in wanted.ports:
        [line] = mine[f"interface {name}"]
        assert theirs[f"interface {name}"] == [f"   service-profile {name}"]
        assert line.startswith("   service-profile shoal-")
        assert mine[f"qos profile {line.split()[-1]}"] == theirs[f"qos profile {name}"]


@pytest.mark.parametrize("wanted", [typical("eos"), sharing("eos"), marking(), scrambled()])
def test_arista_writes_the_same_lines(pyavd: Any, wanted: Any) -> None:
    check(pyavd, wanted)


def test_packets_without_marks_pass_where_no_queue_drops_them() -> None:
    line = "qos random-detect ecn allow non-ect"
    assert line in switch_config(marking(), "eos").text.splitlines()
    assert line not in switch_config(typical("eos"), "eos").text
    mixed = switch_config(sharing("eos"), "eos")
    assert line not in mixed.text
    [note] = [note for note in mixed.notes if "for all queues at once" in note]
    assert note.endswith("[Ethernet1, Ethernet2 queues 0, 2, 4, 6]")
