"""Which gradients of a step all-reduce averages, whatever passes they come from."""

from __future__ import annotations

import copy
import io
import itertools
from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import shoal  # noqa: E402
from shoal.strategies import STRATEGIES  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

STEPS, ROWS, FEATURES = 3, 4, 6
WORLD = 3
OVERLAPS = ["backward", "next-forward"]


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Linear(FEATURES, FEATURES)
        self.heads = nn.ModuleList([nn.Linear(FEATURES, 2) for _ in range(2)])
        self.rest = nn.ModuleList([nn.Linear(FEATURES, FEATURES) for _ in range(3)])

    def forward(self, inputs: Tensor, head: int) -> Tensor:
        return self.heads[head](self.trunk(inputs).tanh())

    def checkpointed(self, inputs: Tensor, *, reentrant: bool | None) -> Tensor:
        for layer in (self.trunk, *self.rest):
            if reentrant is None:
                inputs = layer(inputs)
            else:
                inputs = checkpoint(layer, inputs, use_reentrant=reentrant)
        return inputs


def rows_of(step: int) -> Tensor:
    return torch.randn(WORLD * ROWS, FEATURES, generator=torch.Generator().manual_seed(step))


def own_rows(step: int, rank: int) -> Tensor:
    return rows_of(step)[rank * ROWS : (rank + 1) * ROWS]


def backward(model: TwoHeads, how: str, inputs: Tensor, optimizer: Any) -> None:
    """Make the backward passes of one step."""
    if how == "two heads, one after the other":
        for head in (0, 1):
            model(inputs, head).square().mean().backward()
    elif how == "first head accumulated":
        with optimizer.no_sync():
            model(inputs, 0).square().mean().backward()
        model(inputs, 1).square().mean().backward()
    else:
        inputs.requires_grad_()
        model.checkpointed(inputs, reentrant=how == "reentrant").square().mean().backward()


def train(how: str, overlap: str) -> list[float]:
    session = shoal.init(deadline_s=20)
    model = TwoHeads()
    inner = torch.optim.SGD(model.parameters(), lr=0.3)
    optimizer = shoal.DistributedOptimizer(inner, model, overlap=overlap)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, how, own_rows(step, session.rank), optimizer)
        optimizer.step()
    optimizer.finish()
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


def train_alone(how: str) -> Tensor:
    model = TwoHeads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in range(STEPS):
        optimizer.zero_grad()
        if "head" in how:
            for head in (0, 1):
                model(rows_of(step), head).square().mean().backward()
        else:
            model.checkpointed(rows_of(step), reentrant=None).square().mean().backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize(
    ("how", "overlap"),
    seldom(
        itertools.product(
            (
                "two heads, one after the other",
                "first head accumulated",
                "reentrant",
                "not reentrant",
            ),
            OVERLAPS,
        ),
        often=[
            ("two heads, one after the other", "backward"),
            ("first head accumulated", "next-forward"),
            ("reentrant", "next-forward"),
        ],
    ),
)
def test_all_gradients_of_a_step_are_averaged(
    run_workers: RunWorkers, how: str, overlap: str
) -> None:
    results = run_workers(train, WORLD, how, overlap)
    assert results[0] == results[1] == results[2]
    torch.testing.assert_close(torch.tensor(results[0]), train_alone(how), atol=1e-6, rtol=1e-5)


def misuse(what: str) -> str:
    session = shoal.init(deadline_s=20)
    model = TwoHeads()
    model.rest.requires_grad_(requires_grad=False)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    sync = "ps-bsp" if what == "unfreeze, ps-bsp" else "all-reduce"
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync)
    inputs = own_rows(0, session.rank)
    if what == "last accumulated":
        model(inputs, 0).sum().backward()
    if what in ("all accumulated", "last accumulated"):
        with optimizer.no_sync():
            model(inputs, 0).sum().backward()
    elif what == "by hand":
        for p in model.trunk.parameters():
            p.grad = torch.ones_like(p)
    else:
        model.rest.requires_grad_()
        model.checkpointed(inputs, reentrant=None).sum().backward()
    with pytest.raises(shoal.UsageError) as caught:
        optimizer.step()
    return str(caught.value)


