"""Jobs that somebody looks at: what the page shows is what the workers told, whatever happens."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

pytest.importorskip("torch")

import numpy as np
import torch
from browser import Browser, found_browser
from torch import nn

import shoal
from free_ports import free_ports_in_a_row
from shoal.adapters.arrays.array_means import ArrayMeans
from shoal.watch import Snapshot
from thoroughness import seldom

if TYPE_CHECKING:
    from collections.abc import Callable

    from worker_processes import RunWorkers

DEADLINE_S = 30.0
OWN_S = 0.02
FACTOR = 3.0


def train(folder: str, port: int, slow: int, elastic: bool, sync: str) -> int:
    """Train until the file `stop` is there; rank `slow` takes longer for itself."""
    torch.set_num_threads(1)
    session = shoal.init(
        deadline_s=DEADLINE_S, min_workers=1 if elastic else None, watch=f":{port}"
    )
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = shoal.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), model, sync=sync
    )
    data = torch.randn(16, 8, generator=torch.Generator().manual_seed(session.rank))
    if (first := session._services._first) is not None:
        Path(folder, "control").write_text(str(first.pid))
    Path(folder, f"pid-{session.rank}").write_text(str(os.getpid()))
    while not Path(folder, "stop").exists():
        optimizer.zero_grad()
        loss = (model(data) - data[:, :4]).square().mean()
        time.sleep(OWN_S * (FACTOR if session.rank == slow else 1))
        with suppress(FileNotFoundError):
            time.sleep(float(Path(folder, f"hang-{session.rank}").read_text()))
        loss.backward()
        optimizer.tell_loss(loss)
        optimizer.step()
        if sync == "all-reduce" and Path(folder, "stop").exists():
            break
    num_steps = optimizer.num_steps
    optimizer.finish()
    shoal.shutdown()
    return num_steps


def looking(
    run_workers: RunWorkers,
    folder: Path,
    look: Callable[[int], None],
    *,
    workers: int = 3,
    slow: int = 1,
    elastic: bool = False,
    sync: str = "ripples",
    may_die: tuple[int, ...] = (),
    prepare: Callable[[int], None] = lambda _port: None,
) -> None:
    """Run a job, `look` at the port of its page meanwhile, and end it."""
    port = free_ports_in_a_row(1)
    prepare(port)
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            look(port)
        except BaseException as error:  # noqa: BLE001 - carried over to the test
            failures.append(error)
        finally:
            (folder / "stop").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run_workers(
            train, workers, str(folder), port, slow, elastic, sync, may_die=may_die, deadline_s=55
        )
    finally:
        (folder / "stop").touch()
        watcher.join(DEADLINE_S)
    if failures:
        raise failures[0]


def snapshot(port: int) -> Snapshot:
    """Return what the page's server says now; it may not have begun yet."""
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/snapshot", timeout=5) as answer:
                return msgspec.json.decode(answer.read(), type=Snapshot)
        except OSError:
            assert time.monotonic() < end, "nobody shows the job"
            time.sleep(0.05)


def await_(port: int, is_so: Callable[[Snapshot], bool]) -> Snapshot:
    end = time.monotonic() + DEADLINE_S
    while not is_so(found := snapshot(port)):
        assert time.monotonic() < end, found
        time.sleep(0.1)
    return found


def blames(rank: int) -> Callable[[Snapshot], bool]:
    return lambda s: [(v.kind, v.rank) for v in s.verdicts] == [("slow worker", rank)]


@pytest.mark.parametrize(
    ("elastic", "sync"),
    seldom([(False, "ripples"), (True, "all-reduce")], often=[(True, "all-reduce")]),
)
def test_a_slow_worker_is_named_over_both_carriers(
    run_workers: RunWorkers, tmp_path: Path, elastic: bool, sync: str
) -> None:
    def look(port: int) -> None:
        found = await_(port, lambda s: blames(1)(s) and len(s.curve) >= 2)
        assert found.transport == ("shoal" if elastic else "gloo")
        assert found.strategy == sync
        assert bool(found.links) == elastic
        own_ms = [each.own_ms or 0.0 for each in found.workers]
        assert own_ms[1] > 1000 * OWN_S * FACTOR
        assert min(own_ms) > 1000 * OWN_S
        if found.is_lock_step:
            assert [each.waits_for for each in found.workers] == [1, None, 1]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            metrics = answer.read().decode()
        assert "shoal_members 3\n" in metrics
        assert 'shoal_slow_ratio{rank="1"} ' in metrics
        for command, wanted in (
            (["top", "--once", str(port)], ["Rank 1 ", f"{sync} over", "exchange"]),
            (["watch", f"localhost:{port}"], ["Rank 1 ", f"http://localhost:{port}/"]),
        ):
            said = subprocess.run(
                [sys.executable, "-m", "shoal", *command],
                check=False,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
            )
            assert (said.returncode, said.stderr) == (0, "")
            for words in wanted:
                assert words in said.stdout

    looking(run_workers, tmp_path, look, elastic=elastic, sync=sync)


