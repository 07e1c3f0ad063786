"""The sharded parameter server between real processes, against oracles in one process."""

from __future__ import annotations

import itertools
import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from replicas import bind, parameters_of
from served_model import backward, batch, make_model, make_optimizer, never
from torch import Tensor, nn

import shoal
from shoal.carriers.torch_communicator import TorchCommunicator
from shoal.errors import UsageError, WorkerLost
from shoal.strategies import ParameterServer
from shoal.trace import SpanKind
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_processes import RunWorkers


# --- BSP ------------------------------------------------------------------------------------------


def train_bsp(
    kind: str, num_steps: int, stagger: int = 0, servers: int = 0
) -> tuple[Tensor, Tensor]:
    """Return the parameters after the last step and after `finish`."""
    model = make_model()
    optimizer = make_optimizer(kind, model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // 2))
    strategy = bind(ParameterServer.bsp(servers=servers), model, optimizer)
    rank = strategy.course.rank
    optimizer._opt_called = True  # the scheduler looks for it
    for step in range(num_steps):
        backward(model, *batch(rank, step))
        time.sleep(0.01 * (rank * stagger % 3))
        strategy.step(never)
        schedule.step()
    last = parameters_of(model)
    strategy.finish()
    updates = strategy.replica.counters["shard_updates"]
    assert updates == (num_steps if rank < (servers or 100) else 0)
    return last, parameters_of(model)


def train_alone(kind: str, num_steps: int, world_size: int) -> Tensor:
    model = make_model()
    optimizer = make_optimizer(kind, model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** (step // 2))
    for step in range(num_steps):
        batches = [batch(rank, step) for rank in range(world_size)]
        backward(model, torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]))
        optimizer.step()
        schedule.step()
    return parameters_of(model)


@pytest.mark.parametrize(
    ("world_size", "kind"),
    seldom(itertools.product((1, 2, 3), ("sgd", "adamw")), often=[(1, "sgd"), (3, "adamw")]),
)
def test_bsp_equals_one_process_on_the_whole_batch(
    run_workers: RunWorkers, kind: str, world_size: int
) -> None:
    expected = train_alone(kind, 6, world_size)
    for last, final in run_workers(train_bsp, world_size, kind, 6):
        torch.testing.assert_close(last, expected, rtol=0, atol=1e-12)
        assert torch.equal(last, final)


@pytest.mark.parametrize("servers", [1, 2])
def test_some_workers_may_serve_all(run_workers: RunWorkers, servers: int) -> None:
    expected = train_alone("adamw", 4, 3)
    for last, final in run_workers(train_bsp, 3, "adamw", 4, 0, servers):
        torch.testing.assert_close(last, expected, rtol=0, atol=1e-12)
        assert torch.equal(last, final)


def test_bsp_gives_the_same_bits_whatever_the_order_of_arrival(run_workers: RunWorkers) -> None:
    one, other = (run_workers(train_bsp, 4, "sgd", 4, stagger)[0][0] for stagger in (1, 2))
    assert torch.equal(one, other)


def train_unevenly(steps: list[int]) -> Tensor:
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    strategy = bind(ParameterServer.bsp(), model, optimizer)
    rank = strategy.course.rank
    for step in range(steps[rank]):
        backward(model, *batch(rank, step))
        strategy.step(never)
    strategy.finish()
    return parameters_of(model)


def test_a_worker_that_ends_early_leaves_the_mean_to_the_others(run_workers: RunWorkers) -> None:
    steps = [5, 0, 3]
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    for step in range(max(steps)):
        batches = [batch(rank, step) for rank in range(3) if step < steps[rank]]
        backward(model, torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]))
        optimizer.step()
    for final in run_workers(train_unevenly, 3, steps):
        torch.testing.assert_close(final, parameters_of(model), rtol=0, atol=1e-12)


def train_two(num_steps: int) -> list[Tensor]:
    """Two models at the same time, each with a parameter server of its own."""
    communicator = TorchCommunicator(deadline_s=20.0)
    models = [make_model(), make_model()]
    strategies = [
        bind(ParameterServer.bsp(), model, make_optimizer(kind, model), communicator)
        for model, kind in zip(models, ("sgd", "adamw"), strict=True)
    ]
    for step in range(num_steps):
        for model, strategy in zip(models, strategies, strict=True):
            backward(model, *batch(communicator.rank, step))
            strategy.step(never)
    for strategy in strategies:
        strategy.finish()
    return [parameters_of(model) for model in models]


