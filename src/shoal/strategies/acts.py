"""Acts, which a course yields, and the answers that it is sent: values, and nothing else.

An act says what a worker does now, with which workers, and under which name. An executor carries it
out over a network or in virtual time; it may decide when each piece of it moves. Every act that
needs other workers may be answered by `Changed`: it did not happen, and the course has been told of
the new view already.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final, Literal, TypeAlias

import msgspec

from shoal.groups import GeneratorConfig


class Act(msgspec.Struct, frozen=True):
    """The next thing that a worker does."""


Acts: TypeAlias = Generator[Act, Any, None]
"""Acts one after another; the generator is sent the answer to each."""


class Update(Act, frozen=True):
    """Make the local optimizer's step; it does nothing where mixed precision found infinities.

    Has no answer.
    """


class SumGradients(Act, frozen=True):
    """Sum the gradients of all members. The answer is `Summed`.

    An executor may begin the sum in the backward pass, before the act is yielded.
    """

    number: int
    """Counts sums from 0."""

    trains: bool = True
    """Whether this worker makes a step with the sum; else it adds no gradients, and only keeps the
    others' sums whole."""


class Summed(msgspec.Struct, frozen=True):
    """The answer to `SumGradients`."""

    num_training: int
    """The members that make a step with the sum."""


class Adopt(Act, frozen=True):
    """Take over the model of the member with the most steps, if the numbers differ."""

    steps: int
    """The number of steps made here."""


class Mean(Act, frozen=True):
    """Replace the parameters by the mean of the members' parameters. Has no answer.

    A member that is alone keeps its own.
    """

    members: tuple[int, ...]
    """Ranks, ascending."""

    number: tuple[int, int]
    """The epoch and the number of the mean, which name it together with the members."""

    reason: str = ""
    """Why these members, for traces."""

    weights: tuple[int, ...] = ()
    """One weight for each member; an empty tuple means equal weights."""

    outer: bool = False
    """Whether anchors and velocities of outer steps are averaged, too: members may differ in
    them."""


class Anchor(Act, frozen=True):
    """Keep the parameters as the point that the first outer step starts from. Has no answer."""


class OuterStep(Act, frozen=True):
    """Step on from the anchor by SGD with Nesterov momentum; the result is the next anchor.

    The gradient is the anchor less the parameters, which are the mean that was made last. They
    become the result. Has no answer.
    """

    number: tuple[int, int]
    """The number of that mean."""

    learning_rate: float
    momentum: float


class JoinGroups(Act, frozen=True):
    """Take part in the groups that a generator forms. Has no answer.

    No member asks for a group before all have joined.
    """

    config: GeneratorConfig


class AskGroup(Act, frozen=True):
    """Ask the generator for a group, and wait for its members. The answer is a `Group`."""

    position: int
    """The number of local steps made."""


class Group(msgspec.Struct, frozen=True):
    """The answer to `AskGroup`."""

    members: tuple[int, ...]
    """Ranks, ascending."""

    group_id: int
    """The number of the group among all of the generator's."""

    more: bool
    """Whether this worker owes another group before it computes on."""

    reason: str = ""
    """Why these members."""

    epoch: int = 0
    """The epoch of the view in which it was formed."""


class LeaveGroups(Act, frozen=True):
    """Ask for no more groups: none that has not started waits for this worker. Has no answer."""


class Pair(Act, frozen=True):
    """Average the parameters with those of one passive worker. Has no answer."""

    peer: int
    """Its rank."""


class AnswerPairs(Act, frozen=True):
    """Average with every active worker that asks, while this one computes. Has no answer.

    One at a time, in the order in which they ask, until all have said goodbye.
    """

    active: tuple[int, ...]
    """The ranks that ask."""


class AwaitGoodbyes(Act, frozen=True):
    """Wait until every active worker has said goodbye. Has no answer."""


class Goodbye(Act, frozen=True):
    """Tell every passive worker that no pair of this one follows. Has no answer."""

    passive: tuple[int, ...]
    """Their ranks."""


class Exchange(Act, frozen=True):
    """Push to every shard of a parameter server, and pull.

    The answer is `Pulled`, or nothing where the pull is taken in later.
    """

    kind: Literal["push", "skip", "leave"]
    """Gradients ("push"), none as mixed precision found infinities ("skip"), no more ("leave")."""

    number: int
    """Counts exchanges from 0."""


class Pulled(msgspec.Struct, frozen=True):
    """The answer to `Exchange`: the largest value of each field among the shards."""

    held_ns: int
    """How long a shard held the answer back."""

    staleness: int
    """The steps by which the slowest worker is behind this one."""


class Begin(Act, frozen=True):
    """Carry out `acts` beside computing, on a copy of the model. Has no answer.

    There is one at a time: the previous one has been taken in.
    """

    acts: Acts


class TakeIn(Act, frozen=True):
    """Add to the model the changes that `Begin` made to the copy, if they are known by now.

    Does nothing if nothing was begun.
    """

    wait: bool
    """Whether to wait until they are known."""


class Tell(Act, frozen=True):
    """Publish a fact, which stays true in later views. Has no answer."""

    fact: str


class Await(Act, frozen=True):
    """Wait until any member has told one fact, or every member of the view another.

    The answer is whether any member has told the first.
    """

    somebody: str
    everyone: str


class Changed(msgspec.Struct, frozen=True):
    """The answer to an act that did not happen: there is a new view, and the course knows it."""


CHANGED: Final = Changed()
UPDATE: Final = Update()

OWN_ACTS: Final = (Anchor, Begin, LeaveGroups, OuterStep, TakeIn, Tell, Update)
"""Acts that happen whatever becomes of the view: no other worker has a part in them."""
