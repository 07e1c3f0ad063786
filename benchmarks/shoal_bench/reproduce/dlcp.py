"""DLCP's comparison: how long gradients are under way, how long a step takes, what loss costs.

One job at packet level: a parameter server on every host, layer by layer, over the bounded-loss
transport and over what the papers compare it with. Everything that is sent is counted, gradients
and parameters. Loss that the network makes lands on the gradients of a small model on real data.
Source: docs/papers.md, 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from shoal.errors import UsageError
from shoal.scenario import StrategySpec
from shoal.sim import (
    DROPPED,
    BoundedLossNetwork,
    PacketNetwork,
    make_network,
    of_real_size,
    simulate,
)
from shoal.sweeps import Run
from shoal.switching import Count
from shoal_bench.reproduce.learning import Learned, Learnt, learn
from shoal_bench.reproduce.scenarios import in_usual_buckets, job_of, losing, read_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from shoal.sim import Network

BOUND: Final = 0.1
"""The bound that both papers used."""

DEEP, SHALLOW, TAGGED = "deep", "shallow", "tagged"


@dataclass(frozen=True, slots=True)
class Rival:
    """A way to carry a job: a transport, the ports it was made for, and its order of layers."""

    name: str
    transport: str
    ports: str
    loss_bound: float = 0.0
    tags: bool = False
    spray: bool = False
    order: str = "fifo"

    def strategy(self, sync: str, **options: int | str) -> StrategySpec:
        """Return `sync` over this transport."""
        return in_usual_buckets(
            StrategySpec(sync, options, self.name, self.transport, self.loss_bound, self.tags)
        )


DCTCP: Final = Rival("DCTCP", "dctcp", DEEP)
TCP: Final = Rival("TCP (Cubic)", "cubic", DEEP)
SCHEDULED: Final = Rival("TCP, layers by priority", "cubic", DEEP, order="priority")
PFABRIC: Final = Rival("pFabric-like", "pfabric", SHALLOW, spray=True)
DLCP: Final = Rival("DLCP", "shoal", TAGGED, BOUND, tags=True, spray=True)
LAYERED: Final = replace(DLCP, name="DLCP, layers by priority", order="priority")
"""End to end: the prototype sends the partitions of tensors that ByteScheduler's kin sends, in its
order (docs/papers.md, 1.4 and 1.11), so that the two differ in what carries them."""

TIMED: Final = frozenset({"cubic", "dctcp"})
"""Transports that wait for the kernel's least timeout."""
TIMEOUTS_S: Final = (200e-6, 5e-3, 0.2)
"""A thousandth of Linux's, one for data centres, and Linux's; tail-loss probes are beside them."""
USUAL_TIMEOUT_S: Final = 0.2
"""The timer from which verdicts are taken: what users of these transports have."""

BEST_PRIOR: Final = {"all-reduce": TCP, "ps-layers": SCHEDULED}
"""The carrier whose steps the papers hold DLCP's against, by how a job is synchronised."""
BEST_OWN: Final = {"all-reduce": DLCP, "ps-layers": LAYERED}

ABLATION: Final = (
    Rival("exact", "shoal", TAGGED),
    Rival("+ bounded loss", "shoal", TAGGED, BOUND),
    Rival("+ tags", "shoal", TAGGED, BOUND, tags=True),
    replace(DLCP, name="+ a path for every packet"),
)
"""The three steps, each with those before it; the last is DLCP."""


