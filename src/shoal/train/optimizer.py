"""`DistributedOptimizer`: a torch optimizer that also synchronizes.

Owns the meeting of torch's optimizer interface (closures, learning-rate schedulers, gradient
scalers, state dicts) with a strategy. Does not decide which workers synchronize.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Never

import torch

from shoal.arguments import whole_number
from shoal.carriers import DEFAULT_HOLES, in_profile, note_step
from shoal.errors import UsageError
from shoal.session import (
    current_session,
    find_topology,
    leave,
    num_hosts_at_first,
    place_here,
    say_hosts,
    say_place,
)
from shoal.strategies import (
    Averaged,
    Family,
    check_beside,
    check_strategy,
    make_strategy,
    refuse_options,
)
from shoal.train import sent_ahead
from shoal.train.agreement import Agreement, Beginner
from shoal.train.alike_at_first import broadcast_buffers, fingerprint_model
from shoal.train.alike_check import AlikeCheck
from shoal.train.bare_steps import BareSteps
from shoal.train.checkpoints import agree_on_loaded
from shoal.train.consensus import average_model
from shoal.train.elastic_sampler import ElasticSampler
from shoal.train.executors import make_executor
from shoal.train.flat_parameters import FlatParameters
from shoal.train.handing_on import frozen_digests, take_over
from shoal.train.remark_log import RemarkLog
from shoal.train.replica import Replica, Stopwatch
from shoal.train.step_samples import StepSampler
from shoal.train.traced_worker import traced_worker
from shoal.train.wrappable import SoleSynchronizer, check_can_be_wrapped
from shoal.watch import TraceFile, sink_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor, nn

    from shoal.comm import Communicator
    from shoal.membership import View
    from shoal.session import Session
    from shoal.strategies import (
        AbstractDefinition,
        AveragingOverlap,
        GradientOverlap,
        ServerOverlap,
    )
    from shoal.trace import TraceSink
    from shoal.train.executor import AbstractExecutor, CheckpointPart
    from shoal.train.sample_counts import SampleCounts
    from shoal.watch import Verdict, WorkerSample
    from shoal.wire import TransportStats


_log = logging.getLogger(__name__)


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps `optimizer` so that `step()` also synchronizes `model` with the other workers.

    Collective: every worker makes it with the same model and strategy. All start from rank 0's
    parameters. `sync` is a word, such as "ripples" (`shoal train --help` lists them), or a strategy
    made with options, such as `shoal.Ripples(interval=2)`. Move the model to its device first.

    `transport` carries all messages between workers: "gloo", or "shoal", Shoal's own transport over
    UDP; the default is that of torch's process group. Over "shoal", `loss_bound` is the share of
    each worker's gradients (or parameters, where those are averaged) that the network may lose in a
    sum before anything is sent again. `holes` says how a lost part of a gradient counts: "zero",
    "divide-by-count" (the sum is scaled up for the parts that did not come) or "error-feedback" (it
    is added to the sender's next gradient). `wire` is the type in which gradients are sent over
    "shoal", whatever the parameters' type: "float32", "float16" or "bfloat16"; by default they are
    sent as they are. With `overlap="next-steps"` it is the type of the averaged copies as sent.

    `pull_bound` is for the parameter servers: the share, at most `loss_bound`, of each pull that
    may get lost too. Those parameters keep their older values at that worker until the next pull.

    `overlap` says what computing an exchange hides behind. "next-forward" waits for each layer when
    the next forward pass gets there. The result is that of waiting at once, bit for bit; code that
    needs all parameters earlier (a checkpoint, an average of them) waits for all. Under
    "all-reduce" the layer is updated then, too, so code that needs all gradients (clipping, a
    gradient scaler) waits as well; the default is "backward", which waits at its end. Under the
    parameter servers the wait is for a layer's part of the pull; the default is "none". With
    "layers" its gradients are also pushed as soon as backward has them; then changing gradients
    between backward and `step()` (clipping, a gradient scaler) is refused. Where parameters are
    averaged the default is "none", and there is "next-steps", too: computing goes on while a copy
    of the model is averaged, and the average's change is added when it is known, at the latest when
    the next average is due. `state_dict()` waits for it: save the model after the optimizer.

    `seed`, the same on every worker, seeds random schedules and groups. `trace` takes spans of what
    the worker does. Under "all-reduce", which keeps all replicas alike, their parameters are
    compared after every `check_every` steps; 0: never. `step()` raises `MismatchError` at the next
    such step if they differ by more than rounding, and names the ranks. In a job that goes on
    without lost workers, workers whose parameters differ from most raise `WorkerLost` instead.

    Gradient clipping, accumulation (`no_sync`), parameter groups, learning-rate schedulers and
    `torch.amp.GradScaler` work as with the wrapped optimizer. Call `finish()` when this worker
    makes no more steps, and `average_model()` for the mean of all replicas.

    Raises `MismatchError` if the workers disagree on the model or the strategy, `UsageError` for a
    model that something else synchronizes already (DistributedDataParallel, FSDP); if it is wrapped
    in one of those later, at the first step.
    """

    meets_scaler = True
    """Whether torch's GradScaler leaves skipping to `step`, see there. If it is set, Lightning does
    not clip the optimizer's gradients, even where there is no scaler."""

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return self.meets_scaler

    def __init__(  # noqa: PLR0913 - a user's options, each by its name
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        sync: str | AbstractDefinition = "all-reduce",
        *,
        transport: str | None = None,
        loss_bound: float = 0.0,
        holes: str = DEFAULT_HOLES,
        wire: str | None = None,
        pull_bound: float | None = None,
        overlap: GradientOverlap | AveragingOverlap | ServerOverlap | None = None,
        seed: int = 0,
        trace: TraceSink | None = None,
        check_every: int = 100,
        **unknown: Never,
    ) -> None:
        # Not calling super().__init__: the wrapped optimizer owns parameter groups and state.
        strategy = _strategy(sync, {"overlap": overlap, "pull_bound": pull_bound}, unknown)
        if isinstance(optimizer, DistributedOptimizer):
            raise UsageError("This is a DistributedOptimizer already; wrap the one within it.")
        check_can_be_wrapped(optimizer, model)
        check_every = whole_number(check_every, "check_every, 0 for never,", low=0)
        session = current_session()
        transport = transport or session.usual_transport
        check_strategy(strategy, len(session.view), loss_bound, wire)
        if not session.member.is_fixed:
            check_beside(strategy, session.endings.under_way)
        name = session.next_run_name()
        samples = _samples(session, name, strategy)
        # Lightning's optimizers, which inherit from this class, have a `_strategy` of their own.
        self._inner, self._definition = optimizer, strategy
        self._endings = session.endings
        sink = sink_of(trace, partial(traced_worker, session, name, strategy, model, seed))
        self.stopwatch = Stopwatch(session.rank, sink, session.recorder.flight)
        self._bare_steps = BareSteps(optimizer)
        with self._endings.noting():
            given: dict[str, object] = {"transport": transport, "loss_bound": float(loss_bound)}
            given |= {"holes": holes, "wire": wire, "seed": seed, "check_every": check_every}
            _agree(session, name, strategy, given, fingerprint_model(model, optimizer), samples)
            loaded = agree_on_loaded(session, name, strategy)
            self._communicator = session.communicator_over(transport, loss_bound, holes, wire)
            self.flat, first_view = _begin(session, name, model, self._communicator)
            self.replica = Replica(
                model=model,
                optimizer=optimizer,
                flat=self.flat,
                communicator=self._communicator,
                groups=session.control,
                facts=session.facts,
                session=name,
                host=session.host,
                member=session.member,
                seed=seed,
                deadline_s=session.deadline_s,
                stopwatch=self.stopwatch,
                noting=self._endings.noting,
                stepping=self._bare_steps.expected,
                wire=wire,
                samples=samples,
                first_view=first_view,
                num_hosts=num_hosts_at_first(session.facts, name),
                topology=find_topology(session.facts, name, session.view),
            )
            self._synchronizer = make_executor(strategy, self.replica)
            self.stopwatch.step = self._num_steps = _enter(
                session, self.replica, self._synchronizer, loaded
            )
            if samples is not None:
                samples.start()
        self._training = self._endings.begin(name, strategy)
        self._sole = SoleSynchronizer(model)
        self._samples = StepSampler(self.replica, strategy, transport, session.control.tell_sample)
        self._remark_log = RemarkLog(name, session.control.verdicts)
        compared_every = check_every if strategy.family is Family.SUMS else 0
        tell = session.control.report_failure
        self._alike_check = AlikeCheck(self.replica, compared_every, tell)
        self._num_averages = 0
        what = name, _described(strategy), transport, self.flat.num_parameters
        _log.info("%s: %s over %s, %d parameters", *what)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # the wrapped one's, which may replace it
        """The wrapped optimizer's parameter groups."""
        return self._inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]  # the wrapped one's, which may replace it
        """The wrapped optimizer's state; it stays local to this worker."""
        self.settle()
        return self._inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]  # the wrapped one's, which may replace it
        """The wrapped optimizer's defaults."""
        return self._inner.defaults

    @property
    def strategy(self) -> AbstractDefinition:
        """The strategy that synchronizes, with its options."""
        return self._definition

    @property
    def num_steps(self) -> int:
        """The number of steps that led to this worker's model.

        A worker that joins a running job begins with the number of the worker whose model it got.
        """
        return self._num_steps

    def transport_stats(self) -> TransportStats | None:
        """Return the transport's counts so far; None over gloo, which does not tell.

        `later - earlier` of two of them counts what happened in between: take one after each step.
        """
        return self._communicator.stats()

    def remarks(self) -> tuple[Verdict, ...]:
        """Return what has held the job up lately: which rank is slow, which link slow or lossy.

        All workers get what the job's page says; gloo tells nothing about links. Empty if no rank
        or link stands out, in the first seconds, and if the control plane does not answer.
        """
        return self._remark_log.ask()

    def tell_loss(self, loss: float | Tensor) -> None:
        """Show the loss of this worker's step, a number or a tensor, to those who watch the job.

        It is read about once a second, so that nothing waits for a GPU in between. The result of a
        `closure` given to `step` is shown without this call. Raises `UsageError` for more than one
        number.
        """
        self._samples.tell_loss(loss)

    def on_sample(self, take: Callable[[WorkerSample], object]) -> None:
        """Call `take` with a sample of this worker's training, at a step's end, once a second.

        `shoal.watch` has such callbacks for TensorBoard, Weights & Biases and MLflow.
        """
        self._samples.listeners.append(take)

    def step(  # type: ignore[override]  # torch's overloads say the same in two signatures
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Make one iteration's update and synchronize.

        A gradient scaler hands over its scale and whether it found gradients that are not finite
        (torch's `_step_supports_amp_scaling` protocol): the local update is skipped then, the
        synchronization is not, so that no worker waits for one that skipped. The step with which
        torch.distributed.checkpoint makes a fresh optimizer's state is local, and not counted.

        Raises `UsageError` after `finish()`, and `SystemExit` if `shoal.leave_on` has been
        triggered: the others go on without this worker.
        """
        if closure is None and self._only_makes_state():
            with self._bare_steps.expected():
                self._synchronizer.make_state(self._inner.step)
            return None
        if self._synchronizer.has_finished:
            raise UsageError(
                "This worker has said by finish() that it makes no more steps; make a new"
                " DistributedOptimizer to train on."
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        skipped = found_inf is not None and bool(found_inf.item())
        if not skipped:
            self._unscale()

        def update() -> None:
            if not skipped:
                self._inner.step()

        self._sole.check()
        self.flat.take_back()
        with self._endings.noting(), self._bare_steps.expected(), in_profile("shoal:step"):
            self._synchronizer.step(update, skipped=skipped)
        note_step(self._inner)  # it may have been put off, or made by a server
        self._num_steps += 1
        self.replica.groups.note_progress()
        self._training.num_steps += 1
        self._training.is_averaged = False
        if loss is not None:
            self._samples.tell_loss(loss)
        self._samples.end_step(self._num_steps)
        self.stopwatch.step = self._num_steps
        with self._endings.noting():
            self._alike_check.look(self._num_steps)
        self._remark_log.look()
        if self._endings.is_leaving:
            self._synchronizer.settle()
            if self.replica.samples is not None:
                self.replica.samples.close()
            leave()
        return loss

    def _only_makes_state(self) -> bool:
        """Return whether this step changes no parameter, but lets the optimizer make its state.

        torch.distributed.checkpoint makes such steps to learn what a fresh optimizer's state looks
        like: without autograd, with gradients of zero and learning rates of zero.
        """
        if torch.is_grad_enabled() or any(group.get("lr", 1.0) for group in self.param_groups):
            return False
        gradients = [
            p.grad for group in self.param_groups for p in group["params"] if p.requires_grad
        ]
        return not any(gradient is None or gradient.any() for gradient in gradients)

    def _unscale(self) -> None:
        """Divide the gradients by the scaler's scale, unless the user's `unscale_` already did."""
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is None:
            return
        inverse = scale.double().reciprocal().float()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(inverse.to(parameter.grad.device))

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients locally: wrap all but the last micro-batch of a step in it."""
        with self._synchronizer.accumulating():
            yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. An update that `step()` has put off keeps its own gradients."""
        with self._synchronizer.clearing(set_to_none=set_to_none):
            self._inner.zero_grad(set_to_none=set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse: the workers agreed on the parameters when this optimizer was made."""
        raise UsageError(
            "Parameter groups cannot be added to a DistributedOptimizer; add them to the optimizer"
            " before wrapping it."
        )

    def settle(self) -> None:
        """Finish what `step` has put off: then parameters and state are as after it."""
        self._synchronizer.settle()

    def finish(self) -> None:
        """Make no more steps; return once no other worker needs this one. See the strategy.

        Safe to call twice.
        """
        if self._synchronizer.has_finished:
            return
        self._remark_log.close()
        if self._synchronizer.has_model:  # else it ends in its own memory, and the model stays
            with suppress(UsageError):  # cast since its last step: the others have that without it
                self.flat.take_back()
        with self._endings.noting():
            self._alike_check.publish(self._num_steps)
            self._synchronizer.finish()
            self._alike_check.end()
        self._bare_steps.end()
        self._training.has_finished = True
        if self._definition.averaged is Averaged.GRADIENTS:  # all have the last update's weights
            self._training.is_averaged = True
        if isinstance(self.stopwatch.sink, TraceFile):
            self.stopwatch.sink.close()

    def average_model(self) -> float:
        """Replace every replica by the mean of all; return the consensus distance before.

        Collective: every worker calls it, after `finish()`; a script with several optimizers
        finishes all of them before the first average. A worker that trains on for longer than
        the deadline is waited for. Raises `WorkerLost` if one is lost, and `DeadlineExceeded` if
        one is alive but has made no step for so long.
        """
        with self._endings.noting():
            self._num_averages += 1
            agreement = Agreement(self.replica, f"averaging/{self._num_averages}")
            agreement.meet()
            self.flat.take_back()
            distance = average_model(self.flat, self._communicator, agreement)
        self._training.is_averaged = True
        return distance

    def checkpoint_part(self) -> CheckpointPart | None:
        """Return what this worker adds to a checkpoint, None if that is nothing."""
        self.settle()
        return self._synchronizer.checkpoint_part()

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state with the strategy's, schedule position included."""
        self.settle()
        return {
            **self._inner.state_dict(),
            "shoal": {
                "strategy": self._definition.word,
                "num_steps": self._num_steps,
                "state": self._synchronizer.state_dict(),
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from `state_dict`.

        One saved by the bare optimizer is accepted as well, unless it holds state that a parameter
        server would keep elsewhere (`UsageError`).
        """
        self.settle()
        state_dict = dict(state_dict)
        own = state_dict.pop("shoal", None)
        self._inner.load_state_dict(state_dict)
        if own is None:
            return
        if own["strategy"] != self._definition.word:
            message = (
                f"The checkpoint was made with sync={own['strategy']!r}, not"
                f" {self._definition.word!r}; use the same strategy, or drop its 'shoal' entry."
            )
            raise UsageError(message)
        self._num_steps = own["num_steps"]
        self._synchronizer.load_state_dict(own["state"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied: hooks, threads and connections belong to this one."""
        raise UsageError("A DistributedOptimizer cannot be copied; copy its state_dict() instead.")

    def __repr__(self) -> str:
        return f"DistributedOptimizer(sync={self._definition.word!r}, {self._inner!r})"

    def __getattr__(self, name: str) -> Any:
        # torch keeps adding small attributes to optimizers (hooks, flags): the wrapped one has them
        if name in {"_inner", "found_inf", "grad_scale"}:
            raise AttributeError(name)
        return getattr(self._inner, name)


def _strategy(
    sync: str | AbstractDefinition, asked: Mapping[str, object], unknown: Mapping[str, object]
) -> AbstractDefinition:
    """Return the strategy with the options asked for; refuse options that no strategy has."""
    strategy = make_strategy(sync, {k: v for k, v in asked.items() if v is not None})
    refuse_options(strategy, unknown)
    return strategy


def _described(strategy: AbstractDefinition) -> str:
    """Return the strategy with its options, as they are given."""
    given = {"sync": strategy.word, **strategy.options()}
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def _agree(
    session: Session,
    training: str,
    strategy: AbstractDefinition,
    given: Mapping[str, object],
    model: list[str],
    samples: SampleCounts | None,
) -> None:
    """Return if all workers bring the same plans; collective. Raises `MismatchError`."""
    options = {**strategy.options(), **given}
    if samples is not None:
        options |= samples.options
    if not session.member.is_newcomer:
        say_hosts(session.facts, training, session.view)
    if session.member.is_fixed:
        say_place(session.facts, training, session.rank, place_here())
    session.agree(training, strategy=strategy.word, options=options, model=model)
    if samples is not None:
        samples.begin()


def _samples(session: Session, training: str, strategy: AbstractDefinition) -> SampleCounts | None:
    """Return the batches that steps are to use, if a sampler has been made for them."""
    coming = session.next_training
    sampler, coming.sampler = coming.sampler, None
    if not isinstance(sampler, ElasticSampler):
        return None
    return sampler.begin(session, training, strategy)


def _enter(session: Session, replica: Replica, executor: AbstractExecutor, loaded: int) -> int:
    """Let a training begin, after `loaded` steps; a newcomer goes on where the others are.

    A newcomer first becomes a member. Return the number of steps made so far.
    """
    member = session.member
    member.enter(replica.session, executor)
    if member.is_newcomer:
        frozen = frozen_digests(replica)  # before the others wait for this worker
        member.send_ahead = partial(sent_ahead.take, replica, frozen, is_exact=executor.is_exact)
        session.become_member(replica.session)
        replica.stopwatch.step = loaded = take_over(replica, executor, frozen)
    member.send_ahead = partial(sent_ahead.give, replica, is_exact=executor.is_exact)
    executor.begin()
    return loaded


def _begin(
    session: Session, training: str, model: nn.Module, communicator: Communicator
) -> tuple[FlatParameters, View | None]:
    """Return the flat tensors of `model`, which all members of a view begin with, and that view.

    Collective. If the view changes before all have them, all that are left begin anew. A newcomer
    does not know the view.
    """
    member = session.member
    if member.is_newcomer:
        return FlatParameters(model), None
    beginner = Beginner(
        training, member, communicator, session.facts, session.control, session.deadline_s
    )
    return Agreement(beginner, "beginning").carry_out(
        lambda view: (_begin_alike(model, communicator, view.members[0]), view)
    )


def _begin_alike(model: nn.Module, communicator: Communicator, source: int) -> FlatParameters:
    """Return the flat tensors of `model`, which becomes that of `source` on every worker."""
    broadcast_buffers(model, communicator, source)
    flat = FlatParameters(model)
    for buffer in flat.buffers:
        communicator.broadcast(buffer, source)
    return flat
