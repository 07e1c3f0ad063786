"""Flows that begin and end, event by event in virtual time; between events their rates stand.

Only the component of flows and links that a change touches is worked out anew: what it does not
reach keeps its rates. One event stands for each component, for the flow of it that ends first.
Times are picoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shoal.compiled import compiled, inlined
from shoal.sim.flow.flow_tables import COMING, FLOWING, FREE, state_at, ways_at
from shoal.sim.flow.sharing import share_out
from shoal.switching import NEVER, PICOSECONDS, mixed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.sim.flow.flow_tables import FlowState, Ways

FULL = -1
"""The result in place of a transfer if there were more flows at once than there is room for."""

_LATEST = float(1 << 62)
_UINT64 = np.uint64


@compiled
def start(
    places: NDArray[np.void], at: int, flows: NDArray[np.float64], key: int
) -> tuple[int, int]:
    """Let flows between hosts begin at `at`, or when the first bit has crossed; see `run`.

    The rows of `flows` are their sources, their targets, their bytes and the rates that they do not
    exceed, bits per second. `key` decides which of several equal ways is taken. Returns the
    transfer's number, or `FULL`, and when the first of them begins.
    """
    state, ways = state_at(places), ways_at(places)
    core, first, count = state.core[0], NEVER, flows.shape[1]
    if core.flowing + count > len(state.flows) or core.free_transfer < 0:
        return FULL, first
    transfer = int(core.free_transfer)
    core.free_transfer = state.transfers[transfer].next
    state.transfers[transfer].flows = count
    head, tail, due = -1, -1, NEVER  # of flows that begin together: one event stands for all
    for each in range(count):
        row = int(core.free_flow)
        flow = state.flows[row]
        core.free_flow = flow.next
        core.flowing += 1
        core.started += 1
        flow.size = flow.left = max(0.0, flows[2, each])
        flow.rate, flow.most = 0.0, flows[3, each] / (8.0 * PICOSECONDS)
        flow.transfer, flow.state, flow.due = transfer, COMING, -1
        source, target = int(flows[0, each]), int(flows[1, each])
        begins = at + _find_way(state, ways, row, source, target, key + each)
        if begins == due:
            state.flows[tail].next = row
        else:
            if head >= 0:
                _push(state, due, head, 1)
            head, due = row, begins
            first = min(first, begins)
        tail, flow.next = row, -1
    if head >= 0:
        _push(state, due, head, 1)
    return transfer, first


@compiled
def run(places: NDArray[np.void], until: int) -> tuple[int, int]:
    """Let everything happen that is due up to `until`, or up to when a transfer is over.

    Returns the time and how many transfers are over now: the first ones of `finished`, whose
    numbers may be used again. If no transfer is over, the time is that of the next event,
    `NEVER` if there is none.
    """
    state = state_at(places)
    core = state.core[0]
    while core.finished == 0:
        _settle_changes(state)
        if core.finished > 0:
            break
        if core.events == 0 or state.heap[0].at > until:
            break
        core.now = state.heap[0].at
        while core.events > 0 and state.heap[0].at == core.now:
            row, number = int(state.heap[0].flow), int(state.heap[0].number)
            begins = state.heap[0].begins
            _pop(state)
            if begins:
                while row >= 0:
                    _begin(state, row)
                    row = int(state.flows[row].next)
            elif state.flows[row].due == number:
                _end(state, row)
    over = int(core.finished)
    if over > 0:
        for transfer in state.finished[:over]:
            state.transfers[transfer].next = core.free_transfer
            core.free_transfer = transfer
        core.finished = 0
        return int(core.now), over
    return (int(state.heap[0].at) if core.events > 0 else NEVER), 0


@compiled
def set_capacity(places: NDArray[np.void], at: int, link: int, capacity: float) -> None:
    """Let `link` carry `capacity` bytes per picosecond from `at` on."""
    state = state_at(places)
    state.core[0].now = at
    state.links[link].capacity = capacity
    _touch(state, link)


@compiled
def give_up(places: NDArray[np.void], at: int, transfer: int) -> None:
    """Let the flows of a transfer end at `at`, as far as they have come, or when they begin."""
    state = state_at(places)
    state.core[0].now = at
    for row in range(len(state.flows)):
        flow = state.flows[row]
        if flow.state == FREE or flow.transfer != transfer:
            continue
        if flow.state == FLOWING:
            _bring_up_to_date(state, row)
            _touch(state, state.hops[row, 0].link)
            flow.size -= flow.left
        else:
            flow.size = 0.0
        flow.left = 0.0


@compiled
def reroute(
    places: NDArray[np.void], at: int, avoided: NDArray[np.uint8], ends: NDArray[np.int32], key: int
) -> None:
    """Let the flows that cross `avoided` links (a flag for each) take their ways anew at `at`.

    `ends` is, by link, the host that it begins or ends at.
    """
    state, ways = state_at(places), ways_at(places)
    state.core[0].now = at
    for row in range(len(state.flows)):
        flow, crosses = state.flows[row], False
        if flow.state == FREE:
            continue
        for each in range(flow.hops):
            crosses = crosses or avoided[state.hops[row, each].link] != 0
        if not crosses:
            continue
        source, target = ends[state.hops[row, 0].link], ends[state.hops[row, flow.hops - 1].link]
        if flow.state == FLOWING:
            _bring_up_to_date(state, row)
            _detach(state, row, flow.size - flow.left)
            flow.size, flow.rate, flow.due = flow.left, 0.0, -1
        _find_way(state, ways, row, source, target, key + row)
        if flow.state == FLOWING:
            _attach(state, row)


@inlined
def _find_way(state: FlowState, ways: Ways, row: int, source: int, target: int, key: int) -> int:
    """Write the links between two hosts into a flow's hops; return what they delay, picoseconds."""
    flow, hops = state.flows[row], state.hops[row]
    here, there = ways.access[source], ways.access[target]
    if source == target:
        hops[0].link, hops[0].weight = here.itself, 1.0
        flow.hops = 1
        return 0
    hops[0].link, hops[0].weight = here.out, 1.0
    used, delay = 1, int(here.out_delay + there.into_delay)
    if here.switch != there.switch:
        pair, choice = ways.pairs[here.switch, there.switch], 0
        if pair.routes > 1:
            choice = int(np.int64(mixed(_UINT64(key)) % _UINT64(pair.routes)))
        route = ways.routes[pair.first + choice]
        for each in range(route.hops):
            trunk = ways.trunks[route.first + each]
            hops[used].link, hops[used].weight = trunk.link, trunk.weight
            used += 1
        delay += int(pair.delay)
    hops[used].link, hops[used].weight = there.into, 1.0
    flow.hops = used + 1
    return delay


