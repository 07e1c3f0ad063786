"""Runs tests of PyTorch's distributed_test.py with one backend, each in processes of its own.

    BACKEND=shoal GATES=gloo WORLD_SIZE=3 python tests/conformance/suite.py ^test_gather$ scatter

Arguments are regular expressions that choose tests by name. Writes one JSON object per line to
stdout: first how many tests there are, then the outcome of each.

torch's file decides at import, by the name in `BACKEND`, which tests exist for a backend. It knows
the names gloo, nccl, mpi and ucc only, so for any other name it skips tests that have nothing to do
with the backend's abilities. Two things are done about that, and no line of torch is changed:

* the backend's name is put into `DistTestCases.backend_feature`, torch's own list for plugins;
* `GATES` is the name that the decorators see, and `BACKEND` the one that the tests then use: with
  `GATES=gloo` the tests run that torch reserves for gloo by name;
* with `OPEN=1`, the functions of torch.distributed that refuse backends by name see `GATES` too,
  and so reach the method of the same name that the backend has.

torch starts a fresh interpreter for every rank of every test. Here ranks are forked from one that
has loaded everything, as torch's own test_distributed_fork.py used to do: a test takes a second
instead of ten.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import unittest
from pathlib import Path
from typing import Any

BACKEND = os.environ["BACKEND"]
GATES = os.environ.get("GATES", BACKEND)
OPEN = os.environ.get("OPEN") == "1"
LIMIT_S = float(os.environ.get("LIMIT_S", "60"))
"""How long one test may take before its processes are killed."""

PR_SET_PDEATHSIG = 1

SEE_GATES = ("_test_accumulate_gradients_no_sync",)
"""Helpers of torch's that choose by the backend's name, but not which backend they use."""

CHECK_NAMES = ("monitored_barrier",)
"""Functions of torch.distributed that refuse a backend for its name."""


def load_torch_tests() -> type[unittest.TestCase]:
    """Return torch's class of tests, with its gates opened for `GATES`, to run with `BACKEND`."""
    from torch.testing._internal.common_distributed import DistTestCases

    for feature in ("ddp", "subgroup", "gpu", "cuda", "plugin"):
        DistTestCases.backend_feature[feature].update({BACKEND, GATES})
    os.environ["BACKEND"] = GATES
    os.environ["INIT_METHOD"] = "file://"  # run_isolated gives every test a file of its own
    import torch.testing._internal.distributed.distributed_test as torch_tests

    os.environ["BACKEND"] = torch_tests.BACKEND = BACKEND
    for name in SEE_GATES:
        _let_see(torch_tests.DistributedTest._DistTestBase, name, BACKEND=GATES)
    for name in CHECK_NAMES if OPEN else ():
        _let_see(torch_tests.dist, name, get_backend=lambda group: GATES)

    class TestDistributed(torch_tests.TestDistBackend, torch_tests.DistributedTest._DistTestBase):
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, *arguments: Any, **options: Any) -> None:
            die_with_parent()
            super()._run(*arguments, **options)

    return TestDistributed


def _let_see(owner: Any, name: str, **instead: Any) -> None:
    """Replace a function of `owner` by a copy that finds other values under some global names."""
    function = getattr(owner, name)
    seen = {**function.__globals__, **instead}
    copy = types.FunctionType(function.__code__, seen, name, function.__defaults__)
    setattr(owner, name, copy)


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that made it ends, however it does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def warm_up() -> None:
    """Load the transport's compiled code once, before anything is forked."""
    if BACKEND != "shoal":
        return
    from shoal.session.warm_up import load_transport

    load_transport()


def run_isolated(tests: type[unittest.TestCase], name: str) -> dict[str, Any]:
    """Run one test in a process group of its own and kill what is left of it."""
    place = tempfile.mkdtemp(prefix="conformance-")
    readable, writable = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(readable)
        _run_here(tests, name, place, writable)
    os.close(writable)
    try:
        ready, _, _ = select.select([readable], [], [], LIMIT_S)
        written = os.read(readable, 1 << 20) if ready else b""
    finally:
        os.close(readable)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    found: dict[str, Any] = {"outcome": "failed", "reason": "the test's process died"}
    if written:
        found = json.loads(written)
    elif not ready:
        found = {"outcome": "failed", "reason": f"not done within {LIMIT_S:g} s"}
    log = (Path(place) / "log").read_text(errors="replace")
    shutil.rmtree(place, ignore_errors=True)
    seconds = round(time.monotonic() - started, 1)
    return {"test": name, **found, "seconds": seconds, "log": log[-20_000:]}


def _run_here(tests: type[unittest.TestCase], name: str, place: str, writable: int) -> None:
    """Run the test, write what became of it, and end this process."""
    try:
        os.setsid()
        die_with_parent()
        tempfile.tempdir = os.environ["TMPDIR"] = place
        sys.modules[tests.__mro__[1].__module__].INIT_METHOD = f"file://{place}/meeting"  # type: ignore[attr-defined]
        log = os.open(f"{place}/log", os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        result = unittest.TestResult()
        unittest.TestSuite([tests(name)]).run(result)
        os.write(writable, json.dumps(_summary(result, f"{place}/log")).encode())
    except BaseException:  # noqa: BLE001 - a forked child must not return
        traceback.print_exc()
    os._exit(0)


def _summary(result: unittest.TestResult, log: str) -> dict[str, str]:
    if result.skipped:
        reason = result.skipped[0][1]
        if "look at subprocess log" in reason:
            told = re.search(r"for following reason: (.*)", Path(log).read_text(errors="replace"))
            reason = told.group(1) if told else reason
        return {"outcome": "skipped", "reason": reason}
    for _, text in result.failures + result.errors:
        print(text)
        return {"outcome": "failed", "reason": last_error(text)}
    return {"outcome": "passed", "reason": ""}


def last_error(text: str) -> str:
    """Return the line that names the exception of the first rank that failed, without a path."""
    first = re.split(r"\nProcess \d+ exited with error code", text)
    block = first[1] if len(first) > 1 else first[0]
    errors = re.findall(
        r"^(?:[\w.]+(?:Error|Exception|Exceeded|Lost)|SkipTest): .*", block, re.MULTILINE
    )
    line = errors[-1] if errors else block.strip().splitlines()[-1]
    return line[:300]


def main() -> None:
    die_with_parent()
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    tests = load_torch_tests()
    warm_up()
    every = unittest.TestLoader().getTestCaseNames(tests)
    wanted = [name for name in every if any(re.search(text, name) for text in sys.argv[1:])]
    out.write(json.dumps(len(wanted)) + "\n")
    for name in wanted:
        out.write(json.dumps(run_isolated(tests, name)) + "\n")


if __name__ == "__main__":
    main()
