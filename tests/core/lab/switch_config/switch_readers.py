"""Reads configurations back, each as its device would: maps, thresholds, limits and the order."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field

import yaml

from shoal.switching.settings import DSCPS
from shoal.switching.tables import QUEUES


@dataclass
class Read:
    """What a text says, in the lab's terms. Limits that it does not say are missing."""

    maps: list[list[int]] = field(default_factory=list)
    """For every port (and address family): the queue of each DSCP."""
    thresholds: dict[tuple[str, int], tuple[int, int, float, bool]] = field(default_factory=dict)
    """Least and most bytes, probability, and whether plain packets are dropped."""
    limits: dict[tuple[str, int], int] = field(default_factory=dict)
    alphas: dict[tuple[str, int], float] = field(default_factory=dict)
    rates: dict[str, int] = field(default_factory=dict)
    """Bits per second."""
    strict: set[tuple[str, int]] = field(default_factory=set)


def read(form: str, text: str) -> Read:
    return READERS[form](text)


def read_linux_tc(text: str) -> Read:
    result = Read()
    filters: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    handles: dict[tuple[str, str], int] = {}
    for line in text.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        device = words[words.index("dev") + 1]
        value = dict(itertools.pairwise(words))
        if words[0] == "class" and "prio" in value:
            handles[device, value["classid"]] = int(value["prio"])
            result.strict.add((device, int(value["prio"])))
        elif words[0] == "class":
            result.rates[device] = int(value["rate"].removesuffix("bit"))
        elif words[0] == "filter":
            tos, mask = (int(each, 16) for each in words[words.index("flowid") - 2 :][:2])
            rules = filters.setdefault((device, value["protocol"]), [])
            rules.append((tos, mask, handles[device, value["flowid"]]))
        elif "parent" in value:
            place = device, handles[device, value["parent"]]
            result.limits[place] = int(value["limit"])
            if "red" in words:
                ends = int(value["min"]), int(value["max"])
                chance = 1.0 if ends[0] == ends[1] else float(value["probability"])
                result.thresholds[place] = (*ends, chance, "nodrop" not in words)
                assert "ecn" in words
    assert {family for _, family in filters} == {"ip", "ipv6"}
    for rules in filters.values():
        chosen = [
            [to for tos, mask, to in rules if dscp << 2 & mask == tos] for dscp in range(DSCPS)
        ]
        assert all(len(each) == 1 for each in chosen)
        result.maps.append([each[0] for each in chosen])
    return result


def read_sonic(text: str) -> Read:
    tables = json.loads(text)
    result = Read()
    for name, row in tables["PORT_QOS_MAP"].items():
        classes = tables["DSCP_TO_TC_MAP"][row["dscp_to_tc_map"]]
        queues = tables["TC_TO_QUEUE_MAP"][row["tc_to_queue_map"]]
        assert len(classes) == DSCPS
        result.maps.append([ours(queues[classes[str(dscp)]]) for dscp in range(DSCPS)])
        result.rates[name] = 8 * int(tables["SCHEDULER"][row["scheduler"]]["pir"])
    for key, row in tables["QUEUE"].items():
        name, number = key.split("|")
        place = name, ours(number)
        if tables["SCHEDULER"][row["scheduler"]]["type"] == "STRICT":
            result.strict.add(place)
        if "wred_profile" in row:
            wred = tables["WRED_PROFILE"][row["wred_profile"]]
            assert wred["ecn"] == "ecn_all"
            ends = int(wred["green_min_threshold"]), int(wred["green_max_threshold"])
            percent = int(wred["green_drop_probability"])
            result.thresholds[place] = (*ends, percent / 100, wred["wred_green_enable"] == "true")
    for key, row in tables.get("BUFFER_QUEUE", {}).items():
        name, number = key.split("|")
        profile = tables["BUFFER_PROFILE"][row["profile"]]
        if "static_th" in profile:
            result.limits[name, ours(number)] = int(profile["static_th"])
        else:
            result.alphas[name, ours(number)] = 2.0 ** int(profile["dynamic_th"])
    return result


