"""Keras and TensorFlow over Shoal's transport, between real processes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from started_ranks import free_port, outcomes, printed_by_ranks, start

pytestmark = pytest.mark.skipif(
    find_spec("tensorflow") is None, reason="needs TensorFlow: make test-frameworks"
)
ENVIRONMENT = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}

MODEL = """
import json, os, tempfile
import numpy as np
import keras
import tensorflow as tf
import shoal
from shoal.adapters.tensorflow import (
    BroadcastVariables, GradientAverage, broadcast_variables, distributed_optimizer,
)

random = np.random.default_rng(0)
INPUTS = random.normal(size=(48, 8)).astype("float32")
LABELS = random.integers(0, 3, 48)
BATCH = 4

def model():
    return keras.Sequential([
        keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)
    ])

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

def distance(one, other):
    return float(max(np.abs(a - b).max() for a, b in zip(one.get_weights(), other.get_weights())))
"""

FIT = (
    MODEL
    + """
with shoal.connect(deadline_s=20) as comm:
    share = len(INPUTS) // comm.world_size
    shards = [slice(rank * share, (rank + 1) * share) for rank in range(comm.world_size)]
    keras.utils.set_random_seed(comm.rank)
    mine, alone = model(), model()
    optimizer = distributed_optimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), comm, loss_bound=float(os.environ["BOUND"])
    )
    mine.compile(optimizer, LOSS, jit_compile=False)
    begin = BroadcastVariables(comm)
    start_apart = distance(mine, alone)
    copied = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: batch or alone.set_weights(mine.get_weights())
    )
    shard = shards[comm.rank]
    mine.fit(INPUTS[shard], LABELS[shard], batch_size=BATCH, shuffle=False, verbose=0,
             callbacks=[begin, copied])
    alone.compile(keras.optimizers.SGD(0.1, momentum=0.9), LOSS, jit_compile=False)
    for first in range(0, share, BATCH):
        rows = np.concatenate([np.arange(s.start + first, s.start + first + BATCH) for s in shards])
        alone.train_on_batch(INPUTS[rows], LABELS[rows])
    with tempfile.TemporaryDirectory() as folder:
        mine.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
    print(json.dumps({
        "lossy bytes": sum(comm.stats().total.sum_due_bytes),
        "start apart": start_apart, "end apart": distance(mine, alone),
        "sums": [float(np.abs(w).sum()) for w in mine.get_weights()],
        "loaded": [type(loaded.optimizer) is keras.optimizers.SGD, distance(loaded, mine)],
    }))
"""
)


@pytest.mark.parametrize("bound", ["0", "0.1"])
def test_fit_trains_as_one_process_on_all_shards_does(bound: str) -> None:
    """Loopback loses nothing that a bound would have to let go of while nobody is in a hurry."""
    results = printed_by_ranks(FIT, 2, BOUND=bound, **ENVIRONMENT)
    for result in results:
        assert result["start apart"] > 0.1
        assert result["loaded"] == [True, 0]
        assert (result["lossy bytes"] > 0) == (bound != "0")
    assert results[0]["sums"] == results[1]["sums"]
    if bound == "0":
        assert max(each["end apart"] for each in results) < 1e-5


LOOP = (
    MODEL
    + """
with shoal.connect(deadline_s=20) as comm:
    average = GradientAverage(comm, wire="float16")
    weights = tf.Variable(np.full((40, 50), float(comm.rank)), dtype=tf.float32)
    table = tf.Variable(np.zeros((6, 2)), dtype=tf.float32)
    unused = tf.Variable(1.0)
    half = tf.Variable(np.ones(3), dtype=tf.float16)
    broadcast_variables([weights, half], comm, source=1)
    variables = [weights, table, unused, half]

    def gradients():
        with tf.GradientTape() as tape:
            rows = tf.gather(table, [comm.rank, 3])
            value = (comm.rank + 1) * tf.reduce_sum(weights) + tf.reduce_sum(rows)
            value += tf.cast(tf.reduce_sum(half), tf.float32)
        return average(tape.gradient(value, variables))

    found = {}
    for name, step in (("eager", gradients), ("compiled", tf.function(gradients))):
        means = step()
        found[name] = {
            "types": [None if m is None else m.dtype.name for m in means],
            "shapes": [None if m is None else m.shape.as_list() for m in means],
            "dense": np.unique(means[0].numpy()).tolist(),
            "sparse": means[1].numpy()[:, 0].tolist(),
        }
    lone = GradientAverage(comm)
    alone = [step([tf.ones((5, 2)) * comm.rank])[0] for step in (lone, tf.function(lone))]
    assert all(each.shape == (5, 2) and (each.numpy() == 0.5).all() for each in alone)
    print(json.dumps({"told": float(weights.numpy().mean()), **found}))
"""
)


def test_loops_of_ones_own_eager_and_compiled() -> None:
    for result in printed_by_ranks(LOOP, 2, **ENVIRONMENT):
        assert result["told"] == 1
        for way in ("eager", "compiled"):
            assert result[way]["types"] == ["float32", "float32", None, "float16"]
            assert result[way]["shapes"] == [[40, 50], [6, 2], None, [3]]
            assert result[way]["dense"] == [1.5]
            assert result[way]["sparse"] == [0.5, 0.5, 0, 1, 0, 0]


WRONG = (
    MODEL
    + """
with shoal.connect(deadline_s=20) as comm:
    made = model()
    made.compile(distributed_optimizer(keras.optimizers.SGD(), comm), LOSS, jit_compile=True)
    try:
        made.fit(INPUTS, LABELS, verbose=0, callbacks=[BroadcastVariables(comm)])
    except shoal.UsageError as error:
        print(error)
"""
)


def test_xla_is_refused_before_the_first_batch() -> None:
    ((_, out, _),) = outcomes([start(0, 1, free_port(), WRONG, **ENVIRONMENT)])
    assert "jit_compile=False" in out


LOST = (
    MODEL
    + """
with shoal.connect(deadline_s=4) as comm:
    made = model()
    made.compile(distributed_optimizer(keras.optimizers.SGD(), comm), LOSS, jit_compile=False)
    begin = BroadcastVariables(comm)
    rows = 8 if comm.rank else 48  # rank 1 has one batch, rank 0 six
    try:
        made.fit(INPUTS[:rows], LABELS[:rows], batch_size=8, verbose=0, callbacks=[begin])
    except tf.errors.OpError as error:
        print(error.message)
"""
)


def test_a_rank_that_has_fewer_batches_ends_the_others_with_its_name() -> None:
    port = free_port()
    ended = outcomes([start(rank, 2, port, LOST, **ENVIRONMENT) for rank in range(2)])
    assert "WorkerLost: Rank 1 is gone" in ended[0][1], ended
