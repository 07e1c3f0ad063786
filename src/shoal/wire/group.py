"""Collectives of a group of ranks over the transport: a graph of messages, made rows, made way.

A group costs nothing to form: it is a list of ranks and a stream number that its members agree on.
Owns the tables that carry a graph out, which are kept for the next call of the same shape, and the
numbering of operations. Knows addresses and counts, no framework's tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from shoal.arguments import whole_number
from shoal.collectives import (
    AUTO,
    choose_sum,
    divided,
    exact_from,
    goes_by_host,
    graphs,
    members_per_host,
)
from shoal.errors import UsageError
from shoal.transport import (
    BLOCK_BYTES,
    LARGE_CHANGE,
    MEMORY_BYTES,
    PIECE_BYTES,
    PIECES_OF_A_SHARD,
    RAW,
    WIRE_BYTES,
    GraphOptions,
    ImportanceTagger,
    LastMeans,
    piece_length,
    tables_of,
)
from shoal.wire.error_feedback import ErrorFeedback
from shoal.wire.operation_log import SumAccount
from shoal.wire.sum_options import EXACT, SumOptions
from shoal.wire.transfer import Part, Transfer

if TYPE_CHECKING:
    from shoal.collectives import MessageGraph
    from shoal.transport import MessageTables
    from shoal.wire.transfer import Carrier

KEPT_SHAPES: Final = 1024
"""Shapes whose tables are kept, those used last: a parameter server and its 63 workers have some
eight for each pair of them. Tables of a small message are a few kilobytes."""

DIVIDED_BYTES: Final = 1 << 20
"""What is moved in one operation from this on is divided among the lanes: less of it is there
before another thread has got to its part."""

KEPT_GROUPS: Final = 64
"""Groups formed at run time that are kept with their tables, those used last."""


def stream_of(*meaning: Hashable) -> int:
    """Return the stream of the conversation that `meaning` describes to all its members.

    A hash of 32 bits, so that nobody has to be asked. Two conversations with the same one would be
    mixed up only if they also reached the same number between the same ranks at the same time.
    """
    return int.from_bytes(blake2b(repr(meaning).encode(), digest_size=4).digest(), "little")


@dataclass(frozen=True, slots=True)
class Memory:
    """A contiguous piece of a caller's memory: `count` elements of `form` from `address` on."""

    address: int
    count: int
    form: int
    owner: Any = None
    """What must live as long as the memory is used."""
    meaning: str = ""
    """What the bytes are, where `form` does not say it and all members must agree on it."""


@dataclass(frozen=True, slots=True)
class _Operation:
    """What a member does in an operation of its group."""

    shape: tuple[Hashable, ...]
    """What its tables depend on, its kind first."""
    graph: Callable[[], MessageGraph]
    memory: Memory
    piece: int | None
    """The elements of a piece of what is large, which goes by all lanes; None: not divided."""
    shard: int | None = None
    source: Memory | None = None
    options: SumOptions = EXACT
    stream: int | None = None
    iteration: int | None = None
    patient: bool = False
    deadline_s: float | None = None
    called: str = ""
    """What errors call it, if not its kind."""
    peer: int | None = None
    """The one member that it is with, if there is one."""


