"""Specs of labs: what they mean, and what is said with which line when they are wrong."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import DataError, UsageError
from shoal.scenario.cluster_spec import (
    ClusterSpec,
    Flow,
    HostEvent,
    LinkEvent,
    changed,
    packets_inside,
    rerouted,
    with_finite_ports,
)
from shoal.scenario.spec_file import parse_spec, read_spec
from shoal.scenario.toml_lines import lines_of
from shoal.switching.settings import CLASS_SELECTORS, Link, Port, Profile, Queue
from shoal.switching.topology import Cable, Materials, Topology, names_of, star

LABS = Path(__file__).parents[3] / "src" / "shoal" / "scenario" / "examples"

SPEC = """\
# Two racks of four.
seed = 7
[hosts]
count = 8
workers = 2

[topology]
shape = "leaf-spine"
leaves = 2
spines = 2
[access]
rate = "100 Mbit/s"
delay = "20 us"
[trunk]
rate = "50 Mbit/s"

[switch]
forwarding = "packet"
port_buffer = "128 kB"
reroute = "never"
[[switch.queue]]
queues = [0, 1]
capable = { from = "30 kB" }
plain = { from = "30 kB", to = "60 kB", probability = "50 %" }
[[switch.queue]]
queues = 7
limit = "10 kB"
[switch.dscp]
46 = 0

