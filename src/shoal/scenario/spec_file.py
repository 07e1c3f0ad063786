"""Reads a scenario from TOML: a cluster, and what is trained on it. Errors say the line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from shoal.decoding import decode_text, decode_toml
from shoal.errors import DataError, UsageError
from shoal.quantities import parse_duration, parse_share, parse_size
from shoal.scenario.cluster_spec import (
    REROUTE_S,
    ClusterSpec,
    Flow,
    HostEvent,
    LinkEvent,
    WorkerEvent,
    changed,
    parse_port_rate,
)
from shoal.scenario.overriding import with_values
from shoal.scenario.toml_lines import lines_of
from shoal.scenario.toml_table import (
    MOST_HOSTS,
    MOST_NAMES,
    Parser,
    Table,
    checked,
    one_of,
    parse_flag,
    parse_name,
    parse_names,
    parse_number,
    whole,
)
from shoal.scenario.training_spec import Scenario, TrainingSpec
from shoal.scenario.training_table import read_training
from shoal.scenario.worker_events import is_of_worker, read_worker_events
from shoal.switching import (
    CLASS_SELECTORS,
    DSCPS,
    QUEUES,
    Link,
    Materials,
    Port,
    Profile,
    Queue,
    Topology,
    check_paths,
    dumbbell,
    fat_tree,
    host_names,
    join,
    leaf_spine,
    star,
)

_SHAPES: Final = ("star", "dumbbell", "leaf-spine", "fat-tree", "custom")
_LINK: Final[dict[str, Parser[Any]]] = {
    each.name: parse_duration if each.name.endswith("_s") else parse_share for each in fields(Link)
} | {"down": parse_flag}
"""How the fields of `Link` are read; a text leaves out the unit of their names."""

_buffer: Final = checked(
    parse_size, lambda size: size >= 1, "A buffer has at least 1 B, not {found} B."
)
_slower: Final = checked(
    parse_number,
    lambda factor: 1 <= factor <= 1000,
    "A host is 1 to 1000 times slower, not {found:g}.",
)
_queue_number: Final = whole(0, QUEUES - 1)

_ADDRESS: Final = re.compile("[0-9]+|0x[0-9a-f]*")
"""The forms of an IPv4 address in one number, as `inet_aton` reads it."""


def read_spec(path: Path) -> ClusterSpec:
    """Return the cluster in the file at `path`, for a lab; see `read_scenario`.

    Raises `UsageError` for more hosts than a machine could make.
    """
    cluster = read_scenario(path).cluster
    if cluster.topology.hosts > MOST_NAMES:
        message = f"{path}: A lab has at most {MOST_NAMES:,} hosts, not {cluster.topology.hosts:,}."
        raise UsageError(message)
    return cluster


def read_scenario(path: Path) -> Scenario:
    """Return the scenario in the file at `path`.

    Raises `DataError` if it cannot be read and `UsageError` for what it says, with its line.
    """
    return parse_scenario(read_text(path), str(path), path.parent)


def read_text(path: Path) -> str:
    """Return the text in the file at `path`; raise `DataError` if it cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"Cannot read {path}: {error.strerror}."
        raise DataError(message) from error
    return decode_text(content, f"{path} is not text").replace("\r\n", "\n")


def parse_spec(text: str, name: str = "spec") -> ClusterSpec:
    """Return the cluster in a TOML text, which errors call `name`; raise `UsageError`."""
    return parse_scenario(text, name).cluster


def parse_scenario(
    text: str,
    name: str = "scenario",
    folder: Path = Path(),
    changes: Mapping[str, object] | None = None,
) -> Scenario:
    """Return the scenario in a TOML text, which errors call `name`; raise `UsageError`.

    Files that it names are looked for in `folder`. `changes` are values by their keys' dotted
    paths (`overriding`) that count instead of the text's, or beside them.
    """
    values = decode_toml(text, f"{name} is not TOML", raises=UsageError)
    top = Table(with_values(values, changes or {}), (), lines_of(text), name)
    cluster, links = _cluster(top)
    training: TrainingSpec | None = None
    places: dict[str, str] = {}
    if "training" in top:
        workers, table = cluster.topology.hosts * cluster.workers, top.table("training")
        training = read_training(table, workers, folder)
        names = [each.name for each in training.strategies]
        places = dict(zip(names, (each.place() for each in table.tables("strategy")), strict=True))
        places[""] = table.place()
    top.end()
    return Scenario(cluster, training, places, top.places(), links)


