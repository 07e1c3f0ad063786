"""What an endpoint knows, in words: for a test that waits in vain."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.transport import tables
from shoal.transport.rates import FIXED, TIMELY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.transport.endpoint import Endpoint

STATES = ("blocked", "unready", "sending", "asking", "done", "expected")


def memory_at(address: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy of `count` items that lie at an address."""
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).copy()


def describe(endpoint: Endpoint) -> str:
    """Return lines on an endpoint's peers and running operations."""
    state = endpoint.state
    core = state.core[0]
    waiting = core["control_tail"] - core["control_head"]
    timer = _time(core["timer_at"])
    lines = [f"rank {core['rank']}: timer {timer}, budget {core['budget']:.0f}, {waiting} queued"]
    for rank, peer in enumerate(state.peers):
        if peer["known"]:
            lines.append(
                f"  peer {rank}: sent {peer['next_number']} of {peer['granted']} granted,"
                f" queue {peer['queue']}, credit probe {_time(peer['credit_probe_at'])},"
                f" reported {peer['reported_received']} of {peer['reported_highest']};"
                f" received {peer['received']} of {peer['end']}, grants {peer['grant']},"
                f" expecting {peer['expecting']}, feedback due {peer['feedback_due']}"
            )
            counts = {k.name: v for k, v in endpoint.counts(rank).items() if v}
            lines.append(f"    {counts}")
    for slot, row in enumerate(state.operations):
        if row["active"]:
            lines.extend(_operation(slot, row))
    return "\n".join(lines)


def next_wait(endpoint: Endpoint) -> int:
    """Return the latest time at which a timer must go off, by what the tables say; or NEVER.

    For an endpoint that has just sent all that it may.
    """
    state, moment = endpoint.state, int(tables.NEVER)
    for peer in state.peers:
        if peer["queue"] >= 0 and not peer["lost"]:
            paced = state.core["rate_control"][0] in (FIXED, TIMELY)
            has_credit = peer["granted"] > peer["next_number"]
            probe = int(peer["credit_probe_at"])
            asks_at = 0 if probe == tables.NEVER else probe
            moment = min(moment, int(peer["next_send_at"]) + 1 if paced and has_credit else asks_at)
    for row in state.operations[state.operations["active"] != 0]:
        outgoing = memory_at(int(row["outgoing"]), int(row["outgoing_count"]), tables.OUTGOING)
        asking = outgoing["probe_at"][outgoing["state"] == tables.ASKING]
        incoming = memory_at(int(row["incoming"]), int(row["incoming_count"]), tables.INCOMING)
        answers = incoming["answer_at"][incoming["state"] == tables.EXPECTED]
        silent = (incoming["state"] == tables.EXPECTED) & (incoming["first_at"] == 0)
        ready = [row["ready_at"]] if silent.all() and len(incoming) else []
        moment = min([moment, *map(int, asking), *map(int, answers), *map(int, ready)])
    return moment


def _operation(slot: int, row: np.void) -> list[str]:
    ready = _time(row["ready_at"])
    key = f"stream {row['stream']}, iteration {row['iteration']}"
    lines = [f"  operation {slot}: {key}, {row['remaining']} messages left, READY {ready}"]
    outgoing = memory_at(int(row["outgoing"]), int(row["outgoing_count"]), tables.OUTGOING)
    lines.extend(
        f"    to {out['peer']} message {out['message']}: {STATES[out['state']]},"
        f" {out['unsent']} of {out['segments']} unsent, probe {_time(out['probe_at'])}"
        for out in outgoing
    )
    incoming = memory_at(int(row["incoming"]), int(row["incoming_count"]), tables.INCOMING)
    lines.extend(
        f"    from {each['peer']} message {each['message']}: {STATES[each['state']]},"
        f" {each['received']} of {each['size']} bytes, enough {each['target']},"
        f" answer {_time(each['answer_at'])}"
        for each in incoming
    )
    return lines


def _time(moment: int) -> str:
    return "never" if moment == tables.NEVER else str(moment)
