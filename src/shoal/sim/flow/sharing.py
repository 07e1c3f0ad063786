"""Max-min fair rates within one component of flows and links that depend on each other.

All flows' rates rise together until a link is full; then those that cross it stay as they are and
the others go on. Here every link that bounds all of its flows is filled at once, which comes to the
same rates in fewer rounds. (Bertsekas and Gallager, Data Networks, section 6.5.2.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compiled import inlined

if TYPE_CHECKING:
    from shoal.sim.flow.flow_tables import FlowState

_EQUAL = 1.0 + 1e-12
"""Shares nearer to each other than this are equal: they are sums in different order."""


@inlined
def share_out(state: FlowState, flows: int, links: int) -> None:
    """Give the first `flows` of `near_flows` their rates; they cross the first `links` links."""
    for each in range(links):
        link = state.links[state.near_links[each]]
        link.left, link.weight, link.open = link.capacity, link.load, link.flows
    _offer(state, links)
    if _settle_alike(state, flows, links):
        return
    for each in range(flows):
        state.flows[state.near_flows[each]].settled = 0
    left = flows
    while left > 0:
        _find_tight(state, flows)
        left -= _settle(state, flows)
        if left > 0:
            _offer(state, links)


@inlined
def _settle_alike(state: FlowState, flows: int, links: int) -> bool:
    """Give all flows the same rate if they cross the link that offers least, and may have that.

    A flow that is alone gets what it may have.
    """
    narrowest = state.links[state.near_links[0]]
    for each in range(1, links):
        link = state.links[state.near_links[each]]
        if link.share < narrowest.share:
            narrowest = link
    if narrowest.open < flows:
        return False
    if flows == 1:
        flow = state.flows[state.near_flows[0]]
        flow.rate = min(flow.bound, narrowest.share)
        return True
    for each in range(flows):
        if state.flows[state.near_flows[each]].bound < narrowest.share:
            return False
    for each in range(flows):
        state.flows[state.near_flows[each]].rate = narrowest.share
    return True


@inlined
def _offer(state: FlowState, links: int) -> None:
    """Work out what every flow without a rate would get at each link."""
    for each in range(links):
        link = state.links[state.near_links[each]]
        if link.open > 0:
            link.share = max(0.0, link.left) / link.weight
            link.is_tight = 1


@inlined
def _find_tight(state: FlowState, flows: int) -> None:
    """Find the links at which no flow is bounded more elsewhere."""
    for each in range(flows):
        number = state.near_flows[each]
        if state.flows[number].settled:
            continue
        bound = _bound(state, number)
        for hop in state.hops[number][: state.flows[number].hops]:
            if bound * _EQUAL < state.links[hop.link].share:
                state.links[hop.link].is_tight = 0


@inlined
def _bound(state: FlowState, number: int) -> float:
    """Return the least that a flow is offered, or the most that it may have."""
    flow = state.flows[number]
    bound = flow.bound
    for hop in state.hops[number][: flow.hops]:
        bound = min(bound, state.links[hop.link].share)
    return float(bound)


@inlined
def _settle(state: FlowState, flows: int) -> int:
    """Give the flows that a tight link or their own limit bounds their rates; return how many."""
    settled = 0
    for each in range(flows):
        number = state.near_flows[each]
        flow = state.flows[number]
        if flow.settled:
            continue
        bound = _bound(state, number)
        is_bounded = flow.bound <= bound
        for hop in state.hops[number][: flow.hops]:
            link = state.links[hop.link]
            if link.is_tight and link.share <= bound * _EQUAL:
                is_bounded = True
        if is_bounded:
            flow.rate, flow.settled = bound, 1
            settled += 1
            for hop in state.hops[number][: flow.hops]:
                link = state.links[hop.link]
                link.left -= bound * hop.weight
                link.weight -= hop.weight
                link.open -= 1
    return settled
