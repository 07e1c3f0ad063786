"""Shards of a parameter server make the update that the user's optimizer would, in one process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from shoal.errors import DataError, UsageError
from shoal.train.servers.hyperparameters import Hyperparameters, spread_over
from shoal.train.servers.shard import ModelLayout, ParameterShard, PieceSpan, TrainedSpan
from shoal.train.servers.slices import put_together

ELEMENTWISE = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ASGD",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
    "SGD",
]


SPANS = [range(2), range(2, 14), range(14, 16), range(16, 17)]
STRIDES = [((2,), (1,)), ((2, 2, 3), (6, 1, 2)), ((2,), (1,)), ((), ())]
"""The parameters' places, and their shapes and strides: one lies in another order than usual."""


class Pair:
    """An optimizer in one process, and shards that make the same updates."""

    def __init__(self, kind: str, num_shards: int) -> None:
        self.flat = torch.linspace(-1.0, 1.0, 17, dtype=torch.float64)
        self.parameters = [
            nn.Parameter(torch.empty_strided(*form, dtype=torch.float64)) for form in STRIDES
        ]
        for parameter, span in zip(self.parameters, SPANS, strict=True):
            in_order(parameter).copy_(self.flat[span.start : span.stop])
        groups = [{"params": self.parameters[:2]}, {"params": self.parameters[2:], "lr": 0.003}]
        self.optimizer = getattr(torch.optim, kind)(groups, lr=0.02)
        self.layout = ModelLayout(
            (
                PieceSpan(0, range(2), is_statistics=False),
                PieceSpan(0, range(2, 17), is_statistics=False),
            ),
            tuple(TrainedSpan(0, span, int(span.start >= 14)) for span in SPANS),
            num_shards,
        )
        self.shards = self.made()
        self._hyperparameters = Hyperparameters(self.optimizer.param_groups)
        self._generator = torch.Generator().manual_seed(0)

    def made(self) -> dict[tuple[int, int], ParameterShard]:
        """Return shards of the model as it is, which have no state."""
        return {
            (piece, server): ParameterShard([self.flat], self.layout, piece, server, self.optimizer)
            for piece in range(2)
            for server in range(self.layout.num_servers)
        }

    def step(self, number: int, *, are_shards_there: bool = True) -> None:
        self.optimizer.param_groups[1]["lr"] = 0.01 * number
        gradient = torch.randn(17, generator=self._generator, dtype=torch.float64)
        for parameter, span in zip(self.parameters, SPANS, strict=True):
            parameter.grad = torch.empty_like(parameter)
            in_order(parameter.grad).copy_(gradient[span.start : span.stop])
        values = self._hyperparameters.read(self.optimizer.param_groups)
        self.optimizer.step()
        for (piece, server), shard in self.shards.items() if are_shards_there else ():
            part = self.layout.part_of([gradient], piece, server)
            shard.add(part + 1, range(4))
            shard.add(part - 1, range(4))
            shard.apply(values, divisor=2.0, share=1.0)

    def check(self) -> None:
        found = torch.cat([shard.weights for shard in self.shards.values()])
        torch.testing.assert_close(found, self.weights(), rtol=0, atol=1e-12)

    def weights(self) -> torch.Tensor:
        return torch.cat([in_order(parameter).clone() for parameter in self.parameters])


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor as they lie in memory."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


@pytest.mark.parametrize("kind", ELEMENTWISE)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_shards_together_make_the_optimizer_s_update(kind: str, num_shards: int) -> None:
    pair = Pair(kind, num_shards)
    for step in range(4):
        pair.step(step)
    pair.check()


@pytest.mark.parametrize("kind", ELEMENTWISE)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_shards_go_on_from_the_state_of_an_optimizer(kind: str, num_shards: int) -> None:
    pair = Pair(kind, num_shards)
    for step in range(3):
        pair.step(step, are_shards_there=False)
    pair.flat.copy_(pair.weights())
    pair.shards = pair.made()
    for shard in pair.shards.values():
        shard.take_over(pair.parameters, pair.optimizer)
    for step in range(3, 6):
        pair.step(step)
    pair.check()


