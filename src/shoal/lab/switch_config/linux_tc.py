"""Linux: a file for `tc -batch`, on the interface through which packets leave.

HTB has the port's rate and eight classes of strict priority in one qdisc; u32 filters choose the
class by DSCP; a class has RED where its queue has a threshold and a FIFO of bytes otherwise.
tc-htb(8), tc-u32(8), tc-red(8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.lab.switch_config.switch_settings import Configuration, Notes
from shoal.lab.switch_config.thresholds import (
    LARGEST_LIMIT,
    bytes_limit_of,
    in_32_bits,
    note_packets,
    queues_of,
    threshold_of,
)
from shoal.switching import QUEUES, SLOWEST_RATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.lab.switch_config.switch_settings import SwitchSettings
    from shoal.switching import Port

_LONGEST_NAME: Final = 15
_LARGEST_BANDWIDTH: Final = 8 * LARGEST_LIMIT
_PACKET: Final = 1_500
_PACKETS: Final = 8
"""The fewest packets that a threshold is divided into: bursts then make weights in small steps."""
_FRAME: Final = 1_514
_SLOWEST_AVERAGE: Final = 31
_SHIFTED_BITS: Final = 32
"""A threshold shifted left by the weight must have fewer bits than that."""
_SMALLEST_SLOPE: Final = 1.0001 * 2.0**-31
"""The smallest slope of RED's probability, per byte; a little more, as it is written with six
digits."""


def port_name(place: int) -> str:
    """Return what Linux calls the port at `place`, from 0 on."""
    return f"eth{place + 1}"


def write(settings: SwitchSettings) -> Configuration:
    """Return a batch for `tc` that replaces what the interfaces had; it can be run again."""
    notes = Notes(settings.remarks)
    note_packets(settings, notes)
    if settings.shared_buffer_bytes is not None:
        notes.add(
            f"Interfaces share no buffer: the {settings.shared_buffer_bytes} bytes are written as a"
            f" limit of every queue."
        )
        for name, _, number, queue in queues_of(settings):
            notes.add(f"The share {queue.share:g} is not written.", name, number)
    notes.add(
        f"A class of HTB has a rate of its own: {SLOWEST_RATE} bit/s, even while more urgent ones"
        f" wait."
    )
    commands = [
        line for name, port in settings.ports.items() for line in _port(settings, name, port, notes)
    ]
    modules = ["sch_htb", "cls_u32"]
    if any(" red " in line for line in commands):
        modules.append("sch_red")
    heading = [
        "# Apply with: tc -batch FILE",
        f"# The kernel needs {', '.join(modules)}.",
        *(f"# {note}" for note in notes.lines()),
    ]
    return Configuration("\n".join([*heading, *commands]) + "\n", notes.lines())


def blocks(queues: Sequence[int], first: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield (first DSCP, how many, queue) for aligned powers of two that share a queue."""
    if len(set(queues)) == 1:
        yield first, len(queues), queues[0]
        return
    half = len(queues) // 2
    yield from blocks(queues[:half], first)
    yield from blocks(queues[half:], first + half)


def _port(settings: SwitchSettings, name: str, port: Port, notes: Notes) -> Iterator[str]:
    if len(name) > _LONGEST_NAME or "/" in name:
        message = f"Linux knows no interface {name!r}: at most {_LONGEST_NAME} characters, no /."
        raise UsageError(message)
    rate, others = f"{port.rate}bit", _class(settings.queues[0])
    yield f"# {name}"
    yield f"qdisc replace dev {name} root bfifo"
    yield f"qdisc replace dev {name} root handle 1: htb default {others}"
    yield f"class add dev {name} parent 1: classid 1:1 htb rate {rate} quantum {_FRAME}"
    for number in range(QUEUES):
        this = f"dev {name} parent 1:1 classid 1:{_class(number)}"
        slowest = f"rate {min(SLOWEST_RATE, port.rate)}bit ceil {rate}"
        yield f"class add {this} htb {slowest} prio {number} quantum {_FRAME}"
        leaf = f"dev {name} parent 1:{_class(number)} handle {_class(number)}:"
        yield f"qdisc add {leaf} {_leaf(settings, name, port, number, notes)}"
    for first, count, queue in blocks(settings.queues):
        tos, mask = first << 2, (0x3F & ~(count - 1)) << 2
        to = f"flowid 1:{_class(queue)}"
        filters = f"filter add dev {name} parent 1: protocol"
        yield f"{filters} ip prio 1 u32 match ip dsfield {tos:#04x} {mask:#04x} {to}"
        yield f"{filters} ipv6 prio 2 u32 match ip6 priority {tos:#04x} {mask:#04x} {to}"


