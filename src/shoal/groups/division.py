"""Dividing idle workers into groups: evenly, or across and then within hosts. Pure functions.

They know workers' hosts, never their queues, and draw nothing at random: the caller shuffles.
Source: Ripples/Prague, global division and inter-intra rounds, docs/papers.md, 3.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

from shoal.groups.generator_events import AssignmentReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.groups.slowdown_filter import SlowdownFilter
    from shoal.groups.worker_queues import Worker

Item = TypeVar("Item")
Plan: TypeAlias = "list[tuple[list[Worker], AssignmentReason]]"
"""Groups in the order in which they enter the queues, each with its reason."""


def near_equal_parts(items: Sequence[Item], size: int) -> list[list[Item]]:
    """Cut `items` into runs of at most `size`, lengths within one of each other, none of one.

    Two things force an exception: a single item is a run of one, and an odd number cut by twos has
    one run of three.
    """
    count = max(1, min(-(-len(items) // size), len(items) // 2))
    length, longer = divmod(len(items), count)
    parts, start = [], 0
    for index in range(count):
        end = start + length + (index < longer)
        parts.append(list(items[start:end]))
        start = end
    return parts


def divide_evenly(workers: Sequence[Worker], size: int) -> Plan:
    """Return one round of near-equal groups that hold every worker once."""
    if len(workers) == 1:
        return [([workers[0]], AssignmentReason.ALONE)]
    return [(part, AssignmentReason.DIVISION) for part in near_equal_parts(workers, size)]


def divide_by_host(workers: Sequence[Worker], size: int, slowdown_filter: SlowdownFilter) -> Plan:
    """Return two rounds: heads across hosts and the others inside theirs, then whole hosts.

    The first worker of each host is its head, so the order of `workers` decides. A host's only
    other worker goes along with the head instead of being left alone. The second round leaves out
    workers that would be alone or would hold up their host. Workers that all share one host are
    divided evenly instead.
    """
    hosts: dict[int, list[Worker]] = {}
    for worker in workers:
        hosts.setdefault(worker.host, []).append(worker)
    if len(hosts) < 2:
        return divide_evenly(workers, size)
    by_host = list(hosts.values())
    plan: Plan = []
    for part in near_equal_parts(by_host, size):
        heads = [worker for host in part for worker in host[: 2 if len(host) == 2 else 1]]
        plan.append((heads, AssignmentReason.ACROSS_HOSTS))
    plan += [(host[1:], AssignmentReason.WITHIN_HOST) for host in by_host if len(host) > 2]
    for host in by_host:
        keeping_up = slowdown_filter.without_laggards(host)
        if len(keeping_up) > 1:
            plan.append((keeping_up, AssignmentReason.WHOLE_HOST))
    return plan
