"""JAX with Shoal in it: all-reduce of gradients, or DS-Sync of parameters. With two workers here:

    for rank in 0 1; do
      RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
        python examples/jax_digits.py & done; wait

Lines marked (shoal) are what changes in a single-process script.
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import shoal
from shoal.adapters.jax import Average, broadcast
from shoal.groups import make_schedule

TRAINED, BATCH = 1440, 32


def logits(parameters, inputs):
    hidden = jax.nn.relu(inputs @ parameters["hidden"] + parameters["bias"])
    return hidden @ parameters["output"]


def loss(parameters, inputs, labels):
    chosen = jax.nn.log_softmax(logits(parameters, inputs))[jnp.arange(len(labels)), labels]
    return -chosen.mean()


gradients_of = jax.jit(jax.grad(loss))


@jax.jit
def updated(parameters, gradients):
    return jax.tree.map(lambda value, slope: value - 0.3 * slope, parameters, gradients)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sync", choices=["all-reduce", "ds-sync"], default="all-reduce")
    parser.add_argument("--loss-bound", type=float, default=0.0, help="with all-reduce")
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    digits = load_digits()
    inputs, labels = digits.data.astype(np.float32) / 16, digits.target
    key = jax.random.key(0)
    parameters = {
        "hidden": 0.1 * jax.random.normal(key, (64, 128)),
        "bias": jnp.zeros(128),
        "output": 0.1 * jax.random.normal(key, (128, 10)),
    }
    with shoal.connect() as communicator:  # (shoal) reads what the launcher has set
        rank, size = communicator.rank, communicator.world_size
        parameters = broadcast(parameters, communicator)  # (shoal)
        average = Average(communicator, loss_bound=arguments.loss_bound)  # (shoal)
        schedule = make_schedule("ds-sync", size)  # (shoal)
        share = TRAINED // size // BATCH  # (shoal) every worker has as many batches
        order = np.random.default_rng(rank)
        step = 0
        for _ in range(arguments.epochs):
            rows = rank * share * BATCH + order.permutation(share * BATCH)
            for batch in rows.reshape(share, BATCH):
                gradients = gradients_of(parameters, inputs[batch], labels[batch])
                if arguments.sync == "all-reduce":
                    parameters = updated(parameters, average(gradients))  # (shoal)
                else:
                    group = schedule.group_of(rank, step).members
                    parameters = average(updated(parameters, gradients), group=group)  # (shoal)
                step += 1
        if arguments.sync == "ds-sync":
            parameters = average(parameters)  # (shoal) the mean of all replicas is what to keep
        if rank == 0:
            found = logits(parameters, inputs[TRAINED:]).argmax(axis=1)
            print(f"accuracy {(found == labels[TRAINED:]).mean():.3f}")


if __name__ == "__main__":
    main()
