"""Workers that join a job while the others train: what all of them compute, whoever fails when."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from strategy_words import named
from torch import nn

import shoal
from free_ports import free_ports_in_a_row
from shoal.carriers import STATE_CHANNEL, TransportCommunicator
from shoal.jobs.chaos.chaos_worker import hash_of
from shoal.jobs.chaos.notes import Notes
from shoal.session.session import Session
from shoal.session.ways import Ways
from shoal.train import optimizer as optimizer_module
from thoroughness import seldom

if TYPE_CHECKING:
    from worker_processes import RunWorkers

DEADLINE_S = 16.0
SIZE, VICTIM = 3, 2
DIES_AT = 5
STEPS_TOGETHER = 12
"""Steps that everybody makes with whoever comes."""
SYNCS = ("all-reduce", "ds-sync", "ripples-static", "hierarchical-sgd", "local-sgd", "ripples")
SYNCS += ("ripples-random", "ds-sync, next-forward", "ds-sync, next-steps")
SYNCS += ("ripples, next-forward", "ripples, next-steps", "ps-bsp", "ps-ssp", "ps-asp", "ad-psgd")
SYNCS += ("all-reduce, low_rank=1",)
OFTEN = ("all-reduce", "ripples", "ps-bsp")


class Job(Notes):
    """What the workers of one test know of each other: files in a folder."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.rank = int(os.environ["RANK"])
        self.is_late = self.rank >= SIZE

    def note(self, name: str, text: str = "") -> None:
        """Let all know something."""
        self.write(name, text.encode())

    def wait_for(self, name: str, within_s: float = 2 * DEADLINE_S) -> str:  # type: ignore[override]
        """Wait until somebody has noted this; return what it says."""
        assert super().wait_for(name, within_s), name
        return self.read(name).decode()

    def die(self) -> None:
        """End this process now; the note says that the fault has fired."""
        self.note(f"died {self.rank}")
        os.kill(os.getpid(), signal.SIGKILL)


class Training:
    """A model with statistics, an optimizer with state, and what became of them step by step."""

    def __init__(
        self, session: Session, sync: str, width: int = 4, base: torch.Tensor | None = None
    ) -> None:
        self.session = session
        torch.manual_seed(session.rank)
        self.model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
        if base is not None:  # a part of the model that is not trained
            self.model.register_parameter("base", nn.Parameter(base, requires_grad=False))
        inner = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.optimizer = shoal.DistributedOptimizer(
            inner,
            self.model,
            check_every=0,  # a newcomer is to find by itself that models differ
            **named(sync),
        )
        self.generator = torch.Generator().manual_seed(session.rank)
        self.first = self.optimizer.num_steps
        self.states = {self.first: self.state()}

    def state(self) -> str:
        return hash_of([*self.model.parameters(), *self.model.buffers()])

    def step(self) -> None:
        self.optimizer.zero_grad()
        data = torch.randn(16, 8, generator=self.generator)
        self.model(data).square().mean().backward()
        self.optimizer.step()
        self.states[self.optimizer.num_steps] = self.state()

    def step_until(self, job: Job, name: str) -> None:
        """Train until somebody has noted something."""
        end = time.monotonic() + 2 * DEADLINE_S
        while not job.has(name):
            assert time.monotonic() < end, name
            self.step()

    def finish(self) -> dict[str, Any]:
        """Train on for a while with everybody, and return what came of it."""
        for _ in range(STEPS_TOGETHER):
            self.step()
        view = self.session.view
        self.optimizer.finish()
        self.optimizer.average_model()
        shoal.shutdown()
        return {
            "first": self.first,
            "states": self.states,
            "view": view,
            "model": hash_of(self.model.parameters()),
        }


def init() -> Session:
    return shoal.init(deadline_s=DEADLINE_S, min_workers=1)


def check_alike(results: list[dict[str, Any]], sync: str = "all-reduce") -> None:
    """Fail unless all have ended with one model, and made each step alike if that is to be."""
    assert len({result["model"] for result in results}) == 1
    if not sync.startswith("all-reduce"):
        return
    numbers = set.union(*(set(result["states"]) for result in results))
    for number in numbers:
        found = {result["states"].get(number) for result in results} - {None}
        assert len(found) == 1, f"models differ after {number} steps"