def train_two_alone(kind: str, num_steps: int) -> Tensor:
    model = make_model()
    optimizer = make_optimizer(kind, model)
    for step in range(num_steps):
        inputs, targets = zip(*(batch(rank, step) for rank in range(2)), strict=True)
        backward(model, torch.cat(inputs), torch.cat(targets))
        optimizer.step()
    return parameters_of(model)


def test_two_models_train_at_the_same_time(run_workers: RunWorkers) -> None:
    expected = [train_two_alone(kind, 4) for kind in ("sgd", "adamw")]
    for finals in run_workers(train_two, 2, 4):
        torch.testing.assert_close(finals, expected, rtol=0, atol=1e-12)


# --- what exchanges hide behind -------------------------------------------------------------------

TURNS = 5
"""Channel of the tests' own messages."""


def make_pieces() -> nn.Module:
    """Two layers, each large enough to be a piece: the front one is piece 0."""
    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(2)))


def step_while_the_other_computes() -> tuple[str, Tensor, Tensor]:
    """Rank 1 computes its gradient when rank 0's step has returned."""
    communicator = TorchCommunicator(deadline_s=20.0)
    model = make_pieces()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    strategy = bind(ParameterServer.bsp(overlap="next-forward"), model, optimizer, communicator)
    before, word = parameters_of(model), torch.zeros(1)
    if communicator.rank == 1:
        communicator.receive(word, 0, channel=TURNS).wait()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    strategy.step(never)
    kind = type(model[0].weight).__name__
    if communicator.rank == 0:
        communicator.send(word, 1, channel=TURNS).wait()
    after = parameters_of(model)
    strategy.finish()
    return kind, before, after


def test_a_step_returns_with_its_pull_under_way(run_workers: RunWorkers) -> None:
    for kind, before, after in run_workers(step_while_the_other_computes, 2):
        assert kind == "AwaitedParameter"
        assert torch.equal(after, before - 1)


def push_in_backward() -> tuple[list[int], bool, Tensor, Tensor]:
    """Return what servers have updated, by piece, when rank 0 has only the rear gradient."""
    communicator = TorchCommunicator(deadline_s=20.0)
    model = make_pieces()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    strategy = bind(ParameterServer.bsp(overlap="layers"), model, optimizer, communicator)
    before = parameters_of(model)
    inputs = torch.ones(1, 1024)
    front = model[0](inputs)
    model[1](front if communicator.rank else front.detach()).sum().backward()
    shards = list(strategy._serving.host.shards.values())
    while not shards[1].decisions.version:
        strategy.check()
        time.sleep(0.001)
    communicator.barrier()  # all have pushed what they push before their step
    versions = [shard.decisions.version for shard in shards]
    is_as_before = torch.equal(parameters_of(model), before)
    communicator.barrier()
    strategy.step(never)
    after = parameters_of(model)
    strategy.finish()
    return versions, is_as_before, after, parameters_of(model)


def test_a_layer_is_updated_when_all_have_its_gradient(run_workers: RunWorkers) -> None:
    outcomes = run_workers(push_in_backward, 2)
    for versions, is_as_before, after, final in outcomes:
        assert versions == [0, 1], "the rear layer's, and before any step"
        assert is_as_before, "until the step the model is the one that gradients are of"
        assert torch.equal(after, final)
        assert torch.equal(after, outcomes[0][2])


def tags_of_pushes(overlap: Any) -> list[float]:
    """Return how far to the rear, from 0 to 1, the pushes of a step are tagged, in their order."""
    communicator = TorchCommunicator(deadline_s=20.0)
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    pushes, send = list[float](), communicator.send

    def noted(buffer: Tensor, *given: Any, layers: Any = None, **options: Any) -> Any:
        if options.get("lossy"):
            pushes.append(layers.front / layers.depth)
        return send(buffer, *given, layers=layers, **options)

    communicator.send = noted  # type: ignore[method-assign]
    strategy = bind(ParameterServer.bsp(overlap=overlap), model, optimizer, communicator)
    for _ in range(2):  # the first forward pass says in which order layers are used
        pushes.clear()
        model(torch.ones(1, 1024)).sum().backward()
        strategy.step(never)
    seen = pushes[:]
    strategy.finish()
    return seen


def test_pushes_in_backward_go_in_turn_but_for_the_front(run_workers: RunWorkers) -> None:
    """Whatever overtakes what backward had first delays its update, and its way back."""
    for overlap, tags in (("next-forward", [0, 1 / 3, 2 / 3]), ("layers", [1 / 2, 1 / 2, 0])):
        assert run_workers(tags_of_pushes, 2, overlap) == [tags] * 2


# --- skipped steps, unused parameters, buffers ----------------------------------------------------


