"""Keras with Shoal in it. Run it with two workers on this machine:

    for rank in 0 1; do
      RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
        python examples/keras_digits.py & done; wait

or on an emulated network that loses packets:

    shoal lab run --example lossy-star -- python examples/keras_digits.py --loss-bound 0.1

Lines marked (shoal) are what changes in a single-process script.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
from sklearn.datasets import load_digits

import shoal
from shoal.adapters.tensorflow import BroadcastVariables, distributed_optimizer

TRAINED = 1440
"""Images; the others are for testing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--loss-bound", type=float, default=0.0)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    communicator = shoal.connect()  # (shoal) reads what the launcher has set
    rank, world_size = communicator.rank, communicator.world_size
    digits = load_digits()
    inputs, labels = digits.data.astype(np.float32) / 16, digits.target
    model = keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(128, activation="relu"), keras.layers.Dense(10)]
    )
    optimizer = distributed_optimizer(  # (shoal)
        keras.optimizers.SGD(0.05, momentum=0.9), communicator, loss_bound=arguments.loss_bound
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        jit_compile=False,  # (shoal) XLA cannot call Python
    )
    share = TRAINED // world_size  # (shoal) every worker has as many samples, and so batches
    mine = slice(rank * share, (rank + 1) * share)
    model.fit(
        inputs[mine],
        labels[mine],
        batch_size=32,
        epochs=arguments.epochs,
        verbose=0,
        callbacks=[BroadcastVariables(communicator)],  # (shoal) all start from the same weights
    )
    if rank == 0:
        _, accuracy = model.evaluate(inputs[TRAINED:], labels[TRAINED:], verbose=0)
        print(f"accuracy {accuracy:.3f}")
    communicator.close()  # (shoal)


if __name__ == "__main__":
    main()
