"""MXNet Gluon over Shoal's transport, between real processes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from started_ranks import printed_by_ranks

pytestmark = pytest.mark.skipif(
    find_spec("mxnet") is None, reason="needs MXNet: make test-frameworks"
)

TRAINED = """
import json, os
import numpy as np
import shoal
from shoal.adapters.mxnet import DistributedTrainer, broadcast_parameters
import mxnet as mx
from mxnet import autograd, gluon

random = np.random.default_rng(0)
INPUTS = random.normal(size=(64, 8)).astype("float32")
LABELS = random.integers(0, 3, 64)
LOSS = gluon.loss.SoftmaxCrossEntropyLoss()

def made():
    net = gluon.nn.HybridSequential()
    net.add(gluon.nn.Dense(16, activation="relu"), gluon.nn.Dense(3))
    net.initialize()
    net.hybridize()
    return net

def train(net, trainer, inputs, labels):
    for _ in range(20):
        with autograd.record():
            loss = LOSS(net(mx.nd.array(inputs)), mx.nd.array(labels))
        loss.backward()
        trainer.step(len(inputs))

def weights(net):
    return [each.data().asnumpy() for each in net.collect_params().values()]

with shoal.connect() as comm:
    mx.random.seed(comm.rank)
    net, alone = made(), made()
    refused = ""
    try:
        broadcast_parameters(net.collect_params(), comm)
    except shoal.UsageError as error:
        refused = str(error)
    for each in (net, alone):
        each(mx.nd.array(INPUTS))
    broadcast_parameters(list(net.collect_params().values()), comm, source=1)
    try:
        broadcast_parameters(net, comm)
    except shoal.UsageError as error:
        whole_net = str(error)
    for one, other in zip(alone.collect_params().values(), net.collect_params().values()):
        one.set_data(other.data())
    options = {"learning_rate": 0.1, "momentum": 0.9}
    trainer = DistributedTrainer(
        net.collect_params(), "sgd", dict(options),
        communicator=comm, loss_bound=float(os.environ["BOUND"]),
    )
    try:
        DistributedTrainer(net.collect_params(), "sgd", communicator=comm, kvstore="device")
    except shoal.UsageError as error:
        unknown = str(error)
    share = len(INPUTS) // comm.world_size
    shard = slice(comm.rank * share, (comm.rank + 1) * share)
    train(net, trainer, INPUTS[shard], LABELS[shard])
    plain = gluon.Trainer(alone.collect_params(), "sgd", dict(options), kvstore=None)
    train(alone, plain, INPUTS, LABELS)
    print(json.dumps({
        "lossy bytes": sum(comm.stats().total.sum_due_bytes),
        "refused": refused, "unknown": unknown, "whole net": whole_net,
        "apart": float(max(np.abs(a - b).max() for a, b in zip(weights(net), weights(alone)))),
        "sums": [float(np.abs(each).sum()) for each in weights(net)],
    }))
"""


@pytest.mark.parametrize("bound", ["0", "0.1"])
def test_a_trainer_trains_as_one_process_on_all_shards_does(bound: str) -> None:
    results = printed_by_ranks(TRAINED, 2, BOUND=bound, SHOAL_STOP_EARLY="1")
    for result in results:
        assert (result["lossy bytes"] > 0) == (bound != "0")
        assert result["refused"].endswith("pass a batch through the model first.")
        assert result["whole net"].endswith("or a list, not HybridSequential.")
        assert result["unknown"].startswith("DistributedTrainer has no option 'kvstore'")
        if bound == "0":
            assert result["apart"] < 1e-5
    assert results[0]["sums"] == results[1]["sums"]
