"""DistributedOptimizer against oracles: what one process computes for all workers at once."""

from __future__ import annotations

import copy
import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.functional import cross_entropy

import shoal
from shoal.groups import make_schedule
from shoal.strategies import STRATEGIES, make_strategy
from thoroughness import ONE_OF_EACH, seldom

if TYPE_CHECKING:
    from pathlib import Path

    from worker_processes import RunWorkers

STEPS = 6
BATCH = 8
FEATURES = 5


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, 3))


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs, torch.randint(0, 3, (BATCH,), generator=generator)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Two parameter groups with settings of their own."""
    first, last = list(model[0].parameters()), list(model[2].parameters())
    groups = [{"params": first, "lr": 0.1}, {"params": last, "lr": 0.05, "weight_decay": 0.01}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def train_one_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> None:
    optimizer.zero_grad()
    inputs, targets = batch_of(rank, step)
    cross_entropy(model(inputs), targets).backward()
    optimizer.step()


def parameters_of(model: nn.Module) -> list[float]:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()


def assert_close(ours: list[float], oracle: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(oracle), atol=2e-6, rtol=1e-5)


# --- all-reduce equals one process that sees every worker's batch -------------------------------


def train_all_reduce(clip: float | None, micro_batches: int) -> list[float]:
    session = shoal.init(deadline_s=30)
    model = make_model()
    optimizer = shoal.DistributedOptimizer(make_optimizer(model), model, sync="all-reduce")
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = batch_of(session.rank, step)
        parts = list(zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True))
        with optimizer.no_sync():
            for part in parts[:-1]:
                (cross_entropy(model(part[0]), part[1]) / micro_batches).backward()
        (cross_entropy(model(parts[-1][0]), parts[-1][1]) / micro_batches).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
    optimizer.finish()
    return parameters_of(model)


@pytest.mark.parametrize(("clip", "micro_batches"), seldom([(None, 1), (0.1, 4)], often=[(0.1, 4)]))
def test_all_reduce_equals_one_process_with_the_whole_batch(
    run_workers: RunWorkers, clip: float | None, micro_batches: int
) -> None:
    world_size = 3
    results = run_workers(train_all_reduce, world_size, clip, micro_batches)
    model = make_model()
    optimizer = make_optimizer(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        batches = [batch_of(rank, step) for rank in range(world_size)]
        inputs, targets = (torch.cat(part) for part in zip(*batches, strict=True))
        cross_entropy(model(inputs), targets).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
    for result in results:
        assert_close(result, parameters_of(model))
    assert results[0] == results[1] == results[2]


# --- scheduled averaging equals the mixing of all replicas in one process ------------------------


def train_scheduled(sync: str, options: dict[str, object], hosts: list[int]) -> list[float]:
    """Train on hosts of so many workers, each of which hears of its own host's number only."""
    own = [size for size in hosts for _ in range(size)][int(os.environ["RANK"])]
    os.environ["LOCAL_WORLD_SIZE"] = str(own)
    session = shoal.init(deadline_s=30)
    model = make_model()
    strategy = make_strategy(sync, options)
    optimizer = shoal.DistributedOptimizer(make_optimizer(model), model, sync=strategy)
    for step in range(STEPS):
        train_one_step(model, optimizer, session.rank, step)
    result = parameters_of(model)
    optimizer.finish()
    return result


