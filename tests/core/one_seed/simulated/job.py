"""One job: its workers run Shoal's own code, faults strike as the seed says, promises are checked.

Real are the control planes with their loop, succession and membership; the client with its threads;
the session; `DistributedOptimizer` with executors, courses, agreement and the handing on of state;
and torch. Simulated are time, threads, sockets, processes, hosts and what tensors go over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import shoal
from shoal.control import ControlClient, Member
from shoal.control.terms import usual_liveness_timeout_s
from shoal.errors import ShoalError
from shoal.launch import Launch
from shoal.membership import GoingOn, Quorum, View
from shoal.session.joining import Meeting
from shoal.session.services import Services
from shoal.session.session import Session
from shoal.strategies import OuterStep
from simulated.faults import Faults
from simulated.models import EPOCHS, FEATURES, GLOBAL_BATCH, SAMPLES, Line, OneForEach, values_of
from simulated.stage import DEADLINE_S, KEY, ControlProcess
from simulated.stand_ins import Time
from simulated.world import Current, Host, Process, World, world

LONGEST_S = 120.0
"""Virtual seconds within which a history of a few dozen steps is over, whatever happens."""


STEPS_BEFORE = 3


def _step(model: Line, optimizer: shoal.DistributedOptimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, FEATURES)).backward()
    optimizer.step()


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
        sync: str | shoal.AllReduce = "all-reduce",
        *,
        samples: bool = False,
        is_patient: bool = False,
        more: str = "",
        **options: Any,
    ) -> None:
        """Prepare a job; `samples` are dealt out by an `ElasticSampler`.

        One that `is_patient` needs as many workers as it began with: others come for the lost.
        `more` is another training "before" the one that is looked at, or "beside" it.
        """
        self.world = Current.world = World(seed)
        self.random = self.world.random
        self.sync, self.samples, self.more, self.options = sync, samples, more, options
        self.size = self.random.choice((3, 4))
        per_host = self.random.choice((1, 1, 2))
        self.hosts = [Host(number) for number in range(-(-self.size // per_host))]
        self.view = View.first(self.size, per_host)
        self.num_steps = self.random.randrange(6, 20)
        self.is_patient = is_patient
        self.going_on = GoingOn(self.size, LONGEST_S) if is_patient else GoingOn()
        self.workers: list[Worker] = []
        self.views: dict[int, tuple[int, ...]] = {}
        self.outer_steps: dict[tuple[int, int], object] = {}
        """The outer optimizers after each outer step, by its number."""
        self.broken: list[str] = []
        self.endpoint = ""
        self.faults = Faults(self)
        for rank, host in zip(self.view.members, self.view.hosts, strict=True):
            self.start(rank, self.hosts[host])

    def start(self, rank: int, host: Host, *, is_newcomer: bool = False) -> Worker:
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
        self.faults.strike(0)
        if self.more == "before":
            before = self._begin_another()
            for _ in range(STEPS_BEFORE):
                _step(*before)
            before[1].finish()
        optimizer = shoal.DistributedOptimizer(
            inner, model, self.sync, check_every=3, **self.options
        )
        self._note_outer_steps(optimizer)
        beside = [self._begin_another()] if self.more == "beside" else []
        worker.steps[optimizer.num_steps] = values_of(model)
        for batch in self._batches(worker, optimizer, sampler):
            Time.sleep(self.random.expovariate(1 / 0.01))
            optimizer.zero_grad()
            model(batch).backward()
            optimizer.step()
            worker.steps[optimizer.num_steps] = values_of(model)
            self.faults.strike(optimizer.num_steps)
            for another in beside:
                _step(*another)
        optimizer.finish()
        for _, each in beside:
            each.finish()
        optimizer.average_model()
        worker.model = values_of(model)
        session.close()

    def _begin_another(self) -> tuple[Line, shoal.DistributedOptimizer]:
        model = Line()
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        return model, shoal.DistributedOptimizer(inner, model, self.sync)

    def _batches(self, worker: Worker, optimizer: Any, sampler: Any) -> Iterator[Tensor]:
        if sampler is not None:
            while sampler.epoch < EPOCHS:
                for indices in sampler:
                    yield torch.tensor(indices, dtype=torch.int64)
            return
        generator = torch.Generator().manual_seed(worker.rank)
        while optimizer.num_steps < self.num_steps:
            yield torch.randn(4, FEATURES, generator=generator)

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

        endpoint = self.faults.where_control_is() if worker.is_newcomer else self.endpoint
        control = ControlClient(endpoint, KEY, rank, DEADLINE_S, on_lost, member, services)
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

    def _note_outer_steps(self, optimizer: Any) -> None:
        """Take note of a worker's outer steps: all come to the same anchor by one of a number."""
        outer = getattr(optimizer._synchronizer, "_outer", None)
        if outer is None:
            return
        do = outer.do

        def noting(act: Any, flats: Any) -> None:
            do(act, flats)
            if isinstance(act, OuterStep):
                own = [(each.anchor.tolist(), each.velocity.tolist()) for each in outer.optimizers]
                if self.outer_steps.setdefault(act.number, own) != own:
                    self.broken.append(f"two results of outer step {act.number}")

        outer.do = noting

    def _note_view(self, view: View) -> None:
        """Take note of a view that a worker installs: there is one of each epoch."""
        known = self.views.setdefault(view.epoch, view.members)
        if known != view.members:
            self.broken.append(f"two views of epoch {view.epoch}: {known}, {view.members}")

    def run(self) -> str:
        """Return what is wrong; nothing for a good history."""
        self.world.verdict = lambda: "all are done" if self.is_done else None
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
        if isinstance(self.sync, shoal.AllReduce) or self.sync in ("all-reduce", "ps-bsp"):
            return self._check_steps() or (self._check_samples() if self.samples else "")
        return ""

    @property
    def fired(self) -> list[str]:
        """The faults that have struck, in order."""
        return self.faults.fired

    @property
    def is_done(self) -> bool:
        """Whether all that are well have ended."""
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
