"""Workers leave the memory that they share with the process they are forked from as it is."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from shoal.jobs import fork_server

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def _count(connection: Connection) -> None:
    connection.send((gc.get_freeze_count(), len(gc.get_objects())))


def test_what_was_imported_before_the_fork_is_not_collected_after_it() -> None:
    context = fork_server.start(["shoal.jobs.worker"])
    here, there = context.Pipe()
    process = context.Process(target=_count, args=(there,))
    process.start()
    try:
        assert here.poll(60)
        frozen, alive = here.recv()
    finally:
        process.join(10)
        fork_server.kill()
    assert frozen > 10_000
    assert alive < frozen
