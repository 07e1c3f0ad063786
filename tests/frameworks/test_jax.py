"""JAX over Shoal's transport, between real processes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from started_ranks import printed_by_ranks

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX: make test-frameworks")

TRAINED = """
import json, os
import numpy as np
import jax, jax.numpy as jnp
import shoal
from shoal.adapters.jax import Average, broadcast

random = np.random.default_rng(0)
INPUTS = random.normal(size=(64, 8)).astype("float32")
WANTED = random.normal(size=(64, 3)).astype("float32")

def drawn(seed):
    key = jax.random.key(seed)
    layer = jax.random.normal(key, (16, 3)).astype(jnp.bfloat16)
    return {"a": jax.random.normal(key, (8, 16)), "b": [layer, jnp.zeros(3)]}

def loss(p, x, y):
    hidden = jnp.tanh(x @ p["a"])
    return jnp.mean((hidden @ p["b"][0].astype(jnp.float32) + p["b"][1] - y) ** 2)

gradients_of = jax.jit(jax.grad(loss))
updated = jax.jit(lambda p, g: jax.tree.map(lambda a, b: a - 0.1 * b, p, g))

def train(p, inputs, wanted, average):
    held = []
    for _ in range(20):
        held.append(average(gradients_of(p, inputs, wanted)))
        p = updated(p, held[-1])
    assert not any((held[0]["a"] == other["a"]).all() for other in held[1:])
    return p, held[-1]

with shoal.connect() as comm:
    begin = broadcast(drawn(comm.rank), comm, source=1)
    assert jax.tree.all(jax.tree.map(lambda a, b: (a == b).all(), begin, drawn(1)))
    share = len(INPUTS) // comm.world_size
    shard = slice(comm.rank * share, (comm.rank + 1) * share)
    average = Average(comm, loss_bound=float(os.environ["BOUND"])).gradients
    mine, means = train(begin, INPUTS[shard], WANTED[shard], average)
    alone, _ = train(begin, INPUTS, WANTED, lambda gradients: gradients)
    print(json.dumps({
        "lossy bytes": sum(comm.stats().total.sum_due_bytes),
        "platforms": sorted({d.platform for m in jax.tree.leaves(means) for d in m.devices()}),
        "types": [str(each.dtype) for each in jax.tree.leaves(means)],
        "apart": [float(jnp.abs(m - a).max()) for m, a in
                  zip(jax.tree.leaves(mine), jax.tree.leaves(alone))],
        "sums": [float(jnp.abs(m.astype(jnp.float32)).sum()) for m in jax.tree.leaves(mine)],
    }))
"""


@pytest.mark.parametrize("bound", ["0", "0.1"])
def test_a_step_in_two_halves_trains_as_one_process_on_all_shards_does(bound: str) -> None:
    results = printed_by_ranks(TRAINED, 2, BOUND=bound, SHOAL_STOP_EARLY="1", JAX_PLATFORMS="cpu")
    for result in results:
        assert result["platforms"] == ["cpu"]
        assert result["types"] == ["float32", "bfloat16", "float32"]
        assert (result["lossy bytes"] > 0) == (bound != "0")
        if bound == "0":
            assert max(result["apart"]) < 0.05  # bfloat16 rounds gradients of halves otherwise
    assert results[0]["sums"] == results[1]["sums"]


PLACED = """
import json
import numpy as np
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import shoal
from shoal.adapters.jax import Average, broadcast

with shoal.connect() as comm:
    split = NamedSharding(Mesh(jax.devices(), ("x",)), PartitionSpec("x"))
    tree = {
        "array": np.full(3, comm.rank, np.float16),
        "number": float(comm.rank),
        "second": jax.device_put(jnp.full(4, comm.rank), jax.devices()[1]),
        "split": jax.device_put(jnp.arange(4.0) + comm.rank, split),
    }
    found = {}
    for average in (Average(comm).gradients, Average(comm).parameters):
        means = average(tree)
        assert means["second"].devices() == {jax.devices()[1]}
        assert means["split"].sharding == split
        both = jax.jit(lambda one, other: jax.tree.map(jnp.add, one, other))
        both(tree["second"], means["second"]), both(tree["split"], means["split"])
        found[average.__name__] = [[str(m.dtype), m.tolist()] for m in jax.tree.leaves(means)]
    refused = []
    for wrong in (
        lambda: Average(comm, bound=0.1),
        lambda: Average(comm).gradients(jnp.ones(1) * 1j),
        lambda: jax.jit(Average(comm).gradients)(jnp.ones(1)),
        lambda: jax.vmap(Average(comm).parameters)(jnp.ones(1)),
        lambda: jax.grad(lambda x: broadcast(x, comm))(1.0),
    ):
        try:
            wrong()
        except shoal.UsageError as error:
            refused.append(str(error))
    print(json.dumps({"found": found, "refused": refused}))
"""


def test_means_come_back_where_the_leaves_are_whatever_these_are() -> None:
    flags = "--xla_force_host_platform_device_count=2"
    for result in printed_by_ranks(PLACED, 2, JAX_PLATFORMS="cpu", XLA_FLAGS=flags):
        wanted = [
            ["float16", [0.5] * 3],
            ["float32", 0.5],
            ["int32", [0] * 4],
            ["float32", [0.5, 1.5, 2.5, 3.5]],
        ]
        assert result["found"] == {"gradients": wanted, "parameters": wanted}
        assert result["refused"][0].startswith("Average has no option 'bound'")
        assert result["refused"][1].startswith("Only real numbers can be averaged, not complex64")
        assert len(result["refused"]) == 5
        assert all(
            said.startswith("Within jax.jit, grad or vmap") for said in result["refused"][2:]
        )


SCHEDULED = """
import json
import jax.numpy as jnp
import shoal
from shoal.adapters.jax import Average
from shoal.groups import make_schedule

with shoal.connect() as comm:
    schedule, average = make_schedule("ds-sync", comm.world_size), Average(comm)
    parameters = {"w": jnp.full(5, float(comm.rank))}
    seen = []
    for step in range(schedule.period):
        group = schedule.group_of(comm.rank, step)
        seen.append(len(group.members))
        parameters = average.parameters(parameters, group.members)
    print(json.dumps({"seen": seen, "values": parameters["w"].tolist()}))
"""


def test_ds_sync_brings_parameters_to_exact_consensus_in_a_cycle() -> None:
    for result in printed_by_ranks(SCHEDULED, 4, JAX_PLATFORMS="cpu"):
        assert result == {"seen": [2, 2], "values": [1.5] * 5}
