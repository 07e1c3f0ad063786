"""The control plane's process: `python -m shoal.control`, started by `ControlProcess`.

Reads its orders from standard input, announces itself on standard output, serves until told to stop
or until standard input closes. Not meant to be started by hand.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from shoal.control.handler import ControlHandler
from shoal.control.key import JobKey
from shoal.control.process import Announcement, Orders
from shoal.control.running_job import VARIABLE, leave_note, note_of, remove_note
from shoal.control.service import ControlService
from shoal.control.standby import Standby
from shoal.decoding import decode_json
from shoal.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from shoal.control.message_handler import MessageHandler
    from shoal.watch import PageServer, WatchAddress

_STDIN = 0
_CLOSE_S = 5.0
_SHOW_S = 30.0
"""How long the address of the page is tried: an earlier job there may still be ending."""
_AGAIN_S = 0.5


def main() -> int:
    """Serve one job; return the exit status."""
    with os.fdopen(_STDIN, "rb", buffering=0, closefd=False) as stdin:
        line = stdin.readline()
    if not line:
        return 0  # the parent has ended before it gave orders
    orders = decode_json(line, Orders, "These are no orders for a control plane")
    try:
        service = _service(orders)
    except UsageError as error:
        _announce(Announcement(usage_error=str(error)))
        return error.exit_code
    except ResourceError as error:
        _announce(Announcement(resource_error=str(error)))
        return error.exit_code
    _announce(Announcement(endpoint=service.endpoint))
    service.run(_STDIN)
    remove_note({VARIABLE: orders.note}, _note(service, orders))
    closing = threading.Thread(target=service.close, daemon=True)
    closing.start()
    closing.join(_CLOSE_S)  # ZeroMQ has been seen to wait for ever here when the parent was killed
    return 0


def _service(orders: Orders) -> ControlService:
    """Return the service that `orders` ask for."""
    key, terms = JobKey(orders.job_key), orders.terms
    handler: MessageHandler

    def leave_word() -> None:
        leave_note({VARIABLE: orders.note}, _note(service, orders))

    def show() -> None:
        if orders.watch is not None:
            threading.Thread(target=_show, args=(service, orders.watch), daemon=True).start()

    def go_on_as_possible() -> None:
        try:
            leave_word()
        except ResourceError as error:
            _say(str(error))
        show()

    if orders.view is None:
        handler = Standby(terms, orders.keeper, time.monotonic_ns(), go_on_as_possible)
    else:
        handler = ControlHandler(terms.membership(orders.view), terms, time.monotonic_ns())
    service = ControlService(key, handler, terms, host=orders.host, port=orders.port)
    if orders.view is not None:
        try:
            leave_word()
        except ResourceError:
            service.close()
            raise
        show()
    return service


def _show(service: ControlService, address: WatchAddress) -> None:
    """Show the job at an address, as soon as it can be bound: no training ends if it cannot."""
    from shoal.watch import PageServer

    end = time.monotonic() + _SHOW_S
    is_said = False
    while service.page is None and time.monotonic() < end:
        try:
            service.page = PageServer(address)
        except ResourceError as error:
            if not is_said:
                _say(f"{error} The job goes on, and tries again for {_SHOW_S:.0f} s.")
            is_said = True
            time.sleep(_AGAIN_S)
        else:
            _say(_shown_at(service.page))


def _say(sentence: str) -> None:
    sys.stderr.write(f"shoal: {sentence}\n")


def _shown_at(page: PageServer) -> str:
    """Return a sentence about where the job is shown, and who else can see it there."""
    if page.address.is_loopback:
        return f"this job is shown at {page.url}"
    return (
        f"this job is shown at {page.url}, to anybody who can reach this machine there: no key is"
        " asked for. Without a host, watch=':8265', only this machine can look."
    )


def _note(service: ControlService, orders: Orders) -> bytes:
    return note_of(service.endpoint, JobKey(orders.job_key), is_given=orders.is_key_given)


def _announce(announcement: Announcement) -> None:
    try:
        sys.stdout.buffer.write(msgspec.json.encode(announcement) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        return  # the parent is gone already; the closed standard input ends this process


if __name__ == "__main__":
    os._exit(main())  # nothing is left to do, whichever threads still wait
