"""One job: its workers run Shoal's own code, faults strike as the seed says, promises are checked.

Real are the control planes with their loop, succession and membership; the client with its threads;
the session; `DistributedOptimizer` with executors, courses, agreement and the handing on of state;
and torch. Simulated are time, threads, sockets, processes, hosts and what tensors go over.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import shoal
import shoal.control.__main__ as control_main
from shoal.control import ControlClient, JobKey, Member
from shoal.control.key import CurvePair
from shoal.control.process import Orders
from shoal.control.terms import terms_of, usual_liveness_timeout_s
from shoal.errors import ResourceError, ShoalError
from shoal.launch import Launch
from shoal.membership import GoingOn, Quorum, View
from shoal.session.joining import Meeting
from shoal.session.services import Services
from shoal.session.session import Session
from simulated import data_plane, stand_ins
from simulated.stand_ins import Os, Pipe, Time
from simulated.world import NS, Current, Host, Process, World, world

DEADLINE_S = 6.0
LONGEST_S = 120.0
"""Virtual seconds within which a history of a few dozen steps is over, whatever happens."""
SAMPLES, GLOBAL_BATCH, EPOCHS = 40, 8, 2
FAULTS = (
    "kill",
    "freeze",
    "pause",
    "leave",
    "cut_off",
    "kill_control",
    "freeze_control",
    "pause_control",
    "kill_standby",
    "join_in",
    "join_in",
)


class Key(JobKey):
    """A job key whose pairs cost nothing to derive."""

    __slots__ = ()

    def server_pair(self) -> CurvePair:
        return _PAIR

    client_pair = server_pair


_PAIR = CurvePair(b"public", b"secret")
KEY = Key("the key of a simulated job")


class ControlProcess:
    """`control.ControlProcess`: the service's own loop, in a process of the world."""

    def __init__(self, process: Process, pipe: Pipe, endpoint: str) -> None:
        self.process, self._pipe, self.endpoint = process, pipe, endpoint
        process.owner.at_death.append(self.abandon)  # type: ignore[union-attr]

    @classmethod
    def start(cls, *, view: View, min_members: int | None = None, **given: Any) -> ControlProcess:
        terms = terms_of(view, given["liveness_timeout_s"], min_members, given["quorum"])
        return cls._start(Orders("127.0.0.1", 0, KEY.reveal(), terms, view))

    @classmethod
    def stand_by(cls, keeper: int, **given: Any) -> ControlProcess:
        orders = Orders(
            given["host"],
            given["port"],
            KEY.reveal(),
            given["terms"],
            keeper=keeper,
            num_finished=given["num_finished"],
        )
        return cls._start(orders)

    @classmethod
    def _start(cls, orders: Orders) -> ControlProcess:
        here, owner, pipe = world(), world().process, Pipe()
        process = Process(here, owner.host, f"control of {owner.name}", owner)
        found: list[Any] = []

        def serve() -> None:
            Time.sleep(here.random.uniform(0.0, 0.3))  # loading
            try:
                service = control_main._service(orders)
            except ResourceError as error:
                found.append(error)
                return
            found.append(service.endpoint)
            service.run(pipe)  # type: ignore[arg-type]
            service.close()
            process.die()

        here.spawn(process, serve, process.name)
        here.block(lambda: found or process.is_dead)
        if not found or isinstance(found[0], ResourceError):
            raise found[0] if found else ResourceError("The process has ended.")
        here.control_processes.append(process)  # type: ignore[attr-defined]
        return cls(process, pipe, found[0])

    def stop(self) -> None:
        self._pipe.text += b"stop\n"
        self._pipe.wake()

    def kill(self) -> None:
        self.process.die()

    def abandon(self) -> None:
        self._pipe.is_shut = True
        self._pipe.wake()


def bind(router: stand_ins.Socket, _host: str, port: int) -> str:
    """Bind as `control.server_socket.bind` does: each process at an address of its host."""
    network = stand_ins.network()
    if not port:
        network.num_ports += 1
        port = network.num_ports
    endpoint = f"tcp://10.0.0.{router.process.host.number}:{port}"
    try:
        router.bind(endpoint)
    except stand_ins.real_zmq.ZMQError as error:
        raise ResourceError("That port is in use.") from error
    return endpoint


def _host_name() -> str:
    return f"host {world().process.host.number}"


def _addresses(_environment: object) -> Any:
    here = f"10.0.0.{world().process.host.number}"
    return SimpleNamespace(interfaces=[SimpleNamespace(advertise=here)])


