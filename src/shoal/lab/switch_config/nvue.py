"""NVIDIA Cumulus Linux: YAML for `nv config patch`.

The tree is that of the NVUE commands (NVUE command reference, QoS; Cumulus Linux 5.11 and later).
Maps from switch priorities to queues and buffers exist once for all ports (`default-global`).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from shoal.lab.switch_config.switch_settings import Configuration, Notes, traffic_class
from shoal.lab.switch_config.thresholds import (
    alpha_exponent,
    bytes_limit_of,
    in_32_bits,
    in_units,
    note_averages,
    note_bytes,
    note_packets,
    percent_of,
    threshold_of,
)
from shoal.switching import QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeAlias

    from shoal.lab.switch_config.switch_settings import SwitchSettings
    from shoal.switching import Port

    Tree: TypeAlias = "dict[str, Tree | str | int]"

GLOBAL: Final = "default-global"
ALPHAS: Final = (-7, 6)
"""Least and greatest exponent that has a name, from alpha_1_128 to alpha_64."""
_PORT: Final = re.compile(r"swp\d+(s\d+)?")


def port_name(place: int) -> str:
    """Return what Cumulus Linux calls the port at `place`, from 0 on."""
    return f"swp{place + 1}"


def write(settings: SwitchSettings) -> Configuration:
    """Return a patch; every kind of port has its profiles."""
    notes = Notes(settings.remarks)
    note_packets(settings, notes)
    note_averages(settings, notes)
    for name in settings.ports:
        if _PORT.fullmatch(name) is None:
            notes.add("Cumulus Linux names ports swp1, swp2s0 and so on.", name)
    control: dict[str, Tree] = {}
    shapers: dict[str, Tree] = {}
    ports: Tree = {}
    for name, port in settings.ports.items():
        shaper = {"port-max-rate": in_units(name, port, 1000, "kbps", notes)}
        ports[name] = {
            "qos": {
                "congestion-control": {"profile": _named(control, _control(name, port, notes))},
                "egress-scheduler": {"profile": "shoal"},
                "egress-shaper": {"profile": _named(shapers, {**shaper})},
                "mapping": {"profile": "shoal"},
            }
        }
    qos: Tree = {
        "congestion-control": {**control},
        "egress-queue-mapping": {
            GLOBAL: {"switch-priority": {str(n): {"traffic-class": n} for n in range(QUEUES)}}
        },
        "egress-scheduler": {
            "shoal": {"traffic-class": {str(n): {"mode": "strict"} for n in range(QUEUES)}}
        },
        "egress-shaper": {**shapers},
        "mapping": {
            "shoal": {
                "trust": "l3",
                "dscp": {
                    str(dscp): {"switch-priority": traffic_class(queue)}
                    for dscp, queue in enumerate(settings.queues)
                },
            }
        },
    }
    buffers = _buffers(settings, notes)
    if buffers:
        qos["advance-buffer-config"] = {GLOBAL: buffers}
    lines = ["- set:", *_yaml({"interface": ports, "qos": qos}, 4)]
    comments = [f"# {note}" for note in notes.lines()]
    return Configuration("\n".join([*comments, *lines]) + "\n", notes.lines())


def _named(profiles: dict[str, Tree], wanted: Tree) -> str:
    """Return the name of the profile `wanted`, which is added if it is new."""
    for name, profile in profiles.items():
        if profile == wanted:
            return name
    name = f"shoal-{len(profiles) + 1}"
    profiles[name] = wanted
    return name


def _control(name: str, port: Port, notes: Notes) -> Tree:
    classes: Tree = {}
    for number in reversed(range(QUEUES)):
        threshold = threshold_of(name, number, port.queues[number], notes)
        row: Tree = {"ecn": "disable", "red": "disable"}
        if threshold is not None:
            row = {
                "ecn": "enable",
                "red": "enable" if threshold.drops else "disable",
                "min-threshold": threshold.least,
                "max-threshold": threshold.most,
                "probability": percent_of(name, number, threshold, notes),
            }
        classes[str(traffic_class(number))] = row
    return {"traffic-class": classes}


def _buffers(settings: SwitchSettings, notes: Notes) -> Tree:
    """Return how egress buffers are divided, where all ports divide them in the same way."""
    if settings.shared_buffer_bytes is None:
        mode, values = "static", _limits(settings, notes)
    else:
        mode, values = "dynamic", _shares(settings, notes)
        notes.add(
            f"Pools are percentages of a switch's memory: the size of"
            f" {settings.shared_buffer_bytes} bytes is not written."
        )
    classes: Tree = {}
    for number, (leaf, value) in values.items():
        classes[str(traffic_class(number))] = {leaf: value}
    if not classes:
        return {}
    return {
        "egress-lossy-buffer": {"traffic-class": classes},
        "egress-service-pool": {"0": {"mode": mode}},
    }


def _limits(settings: SwitchSettings, notes: Notes) -> dict[int, tuple[str, str | int]]:
    """Return the limit of every queue; none at all if not every queue of all ports has the same."""
    undecided = Notes()
    limits = {
        number: {
            bytes_limit_of(name, port, number, undecided) for name, port in settings.ports.items()
        }
        for number in range(QUEUES)
    }
    if any(None in each or len(each) != 1 for each in limits.values()):
        note_bytes(settings, "Pools are divided among all queues and for all ports at once", notes)
        return {}
    written: dict[int, tuple[str, str | int]] = {}
    for name, port in settings.ports.items():
        for number in range(QUEUES):
            limit = bytes_limit_of(name, port, number, notes) or 0
            written[number] = "shared-bytes", in_32_bits(name, number, limit, notes)
    return written


def _shares(settings: SwitchSettings, notes: Notes) -> dict[int, tuple[str, str | int]]:
    """Return the share of every queue that has the same one on all ports."""
    note_bytes(settings, "A shared pool has no other limits", notes)
    shares: dict[int, tuple[str, str | int]] = {}
    for number in range(QUEUES):
        alphas = {
            alpha_exponent(
                name, number, port.queues[number], notes, least=ALPHAS[0], most=ALPHAS[1]
            )
            for name, port in settings.ports.items()
        }
        if len(alphas) == 1:
            shares[number] = "shared-alpha", alpha_name(alphas.pop())
            continue
        for name in settings.ports:
            notes.add("Shares are said for all ports at once, and differ here.", name, number)
    return shares


def alpha_name(exponent: int) -> str:
    """Return what NVUE calls 2^exponent."""
    return f"alpha_{2**exponent}" if exponent >= 0 else f"alpha_1_{2**-exponent}"


def _yaml(tree: Tree, indent: int) -> Iterator[str]:
    """Yield lines of YAML; names and numbers that are keys are in quotes, so that they stay so."""
    for name, value in tree.items():
        written = name if re.fullmatch(r"[a-z]+(-[a-z]+)*", name) else json.dumps(name)
        if isinstance(value, dict):
            yield f"{' ' * indent}{written}:"
            yield from _yaml(value, indent + 2)
        else:
            yield f"{' ' * indent}{written}: {value}"
