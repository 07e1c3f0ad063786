"""Whether this machine carries what a lab's links ask for, as rows of `shoal lab check`."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Final

from shoal.lab.check.fidelity import Check, judge_delay, judge_load, stated
from shoal.lab.check.load import LoadTest, Step, climb
from shoal.lab.check.ways import packets_asked

if TYPE_CHECKING:
    from shoal.scenario import ClusterSpec

STEP_S: Final = 0.5
QUICK_STEP_S: Final = 0.2

_BACKLOGS: Final = 5
_RATE: Final = "packets/s"
_COMPUTE: Final = "while True: pass"


def check_load(
    spec: ClusterSpec, step_s: float, tell: Callable[[str], None]
) -> Generator[Check, None, None]:
    """Yield what the machine carries in the shape of `spec`, and how late it is then."""
    asked, name = packets_asked(spec.topology), f"{spec.topology.hosts} hosts"
    with LoadTest(spec.topology, spray=spec.spray) as test:
        tell("packets per second that this machine carries")
        prompt = "before" if test.is_prompt else "no sooner than"
        note = f"the switch runs {prompt} the programs of the hosts"
        note += ", which have segmentation offload" if test.has_offloads else ""
        ladder = climb(test, step_s, extra=asked)
        carried = ladder.carried
        yield judge_load(name, asked, carried)
        yield stated("rate error under 3 % up to", name, carried, _RATE, note)
        for share, what in ((0.5, "median"), (0.99, "p99")):
            held = ladder.holds_up_to(share)
            yield stated(f"delay error under 0.2 ms ({what}) up to", name, held, _RATE)
        one_core = statistics.median(1 / test.backlog_s() for _ in range(_BACKLOGS))
        note = "by the processor time that it takes when packets are always there"
        yield stated("what one core would carry", name, one_core, _RATE, note)
        for text, part in (("half", 0.5), ("all", 1.0)):
            tell(f"{text} of that load")
            step = test.step(max(1.0, part * carried), step_s)
            yield from _at_load(name, f"at {text} of the load carried", step)
        tell("delays beside the load that the links ask for")
        usual = max(1.0, min(asked, carried))
        yield from _delays(name, test.step(usual, step_s), "")
        with _computing():
            yield from _delays(name, test.step(usual, step_s), ", every core computing")


def _at_load(name: str, when: str, step: Step) -> Iterator[Check]:
    note = f"{when}, {step.carried:.0f} packets/s"
    yield stated("the switch late by at most", name, step.lateness_s * 1e3, "ms", note)
    yield stated("the switch at work", name, 100 * step.busy, "% of a core", note)


def _delays(name: str, step: Step, when: str) -> Iterator[Check]:
    note = f"more than it should be, {step.carried:.0f} packets/s beside it{when}"
    for what, error_s in (("median", step.p50_error_s), ("p99", step.p99_error_s)):
        yield judge_delay(f"delay under load, {what}", name, (0.0, 0.0), error_s, note)


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Have a program compute on every core meanwhile, as workers in a lab do."""
    with contextlib.ExitStack() as programs:
        for _ in range(os.cpu_count() or 1):
            command = [sys.executable, "-I", "-S", "-c", _COMPUTE]
            program = programs.enter_context(subprocess.Popen(command))
            programs.callback(program.kill)
        yield
