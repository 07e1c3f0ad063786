"""Rules of the product that can be left out, to see that histories find what goes wrong then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import PropertyMock, patch

import shoal
from shoal.control.facts import ControlFacts
from shoal.control.watcher import Watcher
from shoal.membership import Succession
from shoal.train.agreement import Agreement
from shoal.train.gradient_buckets import GradientBuckets
from shoal.train.kept_sums import KeptSums
from shoal.train.outer_steps import OuterSteps


def _change_view_at_once(watcher: Watcher) -> None:
    """Wait for the training thread, whatever that waits for."""
    member = watcher._member
    while watcher._changes and member is not None:
        watcher._change(member, watcher._changes.popleft())


def _forget(agreement: Agreement, *_details: Any) -> bool:
    return False


RULES: dict[str, tuple[Any, list[Any]]] = {
    "facts are told anew to a successor": (
        "ds-sync",
        [patch.object(ControlFacts, "_told", lambda _: [])],
    ),
    "a successor expects members that are yet to follow": (
        "ds-sync",
        [patch.object(Succession, "expected", PropertyMock(return_value=()))],
    ),
    "the watch waits for no training thread": (
        "ripples",
        [patch.object(Watcher, "_change_view", _change_view_at_once)],
    ),
    "nobody goes on before all know that a result counts": (
        "ripples",
        [
            patch.object(Agreement, "_await_all_know", lambda *_: None),
            patch.object(Agreement, "_has_told", _forget),
        ],
    ),
    "a sum that somebody has is everybody's": (
        "all-reduce",
        [patch.object(GradientBuckets, "go_on", lambda *_: None)],
    ),
    "outer optimizers meet in a view's first mean": (
        shoal.DiLoCo(interval=2),
        [patch.object(OuterSteps, "averaged_in", lambda *_: [])],
    ),
    "a sum is kept as it was": (
        "all-reduce",
        [patch.object(KeptSums, "keep_part", lambda *_: None)],
    ),
}
"""By what is left out: a strategy under which that shows, and how."""


@contextmanager
def left_out(rule: str) -> Iterator[Any]:
    """Leave a rule out; yield a strategy under which that shows."""
    strategy, patches = RULES[rule]
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield strategy
