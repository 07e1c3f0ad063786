"""Samples of real jobs whose workers die and come back: each counts once in every epoch.

Under all-reduce the gradients themselves say what counted, for every sample has a parameter of its
own. Where parameters are averaged workers write down what they use, and the living what they agreed
on of those that died.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import shoal
from shoal.samples import OwnBatches
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from worker_processes import RunWorkers

DEADLINE_S = 16.0
SIZE, VICTIM = 3, 2
SAMPLES, GLOBAL_BATCH, EPOCHS = 1130, 12, 3
SLOW_S = 0.05
"""The seconds that a step takes until the newcomer is in: the job is not over before."""


class Life:
    """What one process does in the job, and what it leaves behind in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.is_late = int(os.environ["RANK"]) >= SIZE
        if self.is_late:
            self._wait_for("died")
            os.environ["RANK"] = str(VICTIM)
        self.is_victim = int(os.environ["RANK"]) == VICTIM and not self.is_late
        self.used = (self.folder / f"used {os.getpid()}").open("a", buffering=1)

    def note(self, name: str, text: str = "") -> None:
        """Let all know something."""
        fresh = self.folder / f"{name}.{os.getpid()}"
        fresh.write_text(text)
        fresh.rename(self.folder / name)

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    def _wait_for(self, name: str) -> None:
        end = time.monotonic() + 2 * DEADLINE_S
        while not self.has(name):
            assert time.monotonic() < end, name
            time.sleep(0.005)

    def die(self) -> None:
        """End this process now, at whatever it does."""
        self.note("died", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self) -> None:
        """Leave the job at the end of a step, as a machine's owner asks."""
        self.note("died", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGTERM)

    def step_time(self) -> None:
        """Take the time of a step."""
        if not self.has("is in"):
            time.sleep(SLOW_S)


def note_agreements(agreed: list[int]) -> None:
    """Write down how many of the victim's batches the living agree on when they lose it."""
    go_on = OwnBatches.go_on

    def noting(own: OwnBatches, view: int, members: Any, said: Any) -> None:
        if VICTIM not in members:
            agreed.append(max(each.counted.get(VICTIM, 0) for each in said.values()))
        go_on(own, view, members, said)

    OwnBatches.go_on = noting  # type: ignore[method-assign]


def loaded(sampler: shoal.ElasticSampler, num_loaders: int | None) -> Iterator[list[int]]:
    """Return batches: by themselves, or as torch's DataLoader has them, with or without workers."""
    if num_loaders is None:
        return iter(sampler)
    multiprocessing.current_process().daemon = False  # else it may have no children
    data = TensorDataset(torch.arange(SAMPLES))
    loader = DataLoader(
        data,
        batch_sampler=sampler,
        num_workers=num_loaders,
        multiprocessing_context="fork" if num_loaders else None,  # not the server of the tests
    )
    return (batch.tolist() for (batch,) in loader)


def train(
    folder: str, sync: str, num_loaders: int | None, seed: int, end: str = "die"
) -> dict[str, Any] | None:
    """Train for some epochs; the victim dies or leaves at a random moment, and comes back."""
    life, agreed = Life(folder), list[int]()
    note_agreements(agreed)
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=1)
    shoal.leave_on(signal.SIGTERM)
    torch.manual_seed(1)
    model = nn.Embedding(SAMPLES, 1)
    sampler = shoal.ElasticSampler(range(SAMPLES), session, global_batch=GLOBAL_BATCH, seed=seed)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, sync=sync
    )
    if life.is_late:
        life.note("is in")
    if life.is_victim:
        threading.Timer(Random(seed).uniform(0.0, 0.4), getattr(life, end)).start()
    sums = []
    while sampler.epoch < EPOCHS:
        for indices in loaded(sampler, num_loaders):
            life.used.write(f"{json.dumps(indices)}\n")
            optimizer.zero_grad()
            model(torch.tensor(indices)).mean().backward()
            if sync == "all-reduce":
                sums.append(samples_of(model.weight.grad))
            try:
                optimizer.step()
            except SystemExit:
                return None
            life.step_time()
    view, agreed = session.view, agreed.copy()
    optimizer.finish()
    optimizer.average_model()
    shoal.shutdown()
    return {"sums": sums, "agreed": agreed, "members": view.members, "pid": os.getpid()}


