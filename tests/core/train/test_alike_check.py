"""What tells replicas apart: a digest that one bit changes, a sketch that says how far."""

from __future__ import annotations

import logging
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from shoal.errors import MismatchError, ViewChanging, WorkerLost
from shoal.membership import View
from shoal.train.alike_check import ROUNDING, AlikeCheck, likeness_of
from thoroughness import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

SIZES = (1, 63, 64, 1000, (1 << 20) - 1, (1 << 20) + 1, 3_000_001)
CHANGES = ("one", "all alike", "at random", "the first block")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("size", SIZES)
def test_one_bit_changes_the_digest(size: int, dtype: torch.dtype) -> None:
    values = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    before = likeness_of([values], 1)
    assert before == likeness_of([values.clone()], 1)
    random = Random(size)
    for _ in range(examples(5)):
        changed = values.clone()
        bits = changed.view(torch.uint8)
        bits[random.randrange(len(bits))] ^= 1 << random.randrange(8)
        assert likeness_of([changed], 1).digest != before.digest


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("change", CHANGES)
def test_the_sketch_says_how_far_parameters_are_apart(size: int, change: str) -> None:
    generator = torch.Generator().manual_seed(size)
    values = torch.randn(size, generator=generator)
    changed = values.clone()
    match change:
        case "one":
            changed[size // 2] += 1.0
        case "all alike":
            changed += 0.01
        case "at random":
            changed += 0.01 * torch.randn(size, generator=generator)
        case "the first block":
            changed[: 1 << 20] += 0.01
    apart = float((changed - values).norm() / values.norm())
    found = likeness_of([changed], 1).distance_from(likeness_of([values], 1))
    if size < 64 * 30:
        assert 0.2 * apart < found < 5 * apart, "few numbers lie in few sums"
    else:
        assert 0.6 * apart < found < 1.5 * apart


class Facts:
    """What workers publish, as the control plane keeps it."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.is_changing = False

    def set(self, name: str, value: bytes) -> None:
        if self.is_changing:
            raise ViewChanging("The members change.")
        self.kept[name] = value

    def read(self, names: Sequence[str]) -> tuple[bytes | None, ...]:
        return tuple(self.kept.get(name) for name in names)


class Worker:
    """One worker's check of a model that is one tensor."""

    def __init__(self, rank: int, size: int, facts: Facts, *, is_fixed: bool, every: int) -> None:
        self.model = torch.arange(1.0, 1001.0)
        self.reasons: list[str] = []
        flat = SimpleNamespace(buffers=[self.model], statistics=[range(1000, 1000)])
        replica: Any = SimpleNamespace(
            flat=flat,
            facts=facts,
            view=View.first(size),
            member=SimpleNamespace(is_fixed=is_fixed),
            communicator=SimpleNamespace(rank=rank),
            session="run-1",
        )
        self.check = AlikeCheck(replica, every, self.reasons.append)


def workers(count: int, facts: Facts, *, is_fixed: bool = True, every: int = 10) -> list[Worker]:
    return [Worker(rank, count, facts, is_fixed=is_fixed, every=every) for rank in range(count)]


def change(model: Tensor, share: float) -> None:
    model[0] += share * model.norm()


def outcomes(all_of_them: list[Worker], steps: range) -> list[Exception | None]:
    """Return what each worker raises first, if all make the same steps."""
    found: list[Exception | None] = [None for _ in all_of_them]
    for step in steps:
        for rank, worker in enumerate(all_of_them):
            if found[rank] is None:
                try:
                    worker.check.look(step)
                except (MismatchError, WorkerLost) as error:
                    found[rank] = error
    return found


@pytest.mark.parametrize("changed_at", [1, 9, 10, 11, 25])
def test_all_hear_who_has_another_model_at_the_second_next_look(changed_at: int) -> None:
    all_of_them = workers(4, Facts())
    assert outcomes(all_of_them, range(1, changed_at)) == [None] * 4
    change(all_of_them[2].model, 0.5)
    seen_at = -(-changed_at // 10) * 10
    assert outcomes(all_of_them, range(changed_at, seen_at + 10)) == [None] * 4
    for error in outcomes(all_of_them, range(seen_at + 10, seen_at + 11)):
        assert isinstance(error, MismatchError)
        assert f"Rank 2 had other parameters than all others after step {seen_at}" in str(error)
        assert "0.5 of their length" in str(error)


def test_two_that_differ_are_both_named() -> None:
    all_of_them = workers(2, Facts())
    change(all_of_them[1].model, 0.5)
    for error in outcomes(all_of_them, range(1, 21)):
        assert isinstance(error, MismatchError)
        assert "Rank 1 had other parameters than rank 0 after step 10" in str(error)


def test_rounding_is_said_once_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    all_of_them = workers(3, Facts())
    change(all_of_them[0].model, ROUNDING / 2)
    with caplog.at_level(logging.WARNING):
        assert outcomes(all_of_them, range(1, 101)) == [None] * 3
    assert len(caplog.records) == 3
    assert "Rank 0 had other parameters than all others" in caplog.text


def test_who_differs_is_out_where_the_job_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    all_of_them = workers(4, Facts(), is_fixed=False)
    change(all_of_them[3].model, 0.5)
    found = outcomes(all_of_them, range(1, 41))
    assert found[:3] == [None] * 3
    assert isinstance(found[3], WorkerLost)
    assert found[3].rank == 3
    assert len(all_of_them[3].reasons) == 1
    assert "It is out" in caplog.text


def test_without_a_majority_nobody_goes_on() -> None:
    all_of_them = workers(4, Facts(), is_fixed=False)
    for rank in (2, 3):
        change(all_of_them[rank].model, 0.5)
    assert all(isinstance(error, MismatchError) for error in outcomes(all_of_them, range(1, 41)))


def test_what_is_not_known_is_not_compared() -> None:
    facts = Facts()
    all_of_them = workers(3, facts)
    change(all_of_them[1].model, 0.5)
    facts.is_changing = True
    assert outcomes(all_of_them, range(1, 11)) == [None] * 3
    facts.is_changing = False
    assert outcomes(all_of_them, range(11, 21)) == [None] * 3
    assert all(outcomes(all_of_them, range(21, 31)))


def test_models_that_have_diverged_are_nobodys_fault() -> None:
    all_of_them = workers(3, Facts())
    for worker in all_of_them:
        worker.model.fill_(torch.nan)
    all_of_them[1].model[0] = torch.inf
    assert outcomes(all_of_them, range(1, 41)) == [None] * 3
    all_of_them[0].model.fill_(1.0)
    assert all(outcomes(all_of_them, range(41, 61)))


def test_the_end_compares_what_the_last_look_did_not() -> None:
    all_of_them = workers(3, Facts())
    assert outcomes(all_of_them, range(1, 34)) == [None] * 3
    change(all_of_them[1].model, 0.5)
    for worker in all_of_them:
        worker.check.publish(33)
    for worker in all_of_them:
        with pytest.raises(MismatchError, match=r"Rank 1 had .* after step 33"):
            worker.check.end()


def test_zero_compares_nothing() -> None:
    facts = Facts()
    all_of_them = workers(3, facts, every=0)
    change(all_of_them[1].model, 0.5)
    assert outcomes(all_of_them, range(41)) == [None] * 3
    for worker in all_of_them:
        worker.check.publish(40)
        worker.check.end()
    assert not facts.kept
