"""What every strategy finds in a simulated cluster: workers on hosts, their time, their exchanges.

Owns how an exchange becomes flows of the network, and where a worker's time goes. Which workers
meet and when is a strategy's to say, what they learn a learner's (`learning`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from shoal.membership import View
from shoal.sim.network import RingNetwork, SummingNetwork
from shoal.sim.training.hierarchy import ONE_WAY_DELAYS, traffic_of
from shoal.sim.training.progress import StepProgress
from shoal.sim.training.summing import Summand, sum_over_hosts
from shoal.sim.transports.bounded_loss_network import BoundedLossNetwork
from shoal.sim.virtual_time import Signal
from shoal.strategies import CHANGED
from shoal.transport import DIVIDE_BY_COUNT, FLOAT32, LARGE_CHANGE, ZERO, widening

if TYPE_CHECKING:
    from shoal.sim.compute_times import ComputeTimes
    from shoal.sim.training.attendance import Attendance
    from shoal.sim.training.learning import AbstractLearner
    from shoal.sim.training.model import ModelSize
    from shoal.sim.transports.contributions import Contribution
    from shoal.sim.virtual_time import Process, VirtualTime


@dataclass(slots=True)
class Times:
    """A worker's time, divided by what it went into, picoseconds."""

    compute: int = 0
    wait: int = 0
    """The time that it waited for others to arrive, and for answers."""
    exchange: int = 0
    """The time that bytes took, beyond what computing hid."""
    steps: int = 0
    ahead: int = 0
    """The steps that others had made before it came, and that it goes on from."""
    absent: int = 0
    """The time for which it was not there, before its last step."""
    ended: int = 0
    """The time when the last of its steps was made."""
    of_steps: tuple[int, int, int] = (0, 0, 0)
    """The above three when its last step was made: of a step under way nothing is in them."""
    exchanges_since: int | None = None
    """The time when the exchange began that holds the worker now, if one does."""

    @property
    def position(self) -> int:
        """How many steps its model has behind it."""
        return self.ahead + self.steps

    def come_back(self, position: int, now: int) -> None:
        """Note that a worker goes on from another's model, which has come as far as `position`."""
        self.ahead = position - self.steps
        self.absent += now - self.ended
        self.ended = now
        self.exchanges_since = None

    def begin_exchange(self, now: int) -> None:
        """Note that the worker can do nothing else until an exchange is over."""
        self.exchanges_since = now

    def end_exchange(self, now: int) -> None:
        """Note that it is over."""
        assert self.exchanges_since is not None
        self.exchange += now - self.exchanges_since
        self.exchanges_since = None

    def until(self, now: int) -> tuple[int, int, int, int]:
        """Return the time until its last step, and what of it was computing, waiting, exchanging.

        If the run ends at `now` and an exchange holds the worker then, it is the time until `now`.
        """
        if self.exchanges_since is None:
            return self.ended, *self.of_steps
        return now, self.compute, self.wait, self.exchange + now - self.exchanges_since


