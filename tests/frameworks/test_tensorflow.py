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
import json, os, tempfile, time
import numpy as np
import keras
import tensorflow as tf
import shoal
from shoal.adapters.tensorflow import (
    AverageLogs, BroadcastVariables, GradientAverage, broadcast_variables, distributed_optimizer,
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

def sums(net):
    return [float(np.abs(w).sum()) for w in net.get_weights()]
"""

FIT = (
    MODEL
    + """
with shoal.connect() as comm:
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
        "sums": sums(mine),
        "loaded": [type(loaded.optimizer) is keras.optimizers.SGD, distance(loaded, mine)],
    }))
"""
)


@pytest.mark.parametrize("bound", ["0", "0.1"])
def test_fit_trains_as_one_process_on_all_shards_does(bound: str) -> None:
    """Loopback loses nothing that a bound would have to let go of while nobody is in a hurry."""
    results = printed_by_ranks(FIT, 2, BOUND=bound, SHOAL_STOP_EARLY="1", **ENVIRONMENT)
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
with shoal.connect() as comm:
    average = GradientAverage(comm, wire="float16")
    weights = tf.Variable(np.full((40, 50), float(comm.rank)), dtype=tf.float32)
    table = tf.Variable(np.zeros((6, 2)), dtype=tf.float32)
    unused = tf.Variable(1.0)
    half = tf.Variable(np.ones(3), dtype=tf.float16)
    others = [
        tf.Variable([comm.rank + 0.5] * 3, dtype=tf.bfloat16),
        tf.Variable(1j * comm.rank, dtype=tf.complex64),
        tf.Variable(comm.rank == 1),
    ]
    text = tf.Variable(str(comm.rank))  # stays
    broadcast_variables([weights, half, *others, text], comm, source=1)
    assert others[0].numpy().tolist() == [1.5] * 3
    assert (others[1].numpy(), others[2].numpy()) == (1j, True)
    assert text.numpy().decode() == str(comm.rank)
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


RESUMED = (
    MODEL
    + """
class Slower(keras.optimizers.Adam):
    def __init__(self, factor):  # and no get_config
        super().__init__(lambda: 0.1 / factor)

with shoal.connect() as comm:
    def fit(net):
        rows = slice(comm.rank, None, comm.world_size)
        net.fit(INPUTS[rows], LABELS[rows], shuffle=False, verbose=0,
                callbacks=[BroadcastVariables(comm)])
        return net

    mine = model()
    mine.compile(distributed_optimizer(keras.optimizers.Adam(0.01), comm), LOSS, jit_compile=False)
    fit(mine)
    with tempfile.TemporaryDirectory() as folder:
        mine.save(f"{folder}/model.keras")
        loaded = keras.models.load_model(f"{folder}/model.keras")
    optimizer = distributed_optimizer(loaded.optimizer, comm)
    loaded.compile(distributed_optimizer(optimizer, comm), LOSS, jit_compile=False)
    steps = int(optimizer.iterations.numpy())
    odd = model()
    odd.compile(distributed_optimizer(Slower(2), comm), LOSS, jit_compile=False)
    print(json.dumps({
        "apart": distance(fit(mine), fit(loaded)), "sums": sums(loaded), "odd": sums(fit(odd)),
        "steps": [steps, int(loaded.optimizer.iterations.numpy())],
        "bases": [each.__name__ for each in type(loaded.optimizer).__mro__[:3]],
    }))
"""
)


def test_a_loaded_optimizer_goes_on_where_it_was() -> None:
    results = printed_by_ranks(RESUMED, 2, **ENVIRONMENT)
    for result in results:
        assert result["steps"] == [1, 2]
        assert result["apart"] == 0
        assert result["bases"] == ["Adam", "Adam", "Optimizer"], "averages twice"
        assert result["sums"] == results[0]["sums"]
        assert result["odd"] == results[0]["odd"]


MIXED = (
    MODEL
    + """
keras.config.set_dtype_policy("mixed_float16")
with shoal.connect() as comm:
    made = model()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024)
    made.compile(distributed_optimizer(scaled, comm), LOSS, jit_compile=False)
    rows = slice(comm.rank, None, comm.world_size)
    mine = INPUTS[rows].copy()
    if comm.rank == 1:
        mine[BATCH] = 1e30  # so that gradients of the second batch overflow here
    made.fit(mine, LABELS[rows], batch_size=BATCH, shuffle=False, verbose=0,
             callbacks=[BroadcastVariables(comm)])
    print(json.dumps({
        "sums": sums(made), "scale": float(made.optimizer.dynamic_scale.numpy()),
        "steps": int(made.optimizer.iterations.numpy()),
    }))