def train_with_skips(skips: list[list[int]]) -> Tensor:
    model = make_model()
    strategy = bind(ParameterServer.bsp(), model, make_optimizer("sgd", model))
    rank = strategy.course.rank
    for step, skipping in enumerate(skips):
        backward(model, *batch(rank, step))
        if rank in skipping:
            for parameter in model.parameters():
                parameter.grad.fill_(float("inf"))
        strategy.step(never, skipped=rank in skipping)
    strategy.finish()
    return parameters_of(model)


def test_a_skipped_step_counts_for_nothing(run_workers: RunWorkers) -> None:
    skips = [[], [1], [0, 1], [0], []]
    model = make_model()
    optimizer = make_optimizer("sgd", model)
    for step, skipping in enumerate(skips):
        batches = [batch(rank, step) for rank in range(2) if rank not in skipping]
        if batches:
            backward(model, torch.cat([b[0] for b in batches]), torch.cat([b[1] for b in batches]))
            optimizer.step()
    for final in run_workers(train_with_skips, 2, skips):
        torch.testing.assert_close(final, parameters_of(model), rtol=0, atol=1e-12)


def train_with_unused() -> Tensor:
    parameters = nn.ParameterList([nn.Parameter(torch.ones(3)) for _ in range(4)])
    parameters[3].requires_grad_(False)
    optimizer = torch.optim.SGD(parameters, lr=0.5, momentum=0.5, weight_decay=1.0)
    strategy = bind(ParameterServer.bsp(), parameters, optimizer)
    rank = strategy.course.rank
    parameters[0].grad = torch.full((3,), 2.0)
    if rank == 0:
        parameters[1].grad = torch.full((3,), 2.0)
    strategy.step(never)
    strategy.finish()
    return torch.stack([p.detach().clone() for p in parameters])


def test_parameters_without_gradients(run_workers: RunWorkers) -> None:
    used_by_both = 1 - 0.5 * (2 + 1)
    used_by_one = 1 - 0.5 * (2 / 2 + 1)
    expected = torch.tensor([used_by_both, used_by_one, 1.0, 1.0])
    for final in run_workers(train_with_unused, 2):
        assert torch.equal(final, expected[:, None].expand(4, 3)), "unused and frozen ones stay"


def make_normed() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 3, bias=False)).double()