def come_back(folder: str, sync: str) -> dict[str, Any]:
    """Train; rank 2 dies, and another process takes its place while the others go on."""
    job = Job(folder)
    if job.is_late:
        job.wait_for(f"died {VICTIM}")
        os.environ["RANK"] = str(VICTIM)
    session = init()
    training = Training(session, sync)
    if job.is_late:
        job.note("is in")
    while job.rank == VICTIM:
        training.step()
        if training.optimizer.num_steps == DIES_AT:
            job.die()
    training.step_until(job, "is in")
    return training.finish()


@pytest.mark.parametrize("sync", seldom(SYNCS, often=OFTEN))
def test_a_worker_that_died_comes_back(run_workers: RunWorkers, tmp_path: Path, sync: str) -> None:
    results = run_workers(
        come_back,
        SIZE,
        str(tmp_path),
        sync,
        may_die=(VICTIM,),
        initialize=False,
        num_more=1,
        environment={"SHOAL_JOB_KEY": ""},  # set, but empty: as if it were not set
    )
    assert results[VICTIM] is None, "the fault has fired"
    living = [result for result in results if result is not None]
    assert results[SIZE]["first"] >= DIES_AT
    for result in living:
        assert result["view"].members == (0, 1, 2)
        assert result["view"].why == "Rank 2 has joined."
    check_alike(living, sync)