@contextmanager
def simulated() -> Iterator[None]:
    """Let Shoal's modules run in worlds: to be entered once for many histories."""
    also = {
        "shoal.control.service.os": Os(),
        "shoal.control.service.start_authenticator": lambda *_: SimpleNamespace(stop=lambda: None),
        "shoal.control.service.make_router": lambda context, _: context.socket(
            stand_ins.real_zmq.ROUTER
        ),
        "shoal.control.service.bind": bind,
        "shoal.control.service.recv_monitor_message": stand_ins.recv_monitor_message,
        "shoal.control.connection.recv_monitor_message": stand_ins.recv_monitor_message,
        "shoal.control.__main__.JobKey": lambda _: KEY,
        "shoal.session.services.ControlProcess": ControlProcess,
        "shoal.session.services.from_environment": _addresses,
        "shoal.session.session.socket": SimpleNamespace(gethostname=_host_name),
        "shoal.session.joining.socket": SimpleNamespace(gethostname=_host_name),
        "shoal.session.services.addresses_of": lambda _: [],
        "shoal.session.engine_share.share_engine": data_plane.share_engine,
        "shoal.session.engine_share.communicator_over": data_plane.Communicator,
        "shoal.session.transport_alone.open_engine": data_plane.open_engine,
        "shoal.session.session.open_apart": data_plane.open_apart,
        "shoal.session.session.close_aside": data_plane.close_aside,
        "shoal.session.ways.close_aside": data_plane.close_aside,
        "shoal.session.session.current_session": lambda: world().process.session,
        "shoal.session.leaving.current_session": lambda: world().process.session,
        "shoal.session.leaving.shutdown": lambda: world().process.session.close(),  # noqa: PLW0108
        "shoal.train.handing_on._LARGE_BYTES": 8,  # so that donors share what a small model has
        "shoal.train.handing_on._PIECE_BYTES": 8,
        "shoal.train.optimizer.current_session": lambda: world().process.session,
    }
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with stand_ins.in_place_of_the_real_ones(also):
            yield
    finally:
        logging.disable(disabled)
        torch.set_num_threads(threads)


@dataclass
class Worker:
    """One worker's process, and what became of it."""

    rank: int
    process: Process
    is_newcomer: bool = False
    outcome: str = ""
    error: BaseException | None = None
    model: tuple[float, ...] = ()
    steps: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """The parameters after each step."""
    was_disturbed: bool = False
    """Whether it was killed, stood still or was cut off: it may be out."""
    is_silent: bool = False
    """Whether it may be well for all that the others know."""

    @property
    def is_well(self) -> bool:
        return not (self.was_disturbed or self.outcome or self.process.is_dead)


