"""Parameter server, sharded over the workers: BSP, SSP and ASP (docs/papers.md, 4.2).

Workers push gradients and pull weights; the update happens on the servers, which run the user's
optimizer on their shards. Every worker process hosts one server, so that every machine carries the
same share of the traffic. See docs/parameter-server.md.

Owns what connects a torch model to that: gradients gathered into flat tensors, weights taken back,
time and counters accounted. Messages and updates are `runtime`'s.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, final

import torch

from shoal.arguments import flag, share, whole_number
from shoal.carriers.channels import reserve_channels
from shoal.carriers.host_copy import HOST
from shoal.carriers.profiled import in_profile
from shoal.errors import UsageError
from shoal.groups.server_clock import UpdateRule, ssp_staleness
from shoal.trace import SpanKind
from shoal.train.known_tensors import FrozenParameters
from shoal.train.model_hooks import ModelHook
from shoal.train.model_use import ModelUse
from shoal.train.servers.client import ParameterClient
from shoal.train.servers.hyperparameters import Hyperparameters, check_fresh
from shoal.train.servers.protocol import Channels, Kind, Request
from shoal.train.servers.shard import ModelLayout, ParameterShard, TrainedSpan
from shoal.train.servers.shard_server import ShardServer, options_for
from shoal.train.strategy import AbstractStrategy, Averaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from shoal.train.replica import Replica
    from shoal.train.servers.hyperparameters import ParamGroups


@final
class ParameterServer(AbstractStrategy):
    """Push gradients to sharded servers, pull weights from them, at every step.

    `staleness` 0 is bulk-synchronous (BSP): one update per step with the mean gradient of all. A
    positive number is stale-synchronous (SSP): every push is applied at once, and no worker gets
    more than so many steps ahead of the slowest. None is asynchronous (ASP): no bound.
    `scale_updates` makes SSP's and ASP's updates so small that one push of each worker moves the
    weights as far as one of BSP's updates, so that the learning rate found for BSP works; without
    it every push makes a full step. `pull_bound` is the share of the parameters of each pull that
    may get lost over a transport with a loss bound: they keep their older values at that worker
    until the next pull. Nothing of the last pull, in `finish`, may get lost.
    """

    averaged = Averaged.GRADIENTS
    is_lock_step = False

    def __init__(
        self,
        staleness: int | None = 0,
        *,
        scale_updates: bool = True,
        pull_bound: float = 0.0,
    ) -> None:
        if staleness is not None:
            staleness = whole_number(staleness, "Staleness, unless None for no bound,", low=0)
        self._rule = UpdateRule(staleness, flag(scale_updates, "scale_updates"))
        self._pull_bound = share(pull_bound, "A pull's bound")

    @classmethod
    def bsp(cls, *, pull_bound: float = 0.0) -> ParameterServer:
        """Return the bulk-synchronous parameter server."""
        return cls(0, pull_bound=pull_bound)

    @classmethod
    def ssp(
        cls, *, staleness: int = 3, scale_updates: bool = True, pull_bound: float = 0.0
    ) -> ParameterServer:
        """Return the stale-synchronous parameter server; `staleness` is at least 1."""
        return cls(ssp_staleness(staleness), scale_updates=scale_updates, pull_bound=pull_bound)

    @classmethod
    def asp(cls, *, scale_updates: bool = True, pull_bound: float = 0.0) -> ParameterServer:
        """Return the asynchronous parameter server."""
        return cls(None, scale_updates=scale_updates, pull_bound=pull_bound)

    @property
    def name(self) -> str:  # type: ignore[override]  # the word depends on the mode
        """The word that selects this mode."""
        return {0: "ps-bsp", None: "ps-asp"}.get(self._rule.staleness, "ps-ssp")

    @property
    def replicas_differ(self) -> bool:
        """Whether workers hold weights of different times, until `finish` gives all the last."""
        return self._rule.staleness != 0

    def options(self) -> dict[str, str | int | float | bool | None]:
        """Return the bound of staleness, whether updates are scaled, and the bound of pulls."""
        return {
            "pull_bound": self._pull_bound,
            "staleness": self._rule.staleness,
            "scale_updates": self._rule.scale_updates,
        }

    def _attach(self, replica: Replica) -> None:
        """Start this worker's server.

        Raises `UsageError` for an optimizer it cannot run, or holes that it cannot fill.
        """
        self._replica = replica
        communicator = replica.communicator
        communicator.check_contributions()
        replica.flat.check_apart(f"{self.name}'s server")
        self._parameters = _trained_parameters(replica.optimizer)
        self._frozen = FrozenParameters(replica.model.parameters())
        layout = _layout(replica, self._parameters)
        self._hyperparameters = Hyperparameters(replica.optimizer.param_groups)
        self._allocate(replica.flat.buffers, layout)
        channels = Channels(*reserve_channels(communicator))
        self._server = ShardServer(
            communicator,
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
        self._use = ModelUse(replica.model)

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
        world_size = self._replica.communicator.world_size
        return options_for(self._rule, self._replica.optimizer.param_groups, world_size)

    def _empty_request(self) -> Request:
        return Request.allocate(len(self._parameters), len(self._hyperparameters))

    def step(self, update: Callable[[], None], *, skipped: bool = False) -> None:
        """Push this step's gradients and pull weights; `update` happens on the servers instead."""
        self._use.check()
        self._server.check()
        self._frozen.check()
        begin_ns = time.monotonic_ns()
        with torch.no_grad():
            used = [False] * len(self._parameters) if skipped else self._pack()
            if self._pull_bound:
                self._show_inbox()
            with in_profile("shoal:exchange"):  # how long it was held back is in the answer
                answer = self._client.exchange(
                    Kind.SKIP if skipped else Kind.PUSH,
                    used,
                    self._hyperparameters.read(self._options()),
                )
            self._unpack()
        self._account(begin_ns, answer.held_ns)

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
        if any(flat.is_cuda for flat in self._replica.flat.buffers):
            torch.cuda.current_stream().synchronize()
        return used

    def _show_inbox(self) -> None:
        """Let what is pulled into be as the model is: what gets lost of a pull stays that."""
        for flat, pulled in zip(self._replica.flat.buffers, self._inbox, strict=True):
            if flat is not pulled:
                pulled.copy_(flat)

    def _unpack(self) -> None:
        """Take pulled weights into the model, where they are not there already."""
        for flat, pulled in zip(self._replica.flat.buffers, self._inbox, strict=True):
            if flat is not pulled:
                flat.copy_(pulled)  # blocking: the next pull may come without a push before it

    def _account(self, begin_ns: int, held_ns: int) -> None:
        """Record the step's time: under BSP all workers meet, otherwise the server knows."""
        replica, end_ns = self._replica, time.monotonic_ns()
        if self._rule.staleness == 0:
            everyone = tuple(range(replica.communicator.world_size))
            reason = "every worker's gradient, every step"
            replica.stopwatch.add(SpanKind.EXCHANGE, begin_ns, end_ns, everyone, reason)
        else:
            granted_ns = min(begin_ns + held_ns, end_ns)
            if held_ns:
                reason = "too far ahead of the slowest worker"
                replica.stopwatch.add(SpanKind.WAIT, begin_ns, granted_ns, reason=reason)
            replica.stopwatch.add(SpanKind.EXCHANGE, granted_ns, end_ns)
        replica.count("server_wait_seconds", held_ns / 1e9)
        for name, amount in self._client.bytes_per_exchange.items():
            replica.count(name, amount)

    def _end(self) -> None:
        """Leave all servers; return when every worker has, with the final weights."""
        with torch.no_grad():
            self._client.exchange(
                Kind.LEAVE,
                [False] * len(self._parameters),
                self._hyperparameters.read(self._options()),
            )
            self._unpack()
        self._server.join()
        for hook in self._on_load:
            hook.remove()
        self._replica.counters.update(self._server.counters())

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's shard: weights, optimizer state, options and update count."""
        communicator = self._replica.communicator
        return {
            "world_size": communicator.world_size,
            "rank": communicator.rank,
            **self._server.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which this rank saved. Collective: every worker loads its own.

        Raises `UsageError` for a checkpoint of another number of workers, rank or model.
        """
        rank, world_size = self._replica.communicator.rank, self._replica.communicator.world_size
        if state["world_size"] != world_size:
            message = (
                f"The checkpoint's shards are those of {state['world_size']} workers, but there"
                f" are {world_size}; continue with as many, or drop its 'shoal' entry."
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
        self._replica.communicator.barrier()


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
        num_shards=replica.communicator.world_size,
    )


def _cpu_twin(flat: Tensor) -> Tensor:
    """Return zeros like `flat` on the CPU, in memory that a GPU copies to and from directly."""
    return torch.zeros(flat.numel(), dtype=flat.dtype, pin_memory=flat.is_cuda, device=HOST)
