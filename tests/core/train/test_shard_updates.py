"""Shards of a parameter server make the update that the user's optimizer would, in one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.errors import UsageError
from shoal.train.servers.hyperparameters import Hyperparameters, spread_over
from shoal.train.servers.shard import ModelLayout, ParameterShard, PieceSpan, TrainedSpan

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


@pytest.mark.parametrize("kind", ELEMENTWISE)
@pytest.mark.parametrize("num_shards", [1, 3])
def test_shards_together_make_the_optimizer_s_update(kind: str, num_shards: int) -> None:
    flat = torch.linspace(-1.0, 1.0, 17, dtype=torch.float64)
    parts = [range(2), range(2, 15), range(15, 17)]
    parameters = [nn.Parameter(flat[part.start : part.stop].clone()) for part in parts]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.003}]
    optimizer = getattr(torch.optim, kind)(groups, lr=0.02)
    layout = ModelLayout(
        (
            PieceSpan(0, range(2), is_statistics=False),
            PieceSpan(0, range(2, 17), is_statistics=False),
        ),
        tuple(TrainedSpan(0, part, int(part.start == 15)) for part in parts),
        num_shards,
    )
    shards = {
        (piece, server): ParameterShard([flat], layout, piece, server, optimizer)
        for piece in range(2)
        for server in range(num_shards)
    }
    hyperparameters = Hyperparameters(optimizer.param_groups)
    generator = torch.Generator().manual_seed(0)
    for step in range(4):
        optimizer.param_groups[1]["lr"] = 0.01 * step
        gradient = torch.randn(17, generator=generator, dtype=torch.float64)
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = gradient[part.start : part.stop].clone()
        values = hyperparameters.read(optimizer.param_groups)
        optimizer.step()
        for (piece, server), shard in shards.items():
            part = layout.part_of([gradient], piece, server)
            shard.add(part + 1, range(3))
            shard.add(part - 1, range(3))
            shard.apply(values, divisor=2.0, share=1.0)
    expected = torch.cat([parameter.detach() for parameter in parameters])
    found = torch.cat([shard.weights for shard in shards.values()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


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
