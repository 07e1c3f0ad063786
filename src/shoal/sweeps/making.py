"""How one run is made, wherever it is: its result or its failure as a value that can travel."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from shoal.errors import ResourceError, ShoalError

if TYPE_CHECKING:
    from shoal.sweeps.keyed_run import Run

_OF_TORCH: Final = "can't allocate memory"
"""What its allocator says in a `RuntimeError`, among much else."""
_NO_MEMORY: Final = "This run needs more memory than there is: take fewer --jobs, or less to run."


@dataclass(frozen=True, slots=True)
class Made:
    """What became of a run: its result as JSON, or the sentence and exit code of its failure."""

    seconds: float
    result: bytes = b""
    failure: str = ""
    exit_code: int = 0


def make(run: Run, tick: Callable[[float], None]) -> Made:
    """Make `run`; every exception that it raises becomes a sentence."""
    begin = time.monotonic()
    try:
        try:
            result = msgspec.json.encode(run.work(**run.arguments, tick=tick))
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and _OF_TORCH not in str(error):
                raise
            raise ResourceError(_NO_MEMORY) from error
    except ShoalError as error:
        return Made(time.monotonic() - begin, failure=str(error), exit_code=error.exit_code)
    except Exception as error:  # noqa: BLE001 - it is raised again where the sweep was started
        sentence = f"{type(error).__name__}: {error}"
        return Made(time.monotonic() - begin, failure=sentence, exit_code=1)
    return Made(time.monotonic() - begin, result)
