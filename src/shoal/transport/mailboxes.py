"""Mailboxes in memory that the ranks of a host share, for what would else be datagrams.

Every rank has one area of memory that the others of its host may read: blocks, into which it copies
a payload once, whoever is to have it, and for each of the others a mailbox, which is a ring of
slots. A slot says which block to read, or holds a control packet. Writer and reader each count on
alone, so there are no locks; whoever goes to sleep says so, and is woken by its eventfd.

An area begins with a page for the writer's sleep; then come the mailboxes, in the order of the
ranks on the host, and the blocks. Nothing gets lost in it and nothing overtakes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from shoal.compiled import I4, compiled, copy_bytes, fence, loaded, rows_at, store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.transport.tables import Row, State

BLOCK_BYTES: Final = 64 << 10
SLOTS: Final = 256
"""The slots of a mailbox; a power of two."""

PACKET: Final = 1
"""A slot that holds a control packet."""
RUN: Final = 2
"""A slot that says where a run of a message's segments is."""

AWAKE, READS, WRITES = 0, 1, 2
"""What a rank waits for in its sleep: for nothing, for slots to read, or also for free blocks."""

SLOT: Final = np.dtype(
    [
        ("kind", "<u4"),
        ("length", "<u4"),  # bytes of the packet, or of the payload
        ("at", "<i8"),  # of the payload in the area
        ("stream", "<u4"),
        ("iteration", "<u4"),
        ("offset", "<u4"),  # of the payload in its message
        ("message", "<u2"),
        ("tag", "u1"),  # the three bits that say the message's class
        ("important", "u1"),  # whether all segments are
        ("packet", "u1", (96,)),
    ]
)

_LINE: Final = 64
_PAGE: Final = 4096
SLOTS_AT: Final = 2 * _LINE
"""The bytes of a mailbox before its slots: how many have been written and how many read, each in a
line of the processor's cache of its own."""

_BOX_BYTES: Final = SLOTS_AT + SLOTS * SLOT.itemsize

BOX: Final = np.dtype(
    [
        ("rank", "<i4"),
        ("wake_fd", "<i4"),  # the peer's eventfd
        ("out", "<i8"),  # address of our mailbox for the peer
        ("written", "<i8"),  # slots, in all
        ("freed", "<i8"),  # slots whose blocks have been given back
        ("unread", "<i4"),  # blocks that the peer still has to read
        ("held", "u1"),  # whether what comes next must wait for another message
        ("stirred", "u1"),  # whether the peer may have to be woken
        ("pad", "u1", (2,)),
        ("incoming", "<i8"),  # address of the peer's mailbox for us
        ("read", "<i8"),  # slots, in all
        ("area", "<i8"),  # address of the peer's area
        ("area_bytes", "<i8"),
    ],
    align=True,
)

BLOCK: Final = np.dtype(
    [
        ("order", "<i8"),  # of the operation that its payload is of; -1: none
        ("source", "<i8"),  # the address that it was copied from
        ("gate", "<i4"),  # that had opened then: memory may be sent before and after
        ("length", "<i4"),
        ("readers", "<i4"),  # that still have to read it
        ("pad", "<i4"),
    ],
    align=True,
)

POST: Final = np.dtype(
    [
        ("area", "<i8"),  # address of this rank's area
        ("blocks_at", "<i8"),  # of its blocks in the area
        ("boxes", "<i8"),  # address of the mailboxes' rows (BOX)
        ("blocks", "<i8"),  # address of the blocks' rows (BLOCK)
        ("placed", "<i8"),  # address of the block of each slot written (int32); -1: none
        ("box_of", "<i8"),  # address of the row of each rank's mailbox (int32); -1: none
        ("count", "<i4"),  # mailboxes
        ("block_bytes", "<i4"),
        ("block_count", "<i4"),
        ("share", "<i4"),  # blocks that may wait for one reader
        ("next_block", "<i4"),
        ("pad", "<i4"),
    ],
    align=True,
)