def _cluster(top: Table) -> tuple[ClusterSpec, dict[int, str]]:
    """Return the cluster, and where it is said what cables lose in the end."""
    seed = top.take("seed", whole(0, 2**63 - 1), 1)
    hosts = top.table("hosts")
    names, workers = _hosts(hosts)
    switch = top.table("switch")
    queues, dscps = _queues(switch), _dscps(switch.table("dscp"))
    spray = switch.take("forwarding", one_of(("flow", "packet")), "flow")
    shared = switch.take_or_none("shared_buffer", _buffer)
    reroute = switch.take("reroute", _reroute, REROUTE_S)
    materials = _materials(top, switch, queues)
    switch.end()
    topology = original = _topology(top.table("topology"), names, materials)
    if "trunk" in top and not any(c.source < 0 and c.target < 0 for c in topology.cables):
        raise top.error("Nothing is between switches here that [trunk] could describe.", "trunk")
    places = _link_places(top, topology)
    for table in top.tables("link"):
        cables = _cables(table, topology)
        change = _change(table, may_recover=False)
        topology = _checked_change(table, topology, LinkEvent(0, cables, *change), original)
        places |= _places_of_loss(table, cables)
    events = _events(top.tables("event"), topology, workers)
    at_first = dict(places)
    for event, table in events:
        if isinstance(event, LinkEvent):
            if event.recover:
                places |= {cable: at_first[cable] for cable in event.cables}
            places |= _places_of_loss(table, event.cables)
    spec = ClusterSpec(
        topology=topology,
        workers=workers,
        seed=seed,
        spray=spray == "packet",
        queues=dscps,
        shared_buffer=shared,
        reroute_s=None if reroute < 0 else reroute,
        events=tuple(event for event, _ in events),
        flows=tuple(_flow(table, names) for table in top.tables("flow")),
    )
    return spec, places


def _link_places(top: Table, topology: Topology) -> dict[int, str]:
    """Return, by cable, where the tables of all links say what it loses."""
    numbers = range(len(topology.cables))
    between = [k for k in numbers if max(topology.cables[k].source, topology.cables[k].target) < 0]
    return {
        **dict.fromkeys(numbers, top.place("access")),
        **_places_of_loss(top.table("access"), numbers),
        **_places_of_loss(top.table("trunk"), between),
    }


def _places_of_loss(table: Table, cables: Iterable[int]) -> dict[int, str]:
    """Return where the table says that `cables` are down, or what they lose, if it does."""
    key = next((key for key in ("down", "loss") if key in table), None)
    return {} if key is None else dict.fromkeys(cables, table.place(key))


def _hosts(table: Table) -> tuple[list[str], int]:
    """Return the hosts' names, and how many workers are on each."""
    if "names" in table and "count" in table:
        raise table.error("It takes names or a count, not both.", "count")
    if "names" in table:
        names = table.take("names", _host_names)
    else:
        names = host_names(table.take("count", whole(1, MOST_HOSTS)))
    workers = table.take("workers", whole(1, MOST_NAMES), 1)
    table.end()
    return names, workers


def _host_names(value: object) -> list[str]:
    """Return names by which programs find a host: they look for some of them elsewhere first."""
    names = parse_names(value)
    lower = [name.lower() for name in names]
    for place, name in enumerate(lower):
        if name in lower[:place]:
            message = f"The name {names[place]!r} is there twice: case makes no difference."
            raise UsageError(message)
        if name == "localhost" or _ADDRESS.fullmatch(name):
            message = f"Programs take {names[place]!r} for an address: call the host otherwise."
            raise UsageError(message)
    return names


def _materials(top: Table, switch: Table, queues: tuple[Queue, ...]) -> Materials:
    access, trunk = top.table("access"), top.table("trunk")
    limit_bytes = switch.take_or_none("port_buffer", parse_size)
    limit_packets = switch.take_or_none("port_packets", whole(1, 2**31))

    def port_of(rate: int) -> Port:
        with switch.at("port_buffer" if limit_bytes is not None else None):
            return Port(rate, queues, limit_bytes, limit_packets)

    rate = access.take("rate", parse_port_rate)
    link = _link(access, Link())
    access.end()
    towards = port_of(rate)
    trunk_rate = trunk.take("rate", parse_port_rate, rate)
    trunk_link = _link(trunk, link)
    trunk.end()
    return Materials(Port(rate), towards, link, port_of(trunk_rate), trunk_link)