def _class(queue: int) -> str:
    """Return the minor number of a queue's class."""
    return f"1{queue}"


def _leaf(settings: SwitchSettings, name: str, port: Port, number: int, notes: Notes) -> str:
    limits = (bytes_limit_of(name, port, number, notes), settings.shared_buffer_bytes)
    limit = min((each for each in limits if each is not None), default=LARGEST_LIMIT)
    limit = in_32_bits(name, number, limit, notes)
    queue = port.queues[number]
    threshold = threshold_of(name, number, queue, notes)
    if threshold is None:
        return f"bfifo limit {limit}"
    packet, burst, weight = averaging(threshold.least, max(queue.average_weight, 1))
    if threshold.most.bit_length() + weight >= _SHIFTED_BITS:
        notes.add(
            f"RED's thresholds end below that of {threshold.most} bytes: it is not written.",
            name,
            number,
        )
        return f"bfifo limit {limit}"
    if weight != queue.average_weight:
        spec = f"2^-{queue.average_weight}" if queue.average_weight else "the queue itself"
        notes.add(
            f"RED looks at an average of weight 2^-{weight}, the spec at {spec}.",
            name,
            number,
        )
    smallest = (threshold.most - threshold.least) * _SMALLEST_SLOPE
    if threshold.probability < smallest:
        notes.add(
            f"RED's probability rises more steeply: {threshold.probability:g} is written as"
            f" {smallest:g}.",
            name,
            number,
        )
    words = [
        f"red limit {limit} min {threshold.least} max {threshold.most}",
        f"avpkt {packet} burst {burst} probability {max(threshold.probability, smallest):g}",
        f"bandwidth {min(port.rate, _LARGEST_BANDWIDTH)}bit ecn",
    ]
    if not threshold.drops:
        words.append("nodrop")
    return " ".join(words)


def average_weight(least: int, packet: int, burst: int) -> int:
    """Return the weight that `tc` makes of its arguments min, avpkt and burst: moves by 2^-weight.

    The smallest one with burst + 1 - min / avpkt <= (1 - (1 - W)^burst) / W (tc-red(8), after
    Floyd and Jacobson 1993); `_SLOWEST_AVERAGE` + 1 if there is none.
    """
    beyond = burst + 1 - least / packet
    for weight in range(1, _SLOWEST_AVERAGE + 1):
        moves = 2.0**-weight
        if beyond <= (1 - (1 - moves) ** burst) / moves:
            return weight
    return _SLOWEST_AVERAGE + 1


def averaging(least: int, weight: int) -> tuple[int, int, int]:
    """Return avpkt, burst and the weight that `tc` makes of them: `weight` if it can, or less."""
    packets = max(-(-least // _PACKET), _PACKETS if weight > 1 else 1)
    packet = -(-least // packets)
    burst = _burst_for(least, packet, weight)
    made = average_weight(least, packet, burst)
    if made > weight > 1:
        return averaging(least, weight - 1)
    return packet, burst, made


def _burst_for(least: int, packet: int, weight: int) -> int:
    """Return the smallest burst for which `tc` takes `weight` or more: it grows with the burst."""
    low = -(-least // packet)
    high = low + (1 << weight + 1)
    while low < high:
        middle = (low + high) // 2
        if average_weight(least, packet, middle) >= weight:
            high = middle
        else:
            low = middle + 1
    return low