@dataclass
class TransportGroup:
    """The members `ranks` (positions are indices) of a group, seen from this rank.

    `stream` names the group's conversations to its members and must be used for nothing else; see
    `stream_of`. An `iteration` that a caller chooses must be new in the stream. `deadline_s` bounds
    every transfer of the group; None: the job's deadline does.
    Every collective is called by all members in the same order; transfers between two members in
    the same order by both. All return a started `Transfer`; one of nothing is over already.
    """

    engine: Carrier
    ranks: tuple[int, ...]
    stream: int
    deadline_s: float | None = None
    me: int = field(init=False)
    _next: int = 0
    _next_transfer: dict[Hashable, tuple[int, int]] = field(default_factory=dict)
    _tagger: ImportanceTagger = field(default_factory=ImportanceTagger)
    _tables: dict[Hashable, list[MessageTables]] = field(default_factory=dict)
    _accounts: WeakKeyDictionary[MessageTables, SumAccount] = field(
        default_factory=WeakKeyDictionary
    )
    """How to count what sums have lost that can lose anything."""
    feedback: ErrorFeedback = field(default_factory=ErrorFeedback)
    """What contributions have lost; groups that average the same tensors share one."""
    means: LastMeans = field(default_factory=LastMeans)
    """What tensors were after their last mean; groups that average the same ones share it."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """A lock that guards what is kept and numbered: the loop's thread starts operations too."""

    def __post_init__(self) -> None:
        rank = self.engine.endpoint.rank
        if rank not in self.ranks:
            message = f"Rank {rank} is not in the group {self.ranks}."
            raise UsageError(message)
        self.me = self.ranks.index(rank)

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self.ranks)

    def all_reduce(
        self, memory: Memory, options: SumOptions = EXACT, *, iteration: int | None = None
    ) -> Transfer:
        """Sum `memory` over all members, in place, times `options.scale`."""
        if self.size == 1 and options.scale != 1.0:
            raise UsageError("Scale a sum over one member yourself.")
        may_lose = options.loss_bound > 0 and memory.form != RAW
        counts = may_lose and options.counts_arrivals
        if options.algorithm == AUTO:
            options = self._settled(memory, options, may_lose=may_lose, counts=counts)
        elif options.algorithm == "hierarchical" and not options.per_host:
            options = replace(options, per_host=self._per_host)
        if counts and options.algorithm != "direct":
            message = (
                f"A {options.algorithm} all-reduce adds up sums on their way, so lost contributions"
                " cannot be counted; choose the direct algorithm or another policy for holes."
            )
            raise UsageError(message)
        piece = self._piece_length(memory, self.size, ring=options.algorithm == "ring")

        def graph() -> MessageGraph:
            made = graphs.all_reduce(
                self.size,
                self.me,
                memory.count,
                piece,
                algorithm=options.algorithm,
                per_host=options.per_host,
            )
            return made if options.exact_from is None else exact_from(made, options.exact_from)

        shape = ("all-reduce", memory.count, memory.form, options)
        return self._start(
            _Operation(shape, graph, memory, piece, options=options, iteration=iteration)
        )

    def _settled(
        self, memory: Memory, options: SumOptions, *, may_lose: bool, counts: bool
    ) -> SumOptions:
        """Return `options` with the algorithm that suits the sum, the same on all members."""
        per_host, on_wire = self._per_host, WIRE_BYTES[memory.form]
        algorithm = (
            "direct"
            if counts
            else choose_sum(
                self.size,
                memory.count * on_wire,
                per_host,
                keeps_apart=may_lose or on_wire < MEMORY_BYTES[memory.form],
                by_memory=self.engine.shares_memory,
            )
        )
        return replace(options, algorithm=algorithm, per_host=per_host)

    @cached_property
    def _per_host(self) -> int:
        return members_per_host([self.engine.hosts[rank] for rank in self.ranks])

    def shards_summed_here(self, source: Memory, options: SumOptions = EXACT) -> range:
        """Return the members whose shards this one sums up in a `reduce_scatter` of `source`."""
        num_bytes = source.count * WIRE_BYTES[source.form]
        by_host = goes_by_host(self.size, num_bytes, self._per_host) and not options.counts_arrivals
        return graphs.shards_summed_by(self.size, self.me, self._per_host if by_host else 1)

    def reduce_scatter(
        self, source: Memory, target: Memory, options: SumOptions = EXACT
    ) -> Transfer:
        """Sum shard `me` of every `source` into its place in `target`.

        `target` holds this member's own of `shards_summed_here` already, one after another.
        """
        shard = source.count // self.size
        per_host = self._per_host if target.count > shard else 1
        options = replace(options, algorithm="direct")
        piece = self._piece_length(replace(target, count=shard))
        return self._start(
            _Operation(
                ("reduce-scatter", target.count, target.form, options),
                lambda: graphs.reduce_scatter(self.size, self.me, shard, piece, per_host=per_host),
                target,
                piece,
                shard=shard,
                source=source,
                options=options,
            )
        )

    def all_gather(
        self,
        memory: Memory,
        counts: Sequence[int],
        *,
        iteration: int | None = None,
        deadline_s: float | None = None,
        called: str = "all-gather",
    ) -> Transfer:
        """Fill `memory` with everyone's part, of `counts[k]` elements; one's own is there.

        `iteration` is a reserved number, if this was announced by `reserve`; `called` is what those
        who asked for it know it as.
        """
        piece = self._piece_length(memory, self.size)
        num_bytes = memory.count * WIRE_BYTES[memory.form]
        by_host = goes_by_host(self.size, num_bytes, self._per_host)
        per_host = self._per_host if by_host else 1
        return self._start(
            _Operation(
                ("all-gather", tuple(counts), memory.form),
                lambda: graphs.all_gather(self.me, counts, piece, per_host=per_host),
                memory,
                piece,
                iteration=iteration,
                deadline_s=deadline_s,
                called=called,
            )
        )

    def reserve(self, count: int = 1) -> int:
        """Return the number of an operation to be started later, in its place in the order.

        The first one, if `count` of them are to be.
        """
        with self._lock:
            iteration = self._next
            self._next = (self._next + count) & 0xFFFFFFFF
        return iteration

    def resumed_at(self, iteration: int) -> TransportGroup:
        """Return this group for starting what has been reserved from number `iteration` on."""
        return replace(self, _next=iteration)

    def all_to_all(
        self,
        source: Memory,
        target: Memory,
        sent: Sequence[int],
        received: Sequence[int],
        called: str = "all-to-all",
    ) -> Transfer:
        """Send `sent[k]` elements of `source` to member k and receive `received[k]` from it.

        `called` is what those who asked for it know it as.
        """
        # Members know only their own totals, and two must cut alike what they exchange: as if much.
        piece = self._piece_length(replace(target, count=PIECES_OF_A_SHARD * PIECE_BYTES))
        return self._start(
            _Operation(
                ("all-to-all", tuple(sent), tuple(received), source.form),
                lambda: graphs.all_to_all(self.me, sent, received, piece),
                target,
                None,
                source=source,
                called=called,
            )
        )

    def broadcast(self, memory: Memory, root: int) -> Transfer:
        """Overwrite `memory` with that of member `root`."""
        piece = self._piece_length(memory, self.size)
        return self._start(
            _Operation(
                ("broadcast", memory.count, memory.form, root),
                lambda: graphs.broadcast(self.size, self.me, memory.count, root, piece),
                memory,
                piece,
            )
        )

    def reduce(self, memory: Memory, root: int, options: SumOptions = EXACT) -> Transfer:
        """Sum `memory` over all members into that of `root`; the others' end as scratch."""
        options = replace(options, algorithm="direct")
        piece = self._piece_length(memory, self.size)
        return self._start(
            _Operation(
                ("reduce", memory.count, memory.form, root, options),
                lambda: graphs.reduce(self.size, self.me, memory.count, root, piece),
                memory,
                piece,
                options=options,
            )
        )

    def send(
        self, memory: Memory, peer: int, *, tag: int = 0, options: SumOptions = EXACT
    ) -> Transfer:
        """Send `memory` to member `peer`; with a loss bound, as a contribution to a sum of its."""
        return self._transfer(memory, self.me, peer, tag, options)

    def receive(
        self,
        memory: Memory,
        peer: int,
        *,
        tag: int = 0,
        options: SumOptions = EXACT,
        patient: bool = False,
    ) -> Transfer:
        """Fill `memory` with what member `peer` sends; `patient` waits without a deadline.

        With a loss bound, what gets lost stays as it is in `memory`.
        """
        return self._transfer(memory, peer, self.me, tag, options, patient=patient)

    def barrier(self, memory: Memory, *, deadline_s: float | None = None) -> Transfer:
        """Finish once every member has called it; `memory` is a byte for each member.

        `deadline_s` bounds this one instead of the group's deadline.
        """
        return self.all_gather(memory, [1] * self.size, deadline_s=deadline_s, called="barrier")

    def _transfer(
        self,
        memory: Memory,
        sender: int,
        receiver: int,
        tag: int,
        options: SumOptions,
        *,
        patient: bool = False,
    ) -> Transfer:
        if sender == receiver:
            raise UsageError("A rank cannot send to itself.")
        key = (sender, receiver, tag)
        with self._lock:
            stream, iteration = self._next_transfer.get(key) or (stream_of(self.stream, *key), 0)
            self._next_transfer[key] = stream, (iteration + 1) & 0xFFFFFFFF
        piece = self._piece_length(memory)
        is_sender = sender == self.me
        return self._start(
            _Operation(
                ("transfer", sender, receiver, memory.count, memory.form, options),
                lambda: graphs.transfer(
                    self.me, sender, receiver, memory.count, piece, lossy=options.loss_bound > 0
                ),
                memory,
                piece,
                options=options,
                stream=stream,
                iteration=iteration,
                patient=patient,
                called="send" if is_sender else "receive",
                peer=receiver if is_sender else sender,
            )
        )

    def _piece_length(self, memory: Memory, shards: int = 1, *, ring: bool = False) -> int:
        """Return how many elements a message has: whole packets, except in the last message.

        `shards` is into how many parts `memory` is cut.
        """
        config = self.engine.endpoint.config
        is_in_memory = self.engine.shares_memory and self._per_host == self.size
        return piece_length(
            memory.count,
            memory.form,
            config.segment_bytes,
            config.largest_batch,
            shards=shards,
            ring=ring,
            # of a block, a sum is passed on while it is in the processor's cache
            piece_bytes=BLOCK_BYTES if is_in_memory else PIECE_BYTES,
        )

    def _start(self, operation: _Operation) -> Transfer:
        """Start an operation; it is over already if there is nothing to move."""
        stream, number = self._name(operation)
        memory, source = operation.memory, operation.source
        kind = str(operation.shape[0])
        parts = self._parts(operation)
        transfer = Transfer(
            parts,
            stream,
            number,
            self._described(operation.called or kind, memory, operation.peer),
            keep=(memory.owner, source.owner if source is not None else None),
            patient=operation.patient,
            kind=kind,
            limit_s=operation.deadline_s or self.deadline_s or self.engine.deadline_s,
        )
        options = operation.options
        if options.importance == LARGE_CHANGE and options.tensor is not None:
            transfer.at_end = partial(
                self.means.note, options.tensor, memory.address, memory.form, memory.count
            )
        if parts:
            return self.engine.submit(transfer)
        transfer.finish()
        return transfer

    def _name(self, operation: _Operation) -> tuple[int, int]:
        """Return the stream of an operation and its number there."""
        stream, iteration = operation.stream, operation.iteration
        if stream is None and iteration is None:
            iteration = self.reserve()
        # a packet has 32 bits for a number: what goes beyond makes another conversation of it
        beyond, number = divmod(whole_number(iteration or 0, "The sequence", low=0), 1 << 32)
        stream = self.stream if stream is None else stream
        return (stream_of(stream, beyond) if beyond else stream), number

    def _parts(self, operation: _Operation) -> tuple[Part, ...]:
        """Return what each lane has to do of an operation.

        Its tables are made of its graph, unless some of its shape are kept.
        """
        memory, options, piece = operation.memory, operation.options, operation.piece
        origin = operation.source or memory
        # Other numbers may lie in the same memory by now: what was lost of these is none of theirs.
        kept = options.tensor, origin.form, origin.count
        if options.keeps_missing:  # first, because it frees tables
            self.feedback.add_back(kept, origin.address)
        is_large = memory.count * WIRE_BYTES[memory.form] >= DIVIDED_BYTES
        lanes = self.engine.lane_count if is_large and piece else 1
        shape = (*operation.shape, memory.meaning)
        parts = []
        for lane, tables in enumerate(self._tables_of(operation, shape, lanes)):
            give_back = partial(self._keep, (*shape, lane), tables)
            if tables.is_empty:
                give_back()
                continue
            tables.place(memory.address, origin.address)
            if options.keeps_missing:
                give_back = partial(self.feedback.keep, kept, tables, give_back)
            if options.tensor is not None:
                self._tagger.tag(
                    tables,
                    (options.tensor, lane),
                    options.importance,
                    address=origin.address,
                    sample=self.means.sample(options.tensor),
                )
            parts.append(Part(lane, tables, give_back, self._accounts.get(tables)))
        return tuple(parts)

    def _tables_of(
        self, operation: _Operation, shape: tuple[Hashable, ...], lanes: int
    ) -> list[MessageTables]:
        """Return an operation's tables for each of its lanes."""
        found = self._take(shape, lanes)
        if None not in found:
            return [tables for tables in found if tables is not None]
        divisions = divided(operation.graph(), lanes, operation.piece or 1, shard=operation.shard)
        return [
            tables or self._make_tables(graph, operation.memory, str(shape[0]), operation.options)
            for tables, graph in zip(found, divisions, strict=True)
        ]

    def _described(self, called: str, memory: Memory, peer: int | None) -> str:
        """Return the beginning of a sentence about an operation on `memory`."""
        if called == "barrier":
            return f"The barrier among ranks {self.ranks}"
        unit = "bytes" if memory.form == RAW else "elements"
        if peer is None:
            with_whom = f"among ranks {self.ranks}"
        else:
            with_whom = f"{'to' if called == 'send' else 'from'} rank {self.ranks[peer]}"
        return f"The {called} of {memory.count} {unit} {with_whom}"

    def _take(self, shape: tuple[Hashable, ...], lanes: int) -> list[MessageTables | None]:
        """Return tables that are kept of an operation's shape, for every lane that takes part."""
        with self._lock:
            kept = [self._tables.get((*shape, lane)) for lane in range(lanes)]
            return [each.pop() if each else None for each in kept]

    def _keep(self, key: tuple[Hashable, ...], tables: MessageTables) -> None:
        """Keep an operation's tables for the next one of the same shape, on the same lane."""
        with self._lock:
            kept = self._tables.pop(key, [])
            self._tables[key] = [*kept, tables]
            if len(self._tables) > KEPT_SHAPES:
                self._tables.pop(next(iter(self._tables)))

    def _make_tables(
        self, graph: MessageGraph, memory: Memory, kind: str, options: SumOptions
    ) -> MessageTables:
        """Return the tables of an operation; its members agree on its kind and how it sums."""
        form = memory.form
        bound = 0.0 if form == RAW and not options.renews else options.loss_bound
        bound /= graphs.lossy_hops(options.algorithm, self.size)
        tables = tables_of(
            graph,
            self.ranks,
            self.engine.endpoint.num_ranks,
            self.engine.endpoint.config.segment_bytes,
            form,
            GraphOptions(
                options.scale,
                bound,
                options.policy,
                options.layers,
                options.keeps_missing,
                options.tensor is not None,
            ),
        )
        tables.operation["agreed"] = stream_of(
            kind, form, memory.meaning, options.scale, options.policy, options.algorithm
        )
        if bound > 0:
            self._accounts[tables] = SumAccount.of(
                graph, self.ranks, options.layers, renews=options.renews
            )
        return tables
