"""Gradients pushed to sharded servers, parameters pulled: the executor of parameter servers.

Owns the connection of a torch model to servers: the waits of a step, and the accounting of time and
counters. Messages are `client`'s, `shard_host`'s and `shard_server`'s, updates `shard`'s. With
`overlap="next-forward"` a pull is waited for piece by piece (`train.awaited_pieces`), with "layers"
a piece is also pushed when backward has its gradients (`train.early_gradients`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, final

import msgspec
import torch

from shoal.errors import UsageError, ViewChanging
from shoal.strategies import Act, Exchange, Kept, Pulled
from shoal.trace import SpanKind
from shoal.train.agreement import Agreement
from shoal.train.awaited_pieces import AwaitedPieces
from shoal.train.early_gradients import EarlyGradients, refuse, refuse_options
from shoal.train.executor import AbstractExecutor, CheckpointPart
from shoal.train.model_hooks import ModelHook
from shoal.train.model_use import ModelUse
from shoal.train.servers.hyperparameters import Hyperparameters, check_fresh
from shoal.train.servers.protocol import Kind, Request
from shoal.train.servers.serving import Serving
from shoal.train.servers.shard_server import options_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from shoal.membership import View
    from shoal.strategies import ParameterServer
    from shoal.train.replica import Replica


@final
class ServersExecutor(AbstractExecutor):
    """Has this worker's servers, and its client of all servers.

    Raises `UsageError` for an optimizer that servers cannot run, or holes that they cannot fill.
    """

    def __init__(self, definition: ParameterServer, replica: Replica) -> None:
        super().__init__(definition, replica)
        self._rule, self._pull_bound = definition.rule, definition.pull_bound
        replica.communicator.check_contributions()
        replica.flat.check_apart(f"{definition.word}'s server")
        trained = _trained_parameters(replica.optimizer)
        self._numbers, self._parameters = list(trained), list(trained.values())
        self._hyperparameters = Hyperparameters(replica.optimizer.param_groups)
        self._serving = Serving(definition, replica, self._parameters, len(self._hyperparameters))
        self._on_load = (
            # A model loaded later must not be undone by the next pull.
            replica.model.register_load_state_dict_post_hook(
                ModelHook(lambda *_: self._serving.load_weights())
            ),
            # Another strategy's optimizer state would be loaded where no step is made.
            replica.optimizer.register_load_state_dict_pre_hook(
                lambda _, state_dict: check_fresh(state_dict["state"])
            ),
        )
        self._awaited: AwaitedPieces | None = None
        if definition.overlap != "none":
            self._awaited = AwaitedPieces(
                replica, self._serving.cut.pieces, lambda number: self._take_in((number,))
            )
        self._early: EarlyGradients | None = None
        if definition.overlap == "layers":
            members = self._serving.outbox.members
            self._early = EarlyGradients(self._parameters, members, self._push_early)
        self.use = ModelUse(replica.model)

    def check(self) -> None:
        """Raise the error of this worker's servers, if they failed."""
        super().check()
        self._serving.check()

    def do(self, act: Act) -> object:
        """Carry out one act: an exchange, whose pull may be taken in later."""
        assert isinstance(act, Exchange)
        since_ns = time.monotonic_ns()
        kind = Kind.of(act.kind)
        with torch.no_grad():
            self._push_rest(kind)
            if kind is Kind.LEAVE:
                pulled = self._serving.client.take(self._serving.all_pieces)
                self._serving.hand_over(self._serving.all_pieces)
                return pulled
        if self._awaited is None:
            return self._take_in(self._serving.all_pieces, since_ns)
        self._awaited.begin()
        self.replica.stopwatch.add(SpanKind.EXCHANGE, since_ns, time.monotonic_ns())
        return None

    def catch_up(self, view: View) -> None:
        """Serve in `view`; a newcomer then has made as many exchanges as the others."""
        with self.replica.member.acting_in(view):
            self.hand_on()
            number = self._serving.go_on()
            if number is not None:
                self.course.take_over({"num_exchanges": number})

    def handed_on(self) -> dict[str, Any]:
        """Return the course's state, and which pushes the newcomer's weights hold."""
        return {**super().handed_on(), "shards": msgspec.to_builtins(self._serving.handed_on())}

    def take_over(self, state: dict[str, Any]) -> None:
        """Go on from another worker's state, with its weights."""
        super().take_over(state)
        self._serving.take_over(msgspec.convert(state["shards"], Kept))

    def make_state(self, update: Callable[[], None]) -> None:
        """Make no state: it is in the servers."""

    def _push_early(self, piece: int) -> None:
        """Push one piece, in the backward pass that has completed its gradients."""
        assert self._early is not None
        with self.replica.noting():
            if not self._early.pieces:
                self._begin(Kind.PUSH)
            self._push(Kind.PUSH, range(piece, piece + 1))

    def _push_rest(self, kind: Kind) -> None:
        """Push the pieces that backward has not pushed, and begin the pull."""
        early: set[int] = set()
        if self._early is not None:
            if self._early.pieces:
                self._check_unchanged(kind)
            early = self._early.end_step()
        if not early:
            self.settle()  # pieces that neither forward nor backward came to
            self._begin(kind)
            self._push(kind, self._serving.all_pieces)
            return
        for piece in self._serving.all_pieces:
            if piece not in early:
                self._push(kind, range(piece, piece + 1))

    def _check_unchanged(self, kind: Kind) -> None:
        """Raise `UsageError` if this step is not the one that backward has begun to push."""
        if kind is not Kind.PUSH:
            refuse()
        if self._read_options() != self._options:
            refuse_options()

    def _begin(self, kind: Kind) -> None:
        """Begin the pull of an exchange; nothing of the previous one is under way."""
        self._held_ns = 0
        self._serving.cut.settle_order()
        self._options = self._read_options()
        if self._pull_bound:
            self._serving.inbox.show()
        self._serving.client.begin(kind)

    def _read_options(self) -> list[float]:
        groups = self.replica.optimizer.param_groups
        return self._hyperparameters.read(options_for(self._rule, groups, len(self.view)))

    def _push(self, kind: Kind, pieces: range) -> None:
        used = self._serving.outbox.pack(pieces) if kind is Kind.PUSH else []
        self._pushed_ns = time.monotonic_ns()
        request = Request(kind, pieces, used, self._options)
        self._serving.client.push(request, in_turn=self._early is not None)

    def _take_in(self, pieces: Sequence[int], since_ns: int | None = None) -> Pulled:
        """Wait for the pull of `pieces`, and let them be the model's."""
        since_ns = since_ns or time.monotonic_ns()
        with torch.no_grad():
            # the answer says how long it was held back
            with self.replica.stopwatch.entered(SpanKind.EXCHANGE):
                pulled = self._serving.client.take(pieces)
            self._serving.hand_over(pieces)
        self._account(since_ns, pulled.held_ns)
        return pulled

    def _account(self, since_ns: int, held_ns: int) -> None:
        """Record the time of a wait: under BSP all workers meet, else the server says how long."""
        replica, end_ns = self.replica, time.monotonic_ns()
        if self._rule.staleness == 0:
            reason = "every worker's gradient, every step"
            replica.stopwatch.add(SpanKind.EXCHANGE, since_ns, end_ns, self.view.members, reason)
        else:
            granted_ns = min(max(self._pushed_ns + held_ns, since_ns), end_ns)
            if held_ns and granted_ns > since_ns:
                reason = "too far ahead of the slowest worker"
                replica.stopwatch.add(SpanKind.WAIT, since_ns, granted_ns, reason=reason)
            replica.stopwatch.add(SpanKind.EXCHANGE, granted_ns, end_ns)
        longer_ns = max(0, held_ns - self._held_ns)  # than other pieces of this step
        self._held_ns += longer_ns
        replica.count("server_wait_seconds", longer_ns / 1e9)

    def settle(self) -> None:
        """Wait for the pull under way, if there is one, and take it in."""
        if self._awaited is not None:
            self._awaited.settle()

    def end(self) -> None:
        """Finish the course; free the servers once they are done."""
        if self.replica.member.is_fixed:
            super().end()
            self._serving.host.join()
        else:  # only some workers may have the last weights, and all must have them
            Agreement(self.replica, "leave").carry_out(self._leave)
        if self._awaited is not None:
            self._awaited.close()
        if self._early is not None:
            self._early.remove()
        for hook in self._on_load:
            hook.remove()
        self.replica.counters.update(self._serving.host.counters())
        self._serving.close()

    def _leave(self, view: View) -> None:
        """Carry out the end of the course in one view, and serve until all have left."""
        if not self._serving.is_in(view):
            raise ViewChanging
        for act in self.course.finish():
            self.do(act)
        self._serving.host.join()

    def state_dict(self) -> dict[str, Any]:
        """Return this worker's shards: weights, optimizer state, options and update counts."""
        if self._early is not None:  # servers may have made a part of a step that is not over here
            self._early.check_unused()
        return {
            "workers": len(self.view),
            "rank": self.course.rank,
            **self._serving.host.state_dict(),
        }

    def checkpoint_part(self) -> CheckpointPart | None:
        """Return what this worker's shards keep of each parameter; every worker writes a part.

        Under BSP the shards of all workers are of one step: none is updated again before each
        worker has pushed. Else each shard is as it is when its server saves.
        """
        if self._early is not None:
            self._early.check_unused()
        host = self._serving.host
        members = host.view.members
        pairs = zip(self._numbers, self._parameters, strict=True)
        state = host.slices(self._numbers)
        state["strides"] = {number: each.stride() for number, each in pairs}
        number = members.index(self.replica.communicator.rank)
        return CheckpointPart(host.view.epoch, number, len(members), state)

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
        self.settle()
        with torch.no_grad():
            self._serving.host.load_state_dict(state)
        self.replica.communicator.barrier()


def _trained_parameters(optimizer: torch.optim.Optimizer) -> dict[int, Tensor]:
    """Return the parameters that the servers update, by the optimizer's numbers for them.

    Those frozen now stay as they are.
    """
    every = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return {n: each for n, each in enumerate(every) if each.requires_grad and each.numel()}