def host_of_a_dealt_rank() -> int:
    """Return this rank's host where the launcher deals 6 ranks to 3 hosts, and names none."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    os.environ["LOCAL_RANK"] = str(int(os.environ["RANK"]) // 3)
    return shoal.init(deadline_s=30).host


def test_all_hear_that_ranks_are_dealt_to_hosts_also_those_who_cannot_tell(
    run_workers: RunWorkers,
) -> None:
    assert run_workers(host_of_a_dealt_rank, 6) == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("sync", "options", "schedule"),
    seldom(
        [
            ("ds-sync", {}, "ds-sync"),
            ("ds-sync", {"shuffle": "topology"}, "ds-sync-topology"),
            ("ripples-static", {}, "ripples-static"),
        ],
        often=[
            ("ds-sync", {"shuffle": "topology"}, "ds-sync-topology"),
            ("ripples-static", {}, "ripples-static"),
        ],
    ),
)
def test_scheduled_averaging_equals_mixing_in_one_process(
    run_workers: RunWorkers, sync: str, options: dict[str, object], schedule: str
) -> None:
    hosts = [2, 2, 1]
    world_size = sum(hosts)
    results = run_workers(train_scheduled, world_size, sync, options, hosts)
    models = [make_model() for _ in range(world_size)]
    optimizers = [make_optimizer(model) for model in models]
    plan = make_schedule(schedule, world_size, workers_per_host=hosts[0])
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            train_one_step(model, optimizer, rank, step)
        for group in plan.round_at(step):
            average(models, [(rank, float(group.share_of(rank))) for rank in group.members])
    for result, model in zip(results, models, strict=True):
        assert_close(result, parameters_of(model))


def average(models: list[nn.Module], shares: list[tuple[int, float]]) -> None:
    with torch.no_grad():
        for parameters in zip(*(models[rank].parameters() for rank, _ in shares), strict=True):
            pairs = zip(parameters, shares, strict=True)
            mean = sum(p.double() * share for p, (_, share) in pairs)
            for parameter in parameters:
                parameter.copy_(mean)


def train_beside_averaging(
    sync: str, transport: str, wire: str | None, options: dict[str, object]
) -> tuple[list[float], list[float]]:
    session = shoal.init(deadline_s=30)
    model = make_model()
    inner = make_optimizer(model)
    optimizer = shoal.DistributedOptimizer(
        inner,
        model,
        sync=make_strategy(sync, {"interval": 1, "overlap": "next-steps", **options}),
        transport=transport,
        wire=wire,
    )
    wires = watch_wires(optimizer.replica.communicator)
    optimizer.replica.communicator.barrier()  # so that the first group is of all
    for step in range(STEPS):
        train_one_step(model, optimizer, session.rank, step)
    before = parameters_of(model)
    optimizer.state_dict()  # waits for the last average
    result = parameters_of(model)
    assert set(wires) == {wire}
    optimizer.finish()
    assert set(wires) == {wire}, "who has ended sends what those send who train on"
    return before, result


def watch_wires(communicator: Any) -> list[str | None]:
    """Return a list that will hold what each average of a group may be sent as."""
    wires, average = [], communicator.group_average

    def watched(*arguments: Any, wire: str | None = None, **options: Any) -> Any:
        wires.append(wire)
        return average(*arguments, wire=wire, **options)

    communicator.group_average = watched
    return wires


SCHEDULES: dict[str, tuple[str, dict[str, object]]] = {
    "local-sgd": ("all-reduce", {}),
    "ds-sync": ("ds-sync", {}),
    "ripples-static": ("ripples-static", {}),
    "ripples": (  # whoever asks first draws a group of all, the others take it
        "all-reduce",
        {"group_size": 4, "global_division": False, "slowdown_threshold": None},
    ),
}


@pytest.mark.parametrize(
    ("sync", "transport", "wire"),
    seldom(
        [
            (sync, *over)
            for sync in SCHEDULES
            for over in (("gloo", None), ("shoal", None), ("shoal", "float16"))
        ],
        often=[
            ("local-sgd", "gloo", None),
            ("ripples", "shoal", "float16"),
        ],
    ),
)
def test_averaging_beside_computing_adds_what_it_has_changed(
    run_workers: RunWorkers, sync: str, transport: str, wire: str | None
) -> None:
    """With an average due at every step, each is taken in at the end of the next one."""
    world_size = 4
    schedule, options = SCHEDULES[sync]
    results = run_workers(train_beside_averaging, world_size, sync, transport, wire, options)
    models = [make_model() for _ in range(world_size)]
    optimizers = [make_optimizer(model) for model in models]
    plan = make_schedule(schedule, world_size, workers_per_host=world_size)
    changes = [[torch.zeros_like(p) for p in model.parameters()] for model in models]
    for step in range(STEPS):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            train_one_step(model, optimizer, rank, step)
            add(model, changes[rank])
        copies = [copy.deepcopy(model) for model in models]
        for group in plan.round_at(step):
            average(copies, [(rank, float(group.share_of(rank))) for rank in group.members])
        changes = [
            [new.detach() - old.detach() for new, old in zip(*each, strict=True)]
            for each in zip(
                (each.parameters() for each in copies),
                (each.parameters() for each in models),
                strict=True,
            )
        ]
    for rank, found in enumerate(results):
        oracle = parameters_of(models[rank])
        add(models[rank], changes[rank])
        oracles = torch.tensor([oracle, parameters_of(models[rank])])
        apart = (torch.tensor(found) - oracles).abs()
        if wire is None:
            assert (apart <= 2e-6 + 1e-5 * oracles.abs()).all()
        else:  # a rounding per step that others have taken up since
            step = torch.finfo(getattr(torch, wire)).eps * float(oracles.abs().max())
            assert 0 < float(apart.max()) <= STEPS * step


def add(model: nn.Module, changes: list[Tensor]) -> None:
    with torch.no_grad():
        for parameter, change in zip(model.parameters(), changes, strict=True):
            parameter.add_(change)


# --- every strategy lives with what training scripts do ------------------------------------------


class Branches(nn.Module):
    """One branch per parity of the rank, one that nobody uses, and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.branches = nn.ModuleList(nn.Linear(FEATURES, 3) for _ in range(3))

    def forward(self, inputs: Tensor, branch: int) -> Tensor:
        return self.branches[branch](self.norm(inputs))