"""
)


def test_a_step_that_overflows_on_one_rank_is_skipped_by_all() -> None:
    first, second = printed_by_ranks(MIXED, 2, **ENVIRONMENT)
    assert first == second
    assert first["scale"] == 512
    assert first["steps"] == 5


LOGS = (
    MODEL
    + """
with shoal.connect() as comm:
    rows = slice(comm.rank, None, comm.world_size)

    def fit(*callbacks):
        keras.utils.set_random_seed(1)
        made = model()
        optimizer = distributed_optimizer(keras.optimizers.SGD(0.1), comm)
        made.compile(optimizer, LOSS, metrics=["accuracy"], jit_compile=False)
        valid = INPUTS[rows][:8] * (-5 if comm.rank else 1), LABELS[rows][:8]
        history = made.fit(
            INPUTS[rows], LABELS[rows], batch_size=BATCH, epochs=8, shuffle=False, verbose=0,
            validation_data=valid, callbacks=[BroadcastVariables(comm), *callbacks],
        ).history
        return history, float(made.optimizer.learning_rate.numpy()), sums(made)

    act = keras.callbacks
    slower = act.ReduceLROnPlateau(monitor="val_loss", patience=1, factor=0.5, min_delta=0.01)
    stop = act.EarlyStopping("val_accuracy", patience=3)
    history, rate, ends = fit(AverageLogs(comm), slower, stop)
    counted = []

    def spoil(batch, logs):
        counted.append(batch)
        if comm.rank == batch == 1:
            logs["loss"] = float("nan")

    spoiled = act.LambdaCallback(on_train_batch_end=spoil)
    fit(spoiled, AverageLogs(comm, every_batch=True), act.TerminateOnNaN())
    print(json.dumps({"history": history, "rate": rate, "sums": ends, "batches": counted}))
"""
)


def test_callbacks_behind_averaged_logs_do_the_same_on_all_ranks() -> None:
    first, second = printed_by_ranks(LOGS, 2, **ENVIRONMENT)
    assert first == second
    assert first["rate"] < 0.1
    assert first["batches"] == [0, 1]


REFUSED = (
    MODEL
    + """
class Called(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs)

with shoal.connect() as comm:
    def fit(net, **options):
        net.compile(distributed_optimizer(keras.optimizers.SGD(), comm), LOSS, **options)
        net.fit(INPUTS, LABELS, verbose=0, callbacks=[BroadcastVariables(comm)])

    def mixed():
        keras.config.set_dtype_policy("mixed_float16")
        fit(model(), jit_compile=False)

    said = []
    for wrong in (
        lambda: fit(model(), jit_compile=True),
        lambda: fit(keras.Sequential([keras.layers.Dense(3)]), jit_compile=False),
        lambda: fit(Called(), jit_compile=False),
        lambda: distributed_optimizer("sgd", comm),
        lambda: distributed_optimizer(keras.optimizers.SGD(), None),
        lambda: distributed_optimizer(keras.optimizers.SGD(), comm, bound=0.1),
        lambda: GradientAverage(comm, bound=0.1),
        mixed,
    ):
        try:
            wrong()
        except shoal.UsageError as error:
            said.append(str(error))
    print(json.dumps(said))
"""
)


def test_what_cannot_be_averaged_is_refused_in_a_sentence() -> None:
    (said,) = printed_by_ranks(REFUSED, 1, **ENVIRONMENT)
    wanted = [
        "jit_compile=False",
        "has no weights yet",
        "'called' has no weights yet",
        "distributed_optimizer takes a Keras optimizer, such as",
        "distributed_optimizer needs what shoal.connect() returns, not NoneType",
        "distributed_optimizer has no option 'bound'",
        "GradientAverage has no option 'bound'",
        "distributed_optimizer(keras.optimizers.LossScaleOptimizer(...), ...)",
    ]
    assert len(said) == len(wanted)
    for sentence, part in zip(said, wanted, strict=True):
        assert part in sentence


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
    time.sleep(comm.rank * float(os.environ["STAYS_S"]))
"""
)


@pytest.mark.parametrize(
    ("stays_s", "wanted"), [("0", "WorkerLost: Rank 1 is gone"), ("8", "DeadlineExceeded: ")]
)
def test_a_rank_that_has_fewer_batches_ends_the_others(stays_s: str, wanted: str) -> None:
    port = free_port()
    more = {"STAYS_S": stays_s, **ENVIRONMENT}
    ended = outcomes([start(rank, 2, port, LOST, **more) for rank in range(2)])
    assert wanted in ended[0][1], ended
