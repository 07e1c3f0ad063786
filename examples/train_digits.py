"""A training script with Shoal in it. Run it with two workers on this machine:

    torchrun --nproc-per-node 2 examples/train_digits.py --sync ripples

Lines marked (shoal) are what changes in a single-process script.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import shoal
from shoal.workloads import evaluate, load_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sync", default="ripples")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--min-workers", type=int)
    arguments = parser.parse_args()

    # (shoal) reads what the launcher has set; min_workers lets a job go on without lost workers
    session = shoal.init(min_workers=arguments.min_workers)
    torch.manual_seed(0)
    dataset = load_dataset("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    inputs, targets = dataset.train_inputs, dataset.train_targets
    # (shoal) every worker gets its own part of the samples, whoever comes and goes
    sampler = shoal.ElasticSampler(inputs, session, batch_size=32)
    optimizer = shoal.DistributedOptimizer(optimizer, model, sync=arguments.sync)  # (shoal)

    try:
        while sampler.epoch < arguments.epochs:
            for batch in sampler:
                optimizer.zero_grad()
                cross_entropy(model(inputs[batch]), targets[batch]).backward()
                optimizer.step()
    except shoal.WorkerLost as lost:  # another worker died: this one can still save its work
        torch.save(model.state_dict(), f"checkpoint-{session.rank}.pt")
        raise SystemExit(lost.exit_code) from lost

    optimizer.finish()  # (shoal) this worker makes no more steps
    optimizer.average_model()  # (shoal) the mean of all replicas is the model to keep
    if session.rank == session.view.members[0]:
        print(f"accuracy {evaluate(model, dataset):.3f}")
    shoal.shutdown()  # (shoal)


if __name__ == "__main__":
    main()
