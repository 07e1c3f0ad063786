"""Replicas for strategies that need a communicator and nothing else of a job."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import nn

from shoal.carriers.torch_communicator import TorchCommunicator
from shoal.control import Member
from shoal.trace import ListSink
from shoal.train.executors import make_executor
from shoal.train.flat_parameters import FlatParameters
from shoal.train.replica import Replica, Stopwatch

if TYPE_CHECKING:
    from shoal.strategies import AbstractDefinition
    from shoal.train.executor import AbstractExecutor


def bind(
    definition: AbstractDefinition,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    communicator: TorchCommunicator | None = None,
    deadline_s: float = 20.0,
) -> AbstractExecutor:
    """Return what carries `definition` out, as DistributedOptimizer has it in a whole job."""
    communicator = communicator or TorchCommunicator(deadline_s=deadline_s)
    replica = Replica(
        model=model,
        optimizer=optimizer,
        flat=FlatParameters(model),
        communicator=communicator,
        groups=SimpleNamespace(check_present=lambda _: None),  # type: ignore[arg-type]
        facts=None,  # type: ignore[arg-type]
        session="test",
        host=0,
        member=Member(communicator.view, deadline_s),
        seed=7,
        deadline_s=deadline_s,
        stopwatch=Stopwatch(communicator.rank, ListSink()),
        first_view=communicator.view,
    )
    executor = make_executor(definition, replica)
    executor.begin()
    return executor


def parameters_of(model: nn.Module) -> torch.Tensor:
    """Return a copy of all parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])