@inlined
def _begin(state: FlowState, row: int) -> None:
    flow = state.flows[row]
    flow.state, flow.since, flow.rate = FLOWING, state.core[0].now, 0.0
    _attach(state, row)


@inlined
def _attach(state: FlowState, row: int) -> None:
    """Put a flow on its links."""
    flow, width = state.flows[row], state.hops.shape[1]
    for each in range(flow.hops):
        hop, entry = state.hops[row, each], row * width + each
        link = state.links[hop.link]
        hop.before, hop.after = -1, link.first
        if link.first >= 0:
            state.hops[link.first // width, link.first % width].before = entry
        link.first = entry
        link.load += hop.weight
        link.flows += 1
        _touch(state, hop.link)


@inlined
def _end(state: FlowState, row: int) -> None:
    """Take a flow off its links; its transfer is over if it was the last."""
    core, flow = state.core[0], state.flows[row]
    _detach(state, row, flow.size)
    flow.state, flow.due, flow.next = FREE, -1, core.free_flow
    core.free_flow = row
    core.flowing -= 1
    core.ended += 1
    transfer = state.transfers[flow.transfer]
    transfer.flows -= 1
    if transfer.flows == 0:
        state.finished[core.finished] = flow.transfer
        core.finished += 1


@inlined
def _detach(state: FlowState, row: int, carried: float) -> None:
    """Take a flow off its links, which have `carried` bytes of it."""
    flow, width = state.flows[row], state.hops.shape[1]
    for each in range(flow.hops):
        hop = state.hops[row, each]
        link = state.links[hop.link]
        link.carried += carried * hop.weight
        link.flows -= 1
        link.load = link.load - hop.weight if link.flows > 0 else 0.0
        if hop.before >= 0:
            state.hops[hop.before // width, hop.before % width].after = hop.after
        else:
            link.first = hop.after
        if hop.after >= 0:
            state.hops[hop.after // width, hop.after % width].before = hop.before
        _touch(state, hop.link)


@inlined
def _touch(state: FlowState, number: int) -> None:
    core, link = state.core[0], state.links[number]
    if not link.is_dirty:
        link.is_dirty = 1
        state.dirty[core.dirty] = number
        core.dirty += 1


@inlined
def _settle_changes(state: FlowState) -> None:
    """Work out the rates of every component that has changed, and when its first flow ends."""
    core = state.core[0]
    core.visits += 1
    while core.dirty > 0:
        core.dirty -= 1
        number = int(state.dirty[core.dirty])
        link = state.links[number]
        link.is_dirty = 0
        if link.visit == core.visits or link.first < 0:
            continue
        flows, links = _gather(state, number)
        if _end_those_done(state, flows):  # the others may no longer depend on each other
            core.visits += 1
            for each in range(links):
                _touch(state, state.near_links[each])
            continue
        share_out(state, flows, links)
        _expect(state, flows)


@inlined
def _gather(state: FlowState, first: int) -> tuple[int, int]:
    """Find the flows and links that depend on link `first`, and bring what is left up to date.

    A link that one flow has to itself is not among them: it bounds that flow, and nobody else.
    """
    core, width = state.core[0], state.hops.shape[1]
    state.near_links[0] = first
    state.links[first].visit = core.visits
    flows, links, done = 0, 1, 0
    while done < links:
        entry = int(state.links[state.near_links[done]].first)
        done += 1
        while entry >= 0:
            row = entry // width
            flow = state.flows[row]
            if flow.visit != core.visits:
                flow.visit = core.visits
                state.near_flows[flows] = row
                flows += 1
                _bring_up_to_date(state, row)
                bound = flow.most
                for hop in state.hops[row][: flow.hops]:
                    link = state.links[hop.link]
                    if link.visit == core.visits:
                        continue
                    link.visit = core.visits
                    if link.flows == 1:
                        link.share = np.inf
                        bound = min(bound, link.capacity / link.load)
                    else:
                        state.near_links[links] = hop.link
                        links += 1
                flow.bound = bound
            entry = int(state.hops[row, entry % width].after)
    return flows, links


@inlined
def _bring_up_to_date(state: FlowState, row: int) -> None:
    core, flow = state.core[0], state.flows[row]
    flow.left -= flow.rate * float(core.now - flow.since)
    flow.since = core.now


@inlined
def _end_those_done(state: FlowState, flows: int) -> bool:
    """End the flows of a component that have less to go than comes in a picosecond."""
    ended = False
    for each in range(flows):
        flow = state.flows[state.near_flows[each]]
        if flow.left <= flow.rate:
            _end(state, state.near_flows[each])
            ended = True
    return ended


@inlined
def _expect(state: FlowState, flows: int) -> None:
    """Let an event say when the first flow of a component ends."""
    core = state.core[0]
    soonest, first = _LATEST, -1
    for each in range(flows):
        row = int(state.near_flows[each])
        flow = state.flows[row]
        flow.due = -1
        if flow.rate > 0.0:
            takes = np.ceil(flow.left / flow.rate)
            if takes < soonest or (takes == soonest and row < first):
                soonest, first = takes, row
    if first >= 0:
        state.flows[first].due = core.next_number
        _push(state, int(core.now + soonest), first, 0)


@inlined
def _push(state: FlowState, at: int, flow: int, begins: int) -> None:
    core, heap = state.core[0], state.heap
    if core.events == len(heap):
        _forget_stale(state)
    number, index = int(core.next_number), int(core.events)
    core.next_number += 1
    core.events += 1
    while index > 0:
        above = (index - 1) >> 1
        if not _is_before(at, number, heap[above].at, heap[above].number):
            break
        heap[index] = heap[above]
        index = above
    event = heap[index]
    event.at, event.number, event.flow, event.begins = at, number, flow, begins


@inlined
def _pop(state: FlowState) -> None:
    core = state.core[0]
    core.events -= 1
    _sink(state, 0, int(core.events), int(core.events))


@inlined
def _sink(state: FlowState, index: int, source: int, count: int) -> None:
    """Put the event at `source` into place `index` of a heap of `count`, or as far below it."""
    heap = state.heap
    at, number = heap[source].at, heap[source].number
    flow, begins = heap[source].flow, heap[source].begins
    while True:
        below = 2 * index + 1
        if below >= count:
            break
        if below + 1 < count and _is_before(
            heap[below + 1].at, heap[below + 1].number, heap[below].at, heap[below].number
        ):
            below += 1
        if not _is_before(heap[below].at, heap[below].number, at, number):
            break
        heap[index] = heap[below]
        index = below
    event = heap[index]
    event.at, event.number, event.flow, event.begins = at, number, flow, begins


@inlined
def _forget_stale(state: FlowState) -> None:
    """Remove the ends that rates have changed since; what is left is at most half of the heap."""
    core, heap = state.core[0], state.heap
    kept = 0
    for each in range(core.events):
        if heap[each].begins or state.flows[heap[each].flow].due == heap[each].number:
            heap[kept] = heap[each]
            kept += 1
    core.events = kept
    for index in range(kept // 2 - 1, -1, -1):
        _sink(state, index, index, kept)


@inlined
def _is_before(at: int, number: int, at2: int, number2: int) -> bool:
    return at < at2 or (at == at2 and number < number2)