@pytest.mark.parametrize(
    ("what", "wanted"),
    [
        ("all accumulated", "have not all been averaged"),
        ("last accumulated", "have not all been averaged"),
        ("by hand", "have not all been averaged"),
        ("unfreeze", "was frozen"),
        ("unfreeze, ps-bsp", "was frozen"),
    ],
)
def test_a_step_with_gradients_that_nobody_averages_is_refused(
    run_workers: RunWorkers, what: str, wanted: str
) -> None:
    for text in run_workers(misuse, 2, what):
        assert wanted in text


def train_embedding() -> list[float]:
    session = shoal.init(deadline_s=20)
    torch.manual_seed(4)
    model = nn.Embedding(5, 2, sparse=True)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = shoal.DistributedOptimizer(inner, model)
    before = model.weight.detach().clone()
    model(torch.tensor([session.rank])).sum().backward()
    optimizer.step()
    optimizer.finish()
    return (before - model.weight.detach())[:, 0].tolist()


def test_sparse_gradients_are_averaged_as_dense_ones(run_workers: RunWorkers) -> None:
    for change in run_workers(train_embedding, 2):
        assert change == pytest.approx([0.5, 0.5, 0, 0, 0], abs=1e-6)


# --- buffers, and models that are moved meanwhile ------------------------------------------------


class WithBuffers(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(FEATURES, FEATURES).to(torch.bfloat16)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.register_buffer("mask", torch.full((FEATURES, FEATURES), -torch.inf).triu(1))
        self.register_buffer("inverse_frequencies", 1.0 / 10.0 ** torch.arange(4.0))
        self.register_buffer("began", torch.tensor(1.7e9 + 0.1234567, dtype=torch.float64))
        self.register_buffer("order", torch.randperm(8))
        self.register_buffer("chosen", torch.rand(8) < 0.5)
        self.register_buffer("phase", torch.randn(3, dtype=torch.complex64))
        for p in self.norm.parameters():
            p.requires_grad = False

    def forward(self, inputs: Tensor) -> Tensor:
        scores = self.norm(self.layer(inputs.to(torch.bfloat16)).float())
        return torch.softmax(scores @ torch.eye(FEATURES) + self.mask[:1], -1)


CONSTANTS = ("mask", "inverse_frequencies", "began", "order", "chosen", "phase")


def train_with_buffers(sync: str, options: dict[str, Any]) -> tuple[bool, bool, list[float]]:
    session = shoal.init(deadline_s=20)
    model = WithBuffers(seed=session.rank)
    at_first = copy.deepcopy(WithBuffers(seed=0))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync, **options)
    for step in range(4 if session.rank else 6):
        optimizer.zero_grad()
        model(own_rows(step, session.rank)).square().sum().backward()
        optimizer.step()
    optimizer.finish()
    optimizer.average_model()
    kept = all(torch.equal(getattr(model, name), getattr(at_first, name)) for name in CONSTANTS)
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    return kept, finite, model.norm.running_mean.tolist()


@pytest.mark.parametrize(
    ("sync", "options"),
    seldom(
        [
            ("all-reduce", {}),
            ("all-reduce", {"overlap": "next-forward"}),
            ("ps-asp", {}),
            ("ad-psgd", {}),
            ("ds-sync", {"overlap": "next-steps"}),
        ],
        often=[("ps-asp", {}), ("ds-sync", {"overlap": "next-steps"})],
    ),
)
def test_constants_in_buffers_stay_as_rank_0_has_them_to_the_bit(
    run_workers: RunWorkers, sync: str, options: dict[str, Any]
) -> None:
    results = run_workers(train_with_buffers, WORLD, sync, options)
    for kept, finite, statistics in results:
        assert finite
        assert statistics == results[0][2]
        assert statistics != [0.0] * FEATURES
        assert kept or sync != "all-reduce", "means of equal numbers are rounded elsewhere"


