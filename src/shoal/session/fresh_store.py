"""A part of a store that no earlier start of the same job has written to.

torchrun keeps its store when it restarts the workers, with everything that the earlier workers have
left there: addresses, keys, verdicts. So the workers first agree on a new name, in a way that left
over agreements cannot disturb: each publishes a random number and then a digest of all numbers that
it sees, until all see the same numbers, their own included.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING

import torch.distributed as dist

from shoal.errors import DeadlineExceeded

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]  # torch's own omission

_PAUSE_S = 0.005
_PAUSE_PER_RANK_S = 0.0002
"""All ranks ask one store for all ranks' values: its work grows with the square of their number."""


def fresh_store(
    store: Store, occasion: str, rank: int, world_size: int, *, deadline_s: float
) -> Store:
    """Return a part of `store` that only this start of the job uses; collective.

    Within one start, `occasion` is used once. Raises `DeadlineExceeded` naming the ranks that have
    not shown up.
    """
    prefix = f"shoal-start/{occasion}"
    deadline = time.monotonic() + deadline_s
    numbers = [f"{prefix}/number/{each}" for each in range(world_size)]
    views = [f"{prefix}/view/{each}" for each in range(world_size)]
    store.set(numbers[rank], secrets.token_hex(16))
    shown = ""
    while True:
        seen = _all_of(store, numbers, deadline, deadline_s)
        view = blake2b(b" ".join(seen), digest_size=16).hexdigest()
        if view != shown:
            store.set(views[rank], view)
            shown = view
        others = _all_of(store, views, deadline, deadline_s)
        late = [each for each, other in enumerate(others) if other.decode() != view]
        if not late:
            return dist.PrefixStore(f"shoal-start/{view}", store)  # type: ignore[attr-defined]  # documented by torch, but missing from its __all__
        if time.monotonic() > deadline:
            raise _late(late, deadline_s)
        time.sleep(max(_PAUSE_S, world_size * _PAUSE_PER_RANK_S))


def _all_of(store: Store, keys: list[str], deadline: float, deadline_s: float) -> list[bytes]:
    """Return the values of all `keys`, once all are set; in one request if the store can."""
    left_s = max(0.001, deadline - time.monotonic())
    try:
        store.wait(keys, timedelta(seconds=left_s))
    except RuntimeError as error:
        missing = [each for each, key in enumerate(keys) if not store.check([key])]
        raise _late(missing, deadline_s) from error
    if store.has_extended_api():  # type: ignore[attr-defined]  # torch does not declare it
        return list(store.multi_get(keys))
    return [store.get(key) for key in keys]


def _late(ranks: list[int], deadline_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"Ranks {ranks} did not start within {deadline_s:g} s.")
