"""`shoal watch`: where a running job is shown in a browser, or the page for one that shows none."""

from __future__ import annotations

import sys
import time
import webbrowser
from functools import partial
from typing import Annotated

import typer

from shoal.cli.shown_job import PlaceArgument, looking_at, read_snapshot
from shoal.watch import PageServer, WatchAddress

_PAUSE_S = 0.1


def watch(
    place: PlaceArgument = None,
    *,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to serve the page of SHOAL_JOB's job.")
    ] = 8265,
    browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
) -> None:
    """Show a running job in a browser.

    A job that was started with shoal.init(watch=...) or SHOAL_WATCH serves its page itself: this
    says what is on it in a sentence. For any other job that SHOAL_JOB points to, this serves the
    page until it is interrupted.
    """
    with looking_at(place) as look:
        shown = read_snapshot(look(), place)
        page = None if place is not None else PageServer(WatchAddress("127.0.0.1", port))
        try:
            url = f"http://{place if ':' in str(place) else f'127.0.0.1:{place}'}/"
            url = url if page is None else page.url
            what = f"{shown.strategy or 'A job'} on {len(shown.members)} workers"
            sys.stdout.write(f"{what} is shown at {url}\n")
            sys.stdout.writelines(f"{each.sentence}\n" for each in shown.verdicts)
            sys.stdout.flush()
            if browser:
                webbrowser.open(url)
            while page is not None:
                if page.wants(time.monotonic()):
                    page.publish(partial(bytes, look()), time.monotonic())
                time.sleep(_PAUSE_S)
        finally:
            if page is not None:
                page.close()
