"""A pair of the ablation on real hosts: what switches and transports count, never how long it took.

Four workers are the fewest of which three send to each port at once.
"""

from __future__ import annotations

import multiprocessing

import pytest

pytest.importorskip("torch")

from shoal.session.warm_up import load_transport
from shoal_bench.cluster.trials import dlcp, ds_sync
from shoal_bench.cluster.trials.figures import TrialFigures, TrialKey
from shoal_bench.cluster.trials.trial import Variant, run_trial
from shoal_bench.cluster.trials.work import Work

pytestmark = pytest.mark.timeout(300)  # the first test compiles

WORK = Work(
    dataset="digits",
    model="mlp:256x2",
    workers=4,
    steps=4,
    layer_ms=1.0,
    megabits=20,
    bucket_bytes=64 << 10,
    warm_up=1,
)


@pytest.fixture(autouse=True, scope="module")
def _compiled() -> None:
    load_transport()


def figures_of(variant: Variant) -> TrialFigures:
    trial = run_trial(TrialKey(case="test", variant=variant.name, repeat=0, work=WORK), variant)
    assert trial.figures is not None, trial.failed
    assert not multiprocessing.active_children()
    return trial.figures


def check_nothing_is_told_apart(figures: TrialFigures) -> None:
    """All is in one queue, and no packet of it is marked or dropped for what it says."""
    assert {each.queue for each in figures.to_hosts} == {0}
    for each in (*figures.to_hosts, *(one for spine in figures.to_spines for one in spine)):
        assert each.marked == each.dropped_early == 0


def test_switches_act_on_tags_where_they_are_to() -> None:
    on = figures_of(dlcp.BURSTS.ends(WORK, every=False)[0])
    queues = {each.queue for each in on.to_hosts if each.is_capable}
    assert queues == {0, 2}  # the first layer's bucket, and that of the other two; of eight classes
    assert any(not each.is_capable for each in on.to_hosts)  # some packets are not important
    assert on.sent is not None
    assert 0 < on.sent.important < on.sent.sent
    assert on.sent.due_bytes > 0
    assert on.sent.missing_bytes <= dlcp.LOSS_BOUND * on.sent.due_bytes
    through = [sum(each.sent_bytes for each in spine) for spine in on.to_spines]
    assert max(through) < 0.6 * sum(through)
    assert len(on.step_ms) == WORK.steps - WORK.warm_up - 1


@pytest.mark.long
def test_switches_act_on_no_tags_where_they_are_not_to() -> None:
    off = figures_of(dlcp.BURSTS.ends(WORK, every=False)[1])
    check_nothing_is_told_apart(off)
    assert off.sent is not None
    assert off.sent.important == off.sent.sent  # nothing may get lost
    assert off.sent.due_bytes == 0
    assert off.consensus_distance < 1e-4  # replicas of one model


@pytest.mark.long
def test_switches_tell_nothing_of_gloo_s_apart() -> None:
    _, _, gloo = dlcp.BURSTS.variants(WORK, every=False)
    figures = figures_of(gloo)
    check_nothing_is_told_apart(figures)
    assert figures.sent is None


@pytest.mark.long
def test_what_finds_a_shallow_port_full_is_dropped_the_unimportant_first() -> None:
    everything = frozenset(dlcp.WITHOUT_PATHS)
    on = figures_of(dlcp.INCAST.variant(dlcp.ON, everything, WORK))
    assert sum(each.marked for each in on.to_hosts if each.is_capable) > 0
    plain = [each for each in on.to_hosts if not each.is_capable]
    assert sum(each.dropped_early for each in plain) > 0
    assert all(each.dropped_early == 0 for each in on.to_hosts if each.is_capable)


@pytest.mark.long
def test_groups_aware_of_racks_put_less_on_the_spines_than_a_ring() -> None:
    chosen = {each.name: each for each in ds_sync.variants(WORK, every=True)}
    through = {}
    for way in (ds_sync.RING, ds_sync.AWARE):
        figures = figures_of(chosen[ds_sync.name_of(way, "p = 0")])
        through[way] = sum(each.sent_bytes for spine in figures.to_spines for each in spine)
    # half of the rounds stay in racks; the first model and the last mean cross in both
    assert through[ds_sync.AWARE] < 0.75 * through[ds_sync.RING]
