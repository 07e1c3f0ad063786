"""What any model consists of, seen as arrays, averaged between real processes without torch."""

from __future__ import annotations

import numpy as np
import pytest
from forked_process import printed_by_forks, start

from shoal.adapters.arrays.array_means import _Memory, means_for
from shoal.errors import UsageError
from started_ranks import free_port, outcomes, printed_by_ranks

AVERAGES = """
import json, os, sys
import numpy as np
import shoal
from shoal.adapters.arrays.array_means import ArrayMeans

SHAPES = [(3, 5), (), (0, 4), (7,), (40, 50), (1,)]
TYPES = ["float32", "float64", "float32", "float16", "float32", "float32"]

def gradients(rank, step):
    random = np.random.default_rng((rank, step))
    return [random.normal(size=s).astype(t) for s, t in zip(SHAPES, TYPES)]

with shoal.connect(deadline_s=20) as comm:
    means = ArrayMeans(comm, bucket_bytes=4096)
    worst, first, addresses = 0.0, None, set()
    for step in range(6):
        mine = gradients(comm.rank, step)
        before = [each.copy() for each in mine]
        found = means.gradients(mine)
        assert all((a == b).all() for a, b in zip(mine, before))
        wanted = [
            np.mean([each.astype(np.float64) for each in same], axis=0)
            for same in zip(*(gradients(rank, step) for rank in range(comm.world_size)))
        ]
        for mean, want, shape in zip(found, wanted, SHAPES):
            assert mean.shape == shape and mean.dtype == np.float32
            assert mean.ctypes.data % 64 == 0 or not mean.size
            worst = max(worst, float(np.abs(mean - want).max(initial=0)))
        addresses.add(found[0].ctypes.data)
        if first is None:
            first, kept = found, [each.copy() for each in found]
    assert all((a == b).all() for a, b in zip(first, kept)), "written to while it was held"
    lossy = ArrayMeans(comm, loss_bound=0.1, wire="bfloat16", bucket_bytes=1 << 18)
    due_before = comm.stats().total.sum_due_bytes
    big = [np.ones(100_000, np.float32), np.ones(100_000, np.float32)]
    rounded = lossy.gradients(big)
    due = np.subtract(comm.stats().total.sum_due_bytes, due_before)
    pairs = [None, None]
    if comm.rank != 1:
        pairs = [float(means.parameters(gradients(comm.rank, 9), (2, 0))[1])]
        pairs.append(float(sum(gradients(rank, 9)[1] for rank in (2, 0)) / 2))
    weighted = means.parameters(gradients(comm.rank, 7), weights=np.array([1, 2, 3]))[1]
    wanted = sum(w * gradients(rank, 7)[1] for rank, w in enumerate((1, 2, 3))) / 6
    assert abs(weighted - wanted) < 1e-6
    exact = [np.full(100_000, 1 + 2**-20, np.float32)] * 2
    found = lossy.parameters(exact, (0, 1, 2), sequence=7)
    # a lost part counts as not there, and nothing is rounded
    assert abs(found[0] - exact[0]).max() < 2**-23
    refused = []
    for wrong in (
        lambda: means.gradients(gradients(0, 0)[:-1]),
        lambda: means.parameters(gradients(0, 0), (3, comm.rank)),
        lambda: means.parameters(gradients(0, 0), weights=(1, 2)),
        lambda: means.parameters(gradients(0, 0), weights=(0, 0, 0)),
        lambda: means.parameters(gradients(0, 0), weights=(3, -1, 1)),
        lambda: means.gradients([np.array([1 + 2j])]),
    ):
        try:
            wrong()
        except shoal.UsageError as error:
            refused.append(str(error))
imported = sorted({"torch", "numba", "tensorflow", "jax", "mxnet"} & set(sys.modules))
print(json.dumps({
    "worst": worst, "memories": len(addresses), "imported": imported, "refused": refused,
    "classes": np.flatnonzero(due).tolist(), "rounded": float(rounded[0].mean()),
    "pairs": pairs, "bits": [hash(each.tobytes()) for each in rounded],
}))
"""


def test_means_are_those_of_all_ranks_and_nobody_writes_to_what_is_held() -> None:
    results = printed_by_ranks(AVERAGES, 3, PYTHONHASHSEED="0")
    for result in results:
        assert result["worst"] < 1e-6
        # the first one is held; the others are the same memory, or two in turn
        assert 2 <= result["memories"] <= 3
        assert result["imported"] == []
        assert result["refused"][0].startswith("These are other arrays than before")
        assert result["refused"][1].startswith("A group is distinct ranks below 3")
        assert result["refused"][2] == "A group of 3 members has as many weights, not 2."
        assert result["refused"][3].endswith("must be a whole number of at least 1, not 0.")
        assert result["refused"][4].endswith("must be a whole number of at least 1, not -1.")
        assert result["refused"][5].startswith("Only real numbers can be averaged, not complex128")
        if result["pairs"][0] is not None:
            assert result["pairs"][0] == pytest.approx(result["pairs"][1])
        assert result["classes"] == [0, 4]  # of eight: two layers, each in a bucket of its own
        assert 0.89 <= result["rounded"] <= 1
    assert len({str(each["bits"]) for each in results}) == 1


