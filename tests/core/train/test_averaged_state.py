"""The optimizer's state as flat tensors: which tensors, before and after the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from shoal.errors import UsageError  # noqa: E402
from shoal.train.averaged_state import AveragedState  # noqa: E402

SIZE = 3 * 4 + 4


class Beforehand(torch.optim.Optimizer):
    """Makes its state when it is made, as Adagrad did in torch 2.7."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["sum"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                self.state[parameter]["sum"].add_(parameter.grad)
                parameter.sub_(self.state[parameter]["sum"], alpha=0.1)


OPTIMIZERS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], int]] = {
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.1), 0),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), 1),
    "adam": (lambda p: torch.optim.Adam(p, weight_decay=0.1), 2),
    "amsgrad": (lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True), 3),
    "nadam": (torch.optim.NAdam, 2),
    "adagrad": (torch.optim.Adagrad, 1),
    "rmsprop": (lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.1), 3),
    "rprop": (torch.optim.Rprop, 2),
    "beforehand": (Beforehand, 1),
}
"""How each is made, and how many tensors as large as a parameter it keeps for it."""


def made(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Linear(3, 4)
    model.register_parameter("whole", nn.Parameter(torch.ones(2, dtype=torch.int64), False))
    return model, OPTIMIZERS[name][0](model.parameters())


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tensors_are_the_same_before_and_after_the_first_step(name: str) -> None:
    model, optimizer = made(name)
    weights = nn.utils.parameters_to_vector(model.parameters()).clone()
    state = AveragedState(optimizer)
    before = [flat.numel() for flat in state.gather()]
    assert sum(before) == OPTIMIZERS[name][1] * SIZE
    if name not in {
        "adagrad",
        "beforehand",
        "rprop",
    }:  # which make theirs beforehand, or not of zeros
        assert not any(flat.any() for flat in state.gather())
        assert not optimizer.state  # looking has left no trace
    assert torch.equal(weights, nn.utils.parameters_to_vector(model.parameters()))
    state.scatter()
    step(model, optimizer)
    after = state.gather()
    assert [flat.numel() for flat in after] == before
    assert all(flat.any() for flat in after)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_what_is_put_back_is_what_the_next_step_goes_on_with(name: str) -> None:
    (model, optimizer), (twin, other) = made(name), made(name)
    for _ in range(2):
        step(model, optimizer)
        step(twin, other)
    for flat in (state := AveragedState(optimizer)).gather():
        flat.mul_(0.5)
    state.scatter()
    for kept in other.state.values():
        for key in kept:
            if key != "step" and kept[key] is not None:
                kept[key].mul_(0.5)
    step(model, optimizer)
    step(twin, other)
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True)
    )


def test_a_scheduler_and_hooks_of_the_optimizer_are_not_called() -> None:
    model, optimizer = made("adam")
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("hook"))
    AveragedState(optimizer)
    assert not called
    step(model, optimizer)
    assert called == ["hook"]


def test_an_optimizer_that_cannot_step_a_stand_in_is_refused() -> None:
    model = nn.Embedding(3, 2, sparse=True)
    with pytest.raises(UsageError, match="cannot learn which state SparseAdam keeps: SparseAdam"):
        AveragedState(torch.optim.SparseAdam(model.parameters()))
