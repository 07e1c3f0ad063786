"""The rows that flows, links and transfers are made of.

A transfer is one or more flows that begin together, as a collective's are; it is over when the last
of them is. A flow crosses links, each with a weight: the share of it that takes that link, less
than 1 where packets are sprayed. Rates are bytes per picosecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from shoal.compiled import I4, grid_at, inlined, rows_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

FREE: Final = 0
COMING: Final = 1
"""The flow begins later."""
FLOWING: Final = 2

FLOW: Final = np.dtype(
    [
        ("size", "<f8"),  # bytes, those that have come by an earlier way left out
        ("left", "<f8"),  # bytes still to come at the time `since`
        ("rate", "<f8"),
        ("most", "<f8"),  # rate that it never exceeds
        ("bound", "<f8"),  # while rates are worked out: that, or what links of its own carry
        ("since", "<i8"),
        ("due", "<i8"),  # number of the event that ends it; -1: another's comes first
        ("visit", "<i8"),  # the last time that its component was gathered
        ("transfer", "<i4"),
        ("hops", "<i4"),
        ("next", "<i4"),  # free row; or, if it is COMING, who begins with it; -1: nobody
        ("state", "u1"),
        ("settled", "u1"),  # whether its new rate is known
        ("pad", "u1", (2,)),
    ],
    align=True,
)

HOP: Final = np.dtype(
    [
        ("weight", "<f8"),
        ("link", "<i4"),
        ("before", "<i4"),  # among the link's hops, as flow * hops + hop; -1: none
        ("after", "<i4"),
        ("pad", "<i4"),
    ],
    align=True,
)

LINK: Final = np.dtype(
    [
        ("capacity", "<f8"),
        ("carried", "<f8"),  # bytes, of flows that have ended
        ("load", "<f8"),  # weights of its flows
        ("left", "<f8"),  # while rates are worked out: capacity that nobody has yet
        ("weight", "<f8"),  # of the flows that have no rate yet
        ("share", "<f8"),  # what each of them would get here; infinite if one flow has it to itself
        ("visit", "<i8"),
        ("first", "<i4"),  # hop of a flow that crosses it; -1: none
        ("flows", "<i4"),
        ("open", "<i4"),  # those that have no rate yet
        ("is_dirty", "u1"),
        ("is_tight", "u1"),  # it bounds all of them
        ("pad", "u1", (2,)),
    ],
    align=True,
)

TRANSFER: Final = np.dtype([("flows", "<i4"), ("next", "<i4")], align=True)

ACCESS: Final = np.dtype(
    [
        ("out", "<i4"),  # link
        ("into", "<i4"),  # link
        ("itself", "<i4"),  # link to itself
        ("switch", "<i4"),
        ("out_delay", "<i8"),  # picoseconds
        ("into_delay", "<i8"),
    ],
    align=True,
)
"""How a host is connected."""

PAIR: Final = np.dtype([("first", "<i4"), ("routes", "<i4"), ("delay", "<i8")], align=True)
"""Two switches: where the routes between them stand in `routes`, and how many there are."""

ROUTE: Final = np.dtype([("first", "<i4"), ("hops", "<i4")], align=True)
"""One way from switch to switch: where its hops stand in `trunks`."""

TRUNK: Final = np.dtype([("weight", "<f8"), ("link", "<i4"), ("pad", "<i4")], align=True)

EVENT: Final = np.dtype(
    [("at", "<i8"), ("number", "<i8"), ("flow", "<i4"), ("begins", "<i4")], align=True
)

CORE: Final = np.dtype(
    [
        ("now", "<i8"),
        ("visits", "<i8"),
        ("next_number", "<i8"),
        ("events", "<i8"),
        ("dirty", "<i8"),
        ("finished", "<i8"),  # transfers that nobody has taken yet
        ("flowing", "<i8"),
        ("started", "<i8"),  # flows, ever
        ("ended", "<i8"),
        ("free_flow", "<i4"),
        ("free_transfer", "<i4"),
    ],
    align=True,
)

Row: TypeAlias = Any


class FlowState(NamedTuple):
    """What changes in a network of flows. Inlined functions take it whole."""

    core: NDArray[np.void]
    flows: NDArray[np.void]
    hops: NDArray[np.void]
    """The hops of each flow: [flow, hop]."""
    links: NDArray[np.void]
    transfers: NDArray[np.void]
    heap: NDArray[np.void]
    dirty: NDArray[np.int32]
    """Links whose flows have changed, the first `core.dirty` of them."""
    finished: NDArray[np.int32]
    near_flows: NDArray[np.int32]
    """A component while it is worked on: its flows, and its links."""
    near_links: NDArray[np.int32]


class Ways(NamedTuple):
    """The links that a flow crosses from host to host."""

    access: NDArray[np.void]
    """The links of each host: rows of `ACCESS`."""
    pairs: NDArray[np.void]
    """The routes from switch to switch, rows of `PAIR`: [switch, switch]."""
    routes: NDArray[np.void]
    trunks: NDArray[np.void]


_TABLE: Final = np.dtype([("address", "<i8"), ("rows", "<i8"), ("columns", "<i8")])

PLACES: Final = np.dtype([(name, _TABLE) for name in (*FlowState._fields, *Ways._fields)])
"""The layout of where the tables of a network lie in memory, and how large they are.

