"""Ranks on hosts, for which addresses of loopback stand: what crosses between them are sums."""

from __future__ import annotations

import json
from typing import Any

import pytest
from forked_process import start

from started_ranks import free_port, outcomes
from thoroughness import seldom

SIZE = 300_000

SCRIPT = f"""
import json, os
import numpy as np
import shoal

with shoal.connect(deadline_s=20) as comm:
    before = comm.stats()
    values = np.arange({SIZE}, dtype=np.float32) + comm.rank
    bound, group = float(os.environ["BOUND"]), json.loads(os.environ["GROUP"])
    rows = np.arange(comm.world_size * {SIZE}, dtype=np.float32).reshape(comm.world_size, -1)
    own = comm.reduce_scatter(rows + comm.rank)
    part = comm.all_gather(np.full({SIZE}, comm.rank, np.float32))
    apart = {{rank: peer.sent_bytes for rank, peer in (comm.stats() - before).peers.items()}}
    expected = comm.world_size * rows[comm.rank] + sum(range(comm.world_size))
    right = bool((own == expected).all()) and part[:, 0].tolist() == list(range(comm.world_size))
    before = comm.stats()
    found = values
    if comm.rank in (group or [comm.rank]):
        found = comm.all_reduce(values, loss_bound=bound, group=group)
    comm.barrier()
    sent = {{rank: peer.sent_bytes for rank, peer in (comm.stats() - before).peers.items()}}
    print(json.dumps(
        {{"sum": [float(found[0]), float(found[-1])], "sent": sent, "apart": apart, "right": right}}
    ))
"""


def found_by(hosts: list[int], bound: float = 0.0, group: list[int] | None = None) -> Any:
    """Return each rank's first and last element, and what it sent to others in shares of the sum.

    `hosts` has the number of each rank's host.
    """
    port = free_port()
    more = {"BOUND": str(bound), "GROUP": json.dumps(group)}
    ranks = [
        start(rank, len(hosts), port, SCRIPT, SHOAL_BIND=f"127.0.0.{1 + host}", **more)
        for rank, host in enumerate(hosts)
    ]
    ended = outcomes(ranks)
    assert [status for status, _, _ in ended] == [0] * len(hosts), ended
    printed = [json.loads(out.splitlines()[-1]) for _, out, _ in ended]
    shares = [
        {int(peer): sent / (4 * SIZE) for peer, sent in each["sent"].items()} for each in printed
    ]
    assert all(each["right"] for each in printed)
    check_shares(hosts, [each["apart"] for each in printed])
    return [each["sum"] for each in printed], shares


def check_shares(hosts: list[int], sent: list[dict[str, int]]) -> None:
    """Check what went where of summing everyone's shard to its rank, and of gathering them.

    Of both, hosts of equally many ranks next to each other send a shard to each rank of another.
    """
    size, count = len(hosts), hosts.count(hosts[0])
    by_host = hosts == sorted(hosts) and all(hosts.count(each) == count for each in hosts)
    for rank, peers in enumerate(sent):
        for other, host in enumerate(hosts):
            if host != hosts[rank]:
                shards = peers[str(other)] / (4 * SIZE)
                reached = not by_host or other % count == rank % count
                assert shards == pytest.approx(2 * reached, abs=0.1), (rank, other, size)


@pytest.mark.parametrize("bound", seldom([0.0, 0.1], often=[0.0]))
def test_hosts_send_their_sums_to_each_other(bound: float) -> None:
    hosts = [0, 0, 1, 1, 2, 2]
    sums, shares = found_by(hosts, bound)
    ranks = range(len(hosts))
    assert sums == sums[:1] * len(hosts)
    if bound == 0:
        assert sums[0] == [15, 6 * (SIZE - 1) + 15]
    for rank, sent in enumerate(shares):
        for peer in set(ranks) - {rank}:
            if hosts[peer] == hosts[rank]:
                assert sent[peer] == pytest.approx(1, abs=0.1)  # half to sum, half of what came
            elif peer % 2 == rank % 2:
                assert sent[peer] == pytest.approx(1 / 3, abs=0.1)  # a sixth up, a sixth down
            else:
                assert sent[peer] < 0.01  # barriers


@pytest.mark.parametrize("hosts", seldom([[0, 1, 0, 1], [0, 0, 0, 1]], often=[[0, 0, 0, 1]]))
def test_where_hosts_are_unlike_or_mixed_everyone_sends_to_everyone(hosts: list[int]) -> None:
    sums, shares = found_by(hosts)
    assert sums == [[6, 4 * (SIZE - 1) + 6]] * 4
    for rank, sent in enumerate(shares):
        for peer in {0, 1, 2, 3} - {rank}:
            assert sent[peer] == pytest.approx(1 / 2, abs=0.1)


def test_a_group_of_several_on_a_host_sends_its_sum() -> None:
    hosts, group = [0, 0, 0, 1, 1, 1], [0, 1, 3, 4]
    sums, shares = found_by(hosts, group=group)
    for rank in group:
        assert sums[rank] == [8, 4 * (SIZE - 1) + 8]
    assert shares[0][1] == pytest.approx(1, abs=0.1)
    assert shares[0][3] == pytest.approx(1 / 2, abs=0.1)
    assert shares[0][4] < 0.01


TORCH_SCRIPT = """
import json
import torch
import torch.distributed as dist

dist.init_process_group("shoal")
rank, size, n = dist.get_rank(), dist.get_world_size(), 50_000
right = []
for dtype in (torch.float32, torch.bfloat16, torch.int64):
    rows = (torch.arange(size * n) % 17).to(dtype).view(size, n)
    expected = size * rows + sum(range(size))
    summed = rows + rank
    dist.all_reduce(summed)
    wide = torch.full((n, 2), -1, dtype=dtype)
    own = wide[:, 0]  # not contiguous
    source = (rows + rank).flatten()
    dist.reduce_scatter_tensor(own, source)
    whole = torch.empty(size * n, dtype=dtype)
    dist.all_gather_into_tensor(whole, torch.full((n,), rank, dtype=dtype))
    right += [
        torch.equal(summed, expected), torch.equal(own, expected[rank]),
        bool((wide[:, 1] == -1).all()), torch.equal(source, (rows + rank).flatten()),
        whole.view(size, n)[:, -1].tolist() == list(range(size)),
    ]
mean = torch.empty(n)
dist.reduce_scatter_tensor(mean, torch.full((size * n,), float(rank)), op=dist.ReduceOp.AVG)
right.append(bool((mean == sum(range(size)) / size).all()))
print(json.dumps(right))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("hosts", seldom([[0, 0, 1, 1], [0, 1, 1]], often=[[0, 1, 1]]))
def test_tensors_are_summed_and_gathered_by_host_as_without(hosts: list[int]) -> None:
    pytest.importorskip("torch")
    port = free_port()
    ended = outcomes(
        [
            start(rank, len(hosts), port, TORCH_SCRIPT, SHOAL_BIND=f"127.0.0.{1 + host}")
            for rank, host in enumerate(hosts)
        ]
    )
    assert [status for status, _, _ in ended] == [0] * len(hosts), ended
    for _, out, _ in ended:
        assert all(json.loads(out.splitlines()[-1])), out
