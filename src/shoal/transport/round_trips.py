"""How long answers take, and so how long to wait for one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.compiled import compiled, inlined

if TYPE_CHECKING:
    from shoal.transport.tables import Row

LONGEST_GRACE_US: Final = 20_000
"""How long a receiver holds back an answer on a network that reorders."""

LARGEST_WAIT_US: Final = 200_000
"""The microseconds after which the next question is asked at the latest, however long nothing is
heard."""

LONG_US: Final = 8_000.0
"""The round trip, in microseconds, from which more is sent than what gets lost asks for. Shorter
ones wait in queues rather than on the way: there what is sent besides costs as much as asking."""

_SMALLEST_WAIT_US = 2_000
_UNKNOWN_WAIT_US = 5_000
_DEVIATIONS = 4
_DEVIATIONS_IF_LOSSY = 1
_UNDOUBLED_IF_LOSSY = 3
_HURRIED = 4
_LONGEST_ROUND_TRIP_US = 60_000_000


@compiled
def is_long(peer: Row) -> bool:
    """Return whether answers take so long that it pays not to need any; also if none has come."""
    return bool(peer.smoothed_rtt == 0 or peer.smoothed_rtt >= LONG_US)


@compiled
def has_lately_missed(peer: Row) -> bool:
    """Return whether something that was sent to this peer got lost not many packets ago."""
    if peer.losses != 0 and is_long(peer):
        return True
    return bool(peer.next_number < peer.outgoing_lossy_until)


@compiled
def probe_wait(peer: Row, probes: int) -> int:
    """Return microseconds to wait for an answer: from the round trips seen, doubled per silence.

    If this peer has lately missed packets, silence most likely means that question or answer got
    lost too, and not that they wait in a long queue. Then the wait is shorter, and doubles only
    after several silences: a question is a hundred bytes, and a whole sum may wait for its answer.
    """
    deviations, doublings = _DEVIATIONS, probes
    if has_lately_missed(peer):
        deviations, doublings = _DEVIATIONS_IF_LOSSY, max(0, probes - _UNDOUBLED_IF_LOSSY)
    wait = _UNKNOWN_WAIT_US
    if peer.smoothed_rtt > 0:
        wait = int(peer.smoothed_rtt + deviations * peer.rtt_variation)
    return min(max(wait, _SMALLEST_WAIT_US) << min(doublings, 6), LARGEST_WAIT_US)


@compiled
def answer_wait(peer: Row, row: Row) -> int:
    """Return the same for what is missing of a message.

    Where packets get lost it is asked for once more before it can come, and some more times if the
    operation waits for it: question and answer may get lost, and several of them together.
    """
    wait = probe_wait(peer, row.probes)
    often = _HURRIED - 1 if row.hurried else 1
    if peer.losses != 0 and is_long(peer) and row.probes < often:
        return max(wait // _HURRIED, _SMALLEST_WAIT_US)
    return wait


@compiled
def credit_wait(core: Row, peer: Row, probes: int) -> int:
    """Return the same to wait for credit: where senders take turns, two of their turns longer."""
    wait = probe_wait(peer, probes)
    if peer.gives_turns:
        wait += int(2 * core.turn_wait)
    return wait


@compiled
def note_turn(core: Row, held: int) -> None:
    """Learn how long a turn was waited for: as long as its receiver held it back."""
    core.turn_wait += (min(held, LONGEST_GRACE_US) - core.turn_wait) / 8


@inlined
def note_round_trip(peer: Row, feedback: Row, arrived: int, is_turn: bool) -> None:
    """Learn from a report on new packets how long answers take.

    A report that was held back for long was no answer to those packets, but waited for an occasion;
    or, if it gives a turn, for that. Answers to questions wait for no turn.
    """
    round_trip = float((arrived - int(feedback.echo)) & 0xFFFFFFFF)
    if round_trip >= _LONGEST_ROUND_TRIP_US:
        return
    peer.network_rtt = max(1.0, round_trip - feedback.held)
    if is_turn:
        round_trip = peer.network_rtt
    elif feedback.held > LONGEST_GRACE_US:
        return
    if peer.smoothed_rtt == 0:
        peer.smoothed_rtt, peer.rtt_variation = round_trip, round_trip / 2
    else:
        deviation = abs(round_trip - peer.smoothed_rtt)
        peer.rtt_variation += (deviation - peer.rtt_variation) / 4
        peer.smoothed_rtt += (round_trip - peer.smoothed_rtt) / 8