[[link]]
between = ["host3", "leaf0"]
rate = "10 Mbit/s"
[[event]]
at = "4 s"
from = "leaf0"
to = "spine1"
recover = true
[[event]]
at = "2 s"
from = "leaf0"
to = "spine1"
loss = "1 %"
[[event]]
at = "1 s"
host = "host2"
slower = 5
[[flow]]
from = "host0"
to = "host7"
rate = "20 Mbit/s"
at = "1 s"
for = "2 s"
burst = "5 ms"
every = "20 ms"
"""


def test_a_spec_is_what_it_says() -> None:
    spec = parse_spec(SPEC)
    assert (spec.seed, spec.workers, spec.spray, spec.reroute_s) == (7, 2, True, None)
    assert spec.topology.hosts == 8
    assert spec.topology.switches == ("leaf0", "leaf1", "spine0", "spine1")
    cables = dict(zip(names_of(spec.topology), spec.topology.cables, strict=True))
    own, towards = cables["host0-leaf0"], cables["leaf0-host0"]
    assert own.port.rate == towards.port.rate == 100_000_000
    assert own.port.limit_bytes is None, "a host waits instead of dropping"
    assert towards.port.limit_bytes == 128_000
    assert own.link == towards.link == Link(delay_s=20e-6)
    assert cables["leaf1-spine0"].port.rate == 50_000_000
    assert cables["leaf1-spine0"].link == Link(delay_s=20e-6), "as access where nothing is said"
    assert {cables["host3-leaf0"].port.rate, cables["leaf0-host3"].port.rate} == {10_000_000}
    queues = towards.port.queues
    assert queues[0] == queues[1]
    assert queues[0].capable == Profile(30_000, 30_000)
    assert queues[0].plain == Profile(30_000, 60_000, 0.5)
    assert (queues[7].limit_bytes, queues[2].limit_bytes) == (10_000, None)
    assert spec.queues == (*CLASS_SELECTORS[:46], 0, *CLASS_SELECTORS[47:])
    (flow,) = spec.flows
    assert (flow.source, flow.target, flow.rate) == (0, 7, 20_000_000)
    assert (flow.start_s, flow.stop_s, flow.burst_s, flow.period_s) == (1.0, 3.0, 0.005, 0.02)


def test_events_come_in_the_order_of_time_and_links_recover() -> None:
    spec = parse_spec(SPEC)
    cable = names_of(spec.topology).index("leaf0-spine1")
    slower, worse, better = spec.events
    assert slower == HostEvent(1.0, 2, 5.0)
    assert isinstance(worse, LinkEvent)
    assert isinstance(better, LinkEvent)
    after = changed(spec.topology, worse, spec.topology)
    assert after.cables[cable].link.loss == 0.01
    assert [k for k, c in enumerate(after.cables) if c != spec.topology.cables[k]] == [cable]
    assert changed(after, better, spec.topology) == spec.topology


def test_custom_networks_are_what_is_listed() -> None:
    spec = parse_spec(
        'hosts.names = ["a", "b"]\n'
        'access.rate = "1 Gbit/s"\n'
        "[topology]\n"
        'shape = "custom"\nswitches = ["s", "t"]\n'
        'connections = [["a", "s"],\n  ["s", "t"], ["t", "b"]]\n'
    )
    assert names_of(spec.topology) == ["a-s", "s-a", "s-t", "t-s", "t-b", "b-t"]


def test_a_fat_tree_is_as_large_as_its_degree_says() -> None:
    text = (
        'hosts.count = 16\naccess.rate = "1 Gbit/s"\n[topology]\nshape = "fat-tree"\ndegree = 4\n'
    )
    topology = parse_spec(text).topology
    assert [*topology.switches[:2], topology.switches[-1]] == ["edge0", "edge1", "core3"]
    assert len(topology.cables) == 2 * 3 * 16
    with pytest.raises(UsageError, match="line 3: A fat tree of degree 4 has 16 hosts, not 15"):
        parse_spec(text.replace("count = 16", "count = 15"))


WRONG = [
    ("seed", "sede", "line 2: sede: 'sede' is not known here; known: access, event"),
    ("100 Mbit/s", "0 bit/s", "line 12: rate: A rate is 1 kbit/s to 1 Tbit/s"),
    ('"100 Mbit/s"', "100", "line 12: rate: It takes a rate such as '100 Mbit/s'"),
    ('"host3"', '"host9"', "line 31: There is no host or switch 'host9'; there are host0"),
    ('"leaf0"]', '"spine0"]', "line 31: host3 and spine0 are not joined"),
    ("count = 8", 'names = ["a", "a"]', "line 4: names: The name 'a' is there twice"),
    ("count = 8", 'names = ["a", "A"]', "line 4: names: The name 'A' is there twice"),
    ("count = 8", 'names = ["a", "7"]', "line 4: names: Programs take '7' for an address"),
    ("count = 8", 'names = ["localhost", "a"]', "line 4: names: Programs take 'localhost'"),
    ("count = 8", "count = 7", "line 7: 7 hosts cannot be divided among 2 leaves"),
    (
        "count = 8",
        "count = true",
        "line 4: count: It takes a whole number of 1 to 100000, not True",
    ),
    ("46 =", "64 =", "line 29: 64: A DSCP is 0 to 63"),
    ("slower = 5", "slower = 0.2", "line 47: slower: A host is 1 to 1000 times slower"),
    ("30 kB", "x", "line 23: from: It takes a size such as"),
    ('loss = "1 %"', "loss = 2", "line 43: loss: It takes a share"),
    ("spines = 2\n", "", "line 7: 'spines' is missing"),
    ("[access]", "[access", r"is not TOML \(.*line 11"),
    ("5 ms", "50 ms", "line 54: burst: A burst is longer than 0"),
    ('at = "2 s"\n', "", "line 39: 'at' is missing"),
    ('loss = "1 %"', "down = 1", "line 43: down: It takes true or false"),
    ("queues = 7", "queues = 1", "line 25: Queue 1 is described twice"),
    ('to = "60 kB"', 'to = "6 kB"', "line 24: plain: A drop profile begins"),
    ('to = "host7"', 'to = "host0"', "line 50: to: A flow goes from one host to another"),
    ('rate = "20 Mbit/s"\n', "", "line 48: A flow of UDP needs a rate"),
    ('shape = "leaf-spine"', 'shape = "ring"', "line 8: shape: It takes one of star, dumbbell"),
    (
        'between = ["host3", "leaf0"]',
        'between = ["host3", "leaf0"]\nfrom = "host3"',
        "line 31: A li",
    ),
    ('between = ["host3", "leaf0"]', 'between = ["host3", "leaf0"]\nrecover = true', "not known"),
    ("slower = 5", "slower = 1e999", "line 47: slower: A host is 1 to 1000 times slower"),
    ('"100 Mbit/s"', '"1e999999999 bit/s"', "line 12: rate: It takes a rate such as"),
    ('forwarding = "packet"', 'shared_buffer = "0 B"', "line 18: shared_buffer: A buffer has"),
    ("count = 8", f'names = ["{"a" * 64}", "b"]', "line 4: names: A name has at most 63 letters"),
    ('for = "2 s"', 'for = "0 s"', "for: A flow lasts longer"),
    ('rate = "20 Mbit/s"\n', 'protocol = "tcp"\npacket = "1 kB"\n', "packet: Of TCP the kernel"),
    ('loss = "1 %"\n', "", "line 39: This event changes nothing"),
    ('loss = "1 %"\n', "recover = false\n", "line 39: This event changes nothing"),
    ("[access]", "[[access]]", "line 11: access: 'access' is a table"),
    ("[hosts]\ncount = 8\nworkers = 2\n", "", r"^lab.toml: 'count' is missing in \[hosts\]"),
]


@pytest.mark.parametrize(("old", "new", "wanted"), WRONG)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, wanted: str) -> None:
    assert old in SPEC
    with pytest.raises(UsageError, match=wanted):
        parse_spec(SPEC.replace(old, new, 1), "lab.toml")


@pytest.mark.parametrize(
    ("connections", "wanted"),
    [
        ('[["a", "s"], ["b", "t"]]', "There is no path from"),
        ('[["a", "s"], ["b", "s"], ["s", "s"]]', "joined twice, or to themselves"),
        ('[["a", "b"]]', "are hosts"),
    ],
)
def test_networks_without_a_way_are_refused(connections: str, wanted: str) -> None:
    text = (
        'hosts.names = ["a", "b"]\naccess.rate = "1 Gbit/s"\n'
        f'topology.shape = "custom"\ntopology.switches = ["s", "t"]\n'
        f"topology.connections = {connections}\n"
    )
    with pytest.raises(UsageError, match=f"line 5: connections: .*{wanted}"):
        parse_spec(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"Cannot read .*none.toml: No such file"):
        read_spec(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"is not text \(not all"):
        read_spec(tmp_path / "binary.toml")


keys = st.sampled_from(["a", "b-1", "'c d'", '"e]\\" = f"', "_"])
values = st.sampled_from(
    [
        "1",
        '"text # [x] = 1"',
        "'it''s'".replace("''", ""),
        "[1, 2]",
        '[\n  "]", # ]\n  [ 3 ],\n]',
        '{ x = 1, y = "}" }',
        '"""\n[no.table]\nnokey = 1\n"""',
        "'''\n[[no]]\n'''",
        "1979-05-27",
    ]
)
pairs = st.lists(st.tuples(keys, values), max_size=4, unique_by=lambda pair: pair[0])
sections = st.lists(st.tuples(st.sampled_from(["[t.{}]", "[[u]]", "[[u.v]]"]), pairs), max_size=6)


@given(pairs, sections)
def test_every_key_and_table_has_its_line(
    first: list[tuple[str, str]], rest: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    parts = [f"{key} = {value} # x" for key, value in first]
    for number, (header, body) in enumerate(rest):
        parts += [header.format(number), *(f"{key} = {value}" for key, value in body)]
    text = "\n".join(parts)
    starts = [1]
    for before, _ in pairwise([*parts, ""]):
        starts.append(starts[-1] + before.count("\n") + 1)
    try:
        known = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # [[u.v]] before [[u]], or over a plain key
    lines = lines_of(text)
    assert set(lines.values()) <= set(starts)
    for path in paths_of(known):
        assert path in lines, (text, path)


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all keys that are not inside a value of a line."""
    found = []
    for key, inner in value.items():
        here = (*path, key)
        if isinstance(inner, dict) and path == () and key in {"t", "u"}:
            found += paths_of(inner, here)
        elif isinstance(inner, dict) and path == ("t",):
            found += [here, *paths_of(inner, here)]
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict) and key in {"u", "v"}:
            for place, each in enumerate(inner):
                found += [(*here, place), *paths_of(each, (*here, place))]
        else:
            found.append(here)
    return found


