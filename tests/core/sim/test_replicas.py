"""Replicas by themselves: what each call does to whose parameters."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from shoal.collectives import WHOLE_SUMS
from shoal.errors import UsageError
from shoal.sim.training.replicas import Replicas
from shoal.transport.forms import FLOAT32_AS_FLOAT16
from shoal.workloads import default_recipe, load_dataset, step_scale

WORKERS = 3
PLAIN = replace(default_recipe("digits", "mlp"), momentum=0.0, weight_decay=0.0)


def make(momentum: float = 0.0, model: str = "mlp", **changes: object) -> Replicas:
    about: dict[str, object] = {"seed": 1, "look_s": 1.0, "samples": 50, **changes}
    recipe = replace(PLAIN, momentum=momentum)
    return Replicas(load_dataset("digits"), model, recipe, WORKERS, **about)  # type: ignore[arg-type]


def test_all_begin_alike_and_only_who_updates_moves() -> None:
    replicas = make()
    before = replicas._rows.clone()
    assert (before == before[0]).all()
    replicas.update(1)
    moved = [bool((now != then).any()) for now, then in zip(replicas._rows, before, strict=True)]
    assert moved == [False, True, False]


def test_a_step_for_many_workers_is_that_of_a_higher_rate_and_of_adam_only() -> None:
    recipe = replace(PLAIN, optimizer="adam", learning_rate=1e-3)
    dataset = load_dataset("digits")
    replicas = Replicas(dataset, "mlp", recipe, WORKERS, seed=1, look_s=1.0, samples=50)
    for _ in range(3):
        replicas.update(0)
    optimizer = replicas._optimizers[0]
    (group,) = optimizer.param_groups
    rates: list[float] = []
    optimizer.register_step_pre_hook(lambda *_: rates.append(float(group["lr"])))
    expected = step_scale(group, optimizer.state, WORKERS)
    replicas.update(0, WORKERS)
    replicas.update(0)
    assert rates == pytest.approx([expected * 1e-3, 1e-3])
    assert expected > 1.05
    with pytest.raises(UsageError, match="not for SGD"):
        make().update(0, WORKERS)


def test_an_average_replaces_its_members_by_their_weighted_mean() -> None:
    replicas = make()
    for rank in range(WORKERS):
        replicas.update(rank)
    rows = replicas._rows.clone()
    replicas.average([0, 2], [0.25, 0.75])
    torch.testing.assert_close(replicas._rows[0], 0.25 * rows[0] + 0.75 * rows[2])
    assert (replicas._rows[0] == replicas._rows[2]).all()
    assert (replicas._rows[1] == rows[1]).all()
    rows = replicas._rows.clone()
    replicas.average([0, 1], [])
    torch.testing.assert_close(replicas._rows[1], 0.5 * rows[0] + 0.5 * rows[1])


def test_state_is_averaged_name_by_name_and_goes_on_from_there() -> None:
    replicas = make(momentum=0.9)
    assert replicas.state_per_parameter == 0
    for rank in range(WORKERS):
        replicas.update(rank)
    momenta = [
        [replicas._optimizers[rank].state[p]["momentum_buffer"] for p in model.parameters()]
        for rank, model in enumerate(replicas._models)
    ]
    assert replicas.state_per_parameter == 1
    before = [[each.clone() for each in of_rank] for of_rank in momenta]
    replicas.average_state([0, 2], [0.25, 0.75])
    for place, mine in enumerate(momenta[0]):
        assert torch.equal(mine, momenta[2][place])
        torch.testing.assert_close(mine, 0.25 * before[0][place] + 0.75 * before[2][place])
        assert torch.equal(momenta[1][place], before[1][place])


def test_what_averaging_changes_in_a_copy_is_added_to_what_was_learnt_meanwhile() -> None:
    replicas = make()
    for rank in range(WORKERS):
        replicas.update(rank)
    copied = replicas._rows.clone()
    replicas.copy(0)
    replicas.copy(2)
    replicas.update(0)
    learnt = replicas._rows[0] - copied[0]
    replicas.average([0, 2], [0.25, 0.75], copies=True)
    assert (replicas._rows[2] == copied[2]).all()
    for rank in (0, 2):
        replicas.add_changes(rank)
    mean = 0.25 * copied[0] + 0.75 * copied[2]
    torch.testing.assert_close(replicas._rows[0], mean + learnt)
    torch.testing.assert_close(replicas._rows[2], mean)
    assert (replicas._rows[1] == copied[1]).all()


def test_a_copy_is_rounded_and_the_model_keeps_what_was_not_sent() -> None:
    replicas = make()
    replicas.update(0)
    own = replicas._rows[0].clone()
    replicas.copy(0, FLOAT32_AS_FLOAT16)
    replicas.copy(1, FLOAT32_AS_FLOAT16)
    assert replicas._copies is not None
    assert torch.equal(replicas._copies[0], own.half().float())
    replicas.average([0, 1], [0.5, 0.5], copies=True)
    mean = (own.half().float() + replicas._rows[1].half().float()) / 2
    replicas.add_changes(0)
    torch.testing.assert_close(replicas._rows[0], own + (mean - own.half().float()))


def test_a_gradient_is_of_the_parameters_that_it_was_computed_on() -> None:
    """AD-PSGD averages in between: the step goes to what the parameters have become."""
    replicas, plain = make(), make()
    plain.update(0)
    step = plain._rows[0] - plain._rows[1]
    replicas.compute_gradient(0)
    replicas._rows[0] += 1.0
    replicas.update_by_mean([0])
    torch.testing.assert_close(replicas._rows[0], replicas._rows[1] + 1.0 + step)


def test_the_curve_has_a_point_for_every_look_and_the_target_its_time() -> None:
    replicas = make(look_s=2.0, stop_at=0.0)
    assert replicas.met_at == 0.0
    second = 10**12
    for moment in (1, 2, 3, 5, 6):
        replicas.note_step(0, moment * second)
    assert [each.seconds for each in replicas.curve] == [0.0, 2.0, 5.0, 6.0]
    assert all(each.rank0 == each.averaged for each in replicas.curve)
    assert math.isnan(make(judges_rank0=False).curve[0].rank0)
    assert replicas.curve[-1].mean_step == 5 / WORKERS
    unmet = make(stop_at=1.1)
    assert not unmet.is_satisfied


SECOND = 10**12


def alone(**about: object) -> Replicas:
    """Return replicas that are at their target from the beginning, if that counted."""
    replicas = make(stop_at=0.0, until_shared=True, **about)  # type: ignore[arg-type]
    assert not replicas.is_satisfied
    assert replicas.met_alone_at == 0.0
    return replicas


def test_a_target_counts_once_every_worker_has_exchanged() -> None:
    replicas = alone()
    for rank in range(WORKERS):
        replicas.update(rank)
    replicas.average([0, 1], [0.5, 0.5])
    replicas.note_step(0, SECOND)
    assert not replicas.is_satisfied, "worker 2 has not"
    replicas.average([2], [1.0])
    replicas.note_step(0, 2 * SECOND)
    assert not replicas.is_satisfied, "with itself"
    replicas.average([1, 2], [0.5, 0.5])
    replicas.note_step(0, 3 * SECOND)
    assert replicas.met_at == 3.0
    assert replicas.met_alone_at == 0.0


def test_of_a_copy_counts_what_was_in_it() -> None:
    """Averages take long: what has been learnt since a copy was taken nobody else has."""
    replicas = alone()
    for rank in range(WORKERS):
        replicas.update(rank)
        replicas.copy(rank)
    for _ in range(2):
        replicas.update(1)
    replicas.average(range(WORKERS), [1 / WORKERS] * WORKERS, copies=True)
    replicas.note_step(0, SECOND)
    assert not replicas.is_satisfied, "one of three updates"
    replicas.copy(1)
    replicas.average([0, 1], [0.5, 0.5], copies=True)
    replicas.note_step(0, 2 * SECOND)
    assert replicas.met_at == 2.0


def test_sums_of_gradients_and_pulls_are_exchanges_too() -> None:
    summed = alone()
    for rank in range(WORKERS):
        summed.compute_gradient(rank)
    summed.update_by_mean(range(WORKERS))
    summed.note_step(0, SECOND)
    assert summed.met_at == 1.0
    served = alone()
    part = served.served_part(0, 1)
    for rank in range(WORKERS):
        served.compute_gradient(rank)
        part.update([rank], 1 / WORKERS, 1 / WORKERS)
        part.set_aside(rank)
    for rank in range(WORKERS):
        served.note_step(rank, (rank + 1) * SECOND)
        assert not served.is_satisfied
        served.pull(rank)
    served.note_step(0, 4 * SECOND)
    assert served.met_at == 4.0


@pytest.mark.parametrize(("share", "most"), [(1.0, 4), (0.25, 1), (0.01, 1)])
def test_a_stand_in_sums_gradients_of_a_share_of_the_rank(share: float, most: int) -> None:
    """After the whole sums, the mean of a matrix's gradient has no more than twice that rank."""
    replicas = make(rank_share=share)
    for _ in range(WHOLE_SUMS + 1):
        for rank in range(WORKERS):
            replicas.compute_gradient(rank)
        means = replicas.low_rank_mean(range(WORKERS), 4)
        replicas.update_by_mean(range(WORKERS), means)
    for rank in range(WORKERS):
        gradient = next(replicas._models[rank].parameters()).grad
        assert gradient is not None
        assert most <= torch.linalg.matrix_rank(gradient) <= 2 * most


def test_a_point_of_the_curve_says_how_far_the_slowest_is_behind() -> None:
    replicas = make()
    for _ in range(3):
        replicas.update(1)
    replicas.update(0)
    replicas.note_step(1, SECOND)
    assert [each.steps_behind for each in replicas.curve] == [0, 3]
