"""What workers say of their racks makes one network, or one sentence."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from shoal.errors import UsageError
from shoal.groups import Topology
from shoal.membership import View
from shoal.session.racks import Place, place_of, topology_of
from thoroughness import examples

SLURM = {
    "SLURM_TOPOLOGY_ADDR": "core.leaf3.node17",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Place()),
        ({"SHOAL_RACK": " a7 ", "SHOAL_OVERSUBSCRIPTION": "4"}, Place("a7", 4.0)),
        (SLURM, Place("leaf3")),
        ({**SLURM, "SHOAL_RACK": "a7"}, Place("a7")),
        (
            {"SLURM_TOPOLOGY_ADDR": "node17", "SLURM_TOPOLOGY_ADDR_PATTERN": "node"},
            Place(),
        ),
        ({"SLURM_TOPOLOGY_ADDR": "core.leaf3.node17"}, Place()),
    ],
)
def test_a_rack_is_what_the_user_or_slurm_says(environment: dict[str, str], place: Place) -> None:
    assert place_of(environment) == place


@pytest.mark.parametrize("text", ["four", "0.5", "nan", "inf", "-1"])
def test_an_oversubscription_is_a_number_of_at_least_one(text: str) -> None:
    with pytest.raises(UsageError, match=r"at least 1, such as 4; not '.*'"):
        place_of({"SHOAL_OVERSUBSCRIPTION": text})


@settings(max_examples=examples(100))
@given(
    per_host=st.integers(1, 3),
    per_rack=st.integers(1, 4),
    racks=st.integers(1, 4),
    ratio=st.sampled_from([1.0, 2.0, 4.0]),
)
def test_equal_racks_are_the_uniform_topology(
    per_host: int, per_rack: int, racks: int, ratio: float
) -> None:
    size = per_host * per_rack * racks
    hosts = [rank // per_host for rank in range(size)]
    places = [Place(f"rack {host // per_rack}", ratio) for host in hosts]
    found = topology_of(View(0, tuple(range(size)), tuple(hosts)), places)
    assert found == Topology.uniform(size, per_host, per_rack, oversubscription_ratio=ratio)


@settings(max_examples=examples(100))
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=9), st.data())
def test_every_host_is_in_its_rack(names: list[str], data: st.DataObject) -> None:
    ratio = {name: data.draw(st.sampled_from([1.0, 3.0])) for name in set(names)}
    view = View.first(len(names), 1)
    found = topology_of(view, [Place(name, ratio[name]) for name in names])
    assert found is not None
    order = list(dict.fromkeys(names))
    assert [host.ranks for host in found.hosts] == [(rank,) for rank in view.members]
    assert [order[host.rack] for host in found.hosts] == names
    assert len(found.racks) == len(Counter(names))
    for index, name in enumerate(order):
        assert float(found.oversubscription(index)) == pytest.approx(ratio[name], rel=1e-6)


def test_without_racks_there_is_no_topology() -> None:
    assert topology_of(View.first(4, 1), [Place()] * 4) is None


@pytest.mark.parametrize(
    ("per_host", "subnets", "found"),
    [
        (1, "aabb", "aabb"),
        (1, "abab", "abab"),
        (2, "aaaabb", "aaaabb"),
        (1, "aaaa", None),  # one segment, in which nothing tells racks apart
        (1, "abcd", None),  # as pods have that are alone on their node
        (2, "aabb", None),
        (1, "aab ", None),
    ],
)
def test_where_nobody_says_anything_subnets_are_racks(
    per_host: int, subnets: str, found: str | None
) -> None:
    view = View.first(len(subnets), per_host)
    unnamed = [Place(oversubscription=2.0, subnet=each.strip()) for each in subnets]
    named = [Place(each, 2.0) for each in found or ""]
    assert topology_of(view, unnamed) == (topology_of(view, named) if found else None)


def test_what_workers_say_goes_before_subnets() -> None:
    view, subnets = View.first(4, 1), "abab"
    said = [Place(rack, subnet=each) for rack, each in zip("aabb", subnets, strict=True)]
    assert topology_of(view, said) == topology_of(view, [Place(each) for each in "aabb"])


def test_some_that_say_nothing_are_one_sentence() -> None:
    with pytest.raises(UsageError, match="Rank 1 says which rack it is in, and rank 0 does not"):
        topology_of(View.first(3, 1), [Place(), Place("a"), Place("a")])


def test_a_host_in_two_racks_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"Ranks 2 and 3 share a host, .* 'b' and 'a'"):
        topology_of(View.first(4, 2), [Place("a"), Place("a"), Place("b"), Place("a")])