def live_with_everything(sync: str, overlap: str | None) -> dict[str, Any]:
    """Uneven inputs, unused parameters, a skipped step, batch norm: nobody may be left waiting."""
    session = shoal.init(deadline_s=30)
    model = Branches()
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync, overlap=overlap)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    losses = []
    for step in range(12 + 5 * session.rank):
        optimizer.zero_grad()
        inputs, targets = batch_of(session.rank, step % 4)
        loss = cross_entropy(model(inputs, session.rank % 2), targets)
        losses.append(float(loss.detach()))
        if step == 3 and session.rank == 1:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer.finish()
    distance = optimizer.average_model()
    return {
        "losses": losses,
        "finite": all(bool(p.isfinite().all()) for p in model.parameters()),
        "parameters": parameters_of(model),
        "unused": torch.allclose(model.branches[2].weight, Branches().branches[2].weight),
        "mean": model.norm.running_mean.tolist(),
        "scale": scaler.get_scale(),
        "distance": distance,
        "steps": optimizer.state_dict()["shoal"]["num_steps"],
    }


@pytest.mark.parametrize(
    ("sync", "overlap"),
    seldom(
        [*((sync, None) for sync in STRATEGIES)]
        + [(sync, "next-steps") for sync in ("local-sgd", "ds-sync", "ripples", "ripples-random")],
        often=[*((sync, None) for sync in ONE_OF_EACH), ("ripples", "next-steps")],
    ),
)
def test_every_strategy_lives_with_everything_a_script_does(
    run_workers: RunWorkers, sync: str, overlap: str | None
) -> None:
    results = run_workers(live_with_everything, 3, sync, overlap)
    for rank, result in enumerate(results):
        assert result["finite"]
        assert result["steps"] == 12 + 5 * rank
        assert sum(result["losses"][-4:]) < sum(result["losses"][:4])
        assert result["parameters"] == results[0]["parameters"]
        assert result["mean"] == results[0]["mean"]
        assert result["unused"]
        assert result["mean"] != [0.0] * FEATURES
    assert results[1]["scale"] == 32.0  # the scaler saw the infinity and backed off
    if sync == "all-reduce":
        assert results[0]["scale"] == 32.0  # and so did everyone: the gradient is shared
        assert results[0]["distance"] < 1e-6
    else:
        assert results[0]["scale"] == 64.0


# --- two optimizers for one model -----------------------------------------------------------------


