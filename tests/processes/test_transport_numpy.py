"""`shoal.connect()`: collectives on NumPy arrays between real processes, without torch."""

from __future__ import annotations

import pytest
from forked_process import printed_by_forks, start

from shoal.errors import DeadlineExceeded, MismatchError
from started_ranks import free_port, outcomes, printed_by_ranks
from thoroughness import seldom

SCRIPT = """
import json, sys
import numpy as np
import shoal

with shoal.connect(deadline_s=20) as comm:
    rank, size = comm.rank, comm.world_size
    values = np.arange(20_000, dtype=np.float32) + rank
    results = {"sum": comm.all_reduce(values.copy()).tolist()}
    results["mean"] = comm.all_reduce(values.copy(), average=True).tolist()
    results["whole"] = comm.all_reduce(np.full(3, rank, np.int64)).tolist()
    if rank != 1:
        results["group"] = comm.all_reduce(values.copy(), group=(2, 0)).tolist()
    results["row"] = comm.reduce_scatter(np.full((size, 4), float(rank))).tolist()
    results["gathered"] = comm.all_gather(np.array([rank, -rank])).tolist()
    results["told"] = comm.broadcast(np.full(5, rank), 2).tolist()
    results["swapped"] = comm.all_to_all(np.arange(size * 2).reshape(size, 2) + 10 * rank).tolist()
    if rank == 0:
        comm.send(np.arange(7.0), 1, tag=1 << 40)
    if rank == 1:
        results["received"] = comm.receive(np.empty(7), 0, tag=1 << 40).tolist()
    lossy = comm.all_reduce(np.ones(200_000, np.float32), loss_bound=0.1)
    results["least"], results["most"] = float(lossy.mean()), float(lossy.max())
    almost = np.full(1001, 1 + 2**-10)
    for wire in (None, "float32", "float16", "bfloat16"):
        for kind in ("float64", "float32", "float16"):
            total = comm.all_reduce(almost.astype(kind), wire=wire)
            assert total.dtype == kind
            results[f"{wire} {kind}"] = np.unique(total).tolist()
    count = comm.all_reduce(np.full(5, 1025), wire="bfloat16")
    results["count"] = count.tolist()
    row = comm.reduce_scatter(np.full((size, 4), 1 + 2**-10), wire="bfloat16")
    results["rounded row"] = row.tolist()
    refusals = []
    for wrong in (
        lambda: comm.all_reduce(np.ones(3), group=(0, 9)),
        lambda: comm.all_reduce(np.ones(3), loss_bound=1.5),
        lambda: comm.all_reduce(np.ones((4, 4)).T),
        lambda: comm.all_reduce(np.array(["a"])),
        lambda: comm.all_reduce(np.ones(3), wire="float8"),
    ):
        try:
            wrong()
        except shoal.UsageError as error:
            refusals.append(str(error))
    results["refusals"] = refusals
    comm.barrier()
results["imported"] = [name for name in ("torch", "numba", "scipy") if name in sys.modules]
print(json.dumps(results))
"""


def test_every_collective_without_torch_or_the_compiler() -> None:
    size = 3
    results = printed_by_ranks(SCRIPT, size, SHOAL_STOP_EARLY="1")
    expected = [3.0 * index + 3 for index in range(20_000)]
    for rank, result in enumerate(results):
        assert result["sum"] == expected
        assert result["mean"] == [index + 1.0 for index in range(20_000)]
        assert result["whole"] == [3] * 3
        if rank != 1:
            assert result["group"] == [2.0 * index + 2 for index in range(20_000)]
        assert result["row"] == [3.0] * 4
        assert result["gathered"] == [[0, 0], [1, -1], [2, -2]]
        assert result["told"] == [2] * 5
        assert result["swapped"] == [
            [2 * rank + 10 * other, 2 * rank + 1 + 10 * other] for other in range(size)
        ]
        assert 0.9 * size - 0.2 <= result["least"] <= size
        assert result["most"] == size
        for kind in ("float64", "float32", "float16"):
            exact = [3 + 3 * 2**-10] if kind != "float16" else [3 + 2**-8]
            assert result[f"None {kind}"] == exact  # float16 has 11 bits
            assert result[f"float32 {kind}"] == exact
            assert result[f"float16 {kind}"] == [3 + 2**-8]
            assert result[f"bfloat16 {kind}"] == [3.0]
        assert result["count"] == [3075] * 5
        assert result["rounded row"] == [3.0] * 4
        assert len(result["refusals"]) == 5
        assert all(text.endswith((".", "?")) for text in result["refusals"])
        assert result["imported"] == []
    assert results[1]["received"] == [float(index) for index in range(7)]


