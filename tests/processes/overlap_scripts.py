"""Trainings in every habit that users have, to be compared as bits; see `test_overlap`."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

import shoal
from shoal.collectives import pieces
from shoal.strategies import scheduled as scheduled_courses

STEPS = 5
BATCH = 6
FEATURES = 5
CLASSES = 3
BUCKET_BYTES = 200
"""So that nearly every layer is a bucket of its own, or a piece."""


class Everything(nn.Module):
    """Shared and frozen parameters, some that only some ranks or no rank use, statistics alone,
    a layer called twice, and parameters used outside of their module's forward pass.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.scale = nn.Parameter(torch.ones(FEATURES))
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.late = nn.Linear(8, CLASSES)  # registered first, used last
        self.norm = nn.BatchNorm1d(FEATURES, affine=False)
        self.first = nn.Linear(FEATURES, 8)
        self.again = nn.Linear(8, 8)
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.again.weight
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.outside = nn.Linear(8, 8)
        self.register_buffer("table", torch.randn(2, 8))

    def forward(self, inputs: Tensor, branch: int) -> Tensor:
        hidden = self.norm(inputs) * self.scale
        early = self.outside.bias.sum()  # before that module's own forward pass
        hidden = self.first(hidden).tanh()
        hidden = self.tied(self.again(self.again(hidden))).tanh()
        hidden = self.branches[branch](hidden) + self.frozen(hidden) + self.table[0]
        hidden = linear(hidden, self.outside.weight.t()) + early
        return self.late(self.outside(hidden))


def batch_of(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * rank + step)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs, torch.randint(0, CLASSES, (BATCH,), generator=generator)


Run = tuple[Everything, shoal.DistributedOptimizer, int]
"""The model, the optimizer and this worker's rank."""


def loss_of(run: Run, step: int) -> Tensor:
    model, _, rank = run
    inputs, targets = batch_of(rank, step)
    return cross_entropy(model(inputs, rank % 2), targets)


# --- scripts: each yields a number per step -------------------------------------------------------


