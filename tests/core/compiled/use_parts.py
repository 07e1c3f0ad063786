"""Remembers keys by compiled code; prints which parts this process wrote, and the keys' places."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.compiled import compiled, parts
from shoal.transport.recent_keys import place_of, remember
from shoal.transport.tables import KEY

if TYPE_CHECKING:
    from numpy.typing import NDArray


@compiled
def own(keys: NDArray[np.void], peer: int, stream: int, iteration: int) -> int:
    return place_of(keys, peer, stream, iteration)


def main() -> None:
    written = []
    run_pass = parts.PartLowering.run_pass

    def note(lowering: parts.PartLowering, state: Any) -> bool:
        written.append(state.func_id.func_name)
        return run_pass(lowering, state)

    parts.PartLowering.run_pass = note  # type: ignore[method-assign]
    keys = np.zeros(64, KEY)
    keys["peer"] = -1
    for iteration in range(5):
        remember(keys, 2, 3524350647, iteration, 7)
    places = [own(keys, 2, 3524350647, iteration) for iteration in range(5)]
    json.dump([written, places], sys.stdout)


if __name__ == "__main__":
    main()