REFUSED = """
import json
import numpy as np
import shoal

objects = np.array([{}, "x"], dtype=object)
swapped = [np.ones(4, np.dtype(kind).newbyteorder(">")) for kind in ("f8", "f4", "i4", "i8")]
refused = {}
with shoal.connect() as comm:
    every = {
        "all_reduce": comm.all_reduce,
        "reduce_scatter": lambda array: comm.reduce_scatter(array.reshape(1, -1)),
        "all_gather": comm.all_gather,
        "broadcast": lambda array: comm.broadcast(array, 0),
        "all_to_all": lambda array: comm.all_to_all(array.reshape(1, -1)),
        "send": lambda array: comm.send(array, 0),
        "receive": lambda array: comm.receive(array, 0),
    }
    tries = {"mean": [lambda: comm.all_reduce(np.ones(3, np.int64), average=True)]}
    for name, call in every.items():
        tries[f"objects {name}"] = [lambda call=call: call(objects.copy())]
        tries[f"order {name}"] = [lambda call=call, each=each: call(each) for each in swapped]
    tries["array"] = [lambda: comm.all_reduce([1.0]), lambda: comm.all_gather(1.0)]
    for key, groups in {"rank": ([0, 0.5], "0", [None], [-1]), "sequence": (3,)}.items():
        tries[key] = [lambda group=group: comm.barrier(group=group) for group in groups]
    tries["tag"] = [
        lambda call=call, size=size, tag=tag: call(np.ones(size), 0, tag=tag)
        for call in (comm.send, comm.receive) for size in (0, 3) for tag in (-1, "a", 1.5)
    ]
for key, calls in tries.items():
    refused[key] = []
    for call in calls:
        try:
            call()
        except shoal.UsageError as error:
            refused[key].append(str(error))
        else:
            refused[key].append("not refused")
print(json.dumps(refused))
"""


def test_what_would_arrive_as_something_else_is_refused() -> None:
    (refused,) = printed_by_forks(REFUSED, 1)
    expected = {
        "mean": "A mean of int64 need not be a whole number",
        "objects": "holds addresses of Python objects",
        "order": "is not this machine's",
        "array": "Only NumPy arrays can be exchanged",
        "rank": "A rank of a group must be a whole number of at least 0, not ",
        "sequence": "A group is a sequence of ranks, not 3.",
        "tag": "A tag must be a whole number of at least 0, not ",
    }
    assert {key.split()[0] for key in refused} == expected.keys()
    for key, texts in refused.items():
        for text in texts:
            assert expected[key.split()[0]] in text, key
            assert text.endswith("."), text


WHO_MEETS = """
import json
import numpy as np
import shoal
from shoal.adapters.arrays.array_means import ArrayMeans

with shoal.connect(deadline_s=20) as comm:
    before = comm.stats()
    total = comm.all_reduce(np.full(4_000, comm.rank + 1.0, np.float32))
    between = comm.stats() - before
    met = [peer for peer, stats in between.peers.items() if stats.sent_bytes]
    (mean,) = ArrayMeans(comm).gradients([np.full(3, comm.rank + 1.0, np.float32)])
    few = comm.all_reduce(np.ones(3), group=(3, 1, 0)) if comm.rank != 2 else np.full(3, 3.0)
    comm.barrier()
print(json.dumps({"met": met, "total": [*total.tolist(), *few.tolist()], "mean": mean.tolist()}))
"""


@pytest.mark.parametrize(
    ("algorithm", "met_by_first"),
    seldom(
        [("direct", [1, 2, 3]), ("ring", [1]), ("hierarchical", [1, 2])],
        often=[("hierarchical", [1, 2])],
    ),
)
def test_the_environment_says_who_meets_in_sums_over_all(
    algorithm: str, met_by_first: list[int]
) -> None:
    results = printed_by_forks(WHO_MEETS, 4, SHOAL_ALL_REDUCE=algorithm, LOCAL_WORLD_SIZE="2")
    for result in results:
        assert set(result["total"]) == {10.0, 3.0}
        assert result["mean"] == [2.5] * 3
    assert results[0]["met"] == met_by_first


def test_hosts_are_told_by_addresses_where_no_launcher_says_how_many_ranks_they_have() -> None:
    bound = (
        "import os\nos.environ['SHOAL_BIND'] = f'127.0.0.{2 + int(os.environ[\"RANK\"]) // 2}'\n"
    )
    results = printed_by_forks(bound + WHO_MEETS, 4, SHOAL_ALL_REDUCE="hierarchical")
    for result in results:
        assert set(result["total"]) == {10.0, 3.0}
    assert results[0]["met"] == [1, 2]


REUSED_MEMORY = """
import json
import numpy as np
import shoal

with shoal.connect(deadline_s=20) as comm:
    memory = np.ones(40_000, np.float32)
    guard = np.zeros(40_000, np.float32)
    for kind in (np.float16, np.float32, np.float64, np.float16):
        for wire in ("float16", None):
            array = memory[:20_000].view(kind)
            array[...] = 1
            comm.all_reduce(array, loss_bound=0.3, holes="error-feedback", wire=wire)
    shards = comm.reduce_scatter(np.arange(comm.world_size, dtype=np.float32)).tolist()
    mean = comm.all_reduce(np.ones(5), average=True, holes="divide-by-count").tolist()
    rest = memory[20_000:].tolist()
    comm.barrier()
print(json.dumps({"rest": rest, "shards": shards, "mean": mean}))
"""