def plain(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss = loss_of(run, step)
        loss.backward()
        run[1].step()
        yield loss.item()


def scheduled(run: Run) -> Iterator[float]:
    scheduler = torch.optim.lr_scheduler.StepLR(run[1], step_size=1, gamma=0.5)
    for loss in plain(run):
        scheduler.step()
        yield loss


def scheduled_below(run: Run) -> Iterator[float]:
    scheduler = torch.optim.lr_scheduler.ExponentialLR(run[1]._inner, gamma=0.5)
    for loss in plain(run):
        scheduler.step()
        yield loss


def accumulating(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        with run[1].no_sync():
            loss_of(run, step).backward()
        loss = loss_of(run, step + 50)
        loss.backward()
        run[1].step()
        yield loss.item()


def accumulating_without_no_sync(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss_of(run, step).backward()
        loss = loss_of(run, step + 50)
        loss.backward()
        run[1].step()
        yield loss.item()


def never_clearing(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        loss = loss_of(run, step)
        loss.backward()
        run[1].step()
        yield loss.item()


def clearing_to_zero(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        loss = loss_of(run, step)
        loss.backward()
        run[1].step()
        run[1].zero_grad(set_to_none=False)
        yield loss.item()


def clearing_the_model(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[0].zero_grad()
        loss = loss_of(run, step)
        loss.backward()
        run[1].step()
        yield loss.item()


def discarding(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        loss = loss_of(run, step)
        loss.backward()
        if step % 2:
            (run[0] if step == 1 else run[1]).zero_grad()
        run[1].step()
        run[1].zero_grad()
        yield loss.item()


def clipping(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss_of(run, step).backward()
        norm = nn.utils.clip_grad_norm_(run[0].parameters(), 0.1) if step % 2 else torch.zeros(1)
        run[1].step()
        yield float(norm)


def changing_one_gradient(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss = loss_of(run, step)
        loss.backward()
        if step % 2:
            run[0].outside.weight.grad.mul_(3)
        else:
            run[0].again.weight.grad = run[0].late.weight.grad.sum() * torch.ones(8, 8)
        run[1].step()
        yield loss.item()


def scaling(run: Run) -> Iterator[float]:
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for step in range(STEPS):
        run[1].zero_grad()
        loss = loss_of(run, step) * (float("inf") if step == 2 and run[2] == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(run[1])
        scaler.update()
        yield scaler.get_scale()


def regularizing(run: Run) -> Iterator[float]:
    parameters = list(run[0].parameters())  # held from before the first update
    for step in range(STEPS):
        run[1].zero_grad()
        penalty = sum(p.square().sum() for p in parameters)
        loss = loss_of(run, step) + 0.01 * penalty
        loss.backward()
        run[1].step()
        yield loss.item()


def averaging_parameters(run: Run) -> Iterator[float]:
    model = run[0]
    held = list(model.parameters())
    average = [p.detach().clone() for p in held]
    shadow = copy.deepcopy(model)
    for _ in plain(run):
        torch._foreach_lerp_(average, [p.detach() for p in held], 0.3)
        for mine, theirs in zip(shadow.parameters(), model.parameters(), strict=True):
            mine.data.lerp_(theirs.data, 0.3)
        yield float(sum(p.detach().sum() for p in (*average, *shadow.parameters())))


def evaluating(run: Run) -> Iterator[float]:
    model = run[0]
    for step, _ in enumerate(plain(run)):
        model.eval()
        with torch.inference_mode():
            yield loss_of(run, step).item()
        model.train()


def saving(run: Run) -> Iterator[float]:
    model, optimizer, _ = run
    for step, _ in enumerate(plain(run)):
        if step == 1:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        if step == 3:
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        digest = hashlib.sha256(str(sorted(optimizer._inner.state_dict()["state"])).encode())
        yield float(int(digest.hexdigest()[:8], 16))
        yield float(sum(v.double().sum() for v in model.state_dict().values()))
        yield float(model.norm.running_mean.sum())


def looking_at_gradients(run: Run) -> Iterator[float]:
    for _ in plain(run):
        gradients = [p.grad for p in run[0].parameters()]
        yield sum(float(g.norm()) for g in gradients if g is not None)
        yield float(sum(g is None for g in gradients))


def stepping_twice(run: Run) -> Iterator[float]:
    for loss in plain(run):
        run[1].step()
        yield loss


def hooked(run: Run) -> Iterator[float]:
    calls: list[int] = []
    hook = run[1]._inner.register_step_post_hook(lambda *_: calls.append(1))
    yield from plain(run)
    hook.remove()
    yield float(len(calls))


def stopping_early(run: Run) -> Iterator[float]:
    for step, loss in enumerate(plain(run)):
        if step == 2 and run[2] == 1:
            return
        yield loss


def reading_aliases(run: Run) -> Iterator[float]:
    """Reads what the parameters' memory holds by ways that torch does not ask about."""
    model = run[0]
    aliases = [*(p.data for p in model.parameters()), *model.state_dict().values()]
    array = model.first.weight.detach().numpy()
    traced = torch.jit.trace(model.late, torch.ones(1, 8))
    for _ in plain(run):
        yield float(sum(each.double().sum() for each in aliases))
        yield float(array.sum())
        with torch.no_grad():
            yield float(traced(torch.ones(1, 8)).sum())


def writing_to_aliases(run: Run) -> Iterator[float]:
    aliases = [p.data for p in run[0].parameters()]
    for loss in plain(run):
        for each in aliases:
            each.clamp_(-0.2, 0.2)
        yield loss


def closing(run: Run) -> Iterator[float]:
    for step in range(STEPS):

        def closure(step: int = step) -> Tensor:
            run[1].zero_grad()
            loss = loss_of(run, step)
            loss.backward()
            return loss

        yield run[1].step(closure).item()


def using_a_weight_behind_autograd(run: Run) -> Iterator[float]:
    """Backward comes to that use last, when the weight's own gradient is complete."""
    model = run[0]
    for step in range(STEPS):
        run[1].zero_grad()
        early = linear(model.scale, model.outside.weight.data[:, :FEATURES]).sum()
        loss = loss_of(run, step) + early
        loss.backward()
        run[1].step()
        yield loss.item()


def keeping_graphs(run: Run) -> Iterator[float]:
    """Goes through a part of each graph twice."""
    for step in range(STEPS):
        run[1].zero_grad()
        loss = loss_of(run, step)
        torch.autograd.grad(loss, [run[0].late.bias], retain_graph=True)
        loss.backward(retain_graph=True)
        run[1].step()
        yield loss.item()


def compiled(run: Run) -> Iterator[float]:
    """Not among SCRIPTS: loading torch's compiler takes a while."""
    yield from plain((torch.compile(run[0], backend="aot_eager"), *run[1:]))


# --- scripts that change what has been used -------------------------------------------------------


def changing_the_rate(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss = loss_of(run, step)
        loss.backward()
        run[1].param_groups[0]["lr"] = 0.1 / (1 + step)
        run[1].step()
        yield loss.item()


def accumulating_the_wrong_way_round(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss = loss_of(run, step)
        loss.backward()
        with run[1].no_sync():
            loss_of(run, step + 50).backward()
        run[1].step()
        yield loss.item()


def clearing_to_zero_before_a_step(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        loss = loss_of(run, step)
        loss.backward()
        run[1].zero_grad(set_to_none=False)
        run[1].step()
        yield loss.item()


def ending_before_a_step(run: Run) -> Iterator[float]:
    yield from plain(run)
    loss_of(run, STEPS).backward()
    run[1].finish()


def looking_at_a_parameter_before_a_step(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss_of(run, step).backward()
        yield run[0].outside.weight.sum().item()
        run[1].step()


def moving_a_frozen_layer_before_a_step(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss = loss_of(run, step)
        loss.backward()
        with torch.no_grad():
            run[0].frozen.weight.lerp_(run[0].branches[0].weight, 0.1)
        run[1].step()
        yield loss.item()


def saving_before_a_step(run: Run) -> Iterator[float]:
    for step in range(STEPS):
        run[1].zero_grad()
        loss_of(run, step).backward()
        yield float(len(run[1]._inner.state_dict()))
        run[1].step()


SCRIPTS: list[Callable[[Run], Iterator[float]]] = [
    plain,
    scheduled,
    scheduled_below,
    accumulating,
    accumulating_without_no_sync,
    never_clearing,
    clearing_to_zero,
    clearing_the_model,
    discarding,
    clipping,
    changing_one_gradient,
    scaling,
    regularizing,
    averaging_parameters,
    evaluating,
    saving,
    looking_at_gradients,
    stepping_twice,
    hooked,
    reading_aliases,
    writing_to_aliases,
    closing,
    using_a_weight_behind_autograd,
    keeping_graphs,
    stopping_early,
    moving_a_frozen_layer_before_a_step,
]

UNEQUAL = {"changing_one_gradient", "stopping_early"}
"""Scripts that make replicas (or their counts of batches) differ, whatever is waited for when."""

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1),
    "momentum": lambda groups: torch.optim.SGD(
        groups, lr=torch.tensor(0.1), momentum=0.9, nesterov=True, weight_decay=0.01
    ),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True, foreach=True),
    "rmsprop": lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.05),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.01),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.01, decoupled_weight_decay=True),
}


def bits(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.detach().reshape(-1).view(torch.uint8).numpy()).hexdigest()


SYNCS: dict[str, Callable[[str], Any]] = {
    "all-reduce": lambda overlap: shoal.AllReduce(bucket_bytes=BUCKET_BYTES, overlap=overlap),
    "low rank": lambda overlap: shoal.AllReduce(
        bucket_bytes=BUCKET_BYTES, overlap=overlap, low_rank=1
    ),
    "ds-sync": lambda overlap: shoal.DSSync(overlap=overlap),
    "ripples-static": lambda overlap: shoal.RipplesStatic(overlap=overlap, workers_per_host=2),
    "local-sgd": lambda overlap: shoal.LocalSGD(overlap=overlap, interval=2),
    # whoever asks first draws a group of all, the others take it
    "ripples": lambda overlap: shoal.Ripples(
        overlap=overlap, group_size=2, global_division=False, slowdown_threshold=None
    ),
    "ps-bsp": lambda overlap: shoal.ParameterServer.bsp(overlap=overlap),
}


def train_once(rank: int, script: str, optimizer: str, transport: str, sync: Any) -> dict[str, Any]:
    model = Everything()
    late = {id(p) for p in model.late.parameters()}
    groups = [
        {"params": [p for p in model.parameters() if id(p) not in late]},
        {"params": list(model.late.parameters()), "weight_decay": 0.1},
    ]
    wrapped = shoal.DistributedOptimizer(
        OPTIMIZERS[optimizer](groups),
        model,
        sync=sync,
        transport=transport,
    )
    trace = list(globals()[script]((model, wrapped, rank)))
    wrapped.finish()
    saved = wrapped.state_dict()
    state = {
        **saved["state"],
        **{
            (shard, index): entry
            for shard, its in enumerate(saved["shoal"]["state"].get("shards", ()))
            for index, entry in its["optimizer"]["state"].items()
        },
    }
    return {
        "trace": trace,
        "model": {name: bits(value) for name, value in model.state_dict().items()},
        "state": {
            (index, key): bits(torch.as_tensor(value))
            for index, entry in state.items()
            for key, value in entry.items()
        },
        "classes": {type(p).__name__ for p in model.parameters()},
    }


def begin(min_workers: int | None = None) -> int:
    """Begin in small pieces, with short farewells; return this worker's rank."""
    pieces.LEAST_PIECE_BYTES, pieces.MOST_PIECES = BUCKET_BYTES, 1000
    pieces.LEAST_PART_BYTES = BUCKET_BYTES
    scheduled_courses.ROUNDS_PER_BLOCK = 2
    return shoal.init(deadline_s=20, min_workers=min_workers).rank
