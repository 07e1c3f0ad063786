"""What `shoal watch` and `shoal top` look at: a job's page, or its control plane."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.client import HTTPException
from typing import TYPE_CHECKING, Annotated, Final

import typer

from shoal.control import Onlooker, given_key
from shoal.decoding import decode_json
from shoal.errors import ResourceError
from shoal.watch import Snapshot, watch_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shoal.watch import WatchAddress

PlaceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOST:]PORT",
        help="Where the job's page is served; without it, the job to which SHOAL_JOB points.",
        show_default=False,
    ),
]
_ANSWER_S: Final = 5.0
_MOST_BYTES: Final = 1 << 26


@contextmanager
def looking_at(place: str | None) -> Iterator[Callable[[], bytes]]:
    """Return what looks at the job whose page is at `place`, or to which SHOAL_JOB points.

    Each look returns a snapshot as JSON. Raises `UsageError` if neither says which job,
    `ResourceError` if nobody answers there.
    """
    if place is not None:
        address = watch_address(place, {})
        assert address is not None
        yield lambda: _fetch(address)
        return
    with Onlooker(os.environ, given_key(os.environ)) as onlooker:
        yield onlooker.look


def read_snapshot(content: bytes, place: str | None) -> Snapshot:
    """Return the snapshot in `content`. Raises `ResourceError` if it is none of this version."""
    where = "The control plane" if place is None else f"What answers at {place}"
    fault = f"{where} sent no snapshot that this version of Shoal understands"
    return decode_json(content, Snapshot, fault, raises=ResourceError)


def _fetch(address: WatchAddress) -> bytes:
    # what a proxy would make of an address of this machine's is nobody's job
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/snapshot", timeout=_ANSWER_S) as answer:
            return bytes(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        reason = f"it says {error.code}"
    except (OSError, HTTPException) as error:
        cause = getattr(error, "reason", error)
        reason = getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
    message = (
        f"Nobody shows a job at {address} ({reason}): start it with shoal.init(watch=...), or"
        " SHOAL_WATCH, and look at the machine that keeps its control plane."
    )
    raise ResourceError(message)