def train_halves(first: str, second: str, whole: bool) -> tuple[list[float], bool]:
    """Return how far the halves of a model moved, and whether the first optimizer was refused."""
    shoal.init(deadline_s=30)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizers = [
        shoal.DistributedOptimizer(
            torch.optim.SGD(half.parameters(), lr=0.1), model if whole else half, sync=sync
        )
        for half, sync in zip(model, (first, second), strict=True)
    ]
    at_first = [half.bias.detach().clone() for half in model]
    refused = False
    for _ in range(3):
        model.zero_grad()
        sum(p.sum() for p in model.parameters()).backward()
        try:
            optimizers[0].step()
        except shoal.UsageError as error:
            refused = "Another DistributedOptimizer" in str(error)
        optimizers[1].step()
    for optimizer in optimizers[refused:]:
        optimizer.finish()
        optimizer.average_model()
    moved = [float((a - half.bias.detach())[0]) for a, half in zip(at_first, model, strict=True)]
    return moved, refused


@pytest.mark.parametrize(
    ("first", "second", "whole", "refused"),
    seldom(
        [
            ("ps-bsp", "ps-bsp", True, True),
            ("ad-psgd", "ad-psgd", True, True),
            ("local-sgd", "ps-bsp", True, True),
            ("all-reduce", "ds-sync", True, True),
            ("local-sgd", "ds-sync", True, False),
            ("ps-bsp", "all-reduce", False, False),
            ("ad-psgd", "ds-sync", False, False),
        ],
        often=[
            ("ps-bsp", "ps-bsp", True, True),
            ("all-reduce", "ds-sync", True, True),
            ("local-sgd", "ds-sync", True, False),
            ("ad-psgd", "ds-sync", False, False),
        ],
    ),
)
def test_no_optimizer_undoes_what_another_did_to_the_same_model(
    run_workers: RunWorkers, first: str, second: str, whole: bool, refused: bool
) -> None:
    for moved, was_refused in run_workers(train_halves, 2, first, second, whole):
        assert was_refused == refused
        assert moved == pytest.approx([0.0 if refused else 0.3, 0.3], abs=1e-6)


def wrap_anew_and_finish_the_first(sync: str, then: str) -> float:
    """Return how far a model moved in three steps of each of two optimizers."""
    shoal.init(deadline_s=30)
    model = nn.Linear(2, 2)
    at_first = model.bias.detach().clone()
    optimizers = []
    for name in (sync, then):
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizers.append(shoal.DistributedOptimizer(inner, model, sync=name))
        for _ in range(3):
            model.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizers[-1].step()
    for optimizer in optimizers:
        optimizer.finish()
    optimizers[1].average_model()
    return float((at_first - model.bias.detach())[0])


@pytest.mark.parametrize(
    ("sync", "then"),
    seldom(
        itertools.product(
            ("all-reduce", "ps-bsp", "ad-psgd", "local-sgd"), ("all-reduce", "local-sgd")
        ),
        often=[("ps-bsp", "local-sgd"), ("ad-psgd", "all-reduce"), ("local-sgd", "local-sgd")],
    ),
)
def test_finishing_an_optimizer_leaves_a_later_one_its_model(
    run_workers: RunWorkers, sync: str, then: str
) -> None:
    moved = run_workers(wrap_anew_and_finish_the_first, 2, sync, then)
    apart = 0.2 if sync == "ad-psgd" else 1e-6  # rank 0's replica, which the second begins with
    assert moved == pytest.approx([0.6, 0.6], abs=apart)  # 0.3 if the second's steps are lost


# --- a checkpoint continues the schedule ----------------------------------------------------------


def train_with_restart(sync: str, restart_at: int | None) -> list[float]:
    session = shoal.init(deadline_s=30)
    model = make_model()
    optimizer = shoal.DistributedOptimizer(make_optimizer(model), model, sync=sync)
    for step in range(STEPS):
        if step == restart_at:
            saved_model = copy.deepcopy(model.state_dict())
            saved_optimizer = copy.deepcopy(optimizer.state_dict())
            optimizer.finish()
            model = make_model()
            optimizer = shoal.DistributedOptimizer(make_optimizer(model), model, sync=sync)
            model.load_state_dict(saved_model)
            optimizer.load_state_dict(saved_optimizer)
        optimizer.zero_grad()
        inputs, targets = batch_of(session.rank, step)
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    result = parameters_of(model)
    optimizer.finish()
    return result