class Job:
    """A job of some workers on some hosts, in a new world."""

    def __init__(
        self,
        seed: int,
        sync: str = "all-reduce",
        *,
        samples: bool = False,
        is_patient: bool = False,
        **options: Any,
    ) -> None:
        """Prepare a job; `samples` are dealt out by an `ElasticSampler`.

        One that `is_patient` needs as many workers as it began with: others come for the lost.
        """
        self.world = Current.world = World(seed)
        self.world.control_processes = []  # type: ignore[attr-defined]
        self.random = self.world.random
        self.sync, self.samples, self.options = sync, samples, options
        self.size = self.random.choice((3, 4))
        per_host = self.random.choice((1, 1, 2))
        self.hosts = [Host(number) for number in range(-(-self.size // per_host))]
        self.view = View.first(self.size, per_host)
        self.num_steps = self.random.randrange(6, 20)
        self.is_patient = is_patient
        self.going_on = GoingOn(self.size, LONGEST_S) if is_patient else GoingOn()
        self.workers: list[Worker] = []
        self.views: dict[int, tuple[int, ...]] = {}
        self.broken: list[str] = []
        self.endpoint = ""
        self.fired: list[str] = []
        """The faults that have struck, in order."""
        self.planned = sorted(self._plan())
        for rank, host in zip(self.view.members, self.view.hosts, strict=True):
            self._start(rank, self.hosts[host])

    def _start(self, rank: int, host: Host, *, is_newcomer: bool = False) -> Worker:
        process = Process(self.world, host, f"rank {rank}")
        worker = Worker(rank, process, is_newcomer)
        self.workers.append(worker)
        self.world.spawn(process, lambda: self._live(worker), process.name)
        return worker

    def _live(self, worker: Worker) -> None:
        try:
            self._train(worker)
            worker.outcome = "finished"
        except ShoalError as error:
            worker.outcome, worker.error = type(error).__name__, error
            session = worker.process.session
            if session is not None:
                session.close()
        except SystemExit:
            worker.outcome = "left"
        except Exception as error:  # noqa: BLE001 - no error of Shoal's: a fault of its own
            worker.outcome, worker.error = "crashed", error
            self.broken.append(f"rank {worker.rank}: {error!r}")

    # ---- what a worker does ----------------------------------------------------------------------

    def _train(self, worker: Worker) -> None:
        session = self._join(worker)
        worker.process.session = session
        unfence = session.member.unfence

        def note(decision: Any) -> None:
            self._note_view(decision.view)
            unfence(decision)

        session.member.unfence = note
        torch.manual_seed(1)
        model = OneForEach() if self.samples else Line()
        sampler = None
        if self.samples:
            sampler = shoal.ElasticSampler(range(SAMPLES), session, global_batch=GLOBAL_BATCH)
        rate, momentum = (1.0, 0.0) if self.samples else (0.05, 0.5)
        inner = torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)
        optimizer = shoal.DistributedOptimizer(
            inner, model, self.sync, check_every=3, **self.options
        )
        worker.steps[optimizer.num_steps] = values_of(model)
        for batch in self._batches(worker, optimizer, sampler):
            Time.sleep(self.random.expovariate(1 / 0.01))
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
            worker.steps[optimizer.num_steps] = values_of(model)
            self._strike(optimizer.num_steps)
        optimizer.finish()
        optimizer.average_model()
        worker.model = values_of(model)
        session.close()

    def _batches(self, worker: Worker, optimizer: Any, sampler: Any) -> Iterator[Tensor]:
        if sampler is not None:
            while sampler.epoch < EPOCHS:
                for indices in sampler:
                    yield torch.tensor(indices, dtype=torch.int64)
            return
        generator = torch.Generator().manual_seed(worker.rank)
        while optimizer.num_steps < self.num_steps:
            yield torch.randn(4, 2, generator=generator)

    def _join(self, worker: Worker) -> Session:
        rank, first = worker.rank, None
        if not worker.is_newcomer:
            if rank == 0:
                first = ControlProcess.start(
                    view=self.view,
                    min_members=self.going_on.min_members,
                    liveness_timeout_s=usual_liveness_timeout_s(DEADLINE_S, is_fixed=False),
                    quorum=Quorum.MAJORITY,
                )
                self.endpoint = first.endpoint
            world().block(lambda: self.endpoint)
        member = Member(self.view, DEADLINE_S, self.going_on, is_newcomer=worker.is_newcomer)
        member.is_ready = worker.is_newcomer
        services = Services(KEY, is_key_given=True, first=first)  # type: ignore[arg-type]
        made: list[Session] = []

        def on_lost(error: ShoalError) -> None:
            for session in made:
                session.abort_transports(error)

        endpoint = self._where_control_is() if worker.is_newcomer else self.endpoint
        control = ControlClient(endpoint, KEY, rank, DEADLINE_S, on_lost, member, services.stand_by)
        host = worker.process.host.number
        launch = Launch(rank, self.size, 0, self.view.workers_per_host, host)
        communicator: Any = SimpleNamespace(on_abort=lambda _: None, abort=lambda _: None)
        session = Session(
            Meeting(launch, KEY, None),  # type: ignore[arg-type]
            communicator,
            control,
            member,
            DEADLINE_S,
            services,
            is_elastic=True,
        )
        made.append(session)
        return session

    def _note_view(self, view: View) -> None:
        """Take note of a view that a worker installs: there is one of each epoch."""
        known = self.views.setdefault(view.epoch, view.members)
        if known != view.members:
            self.broken.append(f"two views of epoch {view.epoch}: {known}, {view.members}")

    # ---- faults ----------------------------------------------------------------------------------

    def _plan(self) -> list[tuple[int, int, str]]:
        """Return what is to strike: after which step of anybody's, in which order."""
        count = self.random.choice((0, 1, 1, 2, 2, 3))
        last = self.num_steps
        steps = [*range(1, last + 1), *[last] * (last // 2)]  # much is agreed on at the end
        return [
            (self.random.choice(steps), place, self.random.choice(FAULTS)) for place in range(count)
        ]

    def _strike(self, step: int) -> None:
        """Let what is due after a step strike, soon."""
        while self.planned and self.planned[0][0] <= step:
            _, _, fault = self.planned.pop(0)
            self._later(fault)

    def _later(self, fault: str) -> None:
        delay_ns = round(self.random.expovariate(1 / 0.01) * NS)
        self.world.after(delay_ns, lambda: self._try(fault))

    def _try(self, fault: str) -> None:
        """Let a fault strike, if what is promised covers it just now; else later."""
        if self._is_done():
            return
        if getattr(self, f"_{fault}")():
            self.fired.append(fault)
            if self.is_patient and fault in ("kill", "leave", "freeze", "cut_off"):
                self.world.after(NS, self._replace)
        else:
            self._later(fault)

    @property
    def _well(self) -> list[Worker]:
        return [each for each in self.workers if each.is_well]

    def _may_lose(self, *workers: Worker, silently: bool) -> bool:
        """Return whether the others have a quorum then, and somebody of those that began is left.

        Newcomers that are not members yet count for nobody.
        """
        rest = [each for each in self._well if each not in workers and each.steps]
        if not rest or not all(each.steps or each.is_newcomer for each in self._well):
            return False
        silent = {each.rank for each in self.workers if each.is_silent}
        if silently:
            silent |= {each.rank for each in workers}
        return len(rest) > len(silent)

    def _kill(self) -> bool:
        """Kill a worker."""
        victim = self.random.choice(self._well)
        if not self._may_lose(victim, silently=False):
            return False
        victim.was_disturbed = True
        victim.process.die()
        return True

    def _freeze(self) -> bool:
        """Let a worker stand still for good, or come to itself once it is out."""
        victim = self.random.choice(self._well)
        if not self._may_lose(victim, silently=True):
            return False
        victim.was_disturbed = victim.is_silent = victim.process.is_frozen = True
        if self.random.random() < 0.5:
            self.world.after(round(2 * DEADLINE_S * NS), lambda: self._thaw(victim.process))
        return True

    def _pause(self) -> bool:
        """Let a worker stand still for less than it takes to be lost."""
        victim = self.random.choice(self._well)
        victim.process.is_frozen = True
        self.world.after(round(0.3 * DEADLINE_S * NS), lambda: self._thaw(victim.process))
        return True

    @staticmethod
    def _thaw(process: Process) -> None:
        process.is_frozen = False

    def _cut_off(self) -> bool:
        """Cut a host off, with all that is on it: a control plane maybe."""
        host = self.random.choice(self.hosts)
        there = [
            each
            for each in self.workers
            if each.process.host is host and not (each.outcome or each.process.is_dead)
        ]
        if host.is_cut_off or not self._may_lose(*there, silently=True):
            return False
        serving, standing = self._serving(), self._standing_by()
        if serving is None or not serving.runs or serving.host.is_cut_off:
            return False  # a successor is about to be needed, and may be there
        if serving.host is host and (
            not self._replaceable() or standing is None or standing.host is host
        ):
            return False
        for each in there:
            each.was_disturbed = each.is_silent = True
        host.is_cut_off = True
        if self.random.random() < 0.5:
            self.world.after(round(2 * DEADLINE_S * NS), lambda: self.world.heal(host))
        return True

    def _leave(self) -> bool:
        """Let a worker leave at the end of its step, as `shoal.leave_on` has it."""
        leaver = self.random.choice(self._well)
        if not self._may_lose(leaver, silently=False):
            return False
        leaver.was_disturbed = leaver.process.session.endings.is_leaving = True
        return True

    def _kill_control(self) -> bool:
        """Kill the control plane that serves, once another one stands by for all."""
        serving = self._replaceable()
        if serving is not None:
            serving.die()
        return serving is not None

    def _freeze_control(self) -> bool:
        """Let the control plane that serves stand still for good."""
        serving = self._replaceable()
        if serving is not None:
            serving.is_frozen = True
        return serving is not None

    def _pause_control(self) -> bool:
        """Let the control plane that serves stand still for less than it takes to be lost."""
        serving = self._serving()
        if serving is None or not serving.runs:
            return False
        serving.is_frozen = True
        self.world.after(round(0.3 * DEADLINE_S * NS), lambda: self._thaw(serving))
        return True

    def _kill_standby(self) -> bool:
        """Kill the control plane that stands by, while the other one is well."""
        standing = self._standing_by()
        if standing is None or self._replaceable() is None:
            return False
        standing.die()
        return True

    def _replaceable(self) -> Process | None:
        """Return the control plane that serves, if all follow another one that can be reached."""
        serving = self._serving()
        if serving is None or serving.host.is_cut_off or not serving.runs:
            return None
        return serving if self._has_successor() else None

    def _join_in(self) -> bool:
        """Let another process come to the job, perhaps as the rank of one that is dead."""
        if len(self.workers) > 3 * self.size or not self._serving():
            return False
        gone = [each for each in self.workers if each.outcome not in ("", "finished")]
        dead = [each.rank for each in self.workers if each.process.is_dead or each in gone]
        free = [rank for rank in dead if all(each.rank != rank for each in self._well)]
        rank = self.random.choice([max(each.rank for each in self.workers) + 1, *free])
        hosts = [host for host in self.hosts if not host.is_cut_off]
        self._start(rank, self.random.choice(hosts), is_newcomer=True)
        return True

    def _replace(self) -> None:
        """Start workers until as many are there as the job needs."""
        if self._is_done():
            return
        if len(self._well) < self.size:
            self._join_in()
        self.world.after(NS, self._replace)

    def _where_control_is(self) -> str:
        """Return the address that a newcomer finds where the job's is written down."""
        known = [each.process.session for each in self._well if each.process.session is not None]
        return str(known[0].control.endpoint) if known else self.endpoint

    def _control_at(self, endpoint: str) -> Process | None:
        socket = stand_ins.network().listening.get(endpoint)
        return None if socket is None or socket.process.is_dead else socket.process

    def _serving(self) -> Process | None:
        return self._control_at(self._where_control_is())

    def _standing_by(self) -> Process | None:
        known = [each.process.session for each in self._well if each.process.session is not None]
        return self._control_at(known[0].control.standby) if known else None

    def _has_successor(self) -> bool:
        """Return whether a control plane stands by that all follow, and can be reached."""
        standing = self._standing_by()
        if standing is None or standing.host.is_cut_off or not standing.runs:
            return False
        endpoint = {
            each.process.session and each.process.session.control.standby
            for each in self._well
            if not each.is_newcomer or each.steps
        }
        return len(endpoint) == 1

    # ---- one history -----------------------------------------------------------------------------

    def run(self) -> str:
        """Return what is wrong; nothing for a good history."""
        self.world.verdict = lambda: "all are done" if self._is_done() else None
        ended = self.world.run(LONGEST_S)
        if self.broken:
            return self.broken[0]
        for task in self.world.spawned:
            if task.error is not None:
                return f"{task.process.name}, {task.name}: {task.error!r}"
        living = [each for each in self.workers if not each.was_disturbed]
        for worker in living:
            if worker.is_newcomer and worker.outcome not in ("", "finished"):
                continue  # it came too late, or to a control plane that was just lost
            if worker.outcome != "finished":
                return f"rank {worker.rank}: {worker.outcome or ended}: {worker.error}"
        models = {each.model for each in living if each.outcome == "finished"}
        if len(models) > 1:
            return f"different models: {models}"
        if self.sync == "all-reduce":
            return self._check_steps() or (self._check_samples() if self.samples else "")
        return ""

    def _is_done(self) -> bool:
        return all(
            worker.outcome or worker.process.is_dead or worker.was_disturbed
            for worker in self.workers
        )

    def _check_steps(self) -> str:
        """Return whether all who made a step had the same parameters after it."""
        for number in range(self.num_steps + 1):
            living = [each for each in self.workers if not each.was_disturbed]
            found = {each.steps[number] for each in living if number in each.steps}
            if len(found) > 1:
                return f"different parameters after step {number}"
        return ""

    def _check_samples(self) -> str:
        """Return whether every sample was used once in an epoch, by what each step has changed."""
        steps: dict[int, tuple[float, ...]] = {}
        for worker in self.workers:
            if not worker.was_disturbed:
                steps |= worker.steps
        used: Counter[int] = Counter()
        for number in range(max(steps)):
            pairs = zip(steps[number], steps[number + 1], strict=True)
            used.update(index for index, (old, new) in enumerate(pairs) if new > old)
        counts = Counter(used[index] for index in range(SAMPLES))
        return "" if set(counts) == {EPOCHS} else f"samples were used so often: {dict(counts)}"


class OneForEach(nn.Module):
    """A parameter for each sample, of which each step moves those whose samples it has used."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SAMPLES))

    def forward(self, indices: Tensor) -> Tensor:
        return -self.weight[indices].sum() / max(1, len(indices))


class Line(nn.Module):
    """A model of a few parameters, whose output is its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layers(inputs).square().mean()  # type: ignore[no-any-return]


def values_of(model: nn.Module) -> tuple[float, ...]:
    return tuple(value for each in model.parameters() for value in each.detach().flatten().tolist())
