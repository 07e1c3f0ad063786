"""When a recipe's model first meets its target: the table of docs/data-sets.md.

One worker, and four as one process with a batch four times as large; one thread, seed 0.

    python benchmarks/core/recipes.py DATASET MODEL [--every STEPS] [--most STEPS]
"""

from __future__ import annotations

import argparse
from time import process_time

import torch

from shoal.workloads import (
    batches,
    better,
    default_recipe,
    evaluate,
    load_dataset,
    loss_of,
    make_model,
    make_optimizer,
)


def first_met(name: str, model_name: str, workers: int, every: int, most: int) -> str:
    """Return the value that first met the target, after how many steps, in which processor time."""
    dataset, recipe = load_dataset(name), default_recipe(name, model_name)
    if recipe.target is None:
        return "no target"
    model = make_model(model_name, dataset, seed=0)
    optimizer = make_optimizer(model, recipe)
    shards = [
        batches(dataset, rank=rank, world_size=workers, batch_size=recipe.batch_size, seed=0)
        for rank in range(workers)
    ]
    began = process_time()
    for step in range(1, most + 1):
        parts = [next(shard) for shard in shards]
        inputs, targets = (torch.cat(part) for part in zip(*parts, strict=True))
        optimizer.zero_grad()
        loss_of(model, inputs, targets, dataset.task).backward()
        optimizer.step()
        if step % every == 0:
            value = evaluate(model, dataset)
            model.train()
            if not better(dataset.task, recipe.target, value):
                return f"{value:.4f}, {step:,} steps, {process_time() - began:.1f} s"
    return f"not in {most:,} steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("model")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--most", type=int, default=10_000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cells = [
        first_met(given.dataset, given.model, workers, given.every, given.most)
        for workers in (1, 4)
    ]
    print(f"| {given.dataset}, `{given.model}` | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