@pytest.mark.parametrize(
    "sync",
    seldom(
        ["all-reduce", "ds-sync", "ripples-static", "local-sgd", "ps-bsp"],
        often=["ds-sync"],
    ),
)
def test_a_checkpoint_continues_where_it_was(run_workers: RunWorkers, sync: str) -> None:
    assert run_workers(train_with_restart, 3, sync, 3) == run_workers(
        train_with_restart, 3, sync, None
    )


def train_from_a_folder(folder: str, sync: str, overlap: str | None, steps: range) -> list[float]:
    """Go on from what torch.distributed.checkpoint finds in `folder`, and save it there again."""
    shoal.init(deadline_s=30)
    model = make_model()
    optimizer = shoal.DistributedOptimizer(make_optimizer(model), model, sync=sync, overlap=overlap)
    if steps.start:
        found = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        dcp.load(found, checkpoint_id=folder)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )
    for step in steps:
        train_one_step(model, optimizer, 0, step)
    optimizer.settle()
    kept = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    dcp.save(kept, checkpoint_id=folder)
    optimizer.finish()
    return parameters_of(model)


@pytest.mark.parametrize(
    ("sync", "overlap"),
    seldom(
        [("all-reduce", None), ("all-reduce", "next-forward"), ("ds-sync", "next-steps")],
        often=[("ds-sync", "next-steps")],
    ),
)
def test_another_number_of_workers_goes_on_from_a_distributed_checkpoint(
    run_workers: RunWorkers, tmp_path: Path, sync: str, overlap: str | None
) -> None:
    folder = str(tmp_path)
    run_workers(train_from_a_folder, 2, folder, sync, overlap, range(3))
    model = make_model()
    optimizer = make_optimizer(model)
    for step in range(STEPS):
        train_one_step(model, optimizer, 0, step)
    for result in run_workers(train_from_a_folder, 3, folder, sync, overlap, range(3, STEPS)):
        assert_close(result, parameters_of(model))


def train_and_look(sync: str, looks: bool) -> tuple[list[float], list[bool]]:
    """Train; see before each step what torch.distributed.checkpoint would save, or do not."""
    session = shoal.init(deadline_s=30)
    model = make_model()
    make = torch.optim.Adam if sync.startswith("ps-") else torch.optim.SGD  # no state of its own
    # without the filter, which leaves out who is slow for a moment: a run could not be repeated
    how = shoal.Ripples(slowdown_threshold=None) if sync == "ripples" else sync
    optimizer = shoal.DistributedOptimizer(make(model.parameters(), lr=0.1), model, sync=how)
    has_state = []
    for step in range(4):
        optimizer.zero_grad()
        if looks and session.rank == step % 2:
            has_state.append(any(get_state_dict(model, optimizer)[1]["state"].values()))
        inputs, targets = batch_of(session.rank, step)
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    optimizer.finish()
    return parameters_of(model), has_state


@pytest.mark.parametrize(
    "sync",
    seldom(["all-reduce", "ps-bsp", "ds-sync", "ripples", "ad-psgd"], often=("ds-sync",)),
)
def test_a_look_at_the_state_is_no_step(run_workers: RunWorkers, sync: str) -> None:
    looked = run_workers(train_and_look, 2, sync, True)
    assert [has_state for _, has_state in looked] == [[False] * 2] * 2
    if sync != "ad-psgd":  # whose exchanges are nobody's to repeat
        assert looked == [
            (each, [False] * 2) for each, _ in run_workers(train_and_look, 2, sync, False)
        ]


def step_by_hand() -> str:
    """Step with gradients that no backward pass made; return the error."""
    shoal.init(deadline_s=30)
    model = make_model()
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with pytest.raises(shoal.UsageError) as error:
        optimizer.step()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    with torch.no_grad(), pytest.raises(shoal.UsageError):
        optimizer.step()
    return str(error.value)


def test_other_steps_without_averaged_gradients_are_refused(run_workers: RunWorkers) -> None:
    (message,) = run_workers(step_by_hand, 1)
    assert "not all been averaged" in message