ASSUMED_SHARE: Final = 0.5
"""The share of a card's float32 rate with which the scenario files reckon."""
MEASURED_SHARES: Final = {"resnet50": 0.3, "vgg16": 0.78, "inception-v3": 0.27}
"""What a large card reaches with the same batches (benchmarks/results/gpu-clock.json)."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A job on a cluster, carried by a rival."""

    cluster: str
    job: str
    rival: Rival
    sync: str = "ps-layers"
    servers: int = 0
    """Hosts with parameters; 0: all of them."""
    loss: float = 0.0
    """The loss on the first host's link, either way: a gray failure."""
    steps: int = 1
    share: float = ASSUMED_SHARE
    """The share of the card's float32 rate at which the model is computed."""
    min_timeout_s: float | None = None
    """The least after which a rival of `TIMED` sends again; None: it has none of these."""

    @property
    def is_usual(self) -> bool:
        """Whether verdicts may be taken from it."""
        return self.min_timeout_s in (None, USUAL_TIMEOUT_S)

    @property
    def name(self) -> str:
        """What progress calls it."""
        extra = f", {self.servers} servers" if self.servers else ""
        extra += f", {self.share:g} of the card" if self.share != ASSUMED_SHARE else ""
        extra += f", {self.loss:.2%} loss" if self.loss else ""
        extra += f", {timeout_words(self)}" if self.min_timeout_s else ""
        return f"{self.rival.name}, {self.job} on {self.cluster} hosts, {self.sync}{extra}"

    @property
    def servers_words(self) -> str:
        """What tables call its synchronization."""
        if self.sync != "ps-layers":
            return self.sync
        return f"{self.servers} server" if self.servers else "servers on all hosts"

    @property
    def files(self) -> tuple[str, ...]:
        """The scenario's files."""
        return (
            f"dlcp-{self.cluster}.toml",
            f"dlcp-{self.rival.ports}-ports.toml",
            f"dlcp-{self.job}.toml",
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """What a trial came to. Times are virtual."""

    trial: str
    step_ms: float
    flow_ms: float
    """Mean time of a flow: what one host sends another of a layer, in one direction."""
    flow_p99_ms: float
    flows: int
    hops: int
    """Packets over links, all together."""
    dropped: int
    """Packets, by ports."""
    lost: int
    """Packets, by links."""
    digest: str


def measure_trial(
    trial: Trial, seed: int, *, tick: Callable[[float], None] | None = None
) -> Measured:
    """Make a trial."""
    scenario = read_parts(*trial.files)
    cluster = replace(scenario.cluster, seed=seed, spray=trial.rival.spray)
    if trial.loss:
        cluster = losing(cluster, trial.loss, lambda cable: 0 in (cable.source, cable.target))
    training = job_of(scenario)
    compute_s = training.compute_s * ASSUMED_SHARE / trial.share
    training = replace(training, steps=trial.steps, compute_s=compute_s)
    if trial.min_timeout_s is not None:
        training = replace(training, min_timeout_s=trial.min_timeout_s)
    options: dict[str, int | str] = {}
    if trial.sync == "ps-layers":
        options = {"servers": trial.servers, "order": trial.rival.order}
    strategy = trial.rival.strategy(trial.sync, **options)
    network = make_network(cluster, training, strategy)
    if isinstance(network, BoundedLossNetwork):
        network.keeps_times = True
    outcome = simulate(cluster, training, strategy, network=network, tick=tick)
    times, counts = _flow_times(network)
    return Measured(
        trial=trial.name,
        step_ms=outcome.step_ms,
        flow_ms=float(times.mean()) / 1e9,
        flow_p99_ms=float(np.percentile(times, 99)) / 1e9,
        flows=len(times),
        hops=int(counts[..., Count.SENT].sum()),
        dropped=int(counts[..., DROPPED].sum()),
        lost=int(counts[..., Count.LOST].sum()),
        digest=outcome.digest,
    )


def _flow_times(network: Network) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return how long flows between hosts took, picoseconds, and the ports' counts."""
    if isinstance(network, BoundedLossNetwork):
        return np.array(network.times, np.float64), network.state.counts
    assert isinstance(network, PacketNetwork)
    records = network.records
    across = records[(records["source"] != records["target"]) & (records["end"] >= 0)]
    return (across["end"] - across["start"]).astype(np.float64), network.state.counts


def timeout_words(trial: Trial) -> str:
    """Return how tables call a trial's least timeout; nothing if it has none."""
    if trial.min_timeout_s is None:
        return ""
    milliseconds = 1e3 * trial.min_timeout_s
    return f"{milliseconds:g} ms" if milliseconds >= 1 else f"{1e3 * milliseconds:g} us"


def _timed(trials: Iterable[Trial]) -> list[Trial]:
    """Return each trial, with every least timeout if its rival waits for any."""
    return [
        replace(trial, min_timeout_s=each)
        for trial in trials
        for each in (TIMEOUTS_S if trial.rival.transport in TIMED else (None,))
    ]


def trial_run(trial: Trial, seed: int) -> Run:
    """Return a trial as a run of a sweep."""
    weight = int(trial.cluster) ** 2 * (5.0 if trial.job == "vgg16" else 1.0) * trial.steps
    return Run(trial.name, measure_trial, {"trial": trial, "seed": seed}, weight)


# ---- what loss costs -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tolerance:
    """A model that learns while a share of every contribution gets lost."""

    dataset: str
    model: str
    steps: int
    workers: int = 4


TOLERANCES: Final = (
    Tolerance("digits", "mlp:256", 40),
    Tolerance("fashion-mnist", "lenet", 200),
    Tolerance("flights", "deepfm", 400),
)
LOSSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4)


