"""Parts of a model at servers: what pushes make of them, and what another process goes on from."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

import torch

from shoal.sim.training.replicas import Replicas
from shoal.workloads import default_recipe, load_dataset

WORKERS = 3


def make(model: str = "mlp", **recipe: object) -> Replicas:
    plain = {"momentum": 0.0, "weight_decay": 0.0, **recipe}
    about = replace(default_recipe("digits", model), **plain)  # type: ignore[arg-type]
    return Replicas(load_dataset("digits"), model, about, WORKERS, seed=1, look_s=1.0, samples=50)


def served(replicas: Replicas, *parts: object) -> torch.Tensor:
    """Return the model that parts make together, as a worker pulls it."""
    for part in parts:
        part.set_aside(0)  # type: ignore[attr-defined]
    assert replicas._served is not None
    return replicas._served[0].clone()


def test_pushes_at_a_part_of_the_rate_move_as_far_as_one_of_their_mean() -> None:
    together, apart = make(), make()
    for rank in range(WORKERS):
        together.compute_gradient(rank)
        apart.compute_gradient(rank)
    one, other = together.served_part(0, 1), apart.served_part(0, 1)
    one.update(range(WORKERS), 1.0, 1.0)
    for rank in range(WORKERS):
        other.update([rank], 1 / WORKERS, 1 / WORKERS)
    torch.testing.assert_close(served(apart, other), served(together, one))
    assert (served(together, one) != together._rows[0]).any()


@pytest.mark.parametrize("of", [2, 3, 7])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_parts_come_to_what_the_whole_comes_to(of: int, optimizer: str) -> None:
    changes: dict[str, object] = {"optimizer": optimizer, "momentum": 0.9, "learning_rate": 1e-2}
    replicas = make("resnet8", **changes)
    parts = [replicas.served_part(part, of) for part in range(of)]
    whole = replicas.served_part(0, 1)
    for _ in range(3):
        for rank in range(WORKERS):
            replicas.compute_gradient(rank)
        for each in (*parts, whole):
            each.update(range(WORKERS), 0.5, 0.25)
    assert torch.equal(served(replicas, *parts), served(replicas, whole))
    assert sum(each.state_bytes for each in parts) >= whole.state_bytes > 0


def test_a_push_moves_statistics_by_their_own_share() -> None:
    """Whatever the rate: `scale_updates = false` made each push replace them."""
    replicas = make("resnet8")
    part, trained = replicas.served_part(0, 1), replicas._trained
    before = replicas._rows[0, trained:].clone()
    replicas.compute_gradient(0)
    pushed = replicas._rows[0, trained:].clone()
    part.update([0], 1.0, 0.25)
    assert (pushed != before).any()
    torch.testing.assert_close(served(replicas, part)[trained:], 0.75 * before + 0.25 * pushed)


def test_a_pull_brings_what_was_there_when_it_was_answered() -> None:
    replicas = make()
    replicas.compute_gradient(0)
    part = replicas.served_part(0, 1)
    part.update([0], 1.0, 1.0)
    answered = served(replicas, part)
    part.set_aside(1)
    part.update([0], 1.0, 1.0)
    replicas.pull(1)
    assert (replicas._rows[1] == answered).all()
    assert (served(replicas, part) != answered).any()


def test_another_process_goes_on_as_the_one_before_would_have() -> None:
    replicas = make("resnet8", momentum=0.9)
    first, second, third = (replicas.served_part(1, 2) for _ in range(3))
    rest = replicas.served_part(0, 2)
    for _ in range(2):
        replicas.compute_gradient(0)
        first.update([0], 1.0, 1.0)
    second.go_on_from(first)
    second.load_state(first.state())
    third.go_on_from(first)  # without the momenta
    copied = first.state()
    replicas.compute_gradient(0)
    for each in (first, second, third):
        each.update([0], 1.0, 1.0)
    assert torch.equal(served(replicas, rest, second), served(replicas, rest, first))
    assert (served(replicas, rest, third) != served(replicas, rest, first)).any()
    third.load_state(copied)
    first.load_state(copied)
    assert third.state_bytes == first.state_bytes > 0


def test_a_part_goes_on_from_what_a_worker_has_pulled() -> None:
    replicas = make()
    replicas.update(2)
    lost = replicas.served_part(1, 2)
    lost.go_on_from_model(2)
    found = served(replicas, replicas.served_part(0, 2), lost)
    half = replicas._trained - replicas._trained // 2
    assert torch.equal(found[half:], replicas._rows[2, half:])
    assert torch.equal(found[:half], replicas._rows[0, :half])


def test_of_a_small_model_among_many_servers_some_have_nothing() -> None:
    replicas = make()
    empty = replicas.served_part(replicas._trained, replicas._trained + 1)
    replicas.compute_gradient(0)
    empty.update([0], 1.0, 1.0)
    empty.load_state(empty.state())
    assert empty.state_bytes == 0
