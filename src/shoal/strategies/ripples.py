"""Ripples/Prague: partial all-reduce in groups that a generator forms at run time.

Luo et al., ASPLOS 2020; docs/papers.md, 3.2 and 3.4. Its two modes differ only in the generator's
configuration.
"""

from __future__ import annotations

from typing import ClassVar, Final, final

from shoal.groups import GeneratorConfig
from shoal.strategies.generated import GeneratedAveraging

_DEFAULTS: Final = GeneratorConfig()


@final
class Ripples(GeneratedAveraging, frozen=True, kw_only=True):
    """Smart generator: group buffer, global division, inter-intra rounds, slowdown filter.

    The switches are those of `groups.GeneratorConfig`; `interval` is the number of local steps
    between synchronizations. With `overlap="next-steps"` computing goes on while they last;
    `average_state` averages the optimizer's state as well.
    """

    word: ClassVar[str] = "ripples"

    group_size: int = _DEFAULTS.group_size
    group_buffer: bool = _DEFAULTS.group_buffer
    global_division: bool = _DEFAULTS.global_division
    inter_intra: bool = _DEFAULTS.inter_intra
    slowdown_threshold: int | None = _DEFAULTS.slowdown_threshold
    refined_filter: bool = _DEFAULTS.refined_filter

    @property
    def config(self) -> GeneratorConfig:
        """The generator's switches."""
        return GeneratorConfig(*(getattr(self, name) for name in GeneratorConfig.__slots__))


@final
class RipplesRandom(GeneratedAveraging, frozen=True, kw_only=True):
    """Random generator: every request draws a new random group, conflicts are serialized."""

    word: ClassVar[str] = "ripples-random"

    group_size: int = _DEFAULTS.group_size

    @property
    def config(self) -> GeneratorConfig:
        """The generator's switches, all of them off."""
        return GeneratorConfig.random_mode(self.group_size)
