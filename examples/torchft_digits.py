"""torchft over Shoal's transport: replicas that die and come back. Three on this machine:

    torchft_lighthouse --bind [::]:29510 --min_replicas 2 --join_timeout_ms 1000 &
    export TORCHFT_LIGHTHOUSE=http://localhost:29510
    for replica in 0 1 2; do
      REPLICA=$replica torchrun --master-port $((29520 + replica)) --max-restarts 3 \
        examples/torchft_digits.py & done

`pkill -9 -n -f torchft_digits.py` kills the newest of them. The others go on as two; torchrun
starts it again, and it takes up their state. Lines marked (shoal) are what changes in a script.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta

import torch
import torchft
from torch import nn
from torch.nn.functional import cross_entropy

from shoal.adapters.torchft import ProcessGroupShoal  # (shoal)
from shoal.workloads import evaluate, load_dataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    replica = os.environ["REPLICA"]
    dataset = load_dataset("digits")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def state() -> dict[str, object]:
        return {"model": model.state_dict(), "optimizer": inner.state_dict()}

    def load(state: dict[str, dict[str, object]]) -> None:
        model.load_state_dict(state["model"])
        inner.load_state_dict(state["optimizer"])

    # (shoal) in the place of torchft.ProcessGroupGloo
    group = ProcessGroupShoal(timeout=timedelta(seconds=5))
    manager = torchft.Manager(
        pg=group,
        load_state_dict=load,
        state_dict=state,
        min_replica_size=2,  # of three: two parts of a job could not go on beside each other
        replica_id=f"digits-{replica}",
        timeout=timedelta(seconds=10),
    )
    replicated = torchft.DistributedDataParallel(manager, model)
    optimizer = torchft.Optimizer(manager, inner)

    took_part = 0
    while (step := manager.current_step()) < arguments.steps:
        batch = torch.randint(len(dataset.train_inputs), (32,))  # every replica draws its own
        optimizer.zero_grad()
        loss = cross_entropy(replicated(dataset.train_inputs[batch]), dataset.train_targets[batch])
        loss.backward()
        optimizer.step()
        counts = manager.current_step() > step
        if counts and manager.num_participants() != took_part:
            took_part = manager.num_participants()
            print(f"replica {replica}: {took_part} take part from step {step} on", flush=True)

    total = sum(each.double().sum().item() for each in model.parameters())
    accuracy = evaluate(model, dataset)
    print(f"replica {replica}: accuracy {accuracy:.3f}, sum of parameters {total:.9f}", flush=True)
    manager.shutdown()
    group.shutdown()


if __name__ == "__main__":
    main()
