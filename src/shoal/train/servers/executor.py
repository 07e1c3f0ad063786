"""Gradients pushed to sharded servers, parameters pulled: the executor of parameter servers.

Owns what connects a torch model to that: gradients gathered into flat tensors, weights taken back,
time and counters accounted. Messages are `client`'s and `shard_server`'s, updates `shard`'s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, final

import torch

from shoal.carriers import HOST, in_profile, reserve_channels
from shoal.errors import UsageError
from shoal.strategies import Act, Exchange, Pulled
from shoal.trace import SpanKind
from shoal.train.executor import AbstractExecutor
from shoal.train.known_tensors import FrozenParameters
from shoal.train.model_hooks import ModelHook
from shoal.train.model_use import ModelUse
from shoal.train.servers.client import ParameterClient
from shoal.train.servers.hyperparameters import Hyperparameters, check_fresh
from shoal.train.servers.protocol import Channels, Kind, Request
from shoal.train.servers.shard import ModelLayout, ParameterShard, TrainedSpan
from shoal.train.servers.shard_server import ShardServer, options_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shoal.strategies import ParameterServer
    from shoal.train.replica import Replica
    from shoal.train.servers.hyperparameters import ParamGroups


@final
class ServersExecutor(AbstractExecutor):
    """Has this worker's server, and its ways to all of them.

    Raises `UsageError` for an optimizer that servers cannot run, or holes that they cannot fill.
    """

    goes_on = False

    def __init__(self, definition: ParameterServer, replica: Replica) -> None:
        super().__init__(definition, replica)
        self._rule, self._pull_bound = definition.rule, definition.pull_bound
        communicator = replica.communicator
        communicator.check_contributions()
        replica.flat.check_apart(f"{definition.word}'s server")
        self._parameters = _trained_parameters(replica.optimizer)
        self._frozen = FrozenParameters(replica.model.parameters())
        layout = _layout(replica, self._parameters)
        self._hyperparameters = Hyperparameters(replica.optimizer.param_groups)
        self._allocate(replica.flat.buffers, layout)
        channels = Channels(*reserve_channels(communicator))
        self._server = ShardServer(
            communicator,
            self.view,
            channels,
            ParameterShard(replica.flat.buffers, layout, communicator.rank, replica.optimizer),
            self._rule,
            self._empty_request(),
            replica.deadline_s,
            self._pull_bound,
        )
        self._client = ParameterClient(
            communicator,
            channels,
            layout,
            self._server,
            self._empty_request(),
            self._outbox,
            self._inbox,
            self._pull_bound,
        )
        self._on_load = (
            # A model loaded later must not be undone by the next pull.
            replica.model.register_load_state_dict_post_hook(
                ModelHook(lambda *_: self._server.load_weights(replica.flat.buffers))
            ),
            # State of another strategy's steps would lie where no step is made.
            replica.optimizer.register_load_state_dict_pre_hook(
                lambda _, state_dict: check_fresh(state_dict["state"])
            ),
        )
        self._server.start()
        self.use = ModelUse(replica.model)
        self.carry_out(self.course.begin())

    def _allocate(self, flats: list[Tensor], layout: ModelLayout) -> None:
        """Make what is pushed from and pulled into; on the CPU weights are pulled in place."""
        self._outbox = [_cpu_twin(flat) for flat in flats]
        self._inbox = [flat if flat.device.type == "cpu" else _cpu_twin(flat) for flat in flats]
        self._gradients = [
            self._outbox[span.flat].as_strided(p.size(), p.stride(), span.elements.start)
            for p, span in zip(self._parameters, layout.trained, strict=True)
        ]
        self._statistics = [
            (twin[buffers.start : buffers.stop], flat[buffers.start : buffers.stop])
            for twin, flat, buffers in zip(self._outbox, flats, layout.averaged, strict=True)
        ]

    def _options(self) -> ParamGroups:
        return options_for(self._rule, self.replica.optimizer.param_groups, len(self.view))

    def _empty_request(self) -> Request:
        return Request.allocate(len(self._parameters), len(self._hyperparameters))

    def check(self) -> None:
        """Raise what this worker's server failed with; refuse what was thawed since."""
        super().check()
        self._server.check()
        self._frozen.check()

    def do(self, act: Act) -> object:
        """Carry out one act: an exchange."""
        assert isinstance(act, Exchange)
        if act.kind == "leave":
            return self._leave()
        begin_ns = time.monotonic_ns()
        with torch.no_grad():
            used = self._pack() if act.kind == "push" else [False] * len(self._parameters)
            if self._pull_bound:
                self._show_inbox()
            with in_profile("shoal:exchange"):  # how long it was held back is in the answer
                pulled = self._client.exchange(
                    Kind.of(act.kind), used, self._hyperparameters.read(self._options())
                )
            self._unpack()
        self._account(begin_ns, pulled.held_ns)
        return pulled

    def make_state(self, update: Callable[[], None]) -> None:
        """Make none: it is in the servers."""

    def _pack(self) -> list[bool]:
        """Copy gradients and buffers into the outbox; return which parameters had a gradient."""
        used = []
        for parameter, place in zip(self._parameters, self._gradients, strict=True):
            gradient = parameter.grad
            used.append(gradient is not None)
            if gradient is None:
                place.zero_()
            else:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                place.copy_(dense, non_blocking=True)
        for place, present in self._statistics:
            place.copy_(present, non_blocking=True)
        if any(flat.is_cuda for flat in self.replica.flat.buffers):
            torch.cuda.current_stream().synchronize()
        return used

    def _show_inbox(self) -> None:
        """Let what is pulled into be as the model is: what gets lost of a pull stays that."""
        for flat, pulled in zip(self.replica.flat.buffers, self._inbox, strict=True):
            if flat is not pulled:
                pulled.copy_(flat)

    def _unpack(self) -> None:
        """Take pulled weights into the model, where they are not there already."""
        for flat, pulled in zip(self.replica.flat.buffers, self._inbox, strict=True):
            if flat is not pulled:
                flat.copy_(pulled)  # blocking: the next pull may come without a push before it

    def _account(self, begin_ns: int, held_ns: int) -> None:
        """Record the step's time: under BSP all workers meet, otherwise the server knows."""
        replica, end_ns = self.replica, time.monotonic_ns()
        if self._rule.staleness == 0:
            reason = "every worker's gradient, every step"
            replica.stopwatch.add(SpanKind.EXCHANGE, begin_ns, end_ns, self.view.members, reason)
        else:
            granted_ns = min(begin_ns + held_ns, end_ns)
            if held_ns:
                reason = "too far ahead of the slowest worker"
                replica.stopwatch.add(SpanKind.WAIT, begin_ns, granted_ns, reason=reason)
            replica.stopwatch.add(SpanKind.EXCHANGE, granted_ns, end_ns)
        replica.count("server_wait_seconds", held_ns / 1e9)
        for name, amount in self._client.bytes_per_exchange.items():
            replica.count(name, amount)

    def _leave(self) -> Pulled:
        """Leave all servers; return when every worker has, with the final weights."""
        with torch.no_grad():
            pulled = self._client.exchange(
                Kind.LEAVE,
                [False] * len(self._parameters),
                self._hyperparameters.read(self._options()),
            )
            self._unpack()
        return pulled

    def end(self) -> None:
        """Finish the course; free the server once it is done."""
        super().end()
        self._server.join()
        for hook in self._on_load:
            hook.remove()
        self.replica.counters.update(self._server.counters())

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's shard: weights, optimizer state, options and update count."""
        return {
            "workers": len(self.view),
            "rank": self.course.rank,
            **self._server.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which this rank saved. Collective: every worker loads its own.

        Raises `UsageError` for a checkpoint of another number of workers, rank or model.
        """
        rank, workers = self.course.rank, len(self.view)
        if state["workers"] != workers:
            message = (
                f"The checkpoint's shards are those of {state['workers']} workers, but there"
                f" are {workers}; continue with as many, or drop its 'shoal' entry."
            )
            raise UsageError(message)
        if state["rank"] != rank:
            message = (
                f"The checkpoint is rank {state['rank']}'s and holds its shard, but this is rank"
                f" {rank}; let every worker save and load a checkpoint of its own."
            )
            raise UsageError(message)
        with torch.no_grad():
            self._server.load_state_dict(state)
        self.replica.communicator.barrier()


def _trained_parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the parameters that the servers update: those frozen now stay as they are."""
    return [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad and parameter.numel()
    ]


def _layout(replica: Replica, trained: list[Tensor]) -> ModelLayout:
    """Describe the model's flat tensors and what lies where in them."""
    groups = {
        id(parameter): index
        for index, group in enumerate(replica.optimizer.param_groups)
        for parameter in group["params"]
    }
    return ModelLayout(
        sizes=tuple(flat.numel() for flat in replica.flat.buffers),
        trained=tuple(TrainedSpan(*replica.flat.place_of(p), groups[id(p)]) for p in trained),
        averaged=replica.flat.statistics,
        num_shards=len(replica.view),
    )


def _cpu_twin(flat: Tensor) -> Tensor:
    """Return zeros like `flat` on the CPU, in memory that a GPU copies to and from directly."""
    return torch.zeros(flat.numel(), dtype=flat.dtype, pin_memory=flat.is_cuda, device=HOST)
