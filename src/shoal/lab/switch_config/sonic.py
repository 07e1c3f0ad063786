"""SONiC: tables of CONFIG_DB as JSON, to be loaded beside what a switch has.

Fields, ranges and references are those of the YANG models in sonic-net/sonic-buildimage,
src/sonic-yang-models. JSON has no comments: what is not said is in the notes only.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from shoal.lab.switch_config.switch_settings import Configuration, Notes, traffic_class
from shoal.lab.switch_config.thresholds import (
    alpha_exponent,
    in_units,
    note_averages,
    note_bytes,
    note_packets,
    percent_of,
    queues_of,
    threshold_of,
)
from shoal.switching import QUEUES

if TYPE_CHECKING:
    from typing import TypeAlias

    from shoal.lab.switch_config.switch_settings import SwitchSettings
    from shoal.lab.switch_config.thresholds import Threshold
    from shoal.switching import Port

    Table: TypeAlias = dict[str, dict[str, str]]

MAP: Final = "SHOAL"
"""The name of both maps."""
STRICT: Final = "shoal_strict"
POOL: Final = "egress_lossy_pool"
"""The pool that switches define themselves; its mode and size are replaced."""
ALPHAS: Final = (-8, 7)
"""Least and greatest exponent of a dynamic threshold."""
_COLORS: Final = ("green", "yellow", "red")
_PORT: Final = re.compile(r"Ethernet\d+")


def port_name(place: int) -> str:
    """Return what SONiC calls the port at `place`, from 0 on, where each has four lanes."""
    return f"Ethernet{4 * place}"


def write(settings: SwitchSettings) -> Configuration:
    """Return the tables, for `config load FILE`."""
    notes = Notes(settings.remarks)
    note_packets(settings, notes)
    note_averages(settings, notes)
    for name in settings.ports:
        if _PORT.fullmatch(name) is None:
            notes.add("SONiC names ports Ethernet0, Ethernet4 and so on.", name)
    tables: dict[str, Table] = {
        "DSCP_TO_TC_MAP": {
            MAP: {str(dscp): str(traffic_class(its)) for dscp, its in enumerate(settings.queues)}
        },
        "TC_TO_QUEUE_MAP": {MAP: {str(number): str(number) for number in range(QUEUES)}},
        "SCHEDULER": {STRICT: {"type": "STRICT"}},
        "PORT_QOS_MAP": {},
        "WRED_PROFILE": {},
        "QUEUE": {},
    }
    for name, port in settings.ports.items():
        scheduler = f"shoal_rate_{port.rate}"
        rate = str(in_units(name, port, 8, "bytes/s", notes))
        tables["SCHEDULER"][scheduler] = {"meter_type": "bytes", "cir": rate, "pir": rate}
        tables["PORT_QOS_MAP"][name] = {
            "dscp_to_tc_map": MAP,
            "tc_to_queue_map": MAP,
            "scheduler": scheduler,
        }
    _add_queues(settings, tables, notes)
    if settings.shared_buffer_bytes is None:
        _add_limits(settings, tables, notes)
    else:
        _add_shares(settings, settings.shared_buffer_bytes, tables, notes)
    filled = {table: rows for table, rows in tables.items() if rows}
    return Configuration(json.dumps(filled, indent=4) + "\n", notes.lines())


def key(name: str, queue: int) -> str:
    """Return the key of a port's queue."""
    return f"{name}|{traffic_class(queue)}"


def _add_queues(settings: SwitchSettings, tables: dict[str, Table], notes: Notes) -> None:
    """Add every queue, and a WRED profile for every threshold that there is."""
    names: dict[tuple[Threshold, int], str] = {}
    for name, _, number, queue in queues_of(settings):
        row = {"scheduler": STRICT}
        threshold = threshold_of(name, number, queue, notes)
        if threshold is not None:
            percent = percent_of(name, number, threshold, notes)
            profile = names.setdefault((threshold, percent), f"SHOAL_{len(names) + 1}")
            tables["WRED_PROFILE"][profile] = _wred(threshold, percent)
            row["wred_profile"] = profile
        tables["QUEUE"][key(name, number)] = row


def _wred(threshold: Threshold, percent: int) -> dict[str, str]:
    """Return a profile that is the same for all of a device's own colors: they are not ours."""
    row = {"ecn": "ecn_all"}
    for color in _COLORS:
        row[f"wred_{color}_enable"] = "true" if threshold.drops else "false"
        row[f"{color}_min_threshold"] = str(threshold.least)
        row[f"{color}_max_threshold"] = str(threshold.most)
        row[f"{color}_drop_probability"] = str(percent)
    return row


def _add_limits(settings: SwitchSettings, tables: dict[str, Table], notes: Notes) -> None:
    """Add queues' and ports' limits, in a pool that holds as much as they do."""
    profiles: Table = {}
    queues: Table = {}
    ports: Table = {}
    pool = 0
    for name, port in settings.ports.items():
        limits = [_limit(name, port, number, notes) for number in range(QUEUES)]
        for number, limit in enumerate(limits):
            if limit is not None:
                queues[key(name, number)] = {"profile": _static(limit, profiles)}
        together = sum(limit for limit in limits if limit is not None)
        if port.limit_bytes is not None:
            ports[name] = {"profile_list": _static(port.limit_bytes, profiles)}
            together = min(together, port.limit_bytes)
        pool += together
    if not queues:
        return
    tables["BUFFER_POOL"] = {POOL: {"type": "egress", "mode": "static", "size": str(pool)}}
    tables["BUFFER_PROFILE"] = profiles
    tables["BUFFER_QUEUE"] = queues
    tables["BUFFER_PORT_EGRESS_PROFILE_LIST"] = ports


def _limit(name: str, port: Port, number: int, notes: Notes) -> int | None:
    limit = port.queues[number].limit_bytes
    if limit is None:
        limit = port.limit_bytes
    if limit is None:
        notes.add("The spec has no limit: the queue keeps the switch's own.", name, number)
    return limit


def _static(limit: int, profiles: Table) -> str:
    profile = f"shoal_static_{limit}"
    profiles[profile] = {"pool": POOL, "size": "0", "static_th": str(limit)}
    return profile


def _add_shares(
    settings: SwitchSettings, size: int, tables: dict[str, Table], notes: Notes
) -> None:
    """Add the shared buffer and what queues may take of it."""
    profiles: Table = {}
    queues: Table = {}
    note_bytes(settings, "A shared pool has no other limits", notes)
    for name, _, number, queue in queues_of(settings):
        alpha = alpha_exponent(name, number, queue, notes, least=ALPHAS[0], most=ALPHAS[1])
        profile = f"shoal_dynamic_{alpha}"
        profiles[profile] = {"pool": POOL, "size": "0", "dynamic_th": str(alpha)}
        queues[key(name, number)] = {"profile": profile}
    tables["BUFFER_POOL"] = {POOL: {"type": "egress", "mode": "dynamic", "size": str(size)}}
    tables["BUFFER_PROFILE"] = profiles
    tables["BUFFER_QUEUE"] = queues