def train_arrays(folder: str) -> int:
    """Average arrays in generated groups until the file `stop` is there; rank 1 is slow."""
    values = [np.ones(100, np.float32)]
    with shoal.connect(deadline_s=DEADLINE_S) as communicator:
        means = ArrayMeans(communicator)
        with shoal.GeneratedGroups(communicator) as groups:
            steps = 0
            while not Path(folder, "stop").exists():
                time.sleep(OWN_S * (FACTOR if communicator.rank == 1 else 1))
                groups.tell_loss(0.5)
                for group in groups.owed():
                    values = means.parameters(values, group.members, sequence=group.group_id)
                steps += 1
    return steps


@pytest.mark.long
def test_a_job_of_arrays_without_torch_is_shown_too(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    port = free_ports_in_a_row(1)
    found: list[Snapshot] = []

    def look() -> None:
        try:
            found.append(await_(port, lambda s: blames(1)(s) and len(s.curve) >= 2))
        finally:
            (tmp_path / "stop").touch()

    watcher = threading.Thread(target=look)
    watcher.start()
    environment = {"SHOAL_WATCH": f":{port}"}
    steps = run_workers(
        train_arrays, 3, str(tmp_path), initialize=False, environment=environment, deadline_s=55
    )
    watcher.join(DEADLINE_S)
    (shown,) = found
    assert (shown.strategy, shown.transport, shown.is_lock_step) == ("ripples", "shoal", False)
    assert len(shown.links) == 6
    assert all(0 < (w.step or 0) <= steps[w.rank] for w in shown.workers)
    assert {point.loss for point in shown.curve} == {0.5}


def shown_in(browser: Browser) -> dict[str, Any]:
    """Return what the page was told last, and what it made of it, of one moment."""
    told = browser.evaluate(
        """JSON.stringify({
          told: shown,
          verdicts: [...document.querySelectorAll("#verdicts li")].map(e => e.textContent),
          rows: [...document.querySelectorAll("#workers tbody tr")].map(
            row => [...row.children].map(cell => cell.textContent)),
          blamed: [...document.querySelectorAll("#workers tr.blamed")].map(e => e.dataset.rank),
          links: [...document.querySelectorAll("#links td[data-link]")].map(
            e => [e.dataset.link, e.textContent]),
          events: [...document.querySelectorAll("#events li")].map(e => e.lastChild.textContent),
          bars: document.querySelectorAll("#timeline rect").length,
          curve: document.querySelectorAll("#curve path").length,
          apart: document.querySelectorAll("#apart path").length,
          distance: document.querySelector("#apart-note").textContent,
          wide: document.documentElement.scrollWidth,
          small: [...document.querySelectorAll("p, li, td, th, h2")].filter(
            e => e.textContent && parseFloat(getComputedStyle(e).fontSize) < 12).length,
        })"""
    )
    found: dict[str, Any] = json.loads(told)
    return found


@pytest.mark.parametrize("elastic", seldom([False, True], often=[True]))
def test_a_browser_shows_what_was_told(
    run_workers: RunWorkers, tmp_path: Path, elastic: bool
) -> None:
    path = found_browser()
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium")

    def look(port: int) -> None:
        with Browser(path) as browser:
            await_(port, blames(1))
            for width, dark in ((1400, False), (400, True)):
                browser.open(f"http://127.0.0.1:{port}/", width=width, dark=dark)
                browser.wait_until("document.querySelectorAll('#workers tr.blamed').length === 1")
                if elastic:
                    browser.wait_until("shown.distances.length >= 2")
                compare(shown_in(browser), width)
            assert browser.errors == []
            assert {url.rpartition("/")[2] for url in browser.requests} <= {"", "events"}
            for url in browser.requests:
                assert url.startswith((f"http://127.0.0.1:{port}/", "data:"))

    def compare(page: dict[str, Any], width: int) -> None:
        told = msgspec.convert(page["told"], Snapshot)
        assert page["verdicts"] == [each.sentence for each in told.verdicts]
        assert page["blamed"] == ["1"]
        assert len(page["rows"]) == len(told.workers) == 3
        for row, worker in zip(page["rows"], told.workers, strict=True):
            assert row[0] == str(worker.rank)
            assert row[1] == str(worker.step)
            for cell, part in zip(
                row[4:7], (worker.own_ms, worker.wait_ms, worker.exchange_ms), strict=True
            ):
                assert float(cell) == pytest.approx(part, abs=0.5)
            assert (worker.hidden_ms is not None) == elastic
            if worker.hidden_ms is not None:
                assert float(row.pop(7)) == pytest.approx(worker.hidden_ms, abs=0.5)
            assert row[7] == ("–" if worker.waits_for is None else str(worker.waits_for))
            assert float(row[8]) == pytest.approx(worker.loss, rel=0.01)
            assert row[-1].startswith("alive")
        assert len(page["links"]) == len(told.links) == (6 if elastic else 0)
        assert page["events"] == [each.text for each in reversed(told.events)]
        assert page["bars"] >= 3
        assert page["curve"] == 1
        assert bool(told.distances) == elastic, "only where models differ"
        if elastic:
            assert page["apart"] == 1
            found = re.search(r": ([\d.e-]+) now", page["distance"])
            assert found is not None
            assert float(found[1]) == pytest.approx(told.distances[-1].distance, rel=0.01)
            assert max(each.distance for each in told.distances) > 0
        assert page["wide"] <= width, "nothing sticks out to the side"
        assert page["small"] == 0

    looking(
        run_workers, tmp_path, look, elastic=elastic, sync="local-sgd" if elastic else "all-reduce"
    )


@pytest.mark.long
def test_a_job_goes_on_if_it_cannot_be_shown_and_is_shown_once_it_can(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    with socket.socket() as other:

        def look(port: int) -> None:
            end = time.monotonic() + DEADLINE_S
            while not (tmp_path / "pid-2").exists():
                assert time.monotonic() < end
                time.sleep(0.05)
            other.close()
            await_(port, lambda s: all(each.step for each in s.workers))

        def take(port: int) -> None:
            other.bind(("127.0.0.1", port))
            other.listen()

        looking(run_workers, tmp_path, look, slow=9, prepare=take)


@pytest.mark.long  # core/watch/test_picture.py has one that is lost
def test_a_death_is_an_event_and_the_job_goes_on(run_workers: RunWorkers, tmp_path: Path) -> None:
    def look(port: int) -> None:
        await_(port, lambda s: all(each.step for each in s.workers))
        os.kill(int((tmp_path / "pid-2").read_text()), signal.SIGKILL)
        found = await_(port, lambda s: s.epoch > 0)
        assert found.members == (0, 1)
        assert [each.kind for each in found.events] == ["began", "lost", "view"]
        assert found.workers[2].state == "lost"
        step = max(each.step or 0 for each in found.workers)
        await_(port, lambda s: min(each.step or 0 for each in s.workers[:2]) > step)

    looking(run_workers, tmp_path, look, slow=9, elastic=True, sync="all-reduce", may_die=(2,))


@pytest.mark.long
def test_the_successor_of_the_control_plane_shows_the_job(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    def look(port: int) -> None:
        found = await_(port, lambda s: all(each.step for each in s.workers))
        time.sleep(1.0)  # until somebody stands by
        os.kill(int((tmp_path / "control").read_text()), signal.SIGKILL)
        after = await_(port, lambda s: any(each.kind == "moved" for each in s.events))
        assert all(each.step for each in after.workers), "it was told so before"
        assert after.curve[0].at_s < found.at_s + 1
        assert after.up_s < found.up_s + DEADLINE_S
        await_(port, blames(1))

    looking(run_workers, tmp_path, look, elastic=True, sync="all-reduce")


@pytest.mark.long
def test_a_job_that_hangs_is_shown_and_said_to_be_stuck(
    run_workers: RunWorkers, tmp_path: Path
) -> None:
    def look(port: int) -> None:
        await_(port, blames(1))
        (tmp_path / "hang-0").write_text("9")
        found = await_(port, lambda s: s.verdicts[0].kind == "stuck")
        assert "Nobody has got on for" in found.verdicts[0].sentence
        assert found.verdicts[0].rank == 0
        (tmp_path / "hang-0").unlink()
        await_(port, lambda s: s.verdicts[0].kind != "stuck")

    looking(run_workers, tmp_path, look, elastic=True, sync="all-reduce")
