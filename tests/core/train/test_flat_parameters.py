"""Flat parameters: the model computes as before, on storage that averages in one piece."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations, parametrize, prune  # noqa: E402

from shoal.errors import UsageError  # noqa: E402
from shoal.train.flat_parameters import FlatParameters  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable


def make_model() -> nn.Module:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    )
    return model.to(memory_format=torch.channels_last)


def test_outputs_gradients_and_strides_stay_the_same() -> None:
    plain = make_model()
    flattened = copy.deepcopy(plain)
    strides = [p.stride() for p in flattened.parameters()]
    FlatParameters(flattened)
    inputs = torch.randn(2, 3, 8, 8)
    for model in (plain, flattened):
        model(inputs).square().sum().backward()
    assert [p.stride() for p in flattened.parameters()] == strides
    for a, b in zip(plain.parameters(), flattened.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(plain.buffers(), flattened.buffers(), strict=True):
        assert torch.equal(a, b)


def test_writing_the_flat_tensor_writes_the_model_and_back() -> None:
    model = make_model()
    flat = FlatParameters(model)
    with torch.no_grad():
        flat.buffers[0].fill_(2.0)
    assert all(bool((p == 2.0).all()) for p in model.parameters())
    assert bool((model[1].running_mean == 2.0).all())
    with torch.no_grad():
        model[0].weight.fill_(3.0)
    assert int((flat.buffers[0] == 3.0).sum()) == model[0].weight.numel()


def test_counts_parameters_once_even_when_tied() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    flat = FlatParameters(model)
    assert flat.num_parameters == 16
    assert flat.buffers[0].numel() == 16
    assert model[0].weight.data_ptr() == model[1].weight.data_ptr()


def test_one_flat_tensor_per_data_type() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
    flat = FlatParameters(model)
    assert [buffer.dtype for buffer in flat.buffers] == [torch.float32, torch.float64]
    assert [buffer.numel() for buffer in flat.buffers] == [20, 20]


def test_what_was_given_storage_of_its_own_is_taken_back_with_its_values() -> None:
    model = make_model()
    flat = FlatParameters(model)
    vector = torch.arange(float(flat.num_parameters))
    nn.utils.vector_to_parameters(vector, model.parameters())
    flat.take_back()
    assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), vector)
    flat.buffers[0].fill_(3.0)
    assert all(bool((p == 3.0).all()) for p in model.parameters())
    model.double()
    model.float()
    flat.take_back()
    flat.buffers[0].fill_(4.0)
    assert all(bool((p == 4.0).all()) for p in model.parameters())


def test_a_model_that_was_cast_afterwards_is_noticed() -> None:
    model = make_model()
    flat = FlatParameters(model)
    flat.take_back()
    model.double()
    with pytest.raises(UsageError, match="moved or cast"):
        flat.take_back()


def test_buffers_with_infinities_are_not_averaged() -> None:
    model = nn.BatchNorm1d(4)
    model.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
    flat = FlatParameters(model)
    assert flat.buffers[0].numel() == 4 * 4


def test_parameters_that_have_no_mean_stay_where_they_are() -> None:
    model = nn.Linear(4, 4)
    for number, dtype in enumerate((torch.int8, torch.bool, torch.float8_e4m3fn)):
        codes = nn.Parameter(torch.ones(2).to(dtype), requires_grad=False)
        model.register_parameter(f"codes{number}", codes)
    flat = FlatParameters(model)
    assert [buffer.dtype for buffer in flat.buffers] == [torch.float32]
    assert model.codes0.tolist() == [1, 1]
    assert flat.num_parameters == 20
    assert len(flat.frozen) == 3


def test_frozen_parameters_stay_where_they_are() -> None:
    model = make_model()
    frozen = next(model.parameters()).requires_grad_(requires_grad=False)
    place = frozen.data_ptr()
    flat = FlatParameters(model)
    rest = sum(p.numel() for p in model.parameters()) - frozen.numel()
    assert frozen.data_ptr() == place
    assert flat.num_parameters == rest
    with pytest.raises(UsageError, match="does not live in"):
        flat.place_of(frozen)


def test_a_model_without_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="no parameters"):
        FlatParameters(nn.ReLU())


def assign(model: nn.Sequential) -> None:
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)


def replace_layer(model: nn.Sequential) -> None:
    model[1] = nn.Linear(4, 2)


@pytest.mark.parametrize(
    "change", [assign, replace_layer, lambda model: parametrizations.weight_norm(model[0])]
)
def test_parameters_that_were_replaced_are_noticed(change: Callable[[nn.Module], None]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    flat = FlatParameters(model)
    flat.take_back()
    change(model)
    with pytest.raises(UsageError, match="were replaced"):
        flat.take_back()


@pytest.mark.parametrize(
    "change",
    [
        lambda model: parametrize.register_parametrization(model[0], "weight", nn.Identity()),
        lambda model: prune.l1_unstructured(model[1], "weight", amount=2),
        lambda model: model.add_module("average", copy.deepcopy(model)),
        lambda model: model.pop(1),
        lambda model: model.insert(0, model.pop(1)),
    ],
    ids=["parametrized", "pruned", "added", "removed", "moved"],
)
def test_parameters_that_stay_may_move_within_the_model(
    change: Callable[[nn.Module], None],
) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    flat = FlatParameters(model)
    change(model)
    flat.take_back()
    assign(model)
    with pytest.raises(UsageError, match="were replaced"):
        flat.take_back()