def read_eos(text: str) -> Read:
    result = Read()
    classes: dict[int, int] = {}
    queues: dict[int, int] = {}
    profiles: dict[str, list[str]] = {}
    body: list[str] = []
    port = ""
    for line in text.splitlines():
        if found := re.fullmatch(r"qos map dscp ([\d ]+) to traffic-class (\d)", line):
            new = {int(dscp): int(found[2]) for dscp in found[1].split()}
            assert not new.keys() & classes.keys()
            classes |= new
        elif found := re.fullmatch(r"qos map traffic-class (\d) to tx-queue (\d)", line):
            queues[int(found[1])] = int(found[2])
        elif found := re.fullmatch(r"qos profile (\S+)", line):
            body = profiles[found[1]] = []
        elif found := re.fullmatch(r"interface (\S+)", line):
            port, body = found[1], []
        elif found := re.fullmatch(r"   service-profile (\S+)", line):
            drops = "qos random-detect ecn allow non-ect" not in text.splitlines()
            _read_eos_profile(result, port, profiles[found[1]], drops=drops)
        else:
            body.append(line)
    for _ in result.rates:
        result.maps.append([7 - queues[classes[dscp]] for dscp in range(DSCPS)])
    return result


def _read_eos_profile(result: Read, port: str, body: list[str], *, drops: bool) -> None:
    number = -1
    assert body[0] == "   qos trust dscp"
    for line in body[1:]:
        if found := re.fullmatch(r"   shape rate (\d+) kbps", line):
            result.rates[port] = 1000 * int(found[1])
        elif found := re.fullmatch(r"   tx-queue (\d)", line):
            number = ours(found[1])
        elif line == "      priority strict":
            result.strict.add((port, number))
        elif found := re.fullmatch(
            r"      random-detect ecn minimum-threshold (\d+) bytes maximum-threshold (\d+) bytes"
            r" max-mark-probability (\d+) weight (\d+)",
            line,
        ):
            ends = int(found[1]), int(found[2])
            result.thresholds[port, number] = (*ends, int(found[3]) / 100, drops)
        else:
            assert line.strip() == "!", line


def read_nvue(text: str) -> Read:
    [patch] = yaml.safe_load(text)
    tree, result = patch["set"], Read()
    qos = tree["qos"]
    queues = qos["egress-queue-mapping"]["default-global"]["switch-priority"]
    for name, row in tree["interface"].items():
        names = {feature: each["profile"] for feature, each in row["qos"].items()}
        mapping = qos["mapping"][names["mapping"]]
        assert mapping["trust"] == "l3"
        priorities = [mapping["dscp"][str(dscp)]["switch-priority"] for dscp in range(DSCPS)]
        result.maps.append([ours(queues[str(each)]["traffic-class"]) for each in priorities])
        result.rates[name] = 1000 * qos["egress-shaper"][names["egress-shaper"]]["port-max-rate"]
        for number, each in qos["egress-scheduler"][names["egress-scheduler"]][
            "traffic-class"
        ].items():
            if each["mode"] == "strict":
                result.strict.add((name, ours(number)))
        for number, each in qos["congestion-control"][names["congestion-control"]][
            "traffic-class"
        ].items():
            if each["ecn"] == "enable":
                ends = each["min-threshold"], each["max-threshold"]
                drops = each["red"] == "enable"
                result.thresholds[name, ours(number)] = (*ends, each["probability"] / 100, drops)
        buffers = qos.get("advance-buffer-config", {}).get("default-global", {})
        classes = buffers.get("egress-lossy-buffer", {"traffic-class": {}})["traffic-class"]
        for number, each in classes.items():
            if "shared-bytes" in each:
                result.limits[name, ours(number)] = each["shared-bytes"]
            else:
                result.alphas[name, ours(number)] = _alpha(each["shared-alpha"])
    return result


def _alpha(name: str) -> float:
    numbers = [int(each) for each in name.removeprefix("alpha_").split("_")]
    return float(numbers[0]) if len(numbers) == 1 else numbers[0] / numbers[1]


def ours(number: str | int) -> int:
    """Return the lab's number of a device's queue."""
    return QUEUES - 1 - int(number)


READERS = {
    "linux-tc": read_linux_tc,
    "sonic": read_sonic,
    "eos": read_eos,
    "nvue": read_nvue,
}