def area_bytes(ranks: int, share: int) -> int:
    """Return how large the area of one of `ranks` ranks of a host is.

    It has `share` blocks for each of the others.
    """
    return _blocks_at(ranks) + share * (ranks - 1) * BLOCK_BYTES


def _blocks_at(ranks: int) -> int:
    return -(-(_PAGE + ranks * _BOX_BYTES) // _PAGE) * _PAGE


@dataclass(frozen=True, slots=True)
class Area:
    """The area of a rank of this host, mapped at `address`, and the eventfd that wakes that rank.

    `owner` keeps the memory mapped.
    """

    rank: int
    address: int
    wake_fd: int
    owner: Any = None


class PostOffice:
    """This rank's mailboxes: its own area, and those of the other ranks of its host, `others`.

    `num_ranks` is how many ranks the job has. Areas are `area_bytes` long, with `share` blocks for
    each other rank, which may wait for it to read them, and zero at first.
    """

    def __init__(self, mine: Area, others: Sequence[Area], num_ranks: int, share: int) -> None:
        here = sorted([mine.rank, *(each.rank for each in others)])
        # whoever begins, begins after its own rank: not all serve the same one first
        boxes = sorted(others, key=lambda each: (each.rank - mine.rank) % num_ranks)
        self._areas = mine, tuple(others)
        self.boxes = np.zeros(len(boxes), BOX)
        self.blocks = np.zeros(share * len(boxes), BLOCK)
        self.blocks["order"] = -1
        self._placed = np.full(len(boxes) * SLOTS, -1, I4)
        self._box_of = np.full(num_ranks, -1, I4)
        for number, (row, other) in enumerate(zip(self.boxes, boxes, strict=True)):
            row["rank"], row["wake_fd"] = other.rank, other.wake_fd
            row["out"] = mine.address + _PAGE + here.index(other.rank) * _BOX_BYTES
            row["incoming"] = other.address + _PAGE + here.index(mine.rank) * _BOX_BYTES
            row["area"], row["area_bytes"] = other.address, area_bytes(len(here), share)
            self._box_of[other.rank] = number
        self.row = np.zeros(1, POST)
        """The row that compiled code finds all of it by."""
        self.row["area"], self.row["blocks_at"] = mine.address, _blocks_at(len(here))
        self.row["count"], self.row["block_bytes"] = len(boxes), BLOCK_BYTES
        self.row["block_count"], self.row["share"] = len(self.blocks), share
        self.row["boxes"], self.row["blocks"] = self.boxes.ctypes.data, self.blocks.ctypes.data
        self.row["placed"] = self._placed.ctypes.data
        self.row["box_of"] = self._box_of.ctypes.data

    @property
    def ranks(self) -> list[int]:
        """The ranks that have a mailbox here."""
        return [int(rank) for rank in self.boxes["rank"]]


@compiled
def post_of(state: State) -> Row:
    """Return the row of this rank's mailboxes; there is one only if `core.post` is not 0."""
    return rows_at(state.core[0].post, 1, POST)[0]


@compiled
def box_at(post: Row, number: int) -> Row:
    """Return the row of a mailbox."""
    return rows_at(post.boxes, post.count, BOX)[number]


@compiled
def _slot_at(box: int, number: int) -> Row:
    return rows_at(box + SLOTS_AT, SLOTS, SLOT)[number % SLOTS]


@compiled
def next_to_write(box: Row) -> Row:
    """Return the slot that is written next; `publish` lets the peer have it."""
    return _slot_at(box.out, box.written)


@compiled
def next_to_read(box: Row) -> Row:
    """Return the slot that is read next, if there `is_mail`; `note_read` lets go of it."""
    return _slot_at(box.incoming, box.read)


@compiled
def has_slot(box: Row) -> bool:
    """Return whether a slot is free for writing: read, and its block given back."""
    return bool(box.written - box.freed < SLOTS)


@compiled
def is_mail(box: Row) -> bool:
    """Return whether there is a slot to read."""
    return bool(loaded(box.incoming) != box.read)


@compiled
def publish(post: Row, number: int, block: int) -> None:
    """Let the peer of a mailbox have the slot that has been written, which names `block`, or -1."""
    box = box_at(post, number)
    rows_at(post.placed, post.count * SLOTS, I4)[number * SLOTS + box.written % SLOTS] = block
    if block >= 0:
        rows_at(post.blocks, post.block_count, BLOCK)[block].readers += 1
        box.unread += 1
    box.written += 1
    box.stirred = 1
    store(box.out, box.written)


@compiled
def note_read(box: Row) -> None:
    """Let go of the slot that has been read."""
    box.read += 1
    box.stirred = 1
    store(box.incoming + _LINE, box.read)


@compiled
def post_packet(state: State, rank: int, packet: int, size: int) -> bool:
    """Put a control packet of `size` bytes into a rank's mailbox; return whether there is room."""
    post = post_of(state)
    number = rows_at(post.box_of, state.peers.size, I4)[rank]
    box = box_at(post, number)
    give_back_blocks(post, number)
    slot = next_to_write(box)
    if size > slot.packet.size or not has_slot(box):
        return False
    slot.kind, slot.length = PACKET, size
    copy_bytes(slot.packet.ctypes.data, packet, size)
    publish(post, number, -1)
    return True


@compiled
def give_back_blocks(post: Row, number: int) -> None:
    """Give back the blocks that the peer of a mailbox has read."""
    box = box_at(post, number)
    read = loaded(box.out + _LINE)
    placed = rows_at(post.placed, post.count * SLOTS, I4)
    blocks = rows_at(post.blocks, post.block_count, BLOCK)
    while box.freed < read and box.freed < box.written:
        block = placed[number * SLOTS + box.freed % SLOTS]
        if block >= 0:
            blocks[block].readers -= 1
            box.unread -= 1
        box.freed += 1


@compiled
def free_block(post: Row) -> int:
    """Return a block that nobody has to read any more.

    There is one as long as no mailbox has more than its share of them unread.
    """
    blocks = rows_at(post.blocks, post.block_count, BLOCK)
    while blocks[post.next_block].readers > 0:
        post.next_block = (post.next_block + 1) % post.block_count
    block = int(post.next_block)
    post.next_block = (block + 1) % post.block_count
    return block


@compiled
def fall_asleep(state: State) -> bool:
    """Say that this rank is about to sleep; return False if there is something to do for it."""
    post = post_of(state)
    blocked = False
    for number in range(post.count):
        box = box_at(post, number)
        blocked = blocked or state.peers[box.rank].queue >= 0
    store(post.area, WRITES if blocked else READS)
    fence()
    for number in range(post.count):
        box = box_at(post, number)
        give_back_blocks(post, number)
        is_free = box.unread <= post.share // 2 and has_slot(box)
        waits = state.peers[box.rank].queue >= 0 and not state.peers[box.rank].lost
        if (is_mail(box) and not box.held) or (waits and is_free):
            wake_up(state)
            return False
    return True


@compiled
def wake_up(state: State) -> None:
    """Say that this rank is awake."""
    store(post_of(state).area, AWAKE)


@compiled
def next_sleeper(state: State) -> int:
    """Return the eventfd of a peer to be woken, because of what it has got or may write; or -1."""
    post = post_of(state)
    fence()
    for number in range(post.count):
        box = box_at(post, number)
        if not box.stirred:
            continue
        box.stirred = 0
        sleep = loaded(box.area)
        if sleep == AWAKE:
            continue
        has_mail = loaded(box.out) != loaded(box.out + _LINE)
        if has_mail or (sleep == WRITES and loaded(box.incoming) - box.read <= post.share // 2):
            return int(box.wake_fd)
    return -1
