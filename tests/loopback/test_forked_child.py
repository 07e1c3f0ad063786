"""A forked process lets go of what its parent is connected to: that ends with the parent alone."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress

from shoal.session.forked_child import let_go_of


def test_a_connection_ends_though_a_child_lives() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("", 0)) as other:
        port = server.getsockname()[1]
        mine = socket.create_connection(("127.0.0.1", port))
        another = socket.create_connection(("127.0.0.1", other.getsockname()[1]))
        theirs, _ = server.accept()
        kept, _ = other.accept()
        ready, done = os.pipe()
        child = os.fork()
        if child == 0:
            let_go_of(f"tcp://somewhere:{port}")
            os.write(done, b"!")
            signal.pause()
        try:
            assert os.read(ready, 1) == b"!"
            mine.close()
            another.close()
            for each in theirs, kept:
                each.settimeout(1.0)
            assert theirs.recv(1) == b"", "it has ended"
            kept.setblocking(False)
            with suppress(BlockingIOError):
                assert kept.recv(1), "the child has the other one still"
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for each in theirs, kept:
                each.close()
            os.close(ready)
            os.close(done)
