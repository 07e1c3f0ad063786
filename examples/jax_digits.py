"""JAX with Shoal in it: gradients averaged, or parameters by DS-Sync or Ripples. Two workers here:

    for rank in 0 1; do
      RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
        python examples/jax_digits.py & done; wait

or four on an emulated network that loses packets, one of them four times slower:

    shoal lab run --example lossy-star -- python examples/jax_digits.py --sync ripples

Lines marked (shoal) are what changes in a single-process script.
"""

from __future__ import annotations

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import shoal
from shoal import GeneratedGroups
from shoal.adapters.jax import Average, broadcast
from shoal.groups import make_schedule

TRAINED, BATCH = 1440, 32


def logits(parameters, inputs):
    hidden = jax.nn.relu(inputs @ parameters["1 hidden"] + parameters["1 hidden bias"])
    return hidden @ parameters["2 output"]


def loss(parameters, inputs, labels):
    chosen = jax.nn.log_softmax(logits(parameters, inputs))[jnp.arange(len(labels)), labels]
    return -chosen.mean()


gradients_of = jax.jit(jax.grad(loss))


@jax.jit
def updated(parameters, gradients):
    return jax.tree.map(lambda value, slope: value - 0.3 * slope, parameters, gradients)


def batches(rank, size, epochs):
    """Yield the batches of a worker's shard, as many for each worker."""
    digits, order = load_digits(), np.random.default_rng(rank)
    share = TRAINED // size // BATCH
    for _ in range(epochs):
        rows = rank * share * BATCH + order.permutation(share * BATCH)
        for batch in rows.reshape(share, BATCH):
            yield digits.data[batch].astype(np.float32) / 16, digits.target[batch]


def all_reduce(parameters, shard, communicator, loss_bound):
    """Average all workers' gradients in every step."""
    average = Average(communicator, loss_bound=loss_bound)  # (shoal)
    for batch in shard:
        gradients = gradients_of(parameters, *batch)
        parameters = updated(parameters, average.gradients(gradients))  # (shoal)
    return parameters


def ds_sync(parameters, shard, communicator, loss_bound):
    """Average parameters in the groups of a schedule, which all workers know."""
    average = Average(communicator, loss_bound=loss_bound)  # (shoal)
    schedule = make_schedule("ds-sync", communicator.world_size)  # (shoal)
    for step, batch in enumerate(shard):
        parameters = updated(parameters, gradients_of(parameters, *batch))
        group = schedule.group_of(communicator.rank, step)  # (shoal)
        parameters = average.parameters(parameters, group.members, weights=group.weights)  # (shoal)
    return parameters


def ripples(parameters, shard, communicator, loss_bound):
    """Average parameters in groups formed at run time, which leave slow workers aside."""
    average = Average(communicator, loss_bound=loss_bound)  # (shoal)
    with GeneratedGroups(communicator) as groups:  # (shoal)
        for batch in shard:
            parameters = updated(parameters, gradients_of(parameters, *batch))
            for group in groups.owed():  # (shoal)
                parameters = average.parameters(  # (shoal)
                    parameters, group.members, sequence=group.group_id
                )
        groups.leave()
        return Average(communicator).parameters(parameters)  # (shoal) the model to keep


SYNC = {"all-reduce": all_reduce, "ds-sync": ds_sync, "ripples": ripples}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sync", choices=SYNC, default="all-reduce")
    parser.add_argument("--loss-bound", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    key = jax.random.key(0)
    parameters = {
        "1 hidden": 0.1 * jax.random.normal(key, (64, 128)),
        "1 hidden bias": jnp.zeros(128),
        "2 output": 0.1 * jax.random.normal(key, (128, 10)),
    }
    with shoal.connect() as communicator:  # (shoal) reads what the launcher has set
        parameters = broadcast(parameters, communicator)  # (shoal)
        shard = batches(communicator.rank, communicator.world_size, arguments.epochs)
        begin = time.perf_counter()
        parameters = SYNC[arguments.sync](parameters, shard, communicator, arguments.loss_bound)
        took = time.perf_counter() - begin
    if communicator.rank == 0:
        digits = load_digits()
        found = logits(parameters, digits.data[TRAINED:] / 16).argmax(axis=1)
        print(f"accuracy {(found == digits.target[TRAINED:]).mean():.3f} after {took:.1f} s")


if __name__ == "__main__":
    main()
