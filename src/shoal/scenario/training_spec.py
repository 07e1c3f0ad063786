"""What is to be trained on a cluster, for the simulator: values, in the units of their names.

`training_table` reads them from TOML, as `parsed` says of those that a text gives one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Literal

from shoal.quantities import parse_duration, parse_rate
from shoal.scenario.toml_table import (
    checked,
    one_of,
    parse_flag,
    parse_number,
    parse_word,
    parsed,
    whole,
)
from shoal.transport import POLICIES, WIRE_TYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.scenario.cluster_spec import ClusterSpec
    from shoal.scenario.measured import Measured

Level = Literal["", "packets", "flows", "closed-form"]
"""How finely a job is simulated; "": packets under a transport, else flows."""
LEVELS: Final = ("packets", "flows", "closed-form")
_USUAL_ANSWER_S: Final = 100e-6
SHOAL: Final = "shoal"
"""The transport that tags packets, and may let a share of a sum go missing."""

_cost: Final = checked(
    parse_duration,
    lambda seconds: seconds <= 100,
    "Software costs an exchange 0 to 100 s, not {value!r}.",
)
_deadline: Final = checked(
    parse_duration, lambda seconds: seconds > 0, "A deadline is more than 0 s, not {value!r}."
)
_loss_bound: Final = checked(
    parse_number,
    lambda bound: 0 <= bound < 1,
    "A loss bound is a share of at least 0 and less than 1, not {found:g}.",
)
_spread: Final = checked(
    parse_number, lambda spread: 0 <= spread <= 3, "A spread is 0 to 3, not {found:g}."
)
_tick: Final = checked(
    parse_duration,
    lambda seconds: 1e-9 <= seconds <= 1e-3,
    "A tick is 1 ns to 1 ms, not {value!r}.",
)
_timeout: Final = checked(
    parse_duration,
    lambda seconds: 0 < seconds < 60,
    "A timeout is more than 0 s and less than 60 s, not {value!r}.",
)


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """A strategy with its options, and what it is called in tables."""

    strategy: str
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = parsed(parse_word, "")
    transport: str = parsed(parse_word, "")
    """What carries it; "": the job's."""
    loss_bound: float = parsed(_loss_bound, 0.0)
    """Share of a contribution to a sum that its transport, if it can, may let go missing."""
    tags: bool = parsed(parse_flag, True)
    """Whether packets say how urgent their layer is, and whether they matter."""
    level: Level = parsed(one_of(LEVELS), "")
    """How finely it is simulated; "": as the job says."""
    holes: str = parsed(one_of(tuple(POLICIES)), "zero")
    """What a lost part of a gradient counts as where gradients are summed: `transport.holes`."""
    wire: str = parsed(one_of(WIRE_TYPES), "float32")
    """The number type that elements are sent as: one of `transport.forms.WIRE_TYPES`."""

    @property
    def name(self) -> str:
        """The strategy's label, or its name if it has none."""
        return self.label or self.strategy


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """A job: how large the model is, how long a step computes, who is slow, and the strategies."""

    compute_s: float
    """Mean time that a step computes, forward and backward."""
    strategies: tuple[StrategySpec, ...]
    steps: int = parsed(whole(1, 10_000_000), 100)
    """The number of steps that each worker makes."""
    model: str | None = parsed(parse_word, None)
    """An architecture's name; None: `parameters` in `layers` that are all alike."""
    dataset: str = parsed(parse_word, "")
    """The data set that real replicas of `model`, which must then be one that Shoal can train,
    learn on; "": none."""
    looks: int = parsed(whole(1, 10_000), 20)
    """How often their metric is taken, about."""
    parameters: int = parsed(whole(1, 10**13), 0)
    layers: int = parsed(whole(1, 10_000), 16)
    spread: float = parsed(_spread, 0.0)
    """Standard deviation of the logarithm of a step's computing."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """The factor by which a rank computes longer, by rank."""
    slow_probability: Mapping[int, float] = field(default_factory=dict)
    """The share of a rank's steps, drawn at random, in which it computes longer, by rank; others:
    all of them."""
    local_rate: int = parsed(parse_rate, 80_000_000_000)
    """Bits per second between workers of one host."""
    control_delay_s: float | None = parsed(parse_duration, None)
    """What `answer_s` is to be; None: as measured, or 100 us."""
    transport: str = parsed(parse_word, "")
    """What carries strategies that name none; "": flows that share links and lose nothing."""
    level: Level = parsed(one_of(LEVELS), "")
    """How finely strategies are simulated that do not say it."""
    tick_s: float = parsed(_tick, 1e-6)
    """How fine the clocks and timers of Shoal's transport are; a kernel's are a microsecond."""
    mtu: int = parsed(whole(576, 9_216), 1_500)
    """Bytes of transports' packets without Ethernet's header."""
    min_timeout_s: float | None = parsed(_timeout, None)
    """The least seconds after which other transports send again unasked; None: each one's usual
    time."""
    measured: Measured | None = None
    """A traced run, whose workers' times are replayed and whose software is taken over."""
    message_cost_s: float | None = parsed(_cost, None)
    """Software, for each message that follows another in an exchange; None: as measured, or 0."""
    server_cost_s: float | None = parsed(_cost, None)
    """Software, for a push and a pull; None: as measured, or what that many messages cost."""
    min_workers: int = parsed(whole(1, 1_000_000), 1)
    """The least number of workers with which the job goes on, as of `shoal.init`."""
    deadline_s: float = parsed(_deadline, 60.0)
    """The seconds in which a worker must do what others wait for; says how long one may be silent
    before it is lost: as of `shoal.init`."""

    @property
    def answer_s(self) -> float:
        """Seconds from asking the group generator to its answer, however soon it knows it."""
        if self.control_delay_s is not None:
            return self.control_delay_s
        measured_s = None if self.measured is None else self.measured.answer_s
        return _USUAL_ANSWER_S if measured_s is None else measured_s

    def replaying(self, measured: Measured) -> TrainingSpec:
        """Return the job with the times of a traced run instead of its own."""
        return replace(
            self,
            measured=measured,
            compute_s=measured.mean_s,
            spread=0.0,
            slow={},
            slow_probability={},
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """A cluster and, if the file says so, what is trained on it."""

    cluster: ClusterSpec
    training: TrainingSpec | None = None
    places: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The places where strategies stand, such as "job.toml, line 12", by their names; "": the
    training."""
    keys: Mapping[tuple[str | int, ...], str] = field(default_factory=dict, compare=False)
    """The places where keys stand, by their names from the top on; (): the text itself."""
    links: Mapping[int, str] = field(default_factory=dict, compare=False)
    """The places where it is said last whether a cable is down or what it loses, by the cable's
    number."""

    def place_of(self, *keys: str | int) -> str | None:
        """Return where a key stands, or what is around it; None if there is no text."""
        while keys and keys not in self.keys:
            keys = keys[:-1]
        return self.keys.get(keys)