DISAGREEING = """
import json
import numpy as np
import shoal

FLOATS, DOUBLES, WHOLE = (np.ones(1000, kind) for kind in (np.float32, np.float64, np.int32))
with shoal.connect(deadline_s=60) as comm:
    me, told = comm.rank, {}
    pairs = {
        "length": lambda: comm.all_reduce(np.ones(100 if me else 3_000_000, np.float32)),
        "mean": lambda: comm.all_reduce(FLOATS.copy(), average=me == 0),
        "type": lambda: comm.all_reduce((FLOATS if me else WHOLE).copy()),
        "gathered type": lambda: comm.all_gather(FLOATS if me else WHOLE),
        "told type": lambda: comm.broadcast((DOUBLES if me else np.ones(1000, np.int64)), 0),
        "collective": lambda: (comm.all_reduce if me else comm.all_gather)(FLOATS.copy()),
        "message": lambda: comm.receive(WHOLE[:9], 0) if me else comm.send(WHOLE[:10], 1),
    }
    for name, call in pairs.items():
        try:
            call()
        except shoal.MismatchError as error:
            told[name] = str(error)
    told["sum"] = comm.all_reduce(FLOATS.copy()).tolist()
print(json.dumps(told))
"""


def test_ranks_that_disagree_on_a_call_hear_of_it_at_once_and_can_go_on() -> None:
    for rank, told in enumerate(printed_by_forks(DISAGREEING, 2)):
        assert told.pop("sum") == [2.0] * 1000
        assert list(told) == [
            *("length", "mean", "type", "gathered type", "told type", "collective", "message")
        ]
        assert f"is not what rank {1 - rank} takes part in" in told["length"]


def test_what_was_lost_is_added_to_numbers_of_the_same_type_and_length_only() -> None:
    for rank, result in enumerate(printed_by_forks(REUSED_MEMORY, 3)):
        assert set(result["rest"]) == {1.0}
        assert result["shards"] == 3.0 * rank


def test_what_loses_nothing_may_have_any_policy_for_holes() -> None:
    for result in printed_by_forks(REUSED_MEMORY, 3, SHOAL_ALL_REDUCE="ring"):
        assert result["mean"] == [1.0] * 5


FORKED = """
import json, os
import numpy as np
import shoal

with shoal.connect(deadline_s=20) as comm:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            comm.all_reduce(np.ones(5))
        except shoal.UsageError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 1000).decode()
    total = comm.all_reduce(np.ones(5)).tolist()
print(json.dumps({"said": said, "total": total}))
"""


def test_a_forked_process_is_told_that_the_transport_is_not_its_own() -> None:
    for result in printed_by_forks(FORKED, 2):
        assert "was forked" in result["said"]
        assert result["total"] == [2.0] * 5


CONNECT = """
import sys
import shoal
try:
    shoal.connect(deadline_s=float(sys.argv[1]) if len(sys.argv) > 1 else 3).close()
except shoal.ShoalError as error:
    print(f"{type(error).__name__}: {error}")
    sys.exit(error.exit_code)
"""


def test_a_rank_that_does_not_come_is_named() -> None:
    alone = CONNECT.replace("else 3", "else 1")
    ((code, out, _),) = outcomes([start(0, 2, free_port(), alone)])
    assert code == DeadlineExceeded.exit_code
    assert "Rank 1 did not come within 1 s" in out


def test_two_processes_of_one_rank_and_wrong_numbers_are_refused() -> None:
    port = free_port()
    ended = outcomes(
        [start(0, 3, port, CONNECT), *(start(1, 3, port, CONNECT),) * 1, start(1, 3, port, CONNECT)]
    )
    assert any("Two processes" in out for _, out, _ in ended), ended
    port = free_port()
    ended = outcomes([start(0, 2, port, CONNECT), start(1, 4, port, CONNECT)])
    assert any("was told of 4 ranks" in out for _, out, _ in ended), ended


def test_ranks_that_would_make_sums_differently_are_refused() -> None:
    port = free_port()
    ended = outcomes(
        [
            start(rank, 2, port, CONNECT, SHOAL_ALL_REDUCE=algorithm)
            for rank, algorithm in enumerate(("direct", "ring"))
        ]
    )
    for code, out, _ in ended:
        assert code == MismatchError.exit_code
        assert "Rank 1 has SHOAL_ALL_REDUCE=ring" in out


def test_beyond_one_machine_a_job_key_is_required() -> None:
    ((code, out, _),) = outcomes(
        [start(0, 2, free_port(), CONNECT, MASTER_ADDR="192.0.2.1", SHOAL_BIND="127.0.0.1")]
    )
    assert code == 2
    assert "SHOAL_JOB_KEY" in out


def test_settings_that_mean_nothing_are_refused() -> None:
    for name, value in (
        ("SHOAL_MTU", "12"),
        ("SHOAL_PORTS", "9-3"),
        ("SHOAL_PATHS", "0"),
        ("SHOAL_RATE_CONTROL", "magic"),
        ("SHOAL_BIND", "203.0.113.9"),
    ):
        ((code, out, _),) = outcomes([start(0, 1, free_port(), CONNECT, **{name: value})])
        assert code in (2, 7), (name, out)
        assert out.strip().endswith("."), (name, out)
