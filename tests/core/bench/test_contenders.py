"""Peers have the settings that our modes have: no figure flatters by what a rival was denied."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from torch import nn

from shoal_bench.cluster.contenders import CONTENDERS, INTERVALS, NAMED, PEERS, Contender, Side
from shoal_bench.peers.post_local_sgd import PostLocalSGD
from shoal_bench.peers.torchft import TorchFTDiLoCo, halves_of


def titles(library: type) -> set[str]:
    return {each.library.title for each in PEERS if type(each.library) is library}


def test_names_are_there_once() -> None:
    names = [each.name for each in CONTENDERS]
    assert sorted(names) == sorted(set(names))


def test_every_peer_runs_over_both_kinds_of_tcp() -> None:
    kinds: dict[str, list[str]] = {}
    for each in PEERS:
        assert each.side is Side.PEER
        kinds.setdefault(each.library.title, []).append(each.congestion_control)
    assert all(sorted(each) == ["bbr", "cubic"] for each in kinds.values()), kinds


@pytest.mark.parametrize("library", [PostLocalSGD, TorchFTDiLoCo])
def test_who_averages_rarely_may_do_it_at_every_interval(library: type) -> None:
    assert {library(steps).title for steps in INTERVALS} <= titles(library)


def test_a_peer_that_can_compute_on_meanwhile_may() -> None:
    asked = {TorchFTDiLoCo(steps, is_streaming=True).title for steps in INTERVALS if steps > 1}
    assert asked <= titles(TorchFTDiLoCo)


def test_each_family_is_of_one_side_and_has_one_first_setting() -> None:
    families: dict[str, list[Contender]] = {}
    for each in CONTENDERS:
        families.setdefault(each.family, []).append(each)
    for family, members in families.items():
        assert len({each.side for each in members}) == 1, family
        assert sum(each.is_first for each in members) == 1, family


def test_the_setting_that_was_named_beforehand_is_one_of_ours() -> None:
    assert [each.side for each in CONTENDERS if each.name == NAMED] == [Side.OURS]


class Tied(nn.Module):
    """Two layers that share a weight, far from each other, and a large one between them."""

    def __init__(self) -> None:
        super().__init__()
        self.symbols = nn.Embedding(10, 8)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 10)
        self.head.weight = self.symbols.weight


def test_halves_of_a_model_have_each_parameter_once() -> None:
    model = Tied()
    first, second = (set(half.parameters()) for half in halves_of(model))
    assert not first & second
    assert first | second == set(model.parameters())
    sizes = [sum(each.numel() for each in half) for half in (first, second)]
    assert max(sizes) < 2 * min(sizes)