def _link(table: Table, usual: Link) -> Link:
    """Return `usual` with what the table says."""
    _, settings, _ = _change(table, may_recover=False)
    with table.at():
        return _complete(replace(usual, **dict(settings)))  # type: ignore[arg-type]


def _complete(link: Link) -> Link:
    """Return `link`; raise `UsageError` if half of what it does is not said."""
    if link.to_bad > 0 and link.to_good == 0:
        raise UsageError("to_bad without to_good: bad times would never end. Say both, or loss.")
    if link.reorder > 0 and link.reorder_delay_s == 0:
        raise UsageError("reorder without reorder_delay: no packet would be late. Say both.")
    return link


def _change(
    table: Table, *, may_recover: bool = True
) -> tuple[int | None, tuple[tuple[str, float | bool], ...], bool]:
    """Return the rate, the settings of a link and whether it recovers, as a table has them."""
    rate = table.take_or_none("rate", parse_port_rate)
    settings: list[tuple[str, float | bool]] = []
    for name, parse in _LINK.items():
        key = name.removesuffix("_s")
        value = table.take_or_none(key, parse)
        if value is not None:
            settings.append((name, value))
            with table.at(key):
                Link(**dict(settings[-1:]))  # type: ignore[arg-type]
    recover = table.take("recover", parse_flag, False) if may_recover else False
    return rate, tuple(settings), recover


def _queues(switch: Table) -> tuple[Queue, ...]:
    queues = [Queue()] * QUEUES
    seen: set[int] = set()
    for table in switch.tables("queue"):
        which = table.take("queues", _queue_numbers, tuple(range(QUEUES)))
        if seen & set(which):
            raise table.error(f"Queue {min(seen & set(which))} is described twice.")
        seen |= set(which)
        with table.at():
            queue = Queue(
                limit_bytes=table.take_or_none("limit", parse_size),
                limit_packets=table.take_or_none("packets", whole(1, 2**31)),
                share=table.take("share", parse_number, 1.0),
                average_weight=table.take("average_weight", whole(0, 15), 0),
                plain=_profile(table, "plain"),
                capable=_profile(table, "capable"),
            )
        table.end()
        if "share" in table and "shared_buffer" not in switch:
            raise table.error("A share is of a shared_buffer, and there is none.", "share")
        if queue.average_weight and queue.plain is None and queue.capable is None:
            message = "It averages for profiles, and there is none: plain = ... or capable = ..."
            raise table.error(message, "average_weight")
        for number in which:
            queues[number] = queue
    return tuple(queues)


def _profile(table: Table, key: str) -> Profile | None:
    inner = table.table(key)
    if key not in table:
        return None
    with table.at(key):
        least = inner.take("from", parse_size)
        most = inner.take("to", parse_size, least)
        profile = Profile(least, most, inner.take("probability", parse_share, 1.0))
    inner.end()
    return profile


def _dscps(table: Table) -> tuple[int, ...]:
    queues = list(CLASS_SELECTORS)
    for key in table.rest():
        if not (key.isascii() and key.isdigit() and int(key) < DSCPS):
            raise table.error("A DSCP is 0 to 63.", key)
        queues[int(key)] = table.take(key, whole(0, QUEUES - 1))
    return tuple(queues)


def _topology(table: Table, names: list[str], materials: Materials) -> Topology:
    shape = table.take("shape", one_of(_SHAPES), "star")
    count = whole(1, MOST_NAMES)
    with table.at():
        if shape == "star":
            topology = star(names, materials)
        elif shape == "dumbbell":
            topology = dumbbell(names, materials)
        elif shape == "leaf-spine":
            leaves, spines = table.take("leaves", count), table.take("spines", count)
            topology = leaf_spine(names, leaves, spines, materials)
        elif shape == "fat-tree":
            topology = fat_tree(names, table.take("degree", count), materials)
        else:
            switches = table.take("switches", parse_names)
            connections = table.take("connections", _connections)
            with table.at("connections"):
                topology = join(names, switches, connections, materials)
                check_paths(topology)
    table.end()
    return topology


