"""When the all-reduce strategy waits for which bucket, and what it refuses.

One worker and a communicator that writes down what is started and waited for: the order in which
layers wait is a matter of the code, not of the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

from shoal.control import Member  # noqa: E402
from shoal.errors import UsageError, WorkerLost  # noqa: E402
from shoal.membership import View  # noqa: E402
from shoal.strategies import AllReduce, make_strategy  # noqa: E402
from shoal.train.flat_parameters import FlatParameters  # noqa: E402
from shoal.train.replica import Replica, Stopwatch  # noqa: E402
from shoal.train.sums import SumsExecutor  # noqa: E402

if TYPE_CHECKING:
    from shoal.comm import Layers

WIDTH = 4


class RecordingCommunicator:
    """Stands for two workers, of which the other always has the same gradients."""

    rank, world_size = 0, 2

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.layers: list[tuple[int, int] | None] = []
        self.started = 0
        self.broken = False
        self.wait_s = 0.0

    def all_reduce(
        self,
        buffer: Tensor,
        *,
        layers: Layers | None = None,
        exact_from: int | None = None,
    ) -> RecordedWork:
        self.layers.append(layers and (layers.front, layers.depth))
        self.started += 1
        return RecordedWork(self, self.started - 1, buffer)


class RecordedWork:
    def __init__(self, communicator: RecordingCommunicator, number: int, buffer: Tensor) -> None:
        self.communicator, self.number, self.buffer = communicator, number, buffer

    def wait(self) -> None:
        if self.communicator.broken:
            raise WorkerLost("Rank 1 is gone.", 1)
        time.sleep(self.communicator.wait_s)
        self.communicator.log.append(f"wait {self.number}")
        self.buffer.mul_(2)


class Layer(nn.Linear):
    """Writes down when it computes."""

    log: list[Any]

    def forward(self, inputs: Tensor) -> Tensor:
        self.log.append(f"layer {self.number}")
        return super().forward(inputs)


class Model(nn.Module):
    """Three layers, used in the order `order` whatever their order of registration."""

    def __init__(self, log: list[Any], order: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer(WIDTH, WIDTH, bias=False) for _ in range(3))
        for number, layer in enumerate(self.layers):
            layer.number, layer.log = number, log
        self.order = order

    def forward(self, inputs: Tensor) -> Tensor:
        for number in self.order:
            inputs = self.layers[number](inputs).tanh()
        return inputs


def bind(
    order: tuple[int, ...] = (0, 1, 2),
    make: Callable[[Any], torch.optim.Optimizer] = lambda p: torch.optim.SGD(p, lr=0.1),
    overlap: str = "next-forward",
) -> tuple[Model, torch.optim.Optimizer, SumsExecutor, RecordingCommunicator]:
    communicator = RecordingCommunicator()
    model = Model(communicator.log, order)
    optimizer = make(model.parameters())
    strategy = SumsExecutor(
        AllReduce(bucket_bytes=1, overlap=overlap),
        Replica(
            model=model,
            optimizer=optimizer,
            flat=FlatParameters(model),
            communicator=communicator,  # type: ignore[arg-type]  # what all-reduce needs of one
            groups=None,  # type: ignore[arg-type]
            facts=None,  # type: ignore[arg-type]
            session="test",
            host=0,
            member=Member(View.first(2), 20.0),
            seed=0,
            deadline_s=1.0,
            stopwatch=Stopwatch(0),
        ),
    )
    return model, optimizer, strategy, communicator


def backward(model: nn.Module) -> None:
    model(torch.ones(2, WIDTH)).sum().backward()


def test_a_layer_waits_for_its_own_gradients_and_the_trailer_only() -> None:
    model, optimizer, strategy, communicator = bind()
    backward(model)
    strategy.step(optimizer.step)
    with strategy.clearing(set_to_none=True):
        optimizer.zero_grad()
    assert communicator.log == ["layer 0", "layer 1", "layer 2"]  # nobody has waited
    communicator.log.clear()
    backward(model)
    # bucket 2 holds layer 0 and the trailer, bucket 0 the last layer
    assert communicator.log == ["wait 2", "layer 0", "wait 1", "layer 1", "wait 0", "layer 2"]


def test_the_trailer_is_waited_for_first_whatever_layer_is() -> None:
    model, optimizer, strategy, communicator = bind(order=(2, 0, 1))
    backward(model)
    strategy.step(optimizer.step)
    communicator.log.clear()
    model(torch.ones(2, WIDTH))
    assert communicator.log == ["wait 2", "wait 0", "layer 2", "layer 0", "wait 1", "layer 1"]


def test_layers_are_as_urgent_as_the_first_forward_pass_needs_them() -> None:
    model, optimizer, strategy, communicator = bind(order=(1, 2, 0))
    for _ in range(2):
        backward(model)
        strategy.step(optimizer.step)
        model.order = (0, 1, 2)  # what it does later changes nothing
    # buckets hold layers 2, 1 and 0 with the trailer, which goes first
    assert communicator.layers == [(1, 3), (0, 3), (0, 1)] * 2


def test_backward_waits_for_everything_by_default() -> None:
    model, _, _, communicator = bind(overlap="backward")
    backward(model)
    assert sorted(communicator.log[3:]) == ["wait 0", "wait 1", "wait 2"]


def test_a_parameter_that_is_touched_waits_for_its_bucket_alone() -> None:
    model, optimizer, strategy, communicator = bind()
    weight = model.layers[1].weight
    before = weight.detach().clone()
    backward(model)
    strategy.step(optimizer.step)
    communicator.log.clear()
    assert weight.shape == before.shape
    assert weight.grad is not None
    assert isinstance(weight, nn.Parameter)
    assert communicator.log == []
    gradient = weight.grad
    assert not torch.equal(weight, before)
    assert communicator.log == ["wait 2", "wait 1"]
    assert torch.equal(weight.detach(), before.add(gradient, alpha=-0.1))
    assert type(weight) is nn.Parameter
    assert type(gradient) is Tensor


def test_a_model_that_serves_in_other_threads_is_updated_once() -> None:
    model, optimizer, strategy, communicator = bind()
    expected = [p.detach().clone() for p in model.parameters()]
    backward(model)
    strategy.step(optimizer.step)
    communicator.wait_s = 0.02
    begin = Barrier(4)

    def serve() -> None:
        begin.wait()
        with torch.no_grad():
            model(torch.ones(2, WIDTH))

    threads = [Thread(target=serve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each for each in communicator.log if "wait" in each) == [
        "wait 0",
        "wait 1",
        "wait 2",
    ]
    for before, now in zip(expected, model.parameters(), strict=True):
        assert torch.equal(now.detach(), before.add(now.grad, alpha=-0.1))


def test_finishing_or_reading_the_flat_tensors_makes_all_updates() -> None:
    for touch in (
        lambda strategy, flat: strategy.settle(),
        lambda strategy, flat: flat.buffers,
        lambda strategy, flat: strategy._layerwise.remove(),
    ):
        model, optimizer, strategy, communicator = bind()
        backward(model)
        strategy.step(optimizer.step)
        touch(strategy, strategy.replica.flat)
        assert communicator.log[3:] == ["wait 2", "wait 0", "wait 1"] or (
            sorted(communicator.log[3:]) == ["wait 0", "wait 1", "wait 2"]
        )
        assert all(type(p) is nn.Parameter for p in model.parameters())


class CountingSGD(torch.optim.SGD):
    """Keeps a count of its steps where only its options belong."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
        return super().step(closure)


