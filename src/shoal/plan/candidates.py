"""The strategies, group sizes and intervals that a plan compares, and each one's line of code."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import UsageError
from shoal.groups import Topology
from shoal.scenario import SHOAL
from shoal.strategies import HIDDEN, STRATEGIES, Family, spelled, worth_trying

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.strategies import AbstractDefinition

TCP: Final = "cubic"
"""The congestion control that Linux has unless told otherwise."""

_CARRIERS: Final = ((SHOAL, 0.0), (SHOAL, 0.1), (TCP, 0.0))

_WHOLE, _HALF = "float32", "float16"
"""What elements are sent as."""

CARRIERS: Final = tuple(dict.fromkeys(transport for transport, _ in _CARRIERS))
"""The transports that are tried."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A strategy with its options; unnamed options have their defaults."""

    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    transport: str = ""
    """The transport that carries it; "": any that does."""
    loss_bound: float = 0.0
    """Share of a sum's contributions that may get lost."""
    wire: str = _WHOLE
    """What is sent of every element."""
    topology: Topology | None = None
    """The cluster, for a strategy that has to be told."""

    @property
    def name(self) -> str:
        """What tables call it."""
        options = " ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.strategy} {options}".strip()

    @property
    def goes_on(self) -> bool:
        """Whether a job goes on without lost workers: over Shoal's transport, if at all."""
        try:
            self._definition.check_goes_on()
        except UsageError:
            return False
        return self.transport != TCP

    @property
    def is_served(self) -> bool:
        """Whether parameter servers hold the model."""
        return self._definition.family is Family.SERVERS

    @property
    def interval(self) -> int:
        """The steps between two exchanges."""
        return int(getattr(self._definition, "interval", 1))

    @property
    def _definition(self) -> AbstractDefinition:
        kind = STRATEGIES[self.strategy]
        known = inspect.signature(kind).parameters  # others are the simulated network's
        return kind(**{key: value for key, value in self.options.items() if key in known})

    @property
    def carrier(self) -> str:
        """What tables call its transport, with what that may lose."""
        bound = f" loss_bound={self.loss_bound:g}" if self.loss_bound else ""
        return f"{self.transport}{bound}{f' wire={self.wire}' if self.is_rounded else ''}"

    @property
    def is_rounded(self) -> bool:
        """Whether a narrower type is sent than what is averaged."""
        return self.wire != _WHOLE

    @property
    def is_exact(self) -> bool:
        """Whether workers get all of what they exchange, as it was, with the exchange itself."""
        return not (self.loss_bound or self.is_rounded or self.options.get("low_rank"))

    @property
    def line(self) -> str:
        """The line of a training script that selects it."""
        sync = f'"{self.strategy}"'
        if self.options and not self.is_hierarchical:
            parts = [f"{key}={value!r}".replace("'", '"') for key, value in self.options.items()]
            if self.topology is not None:
                parts.append(f"topology={_spelled(self.topology)}")
            sync = f"shoal.{spelled(self.strategy)}({', '.join(parts)})"
        if self.transport:  # gloo is what goes over TCP
            sync += f', transport="{SHOAL if self.transport == SHOAL else "gloo"}"'
        if self.loss_bound:
            sync += f", loss_bound={self.loss_bound:g}"
        if self.is_rounded:
            sync += f', wire="{self.wire}"'
        line = f"optimizer = shoal.DistributedOptimizer(optimizer, model, sync={sync})"
        return f"{line}  # where {_HIERARCHICAL} is set" if self.is_hierarchical else line

    @property
    def is_hierarchical(self) -> bool:
        """Whether it sums within hosts first: Shoal's transport does, for large sums unasked."""
        return self.options.get("algorithm") == "hierarchical"


_HIERARCHICAL: Final = "SHOAL_ALL_REDUCE=hierarchical"


def _spelled(topology: Topology) -> str:
    """Return the expression that makes `topology`, shorter where its hosts are alike."""
    first, world = topology.hosts[0], topology.world_size
    per_host, per_rack = len(first.ranks), len(topology.rack_hosts(0))
    ratio = float(topology.oversubscription(0))
    alike = Topology.uniform(
        world, per_host, per_rack, nic_bps=first.nic_bps, oversubscription_ratio=max(ratio, 1)
    )
    if alike == topology:
        size = f"{world}, {per_host}, {per_rack}, nic_bps={first.nic_bps}"
        return f"shoal.Topology.uniform({size}, oversubscription_ratio={ratio!r})"
    return "shoal." + re.sub(r"\b(Host|Rack)\(", r"shoal.groups.\1(", repr(topology))


def candidates(where: Topology) -> list[Candidate]:
    """Return what can be used among the workers of a cluster."""
    workers, per_host = where.world_size, len(where.hosts[0].ranks)
    found = _tried(where)
    if 1 < per_host < workers and all(len(host.ranks) == per_host for host in where.hosts):
        found.insert(1, Candidate("all-reduce", {"algorithm": "hierarchical"}, SHOAL))
    return found


def other_sizes(where: Topology) -> list[Candidate]:
    """Return the random groups of other sizes than usual, for plans that have time for them."""
    usual = {each.name for each in _tried(where)}
    return [each for each in _tried(where, thorough=True) if each.name not in usual]


def _tried(where: Topology, *, thorough: bool = False) -> list[Candidate]:
    found = []
    for word in STRATEGIES:
        for choice in worth_trying(word, where, thorough=thorough):
            options = dict(choice)
            topology = options.pop("topology", None)
            found.append(Candidate(word, options, topology=topology))
    return found


def carried(candidate: Candidate) -> list[Candidate]:
    """Return `candidate` over every transport, with every bound that allows it something.

    Copies of parameters that are averaged behind computing may be sent in half of the bytes, over a
    transport that can round. All-reduce may also go on behind the next forward pass over a
    transport that brings front layers first; over one that keeps their order nothing is gained.
    """
    found = [
        replace(candidate, transport=transport, loss_bound=bound)
        for transport, bound in _CARRIERS
        if not (bound and not STRATEGIES[candidate.strategy]().takes_loss_bound)
        and not (bound and candidate.options.get("low_rank"))  # not simulated
        and not (candidate.is_hierarchical and (bound or transport != SHOAL))
    ]
    if candidate.options.get("overlap") == HIDDEN["overlap"]:
        found += [replace(each, wire=_HALF) for each in found if each.transport == SHOAL]
    if candidate.strategy == "all-reduce" and not candidate.is_hierarchical:
        forward = {**candidate.options, "overlap": "next-forward"}
        found += [replace(each, options=forward) for each in found if each.transport == SHOAL]
    return found