@pytest.mark.parametrize("kind", ELEMENTWISE)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_slices_of_all_shards_are_the_state_of_one_optimizer(kind: str, num_shards: int) -> None:
    pair = Pair(kind, num_shards)
    for step in range(3):
        pair.step(step)
    parts = [
        {
            "slices": shard.slices(range(4)),
            "counted": shard.counted(),
            "strides": {n: each.stride() for n, each in enumerate(pair.parameters)},
            "optimizer": {"param_groups": pair.optimizer.state_dict()["param_groups"]},
        }
        for shard in pair.shards.values()
    ]
    other = Pair(kind, 1)
    other.optimizer.load_state_dict(put_together(parts, other.optimizer, Path("a file")))
    torch.testing.assert_close(other.weights(), pair.weights(), rtol=0, atol=1e-12)
    found, wanted = other.optimizer.state_dict(), pair.optimizer.state_dict()
    assert found["param_groups"] == wanted["param_groups"]
    assert found["state"].keys() == wanted["state"].keys()
    for number, state in wanted["state"].items():
        its = found["state"][number]  # torch loads all but "step" in the parameter's type
        torch.testing.assert_close(its, state, rtol=0, atol=1e-7, check_dtype=False)
    with pytest.raises(DataError, match="a file and its other parts do not have all of the model"):
        put_together(parts[:1] if num_shards > 1 else [{**parts[0], "slices": []}],
                     other.optimizer, Path("a file"))  # fmt: skip
    fewer = torch.optim.SGD(pair.parameters[:3], lr=0.1)
    with pytest.raises(ValueError, match="it has 3 parameters"):
        put_together(parts, fewer, Path("a file"))


def test_state_that_is_not_of_elements_is_refused() -> None:
    pair = Pair("SGD", 1)
    pair.optimizer.state[pair.parameters[1]] = {"rows": torch.zeros(2)}
    with pytest.raises(
        UsageError, match=r"state 'rows' has another shape .* \(2,\) and \(2, 2, 3\)"
    ):
        pair.shards[1, 0].take_over(pair.parameters, pair.optimizer)


def test_what_an_optimizer_counts_in_its_groups_is_kept() -> None:
    pair = Pair("SGD", 1)
    shard = pair.shards[1, 0]
    assert shard.counted() == []
    shard._optimizer.param_groups[1]["momentum"] = 0.25
    assert shard.counted() == [(1, "momentum", 0.25)]


def test_options_nobody_changed_are_left_alone() -> None:
    server = [
        {"params": [], "lr": 1, "betas": (0.9, 0.99), "count": 0, "nesterov": True, "x": None}
    ]
    options = Hyperparameters(server)
    server[0]["count"] = 5  # an optimizer that counts in its groups
    worker = [{**server[0], "lr": torch.tensor(0.5), "betas": (0.8, 0.99), "count": 0}]
    options.write(server, options.read(worker))
    assert server[0] == {**server[0], "lr": 0.5, "betas": (0.8, 0.99), "count": 5, "nesterov": True}
    with pytest.raises(UsageError, match="betas"):
        options.read([{**worker[0], "betas": None}])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_smaller_updates_move_as_far_together_as_one_did(momentum: float) -> None:
    """Under a constant gradient, N updates for one end up moving at the same speed."""
    travelled = []
    for updates in (1, 8):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=momentum)
        for group, smaller in zip(
            optimizer.param_groups, spread_over(optimizer.param_groups, updates), strict=True
        ):
            group.update(smaller)
        places = []
        for _ in range(200 * updates):
            weight.grad = torch.ones(1, dtype=torch.float64)
            optimizer.step()
            places.append(weight.item())
        travelled.append(places[-1] - places[-1 - 10 * updates])
    assert travelled[1] == pytest.approx(travelled[0], rel=1e-6)