def samples_of(gradient: torch.Tensor | None) -> list[int]:
    """Return the samples in a mean gradient, in which all weigh alike."""
    assert gradient is not None
    indices = gradient.flatten().nonzero().flatten()
    weights = gradient.flatten()[indices] * len(indices)
    assert torch.allclose(weights, torch.ones(len(indices))), weights
    return indices.tolist()


WAYS = [(None, 0), (None, 1), (0, 2), (2, 3), (2, 4)]


@pytest.mark.parametrize(("num_loaders", "seed"), seldom(WAYS, often=[(None, 1)]))
def test_sums_of_a_job_with_a_death_and_a_join_have_every_sample_once_an_epoch(
    run_workers: RunWorkers, tmp_path: Path, num_loaders: int | None, seed: int
) -> None:
    results = run_workers(
        train,
        SIZE,
        str(tmp_path),
        "all-reduce",
        num_loaders,
        seed,
        may_die=(VICTIM,),
        initialize=False,
        num_more=1,
    )
    assert results[VICTIM] is None, "the fault has fired"
    assert all(each["members"] == (0, 1, 2) for each in results if each is not None)
    sums = results[0]["sums"]
    assert sums == results[1]["sums"]
    times = Counter(index for each in sums for index in each)
    assert times == dict.fromkeys(range(SAMPLES), EPOCHS)
    assert max(map(len, sums)) == GLOBAL_BATCH
    fewer = [len(each) for each in sums if len(each) < GLOBAL_BATCH]
    assert len(fewer) <= EPOCHS + 2 + 4 * (num_loaders or 0), "all others have as many"


STRATEGIES = ("ds-sync", "ripples", "local-sgd", "hierarchical-sgd", "ripples-static")
STRATEGIES += ("ad-psgd", "ps-bsp", "ps-asp")


@pytest.mark.parametrize(
    ("sync", "num_loaders", "seed"),
    seldom(
        [(sync, *way) for sync in STRATEGIES for way in WAYS],
        often=[],
    ),
)
def test_means_of_a_job_with_a_death_and_a_join_have_every_sample_once_an_epoch(
    run_workers: RunWorkers, tmp_path: Path, sync: str, num_loaders: int | None, seed: int
) -> None:
    results = run_workers(
        train,
        SIZE,
        str(tmp_path),
        sync,
        num_loaders,
        seed,
        may_die=(VICTIM,),
        initialize=False,
        num_more=1,
    )
    check_means(tmp_path, results)


@pytest.mark.parametrize("sync", seldom(["all-reduce", "ds-sync", "local-sgd"], often=()))
def test_a_worker_that_leaves_loses_no_samples(
    run_workers: RunWorkers, tmp_path: Path, sync: str
) -> None:
    results = run_workers(
        train, SIZE, str(tmp_path), sync, None, 1, "leave", initialize=False, num_more=1
    )
    if sync == "all-reduce":
        times = Counter(index for each in results[0]["sums"] for index in each)
        assert times == dict.fromkeys(range(SAMPLES), EPOCHS)
    else:
        check_means(tmp_path, results)


def check_means(tmp_path: Path, results: list[dict[str, Any] | None]) -> None:
    """Fail unless the living, and what they agreed on of the victim, used each sample once."""
    assert results[VICTIM] is None, "the fault has fired"
    living = [each for each in results if each is not None]
    assert all(each["members"] == (0, 1, 2) for each in living)
    (agreed,) = living[0]["agreed"]
    assert living[1]["agreed"] == [agreed]
    dead = used_by(tmp_path, int(Path(tmp_path, "died").read_text()))
    assert agreed <= len(dead)
    counted = [
        *dead[:agreed],
        *(each for life in living for each in used_by(tmp_path, life["pid"])),
    ]
    times = Counter(index for batch in counted for index in batch)
    assert times == dict.fromkeys(range(SAMPLES), EPOCHS)


def used_by(folder: Path, process: int) -> list[list[int]]:
    """Return the batches that a process has used."""
    return [json.loads(line) for line in Path(folder, f"used {process}").read_text().splitlines()]


FAST_S, SLOWER = 0.0004, 6
"""The seconds that a worker takes for a sample, and how many times that a slow one takes."""