class Quantized(nn.Module):
    """Weights in 8 bits that nobody trains, and what is trained on top of them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        codes = torch.randint(-128, 128, (FEATURES, FEATURES), dtype=torch.int8)
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.chosen = nn.Parameter(torch.rand(FEATURES) < 0.5, requires_grad=False)
        self.scale = nn.Parameter(torch.rand(FEATURES).to(torch.float8_e5m2), requires_grad=False)
        self.layer = nn.Linear(FEATURES, FEATURES)

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.codes.float() * self.scale.float() * self.chosen.float()
        return torch.tanh(self.layer(inputs @ weight / 128))


def train_quantized(sync: str, overlap: str | None) -> tuple[bool, bool]:
    session = shoal.init(deadline_s=20)
    model, at_first = Quantized(seed=session.rank), Quantized(seed=0)
    trained = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync, overlap=overlap)
    for step in range(4):
        optimizer.zero_grad()
        model(own_rows(step, session.rank)).square().sum().backward()
        optimizer.step()
    optimizer.finish()
    optimizer.average_model()
    names = ("codes", "chosen", "scale")
    pairs = [(getattr(model, name).float(), getattr(at_first, name).float()) for name in names]
    trains = not torch.equal(model.layer.weight, at_first.layer.weight)
    return all(torch.equal(*pair) for pair in pairs), trains


@pytest.mark.parametrize(
    ("sync", "overlap"),
    seldom(
        [
            *((sync, None) for sync in STRATEGIES),
            ("all-reduce", "next-forward"),
            ("local-sgd", "next-steps"),
        ],
        often=[
            ("all-reduce", None),
            ("ps-bsp", None),
            ("local-sgd", "next-steps"),
        ],
    ),
)
def test_quantized_weights_stay_as_rank_0_has_them(
    run_workers: RunWorkers, sync: str, overlap: str | None
) -> None:
    assert run_workers(train_quantized, 2, sync, overlap) == [(True, True)] * 2


class LateMask(nn.Module):
    """Statistics that begin beyond all others, and a mask that is filled when first needed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)
        self.register_buffer("smallest", torch.full((3,), torch.finfo(torch.float32).max))
        self.register_buffer("mask", torch.zeros(FEATURES))
        self.register_buffer("rare", torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        self.smallest.copy_(torch.tensor([0.5, 3.0, 7.0]))
        self.mask[1:] = -torch.inf
        return torch.softmax(self.layer(inputs) + self.mask, -1)


def train_late_mask(overlap: str) -> tuple[list[float], list[float], float, bool]:
    session = shoal.init(deadline_s=20)
    torch.manual_seed(5)
    model = LateMask()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, overlap=overlap)
    for step in range(4):
        optimizer.zero_grad()
        if session.rank == 0 and step == 2:
            model.rare.fill_(3.0)  # on one worker only: the mean is a third
        model(own_rows(step, session.rank)).square().sum().backward()
        optimizer.step()
    optimizer.settle()
    copied = copy.deepcopy(model)
    copied.load_state_dict({k: torch.zeros_like(v) for k, v in model.state_dict().items()})
    if overlap == "backward":
        torch.save(model, io.BytesIO())
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    results = model.smallest.tolist(), model.mask[1:].tolist(), float(model.rare), finite
    optimizer.finish()
    return results


@pytest.mark.parametrize("overlap", seldom(OVERLAPS, often=["next-forward"]))
def test_statistics_may_change_to_anything(run_workers: RunWorkers, overlap: str) -> None:
    for smallest, mask, rare, finite in run_workers(train_late_mask, WORLD, overlap):
        assert smallest == pytest.approx([0.5, 3.0, 7.0], rel=1e-6)
        assert mask == [-torch.inf] * (FEATURES - 1)
        assert rare == pytest.approx(1.0, rel=1e-6)
        assert finite