def _cables(table: Table, topology: Topology) -> tuple[int, ...]:
    """Return the cables of `between = [a, b]`, or of `from = a` and `to = b`, one direction."""
    nodes = {name: place for place, name in enumerate(topology.host_names)}
    nodes |= {name: -1 - place for place, name in enumerate(topology.switches)}
    both = table.take_or_none("between", _pair)
    source, target = table.take_or_none("from", parse_name), table.take_or_none("to", parse_name)
    given = [end is not None for end in (source, target)]
    if any(given) if both else not all(given):
        raise table.error("A link is between = [A, B], or from = A and to = B for one direction.")
    ends = both or (str(source), str(target))
    for end in ends:
        if end not in nodes:
            raise table.error(f"There is no host or switch {end!r}; there are {', '.join(nodes)}.")
    wanted = {(nodes[ends[0]], nodes[ends[1]])}
    if both is not None:
        wanted.add((nodes[ends[1]], nodes[ends[0]]))
    found = tuple(k for k, c in enumerate(topology.cables) if (c.source, c.target) in wanted)
    if not found:
        raise table.error(f"{ends[0]} and {ends[1]} are not joined.")
    return found


def _checked_change(
    table: Table, topology: Topology, event: LinkEvent, original: Topology
) -> Topology:
    table.end()
    with table.at():
        made = changed(topology, event, original)
        for cable in event.cables:
            _complete(made.cables[cable].link)
        return made


def _events(
    tables: Sequence[Table], original: Topology, workers: int
) -> list[tuple[LinkEvent | HostEvent | WorkerEvent, Table]]:
    """Return events in the order of their times; each must be possible after those before.

    On each host are `workers`.
    """
    names = original.host_names
    found: list[tuple[LinkEvent | HostEvent | WorkerEvent, Table]] = []
    of_workers = [each for each in tables if is_of_worker(each)]
    found += read_worker_events(of_workers, _host_of(names), len(names) * workers)
    for table in tables:
        if table in of_workers:
            continue
        at_s = table.take("at", parse_duration)
        host = table.take_or_none("host", _host_of(names))
        if host is None:
            change = LinkEvent(at_s, _cables(table, original), *_change(table))
            if change.rate is None and not change.link and not change.recover:
                raise table.error("This event changes nothing.")
            found.append((change, table))
        else:
            found.append((HostEvent(at_s, host, table.take("slower", _slower)), table))
        table.end()
    found.sort(key=lambda pair: pair[0].at_s)
    topology = original
    for event, table in found:
        if isinstance(event, LinkEvent):
            topology = _checked_change(table, topology, event, original)
    return found


def _flow(table: Table, names: list[str]) -> Flow:
    source, target = (table.take(key, _host_of(names)) for key in ("from", "to"))
    if source == target:
        raise table.error("A flow goes from one host to another.", "to")
    flow = Flow(source, target, **table.given(Flow))
    lasts = table.take_or_none("for", parse_duration)
    table.end()
    if flow.protocol == "udp" and flow.rate is None:
        raise table.error("A flow of UDP needs a rate.")
    if flow.protocol == "tcp" and "packet" in table:
        raise table.error("Of TCP the kernel chooses the packets: leave it out.", "packet")
    if lasts == 0:
        raise table.error("A flow lasts longer than 0 s.", "for")
    if (flow.burst_s is None) != (flow.period_s is None):
        raise table.error("Bursts are burst = ... and every = ..., both.")
    if flow.burst_s is not None and not 0 < flow.burst_s <= (flow.period_s or 0):
        raise table.error("A burst is longer than 0 and not longer than its period.", "burst")
    return flow if lasts is None else replace(flow, stop_s=flow.start_s + lasts)


def _host_of(names: Sequence[str]) -> Parser[int]:
    def parse_host(value: object) -> int:
        name = parse_name(value)
        if name not in names:
            message = f"There is no host {name!r}; there are {', '.join(names)}."
            raise UsageError(message)
        return names.index(name)

    return parse_host


def _reroute(value: object) -> float:
    return -1.0 if value == "never" else parse_duration(value)


def _pair(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2:
        message = f"It takes two names, not {value!r}."
        raise UsageError(message)
    return parse_name(value[0]), parse_name(value[1])


def _connections(value: object) -> list[tuple[str, str]]:
    if not isinstance(value, list) or not value:
        message = f"It takes a list of pairs of names, not {value!r}."
        raise UsageError(message)
    return [_pair(each) for each in value]


def _queue_numbers(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UsageError("It names one queue at least.")
    return tuple(map(_queue_number, values))
