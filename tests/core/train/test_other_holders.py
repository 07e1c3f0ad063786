"""Whoever holds a model's memory beside the model is noticed, for as long as they do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

from shoal.train.awaited_tensors import Awaited, await_values  # noqa: E402
from shoal.train.flat_parameters import FlatParameters  # noqa: E402
from shoal.train.other_holders import OtherHolders  # noqa: E402


def make() -> tuple[nn.Module, OtherHolders]:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    model[2].bias.requires_grad_(False)
    FlatParameters(model)
    return model, OtherHolders([*model.named_parameters(), *model.named_buffers()])


def loss_of(model: nn.Module) -> Tensor:
    return model(torch.randn(4, 3)).square().sum()


HOLDING: dict[str, Callable[[nn.Module], Any]] = {
    "data": lambda model: model[0].weight.data,
    "detached": lambda model: model[2].bias.detach(),
    "statistics": lambda model: model[1].running_mean.view(3),
    "state": lambda model: model.state_dict(),
    "array": lambda model: model[0].bias.detach().numpy(),
    "capsule": lambda model: torch.utils.dlpack.to_dlpack(model[0].bias.detach()),
    "graph": loss_of,
    "trace": lambda model: torch.jit.trace(model[0], torch.randn(4, 3)),
}


@pytest.mark.parametrize("way", HOLDING)
def test_a_holder_is_noticed(way: str, caplog: pytest.LogCaptureFixture) -> None:
    model, others = make()
    assert not others.have_come()
    held = HOLDING[way](model)
    with caplog.at_level(logging.WARNING):
        assert others.have_come()
        assert others.have_come()
    assert len(caplog.records) == 1, "once"
    del held
    if way != "trace":  # torch keeps what it has compiled
        assert not others.have_come()


def test_training_holds_nothing() -> None:
    model, others = make()
    held = list(model.parameters())
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    shadow = torch.optim.swa_utils.AveragedModel(model)
    for step in range(4):
        if step == 2:
            model.requires_grad_(True)  # layers are thawed on the way
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        nn.utils.clip_grad_norm_(held, 1.0)
        optimizer.step()
        shadow.update_parameters(model)
        torch.save(model.state_dict(), "/dev/null")
        assert not others.have_come()
        del loss


def test_what_awaits_the_collector_is_no_holder(caplog: pytest.LogCaptureFixture) -> None:
    model, others = make()
    for _ in range(2):
        ring: list[Any] = [model[0].weight.data]
        ring.append(ring)
        del ring
        assert not others.have_come()
    assert not caplog.records


def test_looking_waits_for_nothing() -> None:
    model, others = make()

    def arrive() -> None:
        pytest.fail("looking needs no values")

    for parameter in model.parameters():
        await_values(parameter, Awaited(arrive, guards_gradient=True))
    assert not others.have_come()
