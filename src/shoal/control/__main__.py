"""The control plane's process: `python -m shoal.control`, started by `ControlProcess`.

Reads its orders from standard input, announces itself on standard output, serves until told to stop
or until standard input closes. Not meant to be started by hand.
"""

from __future__ import annotations

import os
import sys
import threading

import msgspec

from shoal.control.key import JobKey
from shoal.control.process import Announcement, Orders
from shoal.control.service import ControlService
from shoal.decoding import decode_json
from shoal.errors import ResourceError, UsageError

_STDIN = 0
_CLOSE_S = 5.0


def main() -> int:
    """Serve one job; return the exit status."""
    with os.fdopen(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()
    if not line:
        return 0  # the parent has ended before it said anything
    orders = decode_json(line, Orders, "These are no orders for a control plane")
    try:
        service = ControlService(
            JobKey(orders.job_key),
            view=orders.view,
            min_members=orders.min_members,
            liveness_timeout_s=orders.liveness_timeout_s,
            host=orders.host,
            port=orders.port,
        )
    except UsageError as error:
        _announce(Announcement(usage_error=str(error)))
        return error.exit_code
    except ResourceError as error:
        _announce(Announcement(resource_error=str(error)))
        return error.exit_code
    _announce(Announcement(endpoint=service.endpoint))
    service.run(_STDIN)
    closing = threading.Thread(target=service.close, daemon=True)
    closing.start()
    closing.join(_CLOSE_S)  # ZeroMQ has been seen to wait for ever here when the parent was killed
    return 0


def _announce(announcement: Announcement) -> None:
    try:
        sys.stdout.buffer.write(msgspec.json.encode(announcement) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        return  # the parent is gone already; the closed standard input ends this process


if __name__ == "__main__":
    os._exit(main())  # nothing is left to do, whatever still waits