def train_late_mask_by(sync: str, overlap: str | None) -> tuple[list[float], bool, float]:
    session = shoal.init(deadline_s=20)
    torch.manual_seed(5)
    model = LateMask()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync, overlap=overlap)
    for step in range(6 if session.rank else 9):
        optimizer.zero_grad()
        model(own_rows(step % 2, session.rank)).square().sum().backward()
        optimizer.step()
    optimizer.finish()
    distance = optimizer.average_model()
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    return model.mask.tolist(), finite, distance


@pytest.mark.parametrize(
    ("sync", "overlap"),
    seldom(
        [
            *((sync, None) for sync in STRATEGIES),
            ("local-sgd", "next-steps"),
            ("ripples", "next-steps"),
        ],
        often=[
            ("all-reduce", None),
            ("ripples", "next-steps"),
        ],
    ),
)
def test_a_mask_filled_late_stays_one(
    run_workers: RunWorkers, sync: str, overlap: str | None
) -> None:
    for mask, finite, distance in run_workers(train_late_mask_by, WORLD, sync, overlap):
        assert mask == [0.0] + [-torch.inf] * (FEATURES - 1)
        assert finite
        assert distance < torch.inf


def train_the_head(sync: str) -> float:
    shoal.init(deadline_s=20)
    model = TwoHeads()
    model(own_rows(0, 0), 0).sum().backward()
    model.trunk.requires_grad_(requires_grad=False)  # its gradient is left from before
    inner = torch.optim.SGD(model.heads.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync)
    before = model.trunk.weight.detach().clone()
    optimizer.zero_grad()
    model(own_rows(0, 0), 0).sum().backward()
    optimizer.step()
    optimizer.finish()
    return float((model.trunk.weight - before).abs().max())


@pytest.mark.parametrize("sync", ["all-reduce", "ps-bsp"])
def test_a_frozen_layer_may_have_an_old_gradient(run_workers: RunWorkers, sync: str) -> None:
    assert run_workers(train_the_head, 2, sync) == [0.0, 0.0]


def train_moved(sync: str, how: str) -> list[float]:
    session = shoal.init(deadline_s=20)
    model = TwoHeads()
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.3), model, sync)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(own_rows(step, session.rank), 0).square().mean().backward()
        optimizer.step()
        if how == "cast":
            model.double()
            model.float()
        elif how == "vector":
            vector = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            nn.utils.vector_to_parameters(vector, model.parameters())
    optimizer.finish()
    return nn.utils.parameters_to_vector(model.parameters()).tolist()


@pytest.mark.parametrize("sync", seldom(["all-reduce", "ps-bsp", "ds-sync"], often=["ds-sync"]))
def test_a_model_that_leaves_its_storage_between_steps_trains_on(
    run_workers: RunWorkers, sync: str
) -> None:
    expected = run_workers(train_moved, 2, sync, "left alone")
    for how in ("cast", "vector"):
        assert run_workers(train_moved, 2, sync, how) == expected


def finish_and_go_on(sync: str) -> str:
    shoal.init(deadline_s=20)
    model = nn.Linear(2, 2)
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters()), model, sync)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.finish()
    model.half()  # for export
    optimizer.finish()
    with pytest.raises(shoal.UsageError) as caught:
        optimizer.step()
    return str(caught.value)


@pytest.mark.parametrize(
    "sync",
    seldom(["all-reduce", "ps-ssp", "ds-sync", "ripples", "local-sgd"], often=["ripples"]),
)
def test_finish_may_be_called_twice_and_ends_the_steps(run_workers: RunWorkers, sync: str) -> None:
    for text in run_workers(finish_and_go_on, 2, sync):
        assert "makes no more steps" in text


