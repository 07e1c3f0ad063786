"""Checkpoints of jobs: another number of workers goes on from them as if nothing had happened."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

import shoal
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_processes import RunWorkers

DEADLINE_S = 16.0
SAMPLES, EPOCHS = 60, 2
EVERY = 2
"""Steps from one checkpoint to the next."""


def train(folder: str, sync: str, dies_at: dict[int, int]) -> dict[str, Any]:
    """Train from the newest checkpoint on; ranks die after so many steps."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=1)
    torch.manual_seed(session.rank)
    model = nn.Embedding(SAMPLES, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    sampler = shoal.ElasticSampler(range(SAMPLES), session, global_batch=6)
    loaded = shoal.load_checkpoint(folder, model, inner, sampler)
    optimizer = shoal.DistributedOptimizer(inner, model, sync=sync)
    assert optimizer.num_steps == loaded
    steps: dict[int, list[int]] = {}
    while sampler.epoch < EPOCHS:
        for indices in sampler:
            optimizer.zero_grad()
            model(torch.tensor(indices)).mean().backward()
            assert model.weight.grad is not None  # all workers' under all-reduce, else its own
            steps[optimizer.num_steps] = model.weight.grad.flatten().nonzero().flatten().tolist()
            optimizer.step()
            if optimizer.num_steps == dies_at.get(session.rank):
                Path(folder, f"steps {session.rank}").write_text(repr(steps))
                os.kill(os.getpid(), signal.SIGKILL)
            if optimizer.num_steps % EVERY == 0:
                shoal.save_checkpoint(folder, optimizer, sampler).wait()
    optimizer.finish()
    optimizer.average_model()
    shoal.shutdown()
    return {"loaded": loaded, "steps": steps, "model": model.weight.detach().flatten().tolist()}


PARTS = {
    "all-reduce": [""],
    "ps-bsp": [".view-0.part-0-of-2", ".view-0.part-1-of-2"],
}
"""The parts of a checkpoint of two workers."""


@pytest.mark.parametrize("sync", seldom(PARTS, often=["all-reduce"]))
@pytest.mark.parametrize("size", seldom([1, 2, 3], often=[3]))
def test_a_job_that_died_goes_on_from_its_checkpoint(
    run_workers: RunWorkers, tmp_path: Path, size: int, sync: str
) -> None:
    whole = run_workers(train, 2, str(tmp_path / "whole"), sync, {}, initialize=False)
    folder = tmp_path / "died"
    folder.mkdir()
    run_workers(train, 2, str(folder), sync, {0: 7, 1: 7}, may_die=(0, 1), initialize=False)
    before = [eval((folder / f"steps {rank}").read_text()) for rank in range(2)]
    assert sorted(path.name for path in folder.glob("step-*")) == [
        f"step-{step:012}{part}.pt" for step in (4, 6) for part in PARTS[sync]
    ]
    results = run_workers(train, size, str(folder), sync, {}, initialize=False)
    assert [each["loaded"] for each in results] == [6] * size
    own = [{step: of[step] for step in range(6)} for of in before]
    steps = [each["steps"] for each in results]
    if sync == "all-reduce":
        assert all(each == steps[0] for each in steps)
        own, steps = own[:1], steps[:1]
    times = Counter(index for each in (*own, *steps) for used in each.values() for index in used)
    assert times == dict.fromkeys(range(SAMPLES), EPOCHS)
    assert torch.allclose(torch.tensor(results[0]["model"]), torch.tensor(whole[0]["model"]))


@pytest.mark.parametrize("sync", seldom(["ps-bsp", "ps-asp"], often=["ps-bsp"]))
def test_parts_are_those_of_the_workers_that_are_left(
    run_workers: RunWorkers, tmp_path: Path, sync: str
) -> None:
    """A dead worker's server is served elsewhere, and what it kept is in the next checkpoint."""
    folder = str(tmp_path)
    last, other, _ = run_workers(train, 3, folder, sync, {2: 5}, may_die=(2,), initialize=False)
    names = {path.name for path in tmp_path.glob("step-*.view-1.*")}
    steps = {int(name[5:17]) for name in names}
    parts = {step: [f"step-{step:012}.view-1.part-{n}-of-2.pt" for n in range(2)] for step in steps}
    newest = max(step for step in steps if names >= set(parts[step]))  # one may be ahead under ASP
    (again,) = run_workers(train, 1, folder, sync, {}, initialize=False)
    assert again["loaded"] == newest
    later = [
        used for each in (last, other) for step, used in each["steps"].items() if step >= newest
    ]
    assert Counter(chain(*later)) == Counter(chain(*again["steps"].values()))
    if sync == "ps-bsp" and len(again["steps"]) < 2:  # else one may deal samples to other steps
        assert torch.allclose(torch.tensor(again["model"]), torch.tensor(last["model"]))


def lose_the_writer(folder: str) -> dict[str, Any]:
    """Train; rank 0, which writes checkpoints, dies while it writes one, and another goes on."""
    session = shoal.init(deadline_s=DEADLINE_S, min_workers=1)
    model = nn.Linear(3, 1)
    inner = torch.optim.Adam(model.parameters())
    optimizer = shoal.DistributedOptimizer(inner, model)
    if session.rank == 0:
        save = torch.save

        def dying(state: Any, file: Any) -> None:
            if state["num_steps"] == EVERY * 2:
                file.write(b"half of it")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            save(state, file)

        torch.save = dying  # type: ignore[assignment]
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
        if optimizer.num_steps % EVERY == 0:
            saving = shoal.save_checkpoint(folder, optimizer, keep=9)
            if session.rank == 0:
                saving.wait()  # else it may be the writer of the next one too, when it dies
    optimizer.finish()
    shoal.shutdown()
    saving.wait()  # these processes end without waiting for threads
    return {"model": [each.tolist() for each in model.parameters()]}


def test_nobody_loads_half_a_checkpoint(run_workers: RunWorkers, tmp_path: Path) -> None:
    results = run_workers(lose_the_writer, 2, str(tmp_path), may_die=(0,), initialize=False)
    assert results[0] is None, "the fault has fired"
    numbers = [int(path.stem.removeprefix("step-")) for path in tmp_path.glob("step-*")]
    assert {2, 6, 8} <= set(numbers)
    for path in tmp_path.glob("step-*"):
        assert torch.load(path, weights_only=True)["num_steps"] in numbers


def refuse(folder: str) -> list[str]:
    """Return what is said of checkpoints that do not fit."""
    session = shoal.init(deadline_s=DEADLINE_S)
    model = nn.Linear(3, 1)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    said: list[str] = []

    def refused(act: Callable[[], object]) -> None:
        with pytest.raises(shoal.ShoalError) as caught:
            act()
        said.append(f"{type(caught.value).__name__}: {caught.value}".replace(folder, "FOLDER"))

    assert shoal.load_checkpoint(f"{folder}/none", model, inner) == 0
    optimizer = shoal.DistributedOptimizer(inner, model)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).mean().backward()
        optimizer.step()
    shoal.save_checkpoint(folder, optimizer).wait()
    optimizer.finish()
    refused(lambda: shoal.save_checkpoint(folder, optimizer, keep=0))
    if session.rank == 0:
        Path(folder, "a file").touch()
        refused(shoal.save_checkpoint(f"{folder}/a file/in it", optimizer).wait)
    else:
        shoal.save_checkpoint(folder, optimizer)
        said.append("")
    session.facts.publish(f"saved/{session.rank}")
    while not all(session.facts.are_published(["saved/0", "saved/1"])):
        pass
    other = nn.Linear(4, 1)
    refused(
        lambda: shoal.load_checkpoint(folder, other, torch.optim.SGD(other.parameters(), lr=0.1))
    )
    sampler = shoal.ElasticSampler(range(9), session, batch_size=1)
    refused(lambda: shoal.load_checkpoint(folder, model, inner, sampler))
    session.next_training.sampler = None
    shoal.load_checkpoint(folder, model, inner)
    refused(lambda: shoal.DistributedOptimizer(inner, model, sync="local-sgd"))
    bad = Path(folder, f"bad {session.rank}")
    bad.mkdir()
    (bad / "step-000000000009.pt").write_bytes(b"nothing")
    refused(lambda: shoal.load_checkpoint(bad, model, inner))
    if session.rank == 1:
        shoal.load_checkpoint(folder, model, inner)
    refused(lambda: shoal.DistributedOptimizer(inner, model))
    shoal.shutdown()
    return said


REFUSALS = (
    r"UsageError: keep, the number of checkpoints that stay, must be a whole number .*",
    r"(ResourceError: The checkpoint FOLDER/a file/in it/step-.*pt cannot be written \(.*\)\.)?",
    r"MismatchError: FOLDER/step-0*3.pt .* it has '.* \(1, 3\) .*' where this has '.* \(1, 4\) .*",
    r"MismatchError: FOLDER/step-000000000003.pt has no position of an ElasticSampler: .*",
    r"UsageError: The checkpoint was made with sync='all-reduce', not 'local-sgd': .*",
    r"DataError: FOLDER/bad \d/step-000000000009.pt is no checkpoint \(.*\)\.",
    r"MismatchError: Rank 1 goes on from .* after 3 steps and rank 0 from .* 0: .*|WorkerLost: .*",
)


def test_checkpoints_that_do_not_fit_are_refused(run_workers: RunWorkers, tmp_path: Path) -> None:
    for said in run_workers(refuse, 2, str(tmp_path), initialize=False):
        for sentence, wanted in zip(said, REFUSALS, strict=True):
            assert re.fullmatch(wanted, sentence), sentence