def normed_inputs(rank: int, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(50 * step + rank)
    return torch.randn(6, 5, generator=generator, dtype=torch.float64) * (rank + 1) + rank


def train_normed(strategy: ParameterServer, num_steps: int) -> tuple[list[Tensor], int]:
    model = make_normed()
    with torch.no_grad():
        model[1].weight.fill_(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = bind(strategy, model, optimizer)
    rank = strategy.course.rank
    for step in range(num_steps):
        model.zero_grad()
        model(normed_inputs(rank, step)).square().mean().backward()
        strategy.step(never)
    strategy.finish()
    return [model[0].running_mean.clone(), model[0].running_var.clone()], int(
        model[0].num_batches_tracked
    )


def test_asp_with_one_worker_keeps_its_statistics(run_workers: RunWorkers) -> None:
    (((found, _), _),) = run_workers(train_normed, 1, ParameterServer.asp(), 3)
    mean = torch.zeros(5).double()
    for step in range(3):
        mean = 0.9 * mean + 0.1 * normed_inputs(0, step).mean(0)
    torch.testing.assert_close(found, mean, rtol=0, atol=1e-12)


def test_batch_norm_statistics_are_averaged(run_workers: RunWorkers) -> None:
    mean, variance = torch.zeros(5).double(), torch.ones(5).double()
    for step in range(3):
        inputs = [normed_inputs(rank, step) for rank in range(3)]
        mean = 0.9 * mean + 0.1 * torch.stack([x.mean(0) for x in inputs]).mean(0)
        variance = 0.9 * variance + 0.1 * torch.stack([x.var(0) for x in inputs]).mean(0)
    for (found_mean, found_variance), num_batches in run_workers(
        train_normed, 3, ParameterServer.bsp(), 3
    ):
        torch.testing.assert_close(found_mean, mean, rtol=0, atol=1e-12)
        torch.testing.assert_close(found_variance, variance, rtol=0, atol=1e-12)
        assert num_batches == 3, "integers are not averaged"


# --- checkpoints ----------------------------------------------------------------------------------


def train_and_continue() -> tuple[Tensor, Tensor]:
    """Return the parameters after six steps, and after three more from a checkpoint of three."""
    communicator = TorchCommunicator(deadline_s=20.0)

    def steps(model: nn.Module, strategy: ParameterServer, numbers: range) -> None:
        for step in numbers:
            backward(model, *batch(communicator.rank, step))
            strategy.step(never)

    model = make_model()
    optimizer = make_optimizer("adamw", model)
    strategy = bind(ParameterServer.bsp(), model, optimizer, communicator)
    optimizer.param_groups[0]["lr"] = 0.02
    steps(model, strategy, range(3))
    saved_model = {name: value.clone() for name, value in model.state_dict().items()}
    saved_optimizer, saved = optimizer.state_dict(), strategy.state_dict()
    steps(model, strategy, range(3, 6))
    strategy.finish()

    again = make_model()
    optimizer = make_optimizer("adamw", again)
    strategy = bind(ParameterServer.bsp(), again, optimizer, communicator)
    optimizer.load_state_dict(saved_optimizer)
    strategy.load_state_dict(saved)
    again.load_state_dict(saved_model)
    steps(again, strategy, range(3, 6))
    strategy.finish()
    return parameters_of(model), parameters_of(again)


def test_a_checkpoint_continues_bit_for_bit(run_workers: RunWorkers) -> None:
    for straight, continued in run_workers(train_and_continue, 3):
        assert torch.equal(straight, continued)


def continue_at_another_rate() -> list[float]:
    """Return how far steps go: one at 0.01, and those of two later jobs that set their own rate."""
    communicator = TorchCommunicator(deadline_s=20.0)
    model = nn.Linear(2, 1, bias=False)
    saved: dict[str, Any] = {}
    lengths = []
    for rate in (0.01, 0.1, 0.3):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        strategy = bind(ParameterServer.bsp(), model, optimizer, communicator)
        if saved:
            optimizer.load_state_dict(saved["optimizer"])
            strategy.load_state_dict(saved["strategy"])
        optimizer.param_groups[0]["lr"] = rate
        before = parameters_of(model)
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        strategy.step(never)
        lengths.append(float((before - parameters_of(model))[0]))
        saved = {"optimizer": optimizer.state_dict(), "strategy": strategy.state_dict()}
        strategy.finish()
    return lengths


def test_a_learning_rate_set_after_loading_counts(run_workers: RunWorkers) -> None:
    for lengths in run_workers(continue_at_another_rate, 2):
        assert lengths == pytest.approx([0.01, 0.1, 0.3], rel=1e-5)


def refused_checkpoints() -> None:
    model = make_model()
    strategy = bind(ParameterServer.bsp(), model, make_optimizer("sgd", model))
    state = strategy.state_dict()
    with pytest.raises(UsageError, match="3 workers"):
        strategy.load_state_dict({**state, "workers": 3})
    with pytest.raises(UsageError, match="is rank 2's"):  # of the same shape, as likely as not
        strategy.load_state_dict({**state, "rank": 2})
    other = {**state["shards"][0], "weights": torch.zeros(5, dtype=torch.float64)}
    for shards in ([other], []):
        with pytest.raises(UsageError, match="another shard"):
            strategy.load_state_dict({**state, "shards": shards})
    strategy.finish()


def test_checkpoints_of_other_jobs_are_refused(run_workers: RunWorkers) -> None:
    run_workers(refused_checkpoints, 1)


# --- lost workers ---------------------------------------------------------------------------------


def lose_a_worker(strategy: ParameterServer, victim: int) -> str:
    """Train until the loss of `victim`, who dies within its third step, is noticed."""
    session = shoal.init(deadline_s=15.0)
    model = make_model()
    strategy = bind(
        strategy, model, make_optimizer("sgd", model), session.communicator, session.deadline_s
    )

    def train() -> None:
        for step in itertools.count():
            backward(model, *batch(session.rank, step))
            if session.rank == victim and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            strategy.step(never)

    with pytest.raises(WorkerLost) as caught:
        train()
    return str(caught.value)


@pytest.mark.parametrize(
    ("victim", "make"),
    seldom(
        itertools.product((1, 2), (ParameterServer.bsp, ParameterServer.asp)),
        often=[(1, ParameterServer.bsp), (2, ParameterServer.asp)],
    ),
)
def test_a_killed_worker_is_reported_in_training(
    run_workers: RunWorkers, make: Callable[[], ParameterServer], victim: int
) -> None:
    messages = run_workers(lose_a_worker, 3, make(), victim, may_die=(victim,))
    assert [message is None for message in messages] == [rank == victim for rank in range(3)]


def lose_a_pull(overlap: str) -> tuple[bool, bool]:
    """Return whether the loss came with the step, and whether the model is as it was before it."""
    session = shoal.init(deadline_s=15.0)
    model = make_model()
    definition = ParameterServer.bsp(overlap=overlap)
    optimizer = shoal.DistributedOptimizer(make_optimizer("sgd", model), model, definition)
    for step in range(2):
        backward(model, *batch(session.rank, step))
        optimizer.step()
    before = parameters_of(model)
    if session.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    steps: list[int] = []

    def train() -> None:
        for step in range(2, 4):
            backward(model, *batch(session.rank, step))
            optimizer.step()
            steps.append(step)

    with pytest.raises(WorkerLost):
        train()
    return not steps, torch.equal(parameters_of(model), before)


@pytest.mark.parametrize("overlap", ["none", "next-forward"])
def test_a_pull_that_fails_leaves_the_model_as_it_was(
    run_workers: RunWorkers, overlap: str
) -> None:
    survivor, _ = run_workers(lose_a_pull, 2, overlap, may_die=(1,))
    assert survivor == (overlap == "none", True)


# --- refusals and accounting ----------------------------------------------------------------------


def refused_optimizers() -> None:
    def attempt(optimizer: torch.optim.Optimizer, model: nn.Module, words: str) -> None:
        with pytest.raises(UsageError, match=words):
            bind(ParameterServer.bsp(), model, optimizer)

    model = make_model()
    attempt(torch.optim.LBFGS(model.parameters()), model, "element-wise")
    attempt(torch.optim.Adafactor(model.parameters()), model, "element-wise")
    attempt(torch.optim.SparseAdam(model.parameters()), model, "takes sparse ones only")
    used = torch.optim.Adam(model.parameters())
    backward(model, *batch(0, 0))
    used.step()
    fresh = torch.optim.Adam(model.parameters())
    bind(ParameterServer.bsp(), model, fresh)
    with pytest.raises(UsageError, match="load it before DistributedOptimizer is made"):
        fresh.load_state_dict(used.state_dict())
    fresh.load_state_dict({**used.state_dict(), "state": {}})
    model = make_model()
    attempt(torch.optim.SGD(make_model().parameters(), lr=1.0), model, "flat tensors")


def test_optimizers_it_cannot_run_are_refused(run_workers: RunWorkers) -> None:
    run_workers(refused_optimizers, 1)


def test_names_and_options() -> None:
    assert [ParameterServer(s).word for s in (0, 1, 5, None)] == [
        "ps-bsp",
        "ps-ssp",
        "ps-ssp",
        "ps-asp",
    ]
    assert ParameterServer.ssp(staleness=4).options() == {
        "staleness": 4,
        "scale_updates": True,
        "pull_bound": 0.0,
        "overlap": "none",
        "servers": 0,
    }
    with pytest.raises(UsageError, match="Servers are 1 to 2 of the workers"):
        ParameterServer.bsp(servers=3).check_size(2)
    with pytest.raises(UsageError, match="none, next-forward, layers"):
        ParameterServer.bsp(overlap="backward")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 0"):
        ParameterServer(-1)
    with pytest.raises(UsageError, match="ps-bsp"):
        ParameterServer.ssp(staleness=0)


def counters_of_bsp(num_steps: int) -> dict[str, float]:
    model = make_model()
    strategy = bind(ParameterServer.bsp(), model, make_optimizer("sgd", model))
    replica = strategy.replica
    for step in range(num_steps):
        backward(model, *batch(replica.communicator.rank, step))
        strategy.step(never)
    strategy.finish()
    spans = [span for span in replica.stopwatch.sink.spans if span.members == (0, 1)]
    assert [span.kind for span in spans] == [SpanKind.EXCHANGE] * num_steps
    return replica.counters


def test_bytes_and_staleness_are_counted(run_workers: RunWorkers) -> None:
    counters = run_workers(counters_of_bsp, 2, 5)
    model_bytes = 66 * 8
    for own in counters:
        assert own["pulled_bytes"] == 6 * (model_bytes // 2 + 2 * 8), "the last is of finish"
        assert own["pushed_bytes"] > 6 * model_bytes // 2
        assert own["shard_updates"] == 5
        assert own["shard_reads"] == 2 * (1 + 5), "the first one is free"
        assert own["max.staleness"] == 0


def step_pause_step(deadline_s: float, pause_s: float) -> list[float]:
    shoal.init(deadline_s=deadline_s)
    model = torch.nn.Linear(3, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync="ps-bsp")
    for is_followed_by_pause in (True, False):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        if is_followed_by_pause:  # everyone evaluates, say: the pause itself is what is under test
            time.sleep(pause_s)
    optimizer.finish()
    return model.weight.detach().flatten().tolist()


def test_servers_may_be_idle_for_longer_than_the_deadline(run_workers: RunWorkers) -> None:
    first, second = run_workers(step_pause_step, 2, 2.0, 3.0)
    assert first == second