def test_an_optimizer_with_state_in_its_groups_is_refused_at_its_first_step() -> None:
    model, optimizer, strategy, _ = bind(make=lambda p: CountingSGD(p, lr=0.1))
    backward(model)
    strategy.step(optimizer.step)
    with pytest.raises(UsageError, match="CountingSGD keeps state \\('count'\\)"):
        model(torch.ones(2, WIDTH))


def test_a_parameter_used_behind_our_back_is_refused() -> None:
    model, optimizer, strategy, _ = bind()
    backward(model)
    with torch._C.DisableTorchFunctionSubclass():  # as code in C++ does
        graph = torch.ones(1)
        strategy.step(optimizer.step)
        for layer in model.layers:
            graph = graph + layer.weight.sum()
        with pytest.raises(UsageError, match="before its new values"):
            graph.backward()


def test_a_tensor_of_a_class_of_its_own_is_refused() -> None:
    class Strange(nn.Parameter):
        pass

    model = nn.Linear(2, 2)
    model.weight = Strange(torch.ones(2, 2))
    communicator: Any = RecordingCommunicator()
    replica: Any = type("R", (), {})()
    replica.model, replica.communicator = model, communicator
    replica.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    replica.stopwatch, replica.flat = Stopwatch(0), FlatParameters(nn.Linear(1, 1))
    replica.noting = replica.stepping = nullcontext
    replica.view, replica.seed, replica.samples = View.first(2), 0, None
    replica.topology, replica.num_hosts = None, 1
    replica.member = Member(replica.view, 20.0)
    with pytest.raises(UsageError, match=r"weight is a Strange"):
        SumsExecutor(AllReduce(overlap="next-forward"), replica)


def test_wrong_options_are_refused_in_a_sentence() -> None:
    with pytest.raises(UsageError, match="overlap is one of backward, next-forward, not 'never'"):
        AllReduce(overlap="never")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no option 'overlap'"):
        make_strategy("ad-psgd", {"overlap": "backward"})
    with pytest.raises(UsageError, match="to the strategy itself"):
        make_strategy(AllReduce(), {"overlap": "backward"})


def test_a_lost_worker_is_raised_and_the_model_stays_readable() -> None:
    model, optimizer, strategy, communicator = bind()
    backward(model)
    strategy.step(optimizer.step)
    communicator.broken = True
    with pytest.raises(WorkerLost):
        model(torch.ones(2, WIDTH))
    assert all(bool(p.isfinite().all()) for p in model.state_dict().values())
    assert all(type(p) is nn.Parameter for p in model.parameters())