def test_switches_react_only_to_links_that_go_down_or_come_back() -> None:
    spec = parse_spec(SPEC.replace('reroute = "never"', 'reroute = "2 s"'))
    cables = (0,)
    assert rerouted(spec, LinkEvent(1.0, cables, link=(("down", True),))) == 3.0
    assert rerouted(spec, LinkEvent(1.0, cables, recover=True)) == 3.0
    assert rerouted(spec, LinkEvent(1.0, cables, link=(("loss", 1.0),))) is None
    never = parse_spec(SPEC)
    assert rerouted(never, LinkEvent(1.0, cables, link=(("down", True),))) is None


@pytest.mark.parametrize("path", sorted(LABS.glob("*.toml")), ids=lambda path: path.name)
def test_the_specs_to_begin_with_can_be_read(path: Path) -> None:
    assert read_spec(path).topology.hosts >= 2


def test_ports_without_any_limit_get_one_and_others_keep_theirs() -> None:
    queue = Queue(limit_packets=10)
    ports = (
        Port(10**9),
        Port(10**9, limit_packets=7),
        Port(10**9, (queue,) * 8),
        Port(10**9, (queue,) * 7 + (Queue(),)),
    )
    cables = [
        Cable(f"cable{k}", -1 - k // 4, k % 4, port, Link())
        for k, port in enumerate([*ports, *ports])
    ]
    spec = ClusterSpec(Topology(tuple("abcd"), ("s", "t"), tuple(cables)))
    limits = [each.port.limit_bytes for each in with_finite_ports(spec, 1000).topology.cables]
    assert limits == 2 * [1000, None, None, 1000]
    sharing = with_finite_ports(replace(spec, shared_buffer=5_000), 1000)
    assert all(each.port.limit_bytes is None for each in sharing.topology.cables)


def test_room_is_for_what_ports_hold_and_what_links_hold_at_any_time() -> None:
    """A lab whose links become longer or faster later keeps what is on them then."""
    near = Materials(Port(8 * 10**6), Port(8 * 10**6, limit_bytes=51_200), Link())
    spec = ClusterSpec(star(("a", "b"), near))
    spec = with_finite_ports(spec, 102_400)
    longer = LinkEvent(1.0, (0,), link=(("delay_s", 0.512),))
    faster = LinkEvent(2.0, (0,), rate=8 * 10**7)
    assert packets_inside(spec) == {"port_buffer": 600, "shared_buffer": 0, "delay": 0}
    assert packets_inside(replace(spec, events=(longer,)))["delay"] == 1_000
    assert packets_inside(replace(spec, events=(longer, faster)))["delay"] == 10_000
    small = Flow(0, 1, "udp", 10**6, packet_bytes=64)
    assert packets_inside(replace(spec, events=(longer,), flows=(small,)))["delay"] == 8_000


@pytest.mark.parametrize("key", ["seed", "count", "leaves"])
def test_numbers_beyond_64_bits_are_refused_with_their_line(key: str) -> None:
    lines = [f"{key} = 1{'0' * 400}" if x.startswith(f"{key} =") else x for x in SPEC.splitlines()]
    line = next(place for place, text in enumerate(lines, 1) if text.startswith(f"{key} ="))
    with pytest.raises(UsageError, match=rf"line {line}: {key}: Larger than any number here"):
        parse_spec("\n".join(lines))