A row of it is what compiled functions that Python calls are given: handing over every table took
longer than what they do with them.
"""

_BY_FLOW: Final = ("flows", "hops", "transfers", "heap", "finished", "near_flows")


def new_state(flows: int, links: int, hops: int) -> FlowState:
    """Return the tables of a network where nothing flows yet.

    `flows` is how many there may be at once, `hops` how many links one may cross.
    """
    state = FlowState(
        core=np.zeros(1, CORE),
        flows=np.zeros(flows, FLOW),
        hops=np.zeros((flows, hops), HOP),
        links=np.zeros(links, LINK),
        transfers=np.zeros(flows, TRANSFER),
        heap=np.zeros(4 * flows + 16, EVENT),
        dirty=np.zeros(links, np.int32),
        finished=np.zeros(flows, np.int32),
        near_flows=np.zeros(flows, np.int32),
        near_links=np.zeros(links, np.int32),
    )
    for table in (state.flows, state.transfers):
        table["next"] = np.arange(1, flows + 1)
        table["next"][-1] = -1
    state.links["first"] = -1
    return state


def with_room(state: FlowState, flows: int) -> FlowState:
    """Return `state` with room for `flows` flows at once, more than it has."""
    had, core = len(state.flows), state.core[0]
    grown = new_state(flows, len(state.links), state.hops.shape[1])
    tables = {name: getattr(grown, name) for name in _BY_FLOW}
    for name, table in tables.items():
        known = getattr(state, name)
        table[: len(known)] = known
    for name, free in (("flows", "free_flow"), ("transfers", "free_transfer")):
        tables[name]["next"][-1] = core[free]
        core[free] = had
    return state._replace(**tables)


def with_hops(state: FlowState, hops: int) -> FlowState:
    """Return `state` with room for `hops` links that a flow may cross, if it has less."""
    flows, had = state.hops.shape
    if hops <= had:
        return state
    table = np.zeros((flows, hops), HOP)
    table[:, :had] = state.hops
    for entries in (table["before"], table["after"], state.links["first"]):
        there = entries >= 0
        entries[there] = entries[there] // had * hops + entries[there] % had
    return state._replace(hops=table)


def flow_bytes(state: FlowState) -> int:
    """Return how much memory a flow's rows take."""
    return sum(getattr(state, name).nbytes for name in _BY_FLOW) // len(state.flows)


def places_of(state: FlowState, ways: Ways) -> NDArray[np.void]:
    """Return one row that says where these tables lie; they must live for as long as it is used."""
    places = np.zeros(1, PLACES)
    for name, table in (*state._asdict().items(), *ways._asdict().items()):
        columns = table.shape[1] if table.ndim > 1 else 1
        places[name] = table.ctypes.data, len(table), columns
    return places


@inlined
def state_at(places: NDArray[np.void]) -> FlowState:
    """Return the tables that change."""
    at = places[0]
    return FlowState(
        rows_at(at.core.address, 1, CORE),
        rows_at(at.flows.address, at.flows.rows, FLOW),
        grid_at(at.hops.address, at.hops.rows, at.hops.columns, HOP),
        rows_at(at.links.address, at.links.rows, LINK),
        rows_at(at.transfers.address, at.transfers.rows, TRANSFER),
        rows_at(at.heap.address, at.heap.rows, EVENT),
        rows_at(at.dirty.address, at.dirty.rows, I4),
        rows_at(at.finished.address, at.finished.rows, I4),
        rows_at(at.near_flows.address, at.near_flows.rows, I4),
        rows_at(at.near_links.address, at.near_links.rows, I4),
    )


@inlined
def ways_at(places: NDArray[np.void]) -> Ways:
    """Return the tables that say which way a flow takes."""
    at = places[0]
    return Ways(
        rows_at(at.access.address, at.access.rows, ACCESS),
        grid_at(at.pairs.address, at.pairs.rows, at.pairs.columns, PAIR),
        rows_at(at.routes.address, at.routes.rows, ROUTE),
        rows_at(at.trunks.address, at.trunks.rows, TRUNK),
    )