@dataclass
class World:
    """A cluster in virtual time; rank r is on `host_of[r]`, and the last `newcomers` come later."""

    time: VirtualTime
    host_of: Sequence[int]
    compute: ComputeTimes
    model: ModelSize
    learner: AbstractLearner
    steps: int
    seed: int = 0
    control_delay: int = 100_000_000
    """The time from asking the group generator to its answer, picoseconds, however soon it knows
    it."""
    message_cost: int = 0
    """Software, for each message that follows another in an exchange, picoseconds."""
    server_cost: int = 0
    """Software, for a push and a pull, picoseconds."""
    holes: int = ZERO
    """What a lost part of a gradient counts as where workers sum them: one of `transport.holes`."""
    wire: int = FLOAT32
    """What of an element is sent where it may be rounded: one of `transport.forms.IN_FLOAT32`."""
    newcomers: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    view: View = field(init=False)
    """The workers that take part."""
    attendance: Attendance | None = field(default=None, init=False)
    """How workers come and go; None: all that begin stay to the end."""
    times: list[Times] = field(init=False)
    progress: StepProgress = field(init=False)
    summing: SummingNetwork | None = field(init=False)
    """The network, if its transport makes sums itself."""
    ringing: RingNetwork | None = field(init=False)
    """The network, if it carries a ring's rounds one after another."""
    loses_values: bool = field(init=False)
    """Whether a share of values that travel may get lost."""

    def __post_init__(self) -> None:
        """Begin with nothing spent."""
        self.times = [Times() for _ in self.host_of]
        first = len(self.host_of) - self.newcomers
        self.view = View(0, tuple(range(first)), tuple(self.host_of[:first]))
        self.progress = StepProgress(self._slowest, first, self.steps)
        network = self.time.network
        self.summing = network if isinstance(network, SummingNetwork) else None
        self.ringing = network if isinstance(network, RingNetwork) else None
        is_bounded = isinstance(network, BoundedLossNetwork) and network.loss_bound > 0
        self.loses_values = self.carries_values and is_bounded
        self._whole = Summand(
            self.model.bytes, tensor="parameters", policy=DIVIDE_BY_COUNT, importance=LARGE_CHANGE
        )
        rounded = self.model.bytes / widening(self.wire)
        self._copies = replace(self._whole, size=rounded, form=self.wire)

    def _slowest(self) -> int:
        return min(self.times[rank].position for rank in self.view.members)

    @property
    def size(self) -> int:
        """How many workers there are, those included that come later."""
        return len(self.host_of)

    def begin(self, rank: int, process: Process, *, awaited: bool = False) -> None:
        """Let a worker begin something that ends with the worker; see `VirtualTime.begin`."""
        if self.attendance is None:
            self.time.begin(process, awaited=awaited)
        else:
            self.attendance.lives.begin(rank, process, awaited=awaited)

    @property
    def workers_per_host(self) -> int:
        """The most workers that share a host."""
        return max(Counter(self.host_of).values())

    @property
    def wire_share(self) -> float:
        """The bytes of elements that are sent rounded, over their bytes in memory."""
        return 1 / widening(self.wire)

    @property
    def sums_overlap(self) -> bool:
        """Whether several sums may be under way at once."""
        return self.summing is not None

    @property
    def carries_values(self) -> bool:
        """Whether gradients travel in the network's packets."""
        return self.summing is not None and self.summing.carries_payload

    def computes(self, rank: int, step: int, share: float = 1.0) -> int:
        """Return how long a worker computes for this share of a step; account for it."""
        took = self.compute.time(rank, step, self.time.now)
        if share != 1.0:
            took = round(took * share)
        self.times[rank].compute += took
        return took

    def stepped(self, rank: int) -> None:
        """Note that a worker has made a step."""
        mine, progress, now = self.times[rank], self.progress, self.time.now
        if progress.leads_since < now:
            progress.settle()
        mine.steps += 1
        mine.ended = now
        mine.of_steps = mine.compute, mine.wait, mine.exchange
        if mine.position > progress.fastest:
            progress.lead(mine.position, now)
        progress.count(now)
        self.learner.note_step(rank, now)
        if self.attendance is not None:
            self.attendance.note_step(rank)
        if self.learner.is_satisfied:
            self.time.stop()

    def count(self, what: str, amount: float = 1.0) -> None:
        """Add to a counter of the run."""
        self.counters[what] = self.counters.get(what, 0.0) + amount

    def mean(
        self, members: Sequence[int], summand: Summand, *, algorithm: str | None = None
    ) -> Process:
        """Let the members average something; a member that is alone exchanges nothing.

        A network that makes sums itself makes this one, directly unless `algorithm` says "ring";
        otherwise they exchange it around a ring, unless it says "direct".
        """
        if len(members) < 2:
            return
        began = self.time.now
        yield from self._mean(members, summand, algorithm)
        if self.attendance is not None:
            yield from self.attendance.lives.held_up(members, began)

    def _mean(self, members: Sequence[int], summand: Summand, algorithm: str | None) -> Process:
        count, network = len(members), self.time.network
        if self.summing is not None:
            yield from sum_over_hosts(self, self.summing, members, summand, algorithm or "direct")
        elif algorithm == "direct":
            yield from self.hierarchical_mean(members, 1, summand.size)  # with its messages' cost
            return
        elif self.ringing is not None:
            hosts = [self.host_of[rank] for rank in members]
            number = self.ringing.ring(self.time.now, hosts, summand.size * network.header_factor)
            yield self.time.over(number)
        else:
            # what a pipelined ring takes: the bytes of all rounds flow at once, 2(S-1)/S of it over
            # every hop, and each round's delay follows
            hosts = [self.host_of[rank] for rank in members]
            nexts = [*hosts[1:], hosts[0]]
            each = 2 * (count - 1) / count * summand.size * network.header_factor
            yield self.time.transfer(hosts, nexts, [each] * count)
            yield (2 * (count - 1) - 1) * max(map(network.delay, hosts, nexts))
        if self.message_cost:
            yield from self.software(2 * (count - 1))

    def average(
        self,
        members: Sequence[int],
        shares: Sequence[float] = (),
        *,
        copies: bool = False,
        state: bool = False,
        outer: bool = False,
    ) -> Process:
        """Let the members replace their parameters by their mean, with `shares` a weighted one.

        With `copies` these are the copies that the learner has taken. With `state` the optimizers'
        state goes with them, of which nothing gets lost, and with `outer` the outer optimizers'
        anchors and velocities, each as large as the model. What gets lost is left out of the mean,
        and nothing may get lost of a weighted one, as in real training.
        """
        learner, summand = self.learner, self._copies if copies else self._whole
        if state:
            summand = replace(summand, size=summand.size * (1 + learner.state_per_parameter))
        if outer:
            summand = replace(summand, size=summand.size + 2 * self._whole.size)
        if shares:
            summand = replace(summand, exact=True)
        elif self.loses_values and len(members) > 1:
            values = [learner.parameters(rank, copies=copies) for rank in members]
            summand = replace(summand, values=values)
        yield from self.mean(members, summand)
        learner.average(members, shares, copies=copies)
        if state:
            learner.average_state(members, shares)
        if outer:
            learner.average_outer(members, shares)
        for rank, mean in zip(members, summand.values, strict=False):
            learner.replace_parameters(rank, mean, copies=copies)

    def average_in_pieces(
        self,
        members: Sequence[int],
        shares: Sequence[float],
        order: Sequence[int],
        complete: Sequence[Signal],
        here: Sequence[Signal],
    ) -> Process:
        """Do what `average` does, piece by piece of the model; give a signal as each is there.

        Each piece begins after the signal that it is complete, in `order`: one after another, or as
        the most urgent ones if the network makes sums itself.
        """
        values = []
        if self.loses_values and not shares:
            values = [self.learner.parameters(rank) for rank in members]
        under_way = []
        for number in order:
            if not complete[number].given:
                yield complete[number]
            piece, part = self.model.pieces[number], self.model.elements_of_pieces[number]
            summand = replace(
                self._whole,
                size=piece.bytes,
                tensor=("parameters", part.start),
                values=[each[part] for each in values],
                layer_class=piece.layer_class,
                exact=bool(shares),
            )
            mean = self._mean_of_piece(members, summand, here[number])
            if self.sums_overlap:
                self.time.begin(mean)
                under_way.append(here[number])
            else:
                yield from mean
        yield from under_way
        self.learner.average(members, shares)
        for rank, mean_values in zip(members, values, strict=False):
            self.learner.replace_parameters(rank, mean_values)

    def _mean_of_piece(self, members: Sequence[int], summand: Summand, known: Signal) -> Process:
        yield from self.mean(members, summand)
        self.time.give(known)

    def hierarchical_mean(self, members: Sequence[int], per_host: int, size: float) -> Process:
        """Let `members` average `size` bytes, first `per_host` that follow each other.

        As with a ring, the bytes of all stages flow at once and each stage's delay follows.
        """
        if len(members) < 2:
            return
        traffic = traffic_of(len(members), per_host)
        wire = size * self.time.network.header_factor
        sources = [self.host_of[members[place]] for place in traffic.sources]
        targets = [self.host_of[members[place]] for place in traffic.targets]
        yield self.time.transfer(sources, targets, [share * wire for share in traffic.shares])
        ways = set(zip(sources, targets, strict=True))
        longest = max(self.time.network.delay(source, target) for source, target in ways)
        yield (ONE_WAY_DELAYS - 1) * longest
        yield from self.software(2 * (per_host - 1) + 2 * (len(members) // per_host - 1))

    def software(self, messages: int) -> Process:
        """Take the time of the software that handles messages which follow one another."""
        if self.message_cost:
            yield messages * self.message_cost

    def send(self, source: int, targets: Sequence[int], sizes: Sequence[float]) -> Signal:
        """Start sending from a rank to others; the signal is given when all has arrived."""
        return self.sends([source] * len(sizes), targets, sizes)

    def push(self, source: int, targets: Sequence[int], sizes: Sequence[float]) -> Signal:
        """Send contributions to sums as `send` does; a bounded share of them may get lost."""
        return self.pushes([source] * len(sizes), targets, sizes)

    def push_values(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        contribution: Contribution,
        *,
        layer_class: int = 0,
    ) -> Signal:
        """Send contributions and their values as `pushes` does, in a world that carries values."""
        network = self.time.network
        assert isinstance(network, BoundedLossNetwork)  # the only one in which values travel
        between = [self.host_of[each] for each in sources], [self.host_of[each] for each in targets]
        number = network.push(self.time.now, *between, contribution, layer_class=layer_class)
        return self.time.over(number)

    def sends(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        sizes: Sequence[float],
        *,
        layer_class: int = 0,
    ) -> Signal:
        """Start sending between ranks; the signal is given when all has arrived."""
        return self._start(sources, targets, sizes, layer_class, contributes=False)

    def pushes(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        sizes: Sequence[float],
        *,
        layer_class: int = 0,
    ) -> Signal:
        """Send contributions to sums as `sends` does; a bounded share of them may get lost."""
        return self._start(sources, targets, sizes, layer_class, contributes=True)

    def _start(
        self,
        sources: Sequence[int],
        targets: Sequence[int],
        sizes: Sequence[float],
        layer_class: int,
        *,
        contributes: bool,
    ) -> Signal:
        factor = self.time.network.header_factor
        between = (
            [self.host_of[rank] for rank in sources],
            [self.host_of[rank] for rank in targets],
            [size * factor for size in sizes],
        )
        if self.summing is not None:
            number = self.summing.start(
                self.time.now, *between, contributes=contributes, layer_class=layer_class
            )
            return self.time.over(number)
        return self.time.transfer(*between)

    def exchange(self, rank: int, other: int, size: float) -> Signal:
        """Start sending `size` bytes both ways; the signal is given when all has arrived."""
        a, b = self.host_of[rank], self.host_of[other]
        return self.time.transfer([a, b], [b, a], [size * self.time.network.header_factor] * 2)

    def renew(
        self, target: int, sources: Sequence[int], sizes: Sequence[float], bound: float
    ) -> Signal:
        """Send newer versions of what the target has, as `gather` does.

        The share `bound` of their packets may get lost, if packets are simulated.
        """
        network = self.time.network
        if not bound or not isinstance(network, BoundedLossNetwork):
            return self.gather(target, sources, sizes)
        between = [self.host_of[each] for each in sources], [self.host_of[target]] * len(sources)
        return self.time.over(network.start(self.time.now, *between, sizes, renew_bound=bound))

    def renew_values(
        self, target: int, sources: Sequence[int], version: Contribution, bound: float
    ) -> Signal:
        """Send newer versions and their values as `renew` does, in a world that carries values."""
        network = self.time.network
        assert isinstance(network, BoundedLossNetwork)  # the only one in which values travel
        between = [self.host_of[each] for each in sources], [self.host_of[target]] * len(sources)
        return self.time.over(network.renew(self.time.now, *between, version, bound))

    def gather(self, target: int, sources: Sequence[int], sizes: Sequence[float]) -> Signal:
        """Start sending from ranks to another; the signal is given when all has arrived."""
        return self.sends(sources, [target] * len(sizes), sizes)


class Meeting:
    """Workers that exchange together once all of them are there.

    `times`, by rank, take what each has waited and exchanged. When the last one has arrived the
    process is carried out that `exchange` makes.
    """

    def __init__(
        self,
        world: World,
        members: Sequence[int],
        times: Sequence[Times],
        exchange: Callable[[], Process],
    ) -> None:
        self._world, self._members, self._times = world, members, times
        self._exchange = exchange
        self._arrived: dict[int, int] = {}
        self._over = Signal()
        self._under_way: Process | None = None

    def attend(self, rank: int) -> Generator[int | Signal, Any, object]:
        """Arrive, wait for the others and take part. The answer is `CHANGED` if that is dropped."""
        world = self._world
        self._arrived[rank] = world.time.now
        if len(self._arrived) == len(self._members):
            if world.attendance is None:
                yield from self._carry_out()
                return None
            self._under_way = self._carry_out()  # what one of them does not take along when it ends
            world.time.begin(self._under_way)
        return (yield self._over)

    def _carry_out(self) -> Process:
        world, now = self._world, self._world.time.now
        for member, since in self._arrived.items():
            self._times[member].wait += now - since
            self._times[member].begin_exchange(now)
        yield from self._exchange()
        for member in self._members:
            self._times[member].end_exchange(world.time.now)
        world.time.give(self._over)

    def drop(self) -> None:
        """Let nothing come of it."""
        now = self._world.time.now
        if self._under_way is not None:
            self._world.time.end(self._under_way)
        for member, since in self._arrived.items():
            times = self._times[member]
            if times.exchanges_since is None:
                times.wait += now - since
            else:
                times.end_exchange(now)
        self._world.time.give(self._over, CHANGED)
