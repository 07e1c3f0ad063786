"""Calls compiled functions; prints which of their parts this process wrote, and what they return.

Its argument is how many types of records numba comes upon before those of the functions.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from shoal.compiled import compiled, parts
from shoal.transport.own_queue import longest_wait
from shoal.transport.recent_keys import place_of, remember
from shoal.transport.tables import CORE, KEY

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def own(keys: NDArray[np.void], peer: int, stream: int, iteration: int) -> int:
    return place_of(keys, peer, stream, iteration)


@compiled
def own_wait(core: np.void) -> float:
    return longest_wait(core)


def main() -> None:
    written = []
    run_pass = parts.PartLowering.run_pass

    def note(lowering: parts.PartLowering, state: Any) -> bool:
        written.append(state.func_id.func_name)
        return run_pass(lowering, state)

    parts.PartLowering.run_pass = note  # type: ignore[method-assign]
    for number in range(int(sys.argv[1])):
        numba.typeof(np.zeros(1, [(f"field{number}", np.int64)])[0])
    core = np.zeros(1, CORE)
    core["own_limit"], core["own_rate"], core["own_rate_known"] = 1000.0, 4.0, 1
    keys = np.zeros(64, KEY)
    keys["peer"] = -1
    for iteration in range(5):
        remember(keys, 2, 3524350647, iteration, 7)
    places = [own(keys, 2, 3524350647, iteration) for iteration in range(5)]
    json.dump([written, [*places, own_wait(core[0])]], sys.stdout)


if __name__ == "__main__":
    main()
