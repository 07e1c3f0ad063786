"""The loss of each task and the number by which its models are judged.

Must not know data sets by name or how models are built.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from shoal.errors import UsageError
from shoal.workloads.dataset import Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from shoal.workloads.cache import Array
    from shoal.workloads.dataset import Dataset

_METRIC_NAMES = {Task.CLASSIFICATION: "accuracy", Task.BINARY: "AUC", Task.LANGUAGE: "loss"}


def metric_name(task: Task) -> str:
    """Return the metric's name: accuracy (0 to 1), AUC (0 to 1) or loss (nats per symbol)."""
    return _METRIC_NAMES[task]


def better(task: Task, a: float, b: float) -> bool:
    """Return whether metric value `a` is strictly better than `b`; NaN is worse than any number."""
    if math.isnan(a) or math.isnan(b):
        return math.isnan(b) and not math.isnan(a)
    return a < b if task is Task.LANGUAGE else a > b


def meets(task: Task, value: float, target: float) -> bool:
    """Return whether metric value `value` is at least as good as `target`."""
    return value == target or better(task, value, target)


def loss_of(
    model: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor, task: Task
) -> Tensor:
    """Return the mean loss of a batch, in nats, as a scalar to differentiate."""
    return _loss(model(inputs), targets, task)


def _loss(outputs: Tensor, targets: Tensor, task: Task) -> Tensor:
    if task is Task.BINARY:
        return functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))
    # symbols of all positions count alike: (N, length, vocabulary) is a longer (N, classes)
    return functional.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    max_samples: int | None = None,
    *,
    batch_size: int = 500,
) -> float:
    """Return the metric of `model` on the first `max_samples` test samples (default all).

    Runs in evaluation mode without gradients, on the device of the model's parameters, and leaves
    the model in the mode it was in. Raises `UsageError` if there is no sample to judge by.
    """
    count = len(dataset.test_inputs) if max_samples is None else max_samples
    if count < 1:
        message = f"Evaluation needs at least one sample, not {count}."
        raise UsageError(message)
    targets = dataset.test_targets[:count]
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return _judge(model, dataset.test_inputs[:count], targets, dataset.task, batch_size)
    finally:
        model.train(was_training)


def _judge(model: nn.Module, inputs: Tensor, targets: Tensor, task: Task, batch_size: int) -> float:
    device = next(model.parameters()).device
    scores = []
    for part, wanted in zip(inputs.split(batch_size), targets.split(batch_size), strict=True):
        outputs, wanted = model(part.to(device)), wanted.to(device)
        if task is Task.CLASSIFICATION:
            scores.append((outputs.argmax(dim=1) == wanted).double().cpu())
        elif task is Task.BINARY:
            scores.append(outputs.double().cpu())
        else:
            scores.append(_loss(outputs, wanted, task).double().cpu().expand(len(wanted)))
    flat = torch.cat(scores)
    if task is Task.BINARY:
        return area_under_curve(flat.numpy(), targets.numpy())
    return float(flat.mean())


def area_under_curve(scores: Array, labels: Array) -> float:
    """Return the chance that a random positive outranks a random negative; ties count half.

    `scores` (N,) are any monotone scores, `labels` (N,) are 0 or 1. NaN scores, or labels of one
    kind only, have no such chance: the result is NaN. (Mann and Whitney, 1947.)
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if positives == 0 or negatives == 0 or np.isnan(scores).any():
        return float("nan")
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2  # tied scores share their mean rank
    rank_sum = mean_rank[inverse][labels == 1].sum()
    return float((rank_sum - positives * (positives + 1) / 2) / (positives * negatives))