def lose(
    tolerance: Tolerance, loss: float, seed: int, *, tick: Callable[[float], None] | None = None
) -> Learned:
    """Train while links lose a little more than `loss`, which is what the transport forgives."""
    scenario = read_parts("dlcp-lossy.toml")
    links = 0.0 if loss == 0 else min(0.9, loss + 0.05)
    cluster = losing(scenario.cluster, links, lambda cable: cable.source >= 0)
    learnt = Learnt(
        tolerance.dataset, tolerance.model, 1.0, tolerance.steps, 0.01, 256, until_target=False
    )
    strategy = in_usual_buckets(StrategySpec("all-reduce", {}, "", "shoal", loss))
    return learn(
        replace(cluster, seed=seed),
        of_real_size(job_of(scenario), tolerance.dataset, tolerance.model),
        strategy,
        learnt,
        tick=tick,
    )


def tolerance_runs(
    tolerances: Sequence[Tolerance], losses: Sequence[float], seeds: Sequence[int]
) -> list[Run]:
    """Return the runs of every model with every loss and seed."""
    return [
        Run(
            f"{each.model} on {each.dataset}, {loss:.0%} lost",
            lose,
            {"tolerance": each, "loss": loss, "seed": seed},
            each.steps / 2,
        )
        for each in tolerances
        for loss in losses
        for seed in seeds
    ]


# ---- the comparison's parts ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DlcpComparison:
    """The trials that make up the comparison."""

    flows: tuple[Trial, ...]
    """Flow times, by scale."""
    ablation: tuple[Trial, ...]
    end_to_end: tuple[Trial, ...]
    clock: tuple[Trial, ...]
    """End to end, computing at the measured share of the card's rate and not at the assumed."""
    gray: tuple[Trial, ...]
    tolerances: tuple[Tolerance, ...]
    losses: tuple[float, ...]

    @property
    def trials(self) -> list[Trial]:
        """All of them, each once."""
        parts = (self.flows, self.ablation, self.end_to_end, self.clock, self.gray)
        return list(dict.fromkeys(trial for part in parts for trial in part))


JOBS: Final = ("resnet50", "vgg16", "inception-v3", "transformer")
"""The paper's models end to end (docs/papers.md, 1.11)."""
SCALES: Final = ("16", "64", "144")
GRAY_LOSSES: Final = (0.0, 0.0001, 0.001, 0.01)
TESTBED: Final = "8"
_STEPS: Final = 3
"""End to end: enough for the next forward pass to wait for what is late."""


PARTS: Final = ("flows", "ablation", "end-to-end", "clock", "gray", "loss")


def plan(*, quick: bool, parts: Sequence[str] = PARTS) -> DlcpComparison:
    """Return these parts of the comparison; `quick`: of one that takes minutes.

    Raises `UsageError` for a part that there is not.
    """
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        message = f"There is no part {unknown[0]!r}; there are {', '.join(PARTS)}."
        raise UsageError(message)
    scales = SCALES[:1] if quick else SCALES
    jobs = JOBS[:1] if quick else JOBS
    ring = _timed(
        Trial(TESTBED, job, rival, "all-reduce", steps=_STEPS)
        for job in jobs
        for rival in (TCP, DCTCP, DLCP)
    )
    served = _timed(
        Trial(TESTBED, job, rival, servers=servers, steps=_STEPS)
        for job in jobs
        for servers in (0, 1)
        for rival in (SCHEDULED, DCTCP, DLCP, LAYERED)
    )
    gray = _timed(
        Trial(TESTBED, "resnet50", rival, "all-reduce", loss=loss, steps=_STEPS)
        for rival in (TCP, DCTCP, DLCP)
        for loss in GRAY_LOSSES
    )
    own_clock = [
        replace(trial, share=MEASURED_SHARES[trial.job])
        for trial in (*ring, *served)
        if trial.job in MEASURED_SHARES
        and trial.is_usual
        and trial.rival in (BEST_PRIOR[trial.sync], BEST_OWN[trial.sync])
    ]
    flows = _timed(
        Trial(scale, "resnet50", rival) for scale in scales for rival in (DCTCP, PFABRIC, DLCP)
    )
    steps = [Trial(scales[-1], "resnet50", rival) for rival in ABLATION]
    tolerances = TOLERANCES[:1] if quick else TOLERANCES
    return DlcpComparison(
        flows=tuple(flows) if "flows" in parts else (),
        ablation=tuple(steps) if "ablation" in parts else (),
        end_to_end=(*ring, *served) if "end-to-end" in parts else (),
        clock=tuple(own_clock) if "clock" in parts else (),
        gray=tuple(gray) if "gray" in parts else (),
        tolerances=tolerances if "loss" in parts else (),
        losses=LOSSES[::2] if quick else LOSSES,
    )
