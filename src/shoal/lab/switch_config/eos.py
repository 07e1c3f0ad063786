"""Arista EOS: lines for `configure`.

Transmit queues with `random-detect ecn`: above the threshold a packet that understands marks is
marked, another dropped unless `allow non-ect`. The spelling and the nesting are those of Arista's
own generator (arista.avd, eos_cli_config_gen).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from shoal.lab.switch_config.switch_settings import Configuration, Notes, by_queue, traffic_class
from shoal.lab.switch_config.thresholds import (
    in_units,
    note_bytes,
    note_packets,
    percent_of,
    queues_of,
    threshold_of,
)
from shoal.switching import QUEUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.lab.switch_config.switch_settings import SwitchSettings
    from shoal.lab.switch_config.thresholds import Threshold
    from shoal.switching import Port

PLATFORMS: Final = (
    "Where unicast has queues of its own, tx-queue is spelled uc-tx-queue.",
    "Where switches keep traffic class 7 to themselves (Sand), queue 0 of the spec cannot be set.",
)
"""What holds on some platforms only."""
_PORT: Final = re.compile(r"Ethernet\d+(/\d+)*")


def port_name(place: int) -> str:
    """Return what EOS calls the port at `place`, from 0 on."""
    return f"Ethernet{place + 1}"


def write(settings: SwitchSettings) -> Configuration:
    """Return the lines: maps, a QoS profile for every kind of port, and the ports."""
    notes = Notes(settings.remarks)
    for note in PLATFORMS:
        notes.add(note)
    note_packets(settings, notes)
    _note_limits(settings, notes)
    for name in settings.ports:
        if _PORT.fullmatch(name) is None:
            notes.add("EOS names ports Ethernet1, Ethernet2/1 and so on.", name)
    thresholds = {
        (name, number): threshold_of(name, number, queue, notes)
        for name, _, number, queue in queues_of(settings)
    }
    profiles: dict[tuple[str, ...], str] = {}
    ports: list[str] = []
    for name, port in settings.ports.items():
        mine = [thresholds[name, number] for number in range(QUEUES)]
        body = tuple(_profile(name, port, mine, notes))
        profile = profiles.setdefault(body, f"shoal-{len(profiles) + 1}")
        ports += ["!", f"interface {name}", f"   service-profile {profile}"]
    lines = [*_global(thresholds, settings, notes)]
    for body, profile in profiles.items():
        lines += ["!", f"qos profile {profile}", *body]
    comments = [f"! {note}" for note in notes.lines()]
    return Configuration("\n".join([*comments, *lines, *ports, "!", "end"]) + "\n", notes.lines())


def _global(
    thresholds: dict[tuple[str, int], Threshold | None], settings: SwitchSettings, notes: Notes
) -> Iterator[str]:
    yield "!"
    drops = {place: each.drops for place, each in thresholds.items() if each is not None}
    if drops and not any(drops.values()):
        yield "qos random-detect ecn allow non-ect"
    else:
        for place in (place for place, dropping in drops.items() if not dropping):
            notes.add(
                "Whether packets that understand no marks are dropped above thresholds is said for"
                " all queues at once: they are, also where the spec has no profile for them.",
                *place,
            )
    for queue, dscps in by_queue(settings.queues).items():
        yield f"qos map dscp {' '.join(map(str, dscps))} to traffic-class {traffic_class(queue)}"
    for number in range(QUEUES):
        yield f"qos map traffic-class {number} to tx-queue {number}"


def _profile(
    name: str, port: Port, thresholds: list[Threshold | None], notes: Notes
) -> Iterator[str]:
    yield "   qos trust dscp"
    yield f"   shape rate {in_units(name, port, 1000, 'kbps', notes)} kbps"
    for number in reversed(range(QUEUES)):
        yield "   !"
        yield f"   tx-queue {traffic_class(number)}"
        yield "      priority strict"
        threshold = thresholds[number]
        if threshold is not None:
            percent = percent_of(name, number, threshold, notes)
            weight = port.queues[number].average_weight
            yield (
                f"      random-detect ecn minimum-threshold {threshold.least} bytes"
                f" maximum-threshold {threshold.most} bytes"
                f" max-mark-probability {percent} weight {weight}"
            )


def _note_limits(settings: SwitchSettings, notes: Notes) -> None:
    """Note all limits: how buffers are divided is said differently on every platform."""
    if settings.shared_buffer_bytes is not None:
        notes.add(
            f"How buffers are divided differs between platforms: the shared"
            f" {settings.shared_buffer_bytes} bytes are not written."
        )
        for name, _, number, queue in queues_of(settings):
            notes.add(f"The share {queue.share:g} of it is not written.", name, number)
    note_bytes(settings, "How buffers are divided differs between platforms", notes)
