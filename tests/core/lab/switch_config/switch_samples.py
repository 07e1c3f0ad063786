"""Switches to write configurations of: typical ones and any at all. Run it to rewrite `golden`."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st

from shoal.lab.switch_config import FORMATS, switch_config
from shoal.lab.switch_config.switch_settings import SwitchSettings
from shoal.switching.settings import CLASS_SELECTORS, DSCPS, Port, Profile, Queue
from shoal.switching.tables import QUEUES

GOLDEN = Path(__file__).parent / "golden"
SUFFIXES = {"linux-tc": "tc", "sonic": "json", "eos": "cfg", "nvue": "yaml"}
PORTS = {
    "linux-tc": ("eth1", "eth2", "eth3"),
    "sonic": ("Ethernet0", "Ethernet4", "Ethernet8"),
    "eos": ("Ethernet1", "Ethernet2", "Ethernet3/1"),
    "nvue": ("swp1", "swp2", "swp3s0"),
}


def typical(form: str) -> SwitchSettings:
    """Return two ports to hosts with a step for each class, and one to a spine with a ramp."""
    first, second, third = PORTS[form]
    classes = tuple(
        Queue(
            limit_bytes=200_000,
            plain=Profile(30_000 + 3_000 * number, 30_000 + 3_000 * number),
            capable=Profile(30_000 + 3_000 * number, 30_000 + 3_000 * number),
        )
        for number in range(QUEUES - 1)
    )
    to_host = Port(10_000_000_000, (*classes, Queue(limit_bytes=200_000)))
    ramp = Queue(
        limit_bytes=400_000,
        limit_packets=256,
        average_weight=9,
        plain=Profile(50_000, 150_000, 0.125),
        capable=Profile(100_000, 300_000),
    )
    to_spine = Port(40_000_000_000, (ramp,) * QUEUES, limit_bytes=1_000_000)
    return SwitchSettings({first: to_host, second: to_host, third: to_spine}, CLASS_SELECTORS)


def sharing(form: str) -> SwitchSettings:
    """Return two ports that share a buffer, one color only in some queues."""
    queues = tuple(
        Queue(
            share=2.0 ** (number - 4),
            plain=Profile(20_000, 20_000) if number % 2 else None,
            capable=None if number % 2 else Profile(20_000, 60_000, 0.5),
        )
        for number in range(QUEUES)
    )
    port = Port(1_000_000_000, queues)
    return SwitchSettings(dict.fromkeys(PORTS[form][:2], port), CLASS_SELECTORS, 2_000_000)


def dscp_maps() -> st.SearchStrategy[tuple[int, ...]]:
    number = st.integers(0, QUEUES - 1)
    return st.lists(number, min_size=DSCPS, max_size=DSCPS).map(tuple)


def profiles() -> st.SearchStrategy[Profile | None]:
    two = st.tuples(st.integers(0, 1 << 31), st.integers(0, 1 << 31)).map(sorted)
    chance = st.one_of(st.sampled_from([0.0, 0.01, 0.5, 1.0]), st.floats(0, 1))
    made = st.builds(lambda ends, chance: Profile(*ends, chance), two, chance)
    same = st.integers(0, 100_000).map(lambda each: Profile(each, each))
    return st.one_of(st.none(), same, made)


def queues() -> st.SearchStrategy[Queue]:
    return st.builds(
        Queue,
        limit_bytes=st.none() | st.integers(1, 1 << 34),
        limit_packets=st.none() | st.integers(1, 1000),
        share=st.sampled_from([1.0, 0.5, 0.001, 16.0]) | st.floats(1e-6, 16),
        average_weight=st.integers(0, 15),
        plain=profiles(),
        capable=profiles(),
    )


def eight_queues() -> st.SearchStrategy[tuple[Queue, ...]]:
    """Of at most three kinds, in any order."""
    kinds = st.lists(queues(), min_size=1, max_size=3)
    order = st.lists(st.integers(0, 2), min_size=QUEUES, max_size=QUEUES)
    return st.builds(lambda made, those: tuple(made[k % len(made)] for k in those), kinds, order)


def any_settings(form: str) -> st.SearchStrategy[SwitchSettings]:
    port = st.builds(
        Port,
        st.integers(1_000, 10**12),
        eight_queues(),
        limit_bytes=st.none() | st.integers(1, 1 << 34),
        limit_packets=st.none() | st.integers(1, 1000),
    )
    ports = st.dictionaries(st.sampled_from(PORTS[form]), port, min_size=1)
    buffer = st.none() | st.integers(1, 1 << 34)
    return st.builds(SwitchSettings, ports, dscp_maps(), buffer)


def golden_path(form: str) -> Path:
    return GOLDEN / f"{form}.{SUFFIXES[form]}"


if __name__ == "__main__":
    for form in FORMATS:
        golden_path(form).write_text(switch_config(typical(form), form).text)
