"""How many lanes a rank has where nobody says: two where a second one has something to do."""

from __future__ import annotations

import math

import pytest

from shoal.wire.opening import usual_lane_count
from shoal.wire.settings import from_environment


@pytest.mark.parametrize(
    ("links", "cores", "workers", "ports_are_given", "expected"),
    [
        ([math.inf], 16, 8, False, 2),
        ([math.inf], 15, 8, False, 1),
        ([math.inf], 2, 1, False, 2),
        ([100e9], 64, 8, False, 2),
        ([25e9], 64, 8, False, 2),
        ([10e9], 64, 8, False, 1),
        ([10e9, 10e9], 64, 8, False, 2),
        ([None], 64, 8, False, 1),
        ([100e9, None], 64, 8, False, 1),
        ([100e9], 64, 8, True, 1),
    ],
)
def test_two_lanes_want_a_fast_link_cores_and_free_ports(
    links: list[float | None], cores: int, workers: int, ports_are_given: bool, expected: int
) -> None:
    count = usual_lane_count(links, cores=cores, workers=workers, ports_are_given=ports_are_given)
    assert count == expected


def test_the_environment_may_say_how_many() -> None:
    assert from_environment({}).lane_count is None
    assert from_environment({"SHOAL_LANES": "4"}).lane_count == 4
