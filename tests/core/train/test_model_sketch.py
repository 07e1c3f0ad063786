"""Sketches of models tell how far these are apart, whatever they are made of."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from shoal.train.flat_parameters import FlatParameters
from shoal.train.model_sketch import BUCKETS, MOST_ELEMENTS, ModelSketch
from shoal.watch.model_distance import consensus_distance
from thoroughness import examples


def model_of(width: int, *, mixed: bool = False) -> nn.Module:
    model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 3))
    if mixed:
        model[2].to(torch.float64)
    return model


def true_distance(models: list[nn.Module]) -> float:
    rows = torch.stack(
        [torch.cat([p.detach().double().flatten() for p in m.parameters()]) for m in models]
    )
    return float((rows - rows.mean(0)).square().sum(1).mean().sqrt())


@pytest.mark.parametrize("width", [2, 40, 400])
@pytest.mark.parametrize("mixed", [False, True])
def test_a_distance_is_told_within_its_error(width: int, mixed: bool) -> None:
    errors = []
    for seed in range(examples(40)):
        torch.manual_seed(seed)
        models = [model_of(width, mixed=mixed) for _ in range(4)]
        for model in models[1:]:
            model.load_state_dict(models[0].state_dict())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.01 * torch.randn_like(parameter)
                model[1].running_mean += 9.0  # type: ignore[operator, union-attr]
        sketches = [ModelSketch(FlatParameters(model), seed).take() for model in models]
        distance, _ = consensus_distance(sketches)
        errors.append(distance / true_distance(models) - 1)
    deviation = math.sqrt(1 / (2 * BUCKETS))  # of the length of one vector; four err less together
    assert math.sqrt(sum(each**2 for each in errors) / len(errors)) < 1.5 * deviation
    assert abs(sum(errors) / len(errors)) < deviation


def test_equal_models_have_no_distance_and_small_differences_show() -> None:
    torch.manual_seed(0)
    one, other = model_of(300), model_of(300)
    other.load_state_dict(one.state_dict())
    sketches = [ModelSketch(FlatParameters(each), 5) for each in (one, other)]
    assert sum(p.numel() for p in one.parameters()) > MOST_ELEMENTS
    assert consensus_distance([each.take() for each in sketches])[0] == 0.0
    with torch.no_grad():
        for parameter in other.parameters():
            parameter *= 1.0001
    distance, length = consensus_distance([each.take() for each in sketches])
    assert distance / length == pytest.approx(0.00005, rel=0.2)


def test_what_is_put_off_is_not_waited_for() -> None:
    flat = FlatParameters(model_of(5))
    sketch = ModelSketch(flat, 1)

    def fail() -> None:
        raise AssertionError

    flat.before_access = fail
    assert len(sketch.take()) == 4 * BUCKETS
