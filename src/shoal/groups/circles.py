"""Waiting in a circle across generators: who waits, through others, for a worker to move on.

A worker that trains two models (a generator and its critic) asks one group generator for each, and
one after the other. Inside a generator nobody can wait in a circle; across two of them they can: A
waits in one for B, which waits in the other for A. Since a wait begins with a request alone, a
circle closes with the request of one of its workers: whoever looks then finds every one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable


def waiting_for(rank: int, awaited: Callable[[int], Iterable[int]]) -> set[int]:
    """Return which of the workers that `rank` waits for, directly or not, wait for `rank`.

    `awaited` gives the workers that a worker waits for, in any of the generators; none if it does
    not wait. Takes time in proportion to the waits that are looked at.
    """
    awaited_by: defaultdict[int, list[int]] = defaultdict(list)
    seen, to_visit = {rank}, [rank]
    while to_visit:
        here = to_visit.pop()
        for other in awaited(here):
            awaited_by[other].append(here)
            if other not in seen:
                seen.add(other)
                to_visit.append(other)
    found: set[int] = set()
    to_visit = [rank]
    while to_visit:
        new = set(awaited_by[to_visit.pop()]) - found
        found |= new
        to_visit += new
    return found
