"""Value objects of the groups room: a group of workers and a round of disjoint groups.

A group says who averages together and with which weights; it never holds a process group, a socket
or a tensor. Weights exist for ragged divisions (DS-Sync with a world size that does not factor,
docs/papers.md, 2.4), where equal weights would bias the consensus.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

from shoal.arguments import whole_number
from shoal.errors import UsageError


@dataclass(frozen=True, slots=True)
class Group:
    """Workers that replace their values by the group's (weighted) mean."""

    members: tuple[int, ...]
    """Ranks, ascending and distinct."""

    weights: tuple[int, ...] = ()
    """The relative weight of each member, in the order of `members`; empty means equal weights."""

    def __post_init__(self) -> None:
        if not self.members:
            raise UsageError("A group needs at least one member.")
        if list(self.members) != sorted(set(self.members)):
            message = f"Group members must be ascending and distinct, not {self.members}."
            raise UsageError(message)
        checked_weights(self.weights, len(self.members))

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, rank: object) -> bool:
        return rank in self.members

    def share_of(self, rank: int) -> Fraction:
        """Return the exact fraction with which `rank` enters the mean."""
        if not self.weights:
            return Fraction(1, len(self.members))
        return Fraction(self.weights[self.members.index(rank)], sum(self.weights))


def checked_weights(weights: Iterable[int], num_members: int) -> tuple[int, ...]:
    """Return the relative weights of a group's members as plain numbers; none means equal ones.

    Raises `UsageError` unless they are positive whole numbers, one for each member.
    """
    plain = tuple(whole_number(each, "The weight of a member", low=1) for each in weights)
    if plain and len(plain) != num_members:
        message = f"A group of {num_members} members has as many weights, not {len(plain)}."
        raise UsageError(message)
    return plain


Round: TypeAlias = tuple[Group, ...]
"""Disjoint groups that together hold every worker exactly once; a lone worker is a group of one."""