def wrap_again() -> tuple[list[float], str]:
    session = shoal.init(deadline_s=20)
    model = TwoHeads()
    first = shoal.DistributedOptimizer(torch.optim.SGD(model.trunk.parameters(), lr=0.3), model)
    model(own_rows(0, session.rank), 0).square().mean().backward()
    first.step()
    second = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.3), model)
    for step in range(STEPS):
        second.zero_grad()
        model(own_rows(step, session.rank), 0).square().mean().backward()
        second.step()
    with pytest.raises(shoal.UsageError) as caught:
        first.step()
    first.finish()
    second.finish()
    return nn.utils.parameters_to_vector(model.parameters()).tolist(), str(caught.value)


def test_gradients_are_averaged_once_whoever_else_was_made_for_the_model(
    run_workers: RunWorkers,
) -> None:
    model = TwoHeads()
    for parameters, steps in ((model.trunk.parameters(), 1), (model.parameters(), STEPS)):
        optimizer = torch.optim.SGD(parameters, lr=0.3)
        for step in range(steps):
            model.zero_grad()
            model(rows_of(step), 0).square().mean().backward()
            optimizer.step()
    alone = nn.utils.parameters_to_vector(model.parameters()).detach()
    for result, text in run_workers(wrap_again, WORLD):
        torch.testing.assert_close(torch.tensor(result), alone, atol=1e-6, rtol=1e-5)
        assert "Another DistributedOptimizer" in text


def wrap_wrongly() -> list[str]:
    shoal.init(deadline_s=20)
    model, other = nn.Linear(2, 2), nn.Embedding(2, 2, sparse=True)
    said = []
    optimizer = shoal.DistributedOptimizer(torch.optim.SGD(model.parameters()), model)
    for wrong in (
        lambda: shoal.DistributedOptimizer(torch.optim.LBFGS(model.parameters()), model),
        lambda: shoal.DistributedOptimizer(torch.optim.SparseAdam(other.parameters()), other),
        lambda: shoal.DistributedOptimizer(optimizer, model),
        lambda: copy.deepcopy(optimizer),
    ):
        with pytest.raises(shoal.UsageError) as caught:
            wrong()
        said.append(str(caught.value))
    return said


def test_optimizers_that_cannot_be_wrapped_or_copied(run_workers: RunWorkers) -> None:
    ((lbfgs, sparse, twice, copied),) = run_workers(wrap_wrongly, 1)
    assert "LBFGS computes the loss several times" in lbfgs
    assert "SparseAdam takes sparse ones only" in sparse
    assert "DistributedOptimizer already" in twice
    assert "cannot be copied" in copied


class SeveralTypes(nn.Module):
    """Layers in three types, as models with a float32 norm or head beside bfloat16 have them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.front = nn.Linear(FEATURES, FEATURES, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(FEATURES)
        self.rear = nn.Linear(FEATURES, 2, dtype=torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.rear(self.norm(self.front(inputs.double()).float()).bfloat16()).float()


def train_several_types(transport: str, overlap: str) -> list[Tensor]:
    session = shoal.init(deadline_s=30)
    model = SeveralTypes()
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, transport=transport, overlap=overlap
    )
    for step in range(STEPS):
        optimizer.zero_grad()
        model(own_rows(step, session.rank)).square().mean().backward()
        optimizer.step()
    optimizer.finish()
    return [each.detach().clone() for each in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize(
    ("transport", "overlap"),
    seldom(
        itertools.product(("gloo", "shoal"), OVERLAPS),
        often=[("shoal", "backward")],
    ),
)
def test_parameters_may_have_several_types(
    run_workers: RunWorkers, transport: str, overlap: str
) -> None:
    first, *others = run_workers(train_several_types, WORLD, transport, overlap)
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    alone = SeveralTypes()
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(WORLD):
            (alone(own_rows(step, rank)).square().mean() / WORLD).backward()
        optimizer.step()
    for ours, expected in zip(first, alone.parameters(), strict=False):
        torch.testing.assert_close(ours, expected.detach(), rtol=0.05, atol=0.02)
