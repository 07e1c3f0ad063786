"""What an endpoint knows, in words: for a test that waits in vain."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.transport import tables
from shoal.transport.credit import HAS_ONE, KEEPS_ONE, WAITS
from shoal.transport.operations import handle_of, index_of, slot_of
from shoal.transport.parity import parities_of
from shoal.transport.rates import FIXED, TIMELY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from shoal.transport.endpoint import Endpoint

STATES = ("blocked", "unready", "sending", "asking", "done", "expected")


def memory_at(address: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return a copy of `count` items that lie at an address."""
    return rows_at(address, count, dtype).copy()


def rows_at(address: int, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the items themselves: for a look at memory that does not change meanwhile."""
    memory = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


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
    state, moment = endpoint.state, int(endpoint.state.core["look_at"][0])
    if moment == tables.NEVER:  # nothing is held back
        paced = state.core["rate_control"][0] in (FIXED, TIMELY)
        waits = (state.peers["queue"] >= 0) & (state.peers["lost"] == 0)
        for peer in state.peers[waits & (state.peers["known"] != tables.IN_MEMORY)]:
            has_credit = peer["granted"] > peer["next_number"]
            probe = int(peer["credit_probe_at"])
            asks_at = 0 if probe == tables.NEVER else probe
            moment = min(moment, int(peer["next_send_at"]) + 1 if paced and has_credit else asks_at)
    for row in state.operations[state.operations["active"] != 0]:
        outgoing = rows_at(int(row["outgoing"]), int(row["outgoing_count"]), tables.OUTGOING)
        asking = _times(row, "probe_times", outgoing)[outgoing["state"] == tables.ASKING]
        incoming = rows_at(int(row["incoming"]), int(row["incoming_count"]), tables.INCOMING)
        expected = incoming["state"] == tables.EXPECTED
        answers = _times(row, "answer_times", incoming)[expected]
        silent = len(incoming) > 0 and not incoming["first_at"].any() and bool(expected.all())
        ready = [int(row["ready_at"])] if silent else []
        moment = min([moment, *asking.tolist(), *answers.tolist(), *ready])
    return moment


def _operation(slot: int, row: np.void) -> list[str]:
    ready = _time(row["ready_at"])
    key = f"stream {row['stream']}, iteration {row['iteration']}"
    lines = [f"  operation {slot}: {key}, {row['remaining']} messages left, READY {ready}"]
    outgoing = memory_at(int(row["outgoing"]), int(row["outgoing_count"]), tables.OUTGOING)
    lines.extend(
        f"    to {out['peer']} message {out['message']}: {STATES[out['state']]},"
        f" {out['unsent']} of {out['segments']} unsent, probe {_time(at)}"
        for out, at in zip(outgoing, _times(row, "probe_times", outgoing), strict=True)
    )
    incoming = memory_at(int(row["incoming"]), int(row["incoming_count"]), tables.INCOMING)
    lines.extend(
        f"    from {each['peer']} message {each['message']}: {STATES[each['state']]},"
        f" {each['received']} of {each['size']} bytes, enough {each['target']},"
        f" answer {_time(at)}"
        for each, at in zip(incoming, _times(row, "answer_times", incoming), strict=True)
    )
    return lines


def _times(row: np.void, name: str, messages: NDArray[np.void]) -> NDArray[np.int64]:
    """Return when something is due about each of an operation's messages."""
    return memory_at(int(row[name]), len(messages), np.dtype(np.int64))


def _time(moment: int) -> str:
    return "never" if moment == tables.NEVER else str(moment)


# ---- consistency --------------------------------------------------------------------------------


def check_consistency(endpoint: Endpoint) -> None:
    """Fail unless the tables agree with each other: queues, bitmaps, counts and gates."""
    state = endpoint.state
    owed = np.zeros(len(state.peers), np.int64)
    slots = 0
    sending: dict[int, int] = {}
    segment_bytes = int(state.core["segment_bytes"][0])
    for slot in np.flatnonzero(state.operations["active"]):
        row = state.operations[slot]
        outgoing = memory_at(int(row["outgoing"]), int(row["outgoing_count"]), tables.OUTGOING)
        incoming = memory_at(int(row["incoming"]), int(row["incoming_count"]), tables.INCOMING)
        times = [_times(row, "probe_times", outgoing), _times(row, "answer_times", incoming)]
        assert row["due_at"] <= min(np.concatenate(times), default=tables.NEVER)
        gates = memory_at(int(row["gates"]), int(row["gate_count"]), tables.GATE)
        assert row["queued"] == outgoing["unsent"][outgoing["state"] == tables.SENDING].sum()
        unsent = np.isin(outgoing["state"], (tables.BLOCKED, tables.UNREADY))
        assert row["to_come"] == outgoing["segments"][unsent].sum()
        open_rows = (outgoing["state"] != tables.DONE).sum() + (
            incoming["state"] != tables.DONE
        ).sum()
        assert row["remaining"] == open_rows > 0
        for index, out in enumerate(outgoing):
            _check_outgoing(out)
            if out["state"] == tables.SENDING:
                sending[handle_of(int(slot), index)] = int(out["peer"])
        for each in incoming:
            missing = _bits(int(each["seen"]), int(each["segments"]))
            if each["state"] == tables.EXPECTED:
                owed[each["peer"]] += missing.sum() + each["parity_owed"]
            assert each["state"] == tables.EXPECTED or each["parity_first"] < 0
            if each["parity_first"] > 0:
                slots += parities_of(int(each["segments"]), int(each["parity_code"]))
            sizes = np.full(int(each["segments"]), segment_bytes)
            sizes[-1:] = int(each["size"]) - segment_bytes * (int(each["segments"]) - 1)
            assert each["received"] == sizes[~missing].sum()
        check_saved(incoming)
        for index, gate in enumerate(gates):
            leading = incoming[incoming["gate"] == index]
            assert gate["remaining"] == (leading["state"] != tables.DONE).sum()
            behind = outgoing[outgoing["gate"] == index]
            blocked = behind["state"] == tables.BLOCKED
            assert (blocked == ((gate["remaining"] > 0) & (behind["size"] > 0))).all()
    np.testing.assert_array_equal(state.peers["expecting"], owed)
    far = state.peers["known"] < tables.NEAR
    assert state.core["receiving_peers"][0] == ((owed > 0) & far).sum()
    check_turns(state)
    assert _queued(state) == sending
    assert free_slots(endpoint) == int(state.core["parity_slots"][0]) - slots


def free_slots(endpoint: Endpoint) -> int:
    """Return how many slots for parity are free."""
    core = endpoint.state.core[0]
    words = memory_at(int(core["parity_free"]), -(-int(core["parity_slots"]) // 64), np.dtype("u8"))
    flags = np.unpackbits(words.view(np.uint8), bitorder="little")
    return int(flags[: core["parity_slots"]].sum())


def check_turns(state: tables.State) -> None:
    """Fail unless those who have a turn owe something, and those who wait for one are in line."""
    peers, core = state.peers, state.core[0]
    has_turn = np.isin(peers["turn"], (HAS_ONE, KEEPS_ONE))
    assert core["turns"] == has_turn.sum()
    assert (peers["expecting"][has_turn] > 0).all()
    line, rank = [], int(core["first_waiting"])
    while rank >= 0:
        line.append(rank)
        rank = int(peers["next_waiting"][rank])
    assert sorted(line) == np.flatnonzero(peers["turn"] == WAITS).tolist()


def check_saved(incoming: NDArray[np.void]) -> None:
    """Fail unless the shards' messages that are done lack no more than their bounds allow them."""
    for address in np.unique(incoming["saved"][incoming["saved"] != 0]):
        done = incoming[(incoming["saved"] == address) & (incoming["state"] == tables.DONE)]
        allowed = (done["size"] - done["target"]).sum()
        missing = (done["size"] - done["received"]).sum()
        saved = int(memory_at(int(address), 1, np.dtype(np.int64))[0])
        assert saved == allowed - missing >= 0


def _check_outgoing(out: np.void) -> None:
    pending = _bits(int(out["pending"]), int(out["segments"]))
    assert out["unsent"] == pending.sum()
    if out["state"] in (tables.BLOCKED, tables.UNREADY):
        assert pending.all()
    if out["state"] == tables.SENDING:
        wraps = out["rotates"] or out["important"]
        rest = pending[int(out["cursor"]) :].any() or (wraps and pending.any())
        assert rest or out["parity_left"] > 0
    if out["state"] == tables.ASKING:
        assert not pending.any()
    if out["state"] == tables.UNREADY:
        assert not out["ready"]


def _queued(state: tables.State) -> dict[int, int]:
    """Return the peers of all messages in queues; fail if a queue is out of order or endless."""
    queued: dict[int, int] = {}
    for rank, peer in enumerate(state.peers):
        handle, previous = int(peer["queue"]), (-1, -1)
        while handle >= 0:
            assert handle not in queued
            queued[handle] = rank
            row = state.operations[slot_of(handle)]
            outgoing = memory_at(int(row["outgoing"]), int(row["outgoing_count"]), tables.OUTGOING)
            message = outgoing[index_of(handle)]
            urgency = (int(message["layer_class"]), int(row["order"]))
            assert urgency >= previous
            handle, previous = int(message["next"]), urgency
    return queued


def _bits(address: int, bits: int) -> NDArray[np.bool_]:
    memory = memory_at(address, -(-bits // 64), np.dtype(np.uint64))
    flags = np.unpackbits(memory.view(np.uint8), bitorder="little")
    assert not flags[bits:].any()
    return flags[:bits].astype(np.bool_)
