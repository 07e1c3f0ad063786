"""Error feedback: what a sender's messages have lost, kept and added to its next contribution.

What a message has lost is known when its STOP comes, with a bitmap of the missing segments; they
are copied then, before anything else is written to their place. The messages of a shard share the
room for that, as they share what the loss bound lets go missing: so it needs no memory beyond that.
(docs/papers.md, 1.5; error feedback as in compressed gradient descent.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.compiled import F4, F8, I8, compiled, copy_bytes, entry, rows_at
from shoal.transport.bitmap import next_bit
from shoal.transport.forms import FLOAT64, IN_FLOAT32, widening

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from shoal.transport.tables import Row


@compiled
def keep_missing(row: Row, segment_bytes: int) -> None:
    """Copy the missing segments of an outgoing message, in their order, to where they are kept."""
    row.kept_segments = 0
    if row.kept == 0:
        return
    full, used = segment_bytes * widening(row.form), rows_at(row.kept_used, 1, I8)
    row.kept_first = used[0]
    segment = next_bit(row.missing, row.segments, 0)
    while segment >= 0 and used[0] < row.kept_room:
        length = _memory_bytes(row, segment, segment_bytes)
        copy_bytes(row.kept + used[0] * full, row.address + segment * full, length)
        used[0] += 1
        row.kept_segments += 1
        segment = next_bit(row.missing, row.segments, segment + 1)


@compiled
def _memory_bytes(row: Row, segment: int, segment_bytes: int) -> int:
    on_wire = min(segment_bytes, row.size - segment * segment_bytes)
    return on_wire * widening(row.form)


@entry
def add_kept(outgoing: NDArray[np.void], buffer: int, segment_bytes: int) -> None:
    """Add what the messages keep to the buffer at address `buffer`; they keep nothing after that.

    `buffer` holds the same elements as the one that they were sent from, with other values.
    """
    for index in range(outgoing.size):
        row = outgoing[index]
        wide = widening(row.form)
        full, start = segment_bytes * wide, buffer + row.start * wide
        segment = -1
        for place in range(row.kept_segments):
            segment = next_bit(row.missing, row.segments, segment + 1)
            length = _memory_bytes(row, segment, segment_bytes)
            kept = row.kept + (row.kept_first + place) * full
            _add(row.form, start + segment * full, kept, length)
        row.kept_segments = 0


@compiled
def _add(form: int, target: int, source: int, size: int) -> None:
    if form == FLOAT64:
        wide, more_wide = rows_at(target, size // 8, F8), rows_at(source, size // 8, F8)
        for index in range(wide.size):
            wide[index] += more_wide[index]
    elif form in IN_FLOAT32:
        narrow, more = rows_at(target, size // 4, F4), rows_at(source, size // 4, F4)
        for index in range(narrow.size):
            narrow[index] += more[index]