DIFFERS = """
import numpy as np
import shoal
from shoal.adapters.arrays.array_means import ArrayMeans

with shoal.connect(deadline_s=20) as comm:
    try:
        ArrayMeans(comm).gradients([np.ones(4 + (comm.rank == 1), np.float32)])
    except shoal.MismatchError as error:
        print(error)
    comm.barrier()
"""


def test_ranks_with_other_models_are_named() -> None:
    port = free_port()
    ended = outcomes([start(rank, 3, port, DIFFERS) for rank in range(3)])
    said = [out for _, out, _ in ended]
    assert "Rank 0 has other arrays than ranks [1]: its 1 have the shapes [(4,)]" in said[0]
    assert "Rank 1 has other arrays than ranks [0, 2]" in said[1]


OPTIONS_DIFFER = """
import json
import numpy as np
import shoal
from shoal.adapters.arrays.array_means import ArrayMeans

said = []
with shoal.connect(deadline_s=20) as comm:
    for options in (
        {"wire": "float16" if comm.rank else None},
        {"loss_bound": 0.1 * (comm.rank + 1)},
        {"loss_bound": 0.1, "holes": "zero" if comm.rank else "divide-by-count"},
    ):
        try:
            ArrayMeans(comm, **options).gradients([np.ones(4, np.float32)])
        except shoal.MismatchError as error:
            said.append(str(error))
print(json.dumps(said))
"""


def test_ranks_with_other_options_are_told_which() -> None:
    for rank, said in enumerate(printed_by_forks(OPTIONS_DIFFER, 2)):
        mine = ["'float16'", "0.2", "'zero'"] if rank else ["None", "0.1", "'divide-by-count'"]
        for sentence, name, value in zip(said, ("wire", "loss_bound", "holes"), mine, strict=True):
            assert sentence == (
                f"The {name} of ArrayMeans is {value} on rank {rank} and another on ranks"
                f" [{1 - rank}]. All ranks give the same."
            )


def test_users_of_an_adapter_are_told_in_its_terms() -> None:
    with pytest.raises(UsageError, match=r"^A needs what shoal.connect\(\) returns, not None"):
        means_for("A", None, {})
    code = """
import numpy as np
import shoal
from shoal.adapters.arrays.array_means import means_for
with shoal.connect(deadline_s=20) as comm:
    try:
        means_for("A", comm, {"loss_bnd": 0.1})
    except shoal.UsageError as error:
        print(error)
    means = means_for("A", comm, {"loss_bound": 0.1})
    try:
        means.gradients([np.ones(3)]), means.gradients([np.ones(4)])
    except shoal.UsageError as error:
        print(error)
"""
    ((_, out, _),) = outcomes([start(0, 1, free_port(), code)])
    first, second = out.splitlines()
    assert first == (
        "A has no option 'loss_bnd'; its options: loss_bound, holes, wire, bucket_bytes."
    )
    assert second.endswith("Each model needs its own A.")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"loss_bound": 1.5}, "loss bound"),
        ({"holes": "magic"}, "magic"),
        ({"wire": "int4"}, "int4"),
    ],
)
def test_options_that_mean_nothing_are_refused(options: dict[str, object], wanted: str) -> None:
    code = f"""
import shoal
from shoal.adapters.arrays.array_means import ArrayMeans
with shoal.connect(deadline_s=20) as comm:
    try:
        ArrayMeans(comm, **{options!r})
    except shoal.UsageError as error:
        print(error)
"""
    ((_, out, _),) = outcomes([start(0, 1, free_port(), code)])
    assert wanted in out
    assert out.strip().endswith(".")


def test_memory_is_used_again_only_when_no_part_of_it_is_held() -> None:
    memory = _Memory(100)
    first = memory.take()
    part = first[10:20].reshape(2, 5)
    del first
    second = memory.take()
    assert not np.shares_memory(part, second)
    address = second.ctypes.data
    del second
    assert memory.take().ctypes.data == address
    exported = memory.take().__dlpack__()
    third, fourth = memory.take(), memory.take()
    assert len({third.ctypes.data, fourth.ctypes.data, address}) == 3
    del exported
    assert memory.take().ctypes.data == address
