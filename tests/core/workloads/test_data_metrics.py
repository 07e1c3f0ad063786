"""Metrics against oracles: AUC, accuracy, loss per symbol, and which value is better."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from data_samples import field_dataset, image_dataset, text_dataset
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from shoal.errors import UsageError
from shoal.workloads.dataset import Task
from shoal.workloads.metrics import area_under_curve, better, evaluate, loss_of, metric_name

NAN = float("nan")

# few distinct scores, so that ties are common
SCORED = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=40)


@given(SCORED)
def test_auc_is_the_share_of_pairs_in_order(scored):
    scores, labels = np.array([s for s, _ in scored]), np.array([int(y) for _, y in scored])
    pairs = [(p, n) for p, y in scored if y for n, z in scored if not z]
    measured = area_under_curve(scores, labels)
    if not pairs:
        assert math.isnan(measured)
    else:
        in_order = sum((p > n) + 0.5 * (p == n) for p, n in pairs)
        assert measured == pytest.approx(in_order / len(pairs))


def test_auc_agrees_with_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 5000)
    scores = np.round(random.normal(size=5000) + 0.5 * labels, 1)
    expected = metrics.roc_auc_score(labels, scores)
    assert area_under_curve(scores, labels) == pytest.approx(expected, abs=1e-12)


def test_auc_of_a_diverged_model_is_nan():
    assert math.isnan(area_under_curve(np.array([0.1, NAN]), np.array([0, 1])))


@pytest.mark.parametrize("task", [Task.CLASSIFICATION, Task.BINARY])
def test_higher_is_better(task: Task):
    assert better(task, 0.9, 0.8)
    assert not better(task, 0.8, 0.9)
    assert not better(task, 0.8, 0.8)


def test_lower_loss_is_better():
    assert better(Task.LANGUAGE, 1.0, 2.0)
    assert not better(Task.LANGUAGE, 2.0, 1.0)


@pytest.mark.parametrize("task", list(Task))
def test_nan_is_worse_than_any_number(task: Task):
    assert better(task, 0.5, NAN)
    assert not better(task, NAN, 0.5)
    assert not better(task, NAN, NAN)


def test_metric_names():
    assert [metric_name(task) for task in Task] == ["accuracy", "AUC", "loss"]


class Uniform(nn.Module):
    """Says the same of everything."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(shape))

    def forward(self, inputs):
        return self.logits.expand(len(inputs), *self.logits.shape)


def test_uniform_language_model_loses_log_vocabulary():
    dataset = text_dataset(vocabulary=32)
    model = Uniform(64, 32)
    assert evaluate(model, dataset, batch_size=7) == pytest.approx(math.log(32))
    loss = loss_of(model, dataset.train_inputs, dataset.train_targets, dataset.task)
    assert loss.item() == pytest.approx(math.log(32))


def test_binary_loss_and_metric_of_a_constant():
    dataset = field_dataset()
    model = Uniform()
    loss = loss_of(model, dataset.train_inputs, dataset.train_targets, dataset.task)
    assert loss.item() == pytest.approx(math.log(2))
    assert evaluate(model, dataset) == 0.5


class FirstPixel(nn.Module):
    """Predicts class 0 where the first pixel is positive, else class 1."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.drop = nn.Dropout(0.9)

    def forward(self, inputs):
        first = self.drop(inputs).flatten(1)[:, 0] + 0 * self.unused
        scores = torch.full((len(inputs), 10), -1e9)
        scores[:, 0], scores[:, 1] = first, 0.0
        return scores


def test_accuracy_counts_the_first_samples_in_evaluation_mode():
    dataset = image_dataset(samples=40)
    model = FirstPixel()
    guesses = (dataset.test_inputs.flatten(1)[:, 0] <= 0).long()
    expected = (guesses == dataset.test_targets)[:25].double().mean().item()
    assert evaluate(model, dataset, max_samples=25, batch_size=10) == pytest.approx(expected)
    assert model.training


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_the_mode_and_the_gradients_alone(training: bool):
    model = FirstPixel().train(training)
    evaluate(model, image_dataset())
    assert model.training is training
    assert model.unused.grad is None


def test_evaluating_nothing_is_refused():
    with pytest.raises(UsageError, match="at least one sample"):
        evaluate(FirstPixel(), image_dataset(), max_samples=0)
