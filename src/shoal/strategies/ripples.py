"""Ripples/Prague: partial all-reduce in groups that a generator forms at run time.

Luo et al., ASPLOS 2020; docs/papers.md, 3.2 and 3.4. Its two modes differ only in the generator's
configuration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, final

from shoal.groups import GeneratorConfig
from shoal.strategies.generated import GeneratedAveraging
from shoal.strategies.periodic import HIDDEN, OTHER_SIZES, every_few_steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shoal.groups import Topology

_DEFAULTS: Final = GeneratorConfig()


@final
class Ripples(GeneratedAveraging, frozen=True, kw_only=True):
    """Smart generator: group buffer, global division, inter-intra rounds, slowdown filter.

    The switches are those of `groups.GeneratorConfig`; `interval` is the number of local steps
    between synchronizations. With `overlap="next-steps"` computing goes on during an average;
    `average_state` averages the optimizer's state as well.
    """

    word: ClassVar[str] = "ripples"

    group_size: int = _DEFAULTS.group_size
    group_buffer: bool = _DEFAULTS.group_buffer
    global_division: bool = _DEFAULTS.global_division
    inter_intra: bool = _DEFAULTS.inter_intra
    slowdown_threshold: int | None = _DEFAULTS.slowdown_threshold
    refined_filter: bool = _DEFAULTS.refined_filter

    @classmethod
    def worth_trying(
        cls,
        cluster: Topology,
        *,
        thorough: bool = False,  # noqa: ARG003 - all of them are tried at once
    ) -> Iterator[Mapping[str, Any]]:
        """Yield group sizes; half of them hide their averages as well, to keep plans short."""
        for size in (2, 3, 4, 8):
            if 1 < size <= cluster.world_size:
                for options in every_few_steps({"group_size": size}):
                    yield options
                    if size in (2, 4):
                        yield {**options, **HIDDEN}

    @property
    def config(self) -> GeneratorConfig:
        """The generator's switches."""
        return GeneratorConfig(*(getattr(self, name) for name in GeneratorConfig.__slots__))


@final
class RipplesRandom(GeneratedAveraging, frozen=True, kw_only=True):
    """Random generator: every request draws a new random group, conflicts are serialized."""

    word: ClassVar[str] = "ripples-random"

    group_size: int = _DEFAULTS.group_size

    @classmethod
    def worth_trying(
        cls, cluster: Topology, *, thorough: bool = False
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the usual groups, and with `thorough` other sizes."""
        workers = cluster.world_size
        if workers < 2:
            return
        yield from every_few_steps({})
        if thorough:
            for size in OTHER_SIZES:
                if size != _DEFAULTS.group_size and size < workers:
                    yield from every_few_steps({"group_size": size})

    @property
    def config(self) -> GeneratorConfig:
        """The generator's switches, all of them off."""
        return GeneratorConfig.random_mode(self.group_size)
