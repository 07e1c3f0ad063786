"""Large tables are refused where there is no room, after what nobody needs any more has gone."""

from __future__ import annotations

import weakref

import pytest

from shoal.errors import ResourceError
from shoal.sim import room
from shoal.sim.room import check_room


class Circle:
    """Holds itself, and counts as 100 bytes."""

    def __init__(self) -> None:
        self.itself = self


def test_what_only_holds_itself_goes_before_large_tables_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    circle = Circle()
    gone = weakref.ref(circle)
    del circle
    monkeypatch.setattr(room, "available_bytes", lambda: 1000 - (0 if gone() is None else 100))
    check_room(100, "Little")
    assert gone() is not None
    check_room(950, "Much")
    assert gone() is None
    with pytest.raises(ResourceError, match=r"^Too much would take 0 MB of memory, of which 0 MB"):
        check_room(1001, "Too much")