def train_as_fast_as_each_can(sync: str, slow: int, epochs: int) -> dict[str, Any]:
    """Train with shares that follow how fast workers are, of which one is slow."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=1)
    torch.manual_seed(1)
    model = nn.Embedding(SAMPLES, 1)
    sampler = shoal.ElasticSampler(range(SAMPLES), session, global_batch=24, shares="measured")
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model, sync=sync
    )
    sums, used, measured = [], [], False
    while sampler.epoch < epochs:
        for indices in sampler:
            used.append(indices)
            measured |= "was measured anew" in session.view.why and len(session.view) == SIZE
            optimizer.zero_grad()
            model(torch.tensor(indices)).mean().backward()
            if sync == "all-reduce":
                sums.append(samples_of(model.weight.grad))
            time.sleep(FAST_S * len(indices) * (SLOWER if session.rank == slow else 1))
            optimizer.step()
    optimizer.finish()
    shoal.shutdown()
    return {"sums": sums, "used": used, "measured": measured}


@pytest.mark.parametrize("sync", seldom(["all-reduce", "ds-sync", "ripples"], often=["all-reduce"]))
def test_measured_shares_give_a_slow_worker_less(run_workers: RunWorkers, sync: str) -> None:
    epochs = 5
    results = run_workers(train_as_fast_as_each_can, SIZE, sync, 1, epochs, initialize=False)
    assert all(each["measured"] for each in results)
    times = Counter(index for each in results for batch in each["used"] for index in batch)
    if sync == "all-reduce":
        sums = results[0]["sums"]
        times = Counter(index for each in sums for index in each)
        assert max(map(len, sums)) == 24, "shares change, and the step's samples do not"
    assert times == dict.fromkeys(range(SAMPLES), epochs)
    last = [sum(map(len, each["used"][-len(each["used"]) // 4 :])) for each in results]
    assert last[1] < min(last[0], last[2]) / 2, last


def ask_for_what_cannot_be(_: str) -> list[str]:
    """Return what is said of samplers that make no sense, the last in one worker alone."""
    session = shoal.init(deadline_s=DEADLINE_S)
    said = []

    def refused(make: Callable[[], object]) -> None:
        with pytest.raises(shoal.ShoalError) as caught:
            make()
        said.append(f"{type(caught.value).__name__}: {caught.value}")

    make = partial(shoal.ElasticSampler, range(50), session)
    refused(lambda: shoal.ElasticSampler(range(50), 3, batch_size=4))  # type: ignore[arg-type]
    refused(lambda: shoal.ElasticSampler(iter([1]), session, batch_size=4))  # type: ignore[arg-type]
    refused(lambda: shoal.ElasticSampler(range(1), session, batch_size=4))
    refused(make)
    refused(lambda: make(batch_size=4, global_batch=8))
    refused(lambda: make(global_batch=1))
    refused(lambda: make(global_batch=2.5))  # type: ignore[arg-type]
    refused(lambda: make(global_batch=60, drop_last=True))
    refused(lambda: make(batch_size=4, shares=[2, 1]))  # type: ignore[arg-type]
    refused(lambda: make(batch_size=4, shares={0: 0}))
    refused(lambda: make(batch_size=4, shares="measured"))
    refused(lambda: make(global_batch=4, shares="measured"))
    refused(lambda: next(iter(make(batch_size=4))))
    sampler = make(global_batch=8)
    refused(lambda: sampler.load_state_dict({"epoch": 3}))
    refused(lambda: sampler.load_state_dict({**sampler.state_dict(), "samples": 49}))
    refused(lambda: sampler.load_state_dict({**sampler.state_dict(), "seed": 1}))
    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    make(batch_size=4, shares={0: 2})
    refused(lambda: shoal.DistributedOptimizer(inner, model, sync="ps-bsp"))
    sampler = make(global_batch=8)
    optimizer = shoal.DistributedOptimizer(inner, model)
    refused(lambda: sampler.load_state_dict(sampler.state_dict()))
    refused(model(torch.ones(1, 2)).sum().backward)
    optimizer.zero_grad()
    for _ in sampler:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    optimizer.finish()
    shoal.ElasticSampler(range(50 + session.rank), session, batch_size=4)
    refused(lambda: shoal.DistributedOptimizer(inner, model))
    shoal.shutdown()
    return said


REFUSALS = (
    r"UsageError: An ElasticSampler takes what shoal.init\(\) returns, not 3\.",
    r"UsageError: An ElasticSampler needs a data set with a length, which list_iterator has .*",
    r"UsageError: 2 workers cannot share 1 samples: use fewer\.",
    r"UsageError: Give an ElasticSampler either global_batch, .*, or batch_size, those of each\.",
    r"UsageError: Give an ElasticSampler either global_batch, .*, or batch_size, those of each\.",
    r"UsageError: global_batch=1 is too small for 2 workers: each needs a sample in a step\.",
    r"UsageError: global_batch must be a whole number of at least 1, not 2\.5\.",
    r"UsageError: drop_last leaves nothing: 50 samples fill no batch of 60\.",
    r"UsageError: shares gives ranks their shares, such as .*, or is 'measured', not \[2, 1\]\.",
    r"UsageError: A share must be a whole number of at least 1, not 0\.",
    r"UsageError: shares='measured' divides global_batch by the speed of the workers: .*",
    r"UsageError: shares='measured' needs a job whose workers can agree anew while it runs: .*",
    r"UsageError: No training takes its batches from this ElasticSampler: make it before .*",
    r"MismatchError: This is no state of an ElasticSampler\.",
    r"MismatchError: The state is of .* with samples=49, and this one has samples=50: .*",
    r"MismatchError: The state is of an ElasticSampler with seed=1, and this one has seed=0: .*",
    r"UsageError: sync='ps-bsp' gives every worker's gradient the same weight: leave out shares.*",
    r"UsageError: Load an ElasticSampler's state before making the DistributedOptimizer: .*",
    r"UsageError: This step has no batch of the ElasticSampler, of which each step\(\) .*",
    r"MismatchError: Rank 1 runs .* with samples=51 but rank 0 with samples=50: .*",
)


def test_who_asks_for_what_cannot_be_gets_a_sentence(run_workers: RunWorkers) -> None:
    for said in run_workers(ask_for_what_cannot_be, 2, "", initialize=False):
        for sentence, wanted in zip(said, REFUSALS, strict=True):
            assert re.fullmatch(wanted, sentence), sentence


def go_on(sync: str, state: dict[str, Any] | None, steps: int) -> tuple[dict[str, Any], list[int]]:
    """Train in a job of fixed size from where another one was, for some steps or to the end."""
    session = shoal.init(deadline_s=DEADLINE_S)
    sampler = shoal.ElasticSampler(range(97), session, batch_size=5)
    if state is not None and session.rank == 0:
        sampler.load_state_dict(state)
    model = nn.Embedding(97, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync)
    used: list[int] = []
    while sampler.epoch < 2 and optimizer.num_steps < steps:
        for indices in sampler:
            assert len(indices) <= 5
            optimizer.zero_grad()
            model(torch.tensor(indices)).mean().backward()
            used += samples_of(model.weight.grad) if sync == "all-reduce" else indices
            optimizer.step()
            if optimizer.num_steps == steps:
                break
    saved = sampler.state_dict()
    optimizer.finish()
    shoal.shutdown()
    return saved, used


@pytest.mark.parametrize("size", seldom([1, 2, 4], often=[2]))
def test_another_number_of_workers_goes_on_where_a_job_was(
    run_workers: RunWorkers, size: int
) -> None:
    first = run_workers(go_on, 3, "all-reduce", None, 9, initialize=False)
    assert first[0] == first[1] == first[2]
    state = json.loads(json.dumps(first[0][0]))
    second = run_workers(go_on, size, "all-reduce", state, 1000, initialize=False)
    assert len({repr(each) for each in second}) == 1
    assert Counter(first[0][1] + second[0][1]) == dict.fromkeys(range(97), 2)


@pytest.mark.parametrize("sync", seldom(["ad-psgd", "ps-asp", "ripples"], often=()))
def test_a_job_of_fixed_size_has_every_sample_too(run_workers: RunWorkers, sync: str) -> None:
    results = run_workers(go_on, 2, sync, None, 1000, initialize=False)
    assert Counter(results[0][1] + results[1][1]) == dict.fromkeys(range(97), 2)
