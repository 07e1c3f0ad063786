"""Training with gradients that are sent as another type than the parameters have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402

import shoal  # noqa: E402
from shoal.carriers.transports import check_transport  # noqa: E402
from shoal.errors import MismatchError, UsageError  # noqa: E402
from shoal.strategies import STRATEGIES, check_wire, make_strategy  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

WIRES = ("float32", "float16", "bfloat16")
STEPS = 25
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    **{wire: {"wire": wire} for wire in WIRES},
    "next-forward": {"wire": "bfloat16", "overlap": "next-forward"},
    "lossy": {"wire": "float16", "loss_bound": 0.1},
    "ps-bsp": {"sync": "ps-bsp", "wire": "bfloat16"},
    "ps-ssp, lossy": {"sync": "ps-ssp", "wire": "float16", "loss_bound": 0.1},
}
TYPES = {"float64": ("plain", "bfloat16"), "bfloat16": ("plain", "float32")}
"""Other types of parameters, and the runs that are made with them."""


def make_model(dtype: Any) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))
    return model.to(dtype)


def batch_of(rank: int, step: int, dtype: Any) -> tuple[Tensor, Tensor]:
    """Points around four corners, and which corner each is from."""
    generator = torch.Generator().manual_seed(1000 * rank + step)
    kind = torch.randint(0, 4, (32,), generator=generator)
    corners = torch.eye(8)[kind] * 2 + torch.randn(32, 8, generator=generator) * 0.4
    return corners.to(dtype), kind


def train(rank: int, dtype: Any, sync: str = "all-reduce", **options: Any) -> dict[str, Any]:
    """Return the parameters, the statistics after one step, and the last losses."""
    model = make_model(dtype)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, sync, transport="shoal", **options
    )
    losses, statistics = [], None
    for step in range(STEPS):
        inputs, targets = batch_of(rank, step, dtype)
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if step == 0:
            first = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            statistics = model[1].running_var.clone()
    optimizer.finish()
    last = nn.utils.parameters_to_vector(model.parameters()).detach()
    return {"first": first, "statistics": statistics, "last": last, "loss": sum(losses[-5:]) / 5}


def train_all() -> dict[str, dict[str, Any]]:
    rank = shoal.init(deadline_s=30).rank
    found = {name: train(rank, torch.float32, **options) for name, options in RUNS.items()}
    for kind, names in TYPES.items():
        for name in names:
            found[f"{kind}, {name}"] = train(rank, getattr(torch, kind), **RUNS[name])
    shoal.shutdown()
    return found


@pytest.fixture(scope="module")
def runs() -> list[dict[str, dict[str, Any]]]:
    from worker_processes import run_workers

    return run_workers(train_all, 2)


ALL_RUNS = [*RUNS, *(f"{kind}, {name}" for kind, names in TYPES.items() for name in names)]


@pytest.mark.parametrize("name", ALL_RUNS)
def test_training_works_and_replicas_stay_equal(runs: list[Any], name: str) -> None:
    first, second = (run[name] for run in runs)
    assert torch.equal(first["last"], second["last"])
    assert first["loss"] < 0.2  # 1.4 before training
    assert second["loss"] < 0.2  # 1.4 before training


def test_float32_is_what_float32_is_sent_as(runs: list[Any]) -> None:
    assert torch.equal(runs[0]["plain"]["last"], runs[0]["float32"]["last"])


@pytest.mark.parametrize(("wire", "bits"), [("bfloat16", 8), ("float16", 11)])
def test_gradients_are_rounded_and_batch_statistics_are_not(
    runs: list[Any], wire: str, bits: int
) -> None:
    plain, narrow = runs[0]["plain"], runs[0][wire]
    assert torch.equal(plain["statistics"], narrow["statistics"])
    start = nn.utils.parameters_to_vector(make_model(torch.float32).parameters()).detach()
    step = (plain["first"] - start).abs().max()
    apart = (plain["first"] - narrow["first"]).abs().max()
    assert 0 < apart <= step * 2.0 ** (1 - bits)
    assert torch.equal(runs[0]["next-forward"]["last"], runs[0]["bfloat16"]["last"])


def train_unevenly(sync: str) -> float:
    """Train fewer steps on rank 0, with rounded copies; return how far models are apart."""
    session = shoal.init(deadline_s=20)
    model = make_model(torch.float32)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        model,
        make_strategy(sync, {"interval": 1, "overlap": "next-steps"}),
        transport="shoal",
        wire="float16",
    )
    for step in range(5 if session.rank == 0 else 9):
        optimizer.zero_grad()
        inputs, labels = batch_of(session.rank, step, torch.float32)
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    optimizer.finish()
    distance = optimizer.average_model()
    shoal.shutdown()
    return distance


@pytest.mark.parametrize("sync", seldom(["local-sgd", "ripples"], often=["ripples"]))
def test_workers_that_end_early_send_what_the_others_send(
    run_workers: RunWorkers, sync: str
) -> None:
    """They would refuse each other's averages otherwise."""
    distances = run_workers(train_unevenly, 2, sync)
    assert distances[0] == distances[1] < 1


def disagree() -> str:
    rank = shoal.init(deadline_s=30).rank
    model = make_model(torch.float32)
    with pytest.raises(MismatchError) as caught:
        shoal.DistributedOptimizer(
            torch.optim.SGD(model.parameters()), model, transport="shoal", wire=WIRES[rank]
        )
    shoal.shutdown()
    return str(caught.value)


def test_workers_must_agree_on_the_wire_type(run_workers: RunWorkers) -> None:
    for text in run_workers(disagree, 2):
        assert "wire='float16'" in text
        assert "wire='float32'" in text


def test_other_strategies_and_gloo_refuse_a_wire_type() -> None:
    for name in STRATEGIES:
        strategy = make_strategy(name)
        check_wire(strategy, None)
        if name == "all-reduce" or name.startswith("ps-"):
            check_wire(strategy, "float16")
        else:
            with pytest.raises(UsageError, match=f"{name} averages parameters, which are sent as"):
                check_wire(strategy, "float16")
            if name != "ad-psgd":  # which has no such option
                check_wire(make_strategy(name, {"overlap": "next-steps"}), "float16")
    with pytest.raises(UsageError, match="gloo sends tensors as they are"):
        check_transport("gloo", 0.0, "zero", "float32")
    with pytest.raises(UsageError, match="Unknown wire type 'int8'"):
        check_transport("shoal", 0.0, "zero", "int8")
