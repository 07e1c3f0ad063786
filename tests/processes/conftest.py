"""The fixture that runs one function in several worker processes."""

from __future__ import annotations

import pytest
import worker_processes


@pytest.fixture
def run_workers() -> worker_processes.RunWorkers:
    """Run `function(*arguments)` in `world_size` processes and return what each of them returned.

    The function is a top-level one, and torch.distributed is initialized for it with gloo, or not
    if `initialize` is false; torchrun's environment is set either way. A worker that raises, dies
    or takes longer than `deadline_s` fails the test, with the tracebacks of all. Ranks in `may_die`
    may die, and then their result is None. No worker exits before all have returned. `environment`
    is added to theirs.
    """
    return worker_processes.run_workers