def come_back_elsewhere(folder: str) -> dict[str, Any]:
    """Train on two hosts; rank 1 dies with its host, and comes back on the other one."""
    job = Job(folder)
    victim, is_late = 1, job.rank > 1
    if is_late:
        job.wait_for(f"died {victim}")
        os.environ["RANK"] = str(victim)
    else:
        os.environ |= {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_RANK": str(job.rank)}
    session = init()
    training = Training(session, "all-reduce", width=8192)
    if is_late:
        job.note("is in")
    while job.rank == victim:
        training.step()
        if training.optimizer.num_steps == DIES_AT:
            job.die()
    training.step_until(job, "is in")
    sizes = [bucket.num_elements for bucket in training.optimizer._synchronizer._buckets.layout]
    return training.finish() | {"buckets": sizes}


def test_a_newcomer_has_the_buckets_of_the_hosts_that_the_job_began_on(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    results = run_workers(
        come_back_elsewhere, 2, str(tmp_path), may_die=(1,), initialize=False, num_more=1
    )
    assert results[1] is None, "the fault has fired"
    living = [results[0], results[2]]
    assert all(result["view"].num_hosts == 1 for result in living)
    assert all(result["buckets"] == [16_386, 16_384, 73_728] for result in living)
    check_alike(living)


def lose_rank_0(folder: str, where: str) -> dict[str, Any]:
    """Train; rank 0 dies, whose store newcomers would look into, and comes back, and one more."""
    job = Job(folder)
    os.environ.update(SHOAL_JOB=where, SHOAL_JOB_KEY="the key of this job, for all")
    if "/" in where:
        del os.environ["SHOAL_JOB_KEY"]  # the file has one
    if job.is_late:
        job.wait_for("died 0")
        os.environ["MASTER_PORT"] = "1"  # nobody is there any more
        if job.rank == SIZE:
            os.environ["RANK"] = "0"
        else:
            del os.environ["RANK"], os.environ["WORLD_SIZE"]
            job.wait_for("3 is in")
    session = init()
    training = Training(session, "all-reduce")
    if job.is_late:
        job.note(f"{job.rank} is in")
    while job.rank == 0:
        training.step()
        if training.optimizer.num_steps == DIES_AT:
            job.die()
    training.step_until(job, "3 is in")
    training.step_until(job, "4 is in")
    return {"rank": session.rank, **training.finish()}


@pytest.mark.parametrize("how", seldom(["a file", "addresses"], often=["a file"]))
def test_a_job_is_found_when_rank_0_is_gone(
    run_workers: RunWorkers, tmp_path: Path, how: str
) -> None:
    port = free_ports_in_a_row(2)
    where = f"{tmp_path}/job" if how == "a file" else f"127.0.0.1:{port + 1},127.0.0.1:{port}"
    results = run_workers(
        lose_rank_0, SIZE, str(tmp_path), where, may_die=(0,), initialize=False, num_more=2
    )
    assert results[0] is None, "the fault has fired"
    living = results[1:]
    assert [result["rank"] for result in living] == [1, 2, 0, 3], "who names none gets one"
    assert all(result["view"].members == (0, 1, 2, 3) for result in living)
    check_alike(living)


def lose_the_donor(folder: str, sync: str) -> dict[str, Any]:
    """Train; the first worker that hands its state on to a newcomer dies while it does."""
    job = Job(folder)
    if job.is_late:
        job.wait_for("all train")
    else:
        send = TransportCommunicator.send

        def dying(self: Any, *arguments: Any, channel: int, **options: Any) -> Any:
            if channel == STATE_CHANNEL and not job.has("a donor died"):
                job.note("a donor died")
                job.die()
            return send(self, *arguments, channel=channel, **options)

        TransportCommunicator.send = dying  # type: ignore[method-assign, assignment]
    session = init()
    training = Training(session, sync)
    if job.is_late:
        job.note("is in")
    elif job.rank == 0:
        for _ in range(DIES_AT):
            training.step()
        job.note("all train")
    training.step_until(job, "is in")
    return training.finish()


@pytest.mark.parametrize("sync", seldom(["all-reduce", "ds-sync"], often=["all-reduce"]))
def test_another_donor_takes_over(run_workers: RunWorkers, tmp_path: Path, sync: str) -> None:
    results = run_workers(
        lose_the_donor,
        SIZE,
        str(tmp_path),
        sync,
        may_die=tuple(range(SIZE)),
        initialize=False,
        num_more=1,
    )
    living = [rank for rank in range(SIZE + 1) if results[rank] is not None]
    assert len(living) == SIZE, "the fault has fired"
    assert SIZE in living
    assert all(results[rank]["view"].members == tuple(living) for rank in living)
    check_alike([results[rank] for rank in living], sync)


PHASES = ("arrived", "prepared", "is a member", "has the state", "first backward")


def lose_the_newcomer(folder: str, sync: str, phase: str) -> dict[str, Any]:
    """Train; a newcomer dies on its way in."""
    job = Job(folder)
    if job.is_late:
        job.wait_for("all train")
    session = init()
    if job.is_late:
        _die_in(phase, job)
        training = Training(session, sync)
        training.model(torch.randn(16, 8)).square().mean().backward()
        job.die()
    training = Training(session, sync)
    if job.rank == 0:
        for _ in range(DIES_AT):
            training.step()
        job.note("all train")
    training.step_until(job, f"died {SIZE}")
    return training.finish()


def _die_in(phase: str, job: Job) -> None:
    """Let a newcomer die when it comes to `phase`."""
    match phase:
        case "arrived":
            job.die()
        case "prepared":
            Ways.take = lambda *_: job.die()  # type: ignore[method-assign, assignment, return-value]
        case "is a member":
            become_member = Session.become_member

            def dying(session: Session, training: str) -> bool:
                become_member(session, training)
                job.die()
                return True

            Session.become_member = dying  # type: ignore[method-assign]
        case "has the state":
            take_over = optimizer_module.take_over

            def dying_late(*arguments: Any) -> int:
                steps = take_over(*arguments)
                job.die()
                return steps

            optimizer_module.take_over = dying_late


@pytest.mark.parametrize(
    ("sync", "phase"),
    seldom(
        [(sync, phase) for sync in ("all-reduce", "ds-sync", "ripples") for phase in PHASES],
        often=[
            ("all-reduce", "prepared"),
            ("ripples", "has the state"),
        ],
    ),
)
def test_nobody_waits_for_a_newcomer_that_dies(
    run_workers: RunWorkers, tmp_path: Path, sync: str, phase: str
) -> None:
    results = run_workers(
        lose_the_newcomer,
        SIZE,
        str(tmp_path),
        sync,
        phase,
        may_die=(SIZE,),
        initialize=False,
        num_more=1,
    )
    assert results[SIZE] is None
    assert Path(tmp_path, f"died {SIZE}").exists(), "the fault has fired"
    check_alike(results[:SIZE], sync)
    if phase == "arrived":
        assert all(result["view"].epoch == 0 for result in results[:SIZE]), "nobody was disturbed"


def refuse(folder: str, how: str) -> dict[str, Any] | str:
    """Train; a newcomer comes that does not fit, and says what it was told."""
    job = Job(folder)
    if job.is_late:
        job.wait_for("all train")
        if how == "taken":
            os.environ["RANK"] = "1"
        if how == "key":
            os.environ["SHOAL_JOB_KEY"] = "another key than the job's"
        try:
            session = init()
            sync = "local-sgd" if how == "strategy" else "all-reduce"
            Training(session, sync, width=5 if how == "model" else 4)
        except shoal.ShoalError as error:
            job.note("was refused")
            shoal.shutdown()
            return f"{type(error).__name__}: {error}"
        raise AssertionError("it was taken in")
    session = init()
    training = Training(session, "all-reduce")
    if job.rank == 0:
        for _ in range(DIES_AT):
            training.step()
        job.note("all train")
    if job.rank == 1 and how == "diverged":
        with torch.no_grad():
            training.model[0].weight.add_(0.25)  # type: ignore[operator]  # a slip of the user's
    training.step_until(job, "was refused")
    return training.finish()


REFUSALS = {
    "model": r"MismatchError: This worker does not fit the job that it came to join\. Rank 3 ",
    "strategy": r"MismatchError: This worker does not fit the job that it came to join\. Rank 3 ",
    "key": r"MismatchError: .* has another job key",
    "taken": r"MismatchError: Rank 1 takes part already",
    "diverged": r"MismatchError: (Rank 1 and rank [02]|Ranks 0 and 2 and rank 1) differ in",
}


@pytest.mark.parametrize("how", seldom(REFUSALS, often=("model", "diverged")))
def test_who_does_not_fit_is_told_and_nobody_else(
    run_workers: RunWorkers, tmp_path: Path, how: str
) -> None:
    results = run_workers(refuse, SIZE, str(tmp_path), how, initialize=False, num_more=1)
    assert re.match(REFUSALS[how], results[SIZE]), results[SIZE]
    assert all(result["view"].members == (0, 1, 2) for result in results[:SIZE])
    if how != "diverged":
        assert all(result["view"].epoch == 0 for result in results[:SIZE]), "nobody was disturbed"
        check_alike(results[:SIZE])


def freeze(folder: str, sync: str) -> dict[str, Any]:
    """Train; rank 2 stands still until the others have gone on without it, and joins again."""
    job = Job(folder)
    session = init()
    training = Training(session, sync)
    if job.rank == VICTIM:
        for _ in range(DIES_AT):
            training.step()
        job.note("frozen", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(shoal.WorkerLost, match="That is this worker") as caught:
            training.step_until(job, "never")
        assert caught.value.rank == VICTIM
        shoal.shutdown()
        session = init()
        training = Training(session, sync)
        job.note("is in")
    else:
        training.step_until(job, "frozen")
        while VICTIM in session.view.members:
            training.step()
        for _ in range(DIES_AT):
            training.step()
        if job.rank == 0:
            os.kill(int(job.wait_for("frozen")), signal.SIGCONT)
        training.step_until(job, "is in")
    return training.finish()


@pytest.mark.parametrize("sync", seldom(["all-reduce", "ds-sync"], often=["all-reduce"]))
def test_a_worker_that_stood_still_hears_that_it_is_out_and_joins_again(
    run_workers: RunWorkers, tmp_path: Path, sync: str
) -> None:
    results = run_workers(freeze, SIZE, str(tmp_path), sync, initialize=False)
    assert all(result["view"].members == (0, 1, 2) for result in results)
    assert all(result["view"].epoch >= 2 for result in results), "the fault has fired"
    check_alike(results, sync)


def come_and_go(folder: str, sync: str, seed: int) -> dict[str, Any]:
    """Train; workers die at random moments, and for each another process comes, as that rank."""
    job = Job(folder)
    chance = Random(f"{seed} {job.rank}")
    if job.is_late:
        os.environ["RANK"] = job.wait_for(f"death {job.rank - SIZE}")
    session = init()
    training = Training(session, sync)
    if job.is_late:
        job.note(f"back {job.rank - SIZE}")
    turn = job.rank - SIZE + 1 if job.is_late else 0
    if turn < RETURNS and (job.is_late or job.rank == seed % SIZE):
        threading.Timer(chance.uniform(0.0, 0.4), _die_as, (job, turn, session.rank)).start()
        training.step_until(job, "never")
    training.step_until(job, f"back {RETURNS - 1}")
    return training.finish()


RETURNS = 3


def _die_as(job: Job, turn: int, rank: int) -> None:
    job.note(f"death {turn}", str(rank))
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("sync", "seed"),
    seldom(
        [(sync, seed) for sync in SYNCS for seed in range(4)],
        often=[],  # core/one_seed has random deaths and joins, test_elastic_sampler.py real ones
    ),
)
def test_workers_die_and_come_back_at_random_moments(
    run_workers: RunWorkers, tmp_path: Path, sync: str, seed: int
) -> None:
    may_die = (seed % SIZE, *range(SIZE, SIZE + RETURNS - 1))
    results = run_workers(
        come_and_go,
        SIZE,
        str(tmp_path),
        sync,
        seed,
        may_die=may_die,
        initialize=False,
        num_more=RETURNS,
    )
    assert all(results[rank] is None for rank in may_die), "the faults have fired"
    living = [result for result in results if result is not None]
    assert len(living) == SIZE
    assert all(result["view"].members == tuple(range(SIZE)) for result in living)
    check_alike(living, sync)


def train_with_too_few(folder: str, sync: str, patience_s: float) -> dict[str, Any] | str:
    """Train; rank 2 dies, and the job needs three. A newcomer comes once all others wait for it."""
    job = Job(folder)
    if job.is_late:
        job.wait_for("all wait")
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=SIZE, patience_s=patience_s)
    training = Training(session, sync)
    if job.is_late:
        job.note("is in")
    for _ in range(DIES_AT):
        training.step()
    if job.rank == VICTIM:
        job.die()
    if job.rank == 0:
        threading.Thread(target=note_when_few, args=(job, session), daemon=True).start()
    try:
        training.step_until(job, "is in")
    except shoal.WorkerLost as error:
        shoal.shutdown()
        return str(error)
    return training.finish()


def note_when_few(job: Job, session: Session) -> None:
    """Let the newcomer come once the worker is known to be lost, after a while with no step."""
    while VICTIM in session.view.members:
        time.sleep(0.01)
    time.sleep(0.3)
    before = session.endings.trainings[0].num_steps
    time.sleep(0.5)
    job.note("all wait", str(session.endings.trainings[0].num_steps - before))


@pytest.mark.parametrize("sync", seldom(["all-reduce", "ripples"], often=["all-reduce"]))
def test_a_job_with_too_few_workers_waits_for_others(
    run_workers: RunWorkers, tmp_path: Path, sync: str
) -> None:
    arguments = str(tmp_path), sync, DEADLINE_S
    results = run_workers(
        train_with_too_few, SIZE, *arguments, may_die=(VICTIM,), initialize=False, num_more=1
    )
    assert results[VICTIM] is None, "the fault has fired"
    assert Notes(str(tmp_path)).read("all wait") == b"0", "nobody trained meanwhile"
    results = [results[rank] for rank in (0, 1, SIZE)]
    assert all(result["view"].members == (0, 1, SIZE) for result in results)


def test_it_ends_when_nobody_comes(run_workers: RunWorkers, tmp_path: Path) -> None:
    arguments = str(tmp_path), "all-reduce", 0.5
    results = run_workers(train_with_too_few, SIZE, *arguments, may_die=(VICTIM,), initialize=False)
    for said in (results[0], results[1]):
        assert "Fewer than 3 workers (min_workers) were left, and within 0.5 s" in said
