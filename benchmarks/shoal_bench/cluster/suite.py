"""The suite: which jobs there are, in which order, and going through the jobs that are left.

Contenders take turns within a scenario, and scenarios within a repeat, so that a drift of the
machine's speed meets all of them. Every outcome is in the file before the next job begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal_bench.cluster.contenders import CONTENDERS, Contender
from shoal_bench.cluster.outcome import Key
from shoal_bench.cluster.outcome_rows import BENCH, entries_of, rows_of
from shoal_bench.cluster.scenarios import SCENARIOS, ClusterScenario
from shoal_bench.cluster.task import Task
from shoal_bench.cluster.trials.ripples import rows_of_ripples
from shoal_bench.cluster.trials.trial_rows import rows_of_trials
from shoal_bench.rows import Row, of_section

if TYPE_CHECKING:
    from shoal.jobs import Environment
    from shoal_bench.cluster.cluster_file import ClusterFile
    from shoal_bench.cluster.outcome import Outcome
    from shoal_bench.cluster.trials.figures import Trial
    from shoal_bench.cluster.trials.studies import TrialPart

C = TypeVar("C", ClusterScenario, Contender)
P = TypeVar("P", "SuitePart", "TrialPart")

_OVERHEAD_S: Final = 3.0
"""What a job takes beside its training: hosts, processes, meeting, judging."""

_FULL_REPEATS: Final = 3
_FULL: Final = Task(
    dataset="text-stdlib",
    model="char-gpt:1x128",
    batch_size=2,
    workers=8,
    compute_ms=150.0,
    seconds=60.0,
    target_loss=2.55,
    megabits=50,
    padding="layers",
)
_QUICK: Final = msgspec.structs.replace(
    _FULL, workers=4, compute_ms=50.0, seconds=3.0, target_loss=2.85, megabits=100, looks=30
)


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """What is to be measured."""

    task: Task
    """What is trained in scenarios that do not set something else."""
    repeats: int
    scenarios: tuple[ClusterScenario, ...]
    contenders: tuple[Contender, ...]

    def jobs(self) -> list[SuitePart]:
        """Return all jobs in their order."""
        return [
            SuitePart(scenario, contender, repeat, scenario.task_of(self.task))
            for repeat in range(self.repeats)
            for scenario in self.scenarios
            for contender in self.contenders
        ]


@dataclass(frozen=True, slots=True)
class SuitePart:
    """A job, as what shows progress sees it."""

    scenario: ClusterScenario
    contender: Contender
    repeat: int
    task: Task

    @property
    def key(self) -> Key:
        """The name of the job in the result file."""
        names = {"scenario": self.scenario.name, "contender": self.contender.name}
        return Key(**names, repeat=self.repeat, task=self.task)

    @property
    def name(self) -> str:
        """The scenario."""
        return self.scenario.name

    @property
    def summary(self) -> str:
        """The contender."""
        return self.contender.name

    def seconds(self, *, quick: bool) -> float:
        """Return about how long it takes."""
        return self.task.seconds + _OVERHEAD_S


class Shows(Protocol):
    """A display of progress, such as `shoal.cli.parts_progress.PartsProgress`."""

    def begin(self, section: Any) -> None:
        """Show that a job, or a trial, begins."""
        ...

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...


def make_plan(
    *,
    quick: bool,
    only: Sequence[str] = (),
    repeats: int | None = None,
    studies: Sequence[str] = (),
) -> SuitePlan:
    """Return the whole suite, a part of it if `quick`, or what `only` names.

    Those are scenarios and contenders; names of one kind leave the other kind whole. `repeats` is
    how often each job runs, None for the usual. Raises `UsageError` for an unknown name, and for
    less than one repeat. `studies` are other names that a user may have meant.
    """
    if repeats is not None and repeats < 1:
        message = f"--repeats must be at least 1, not {repeats}."
        raise UsageError(message)
    known = [*(each.name for each in SCENARIOS), *(each.name for each in CONTENDERS), *studies]
    for name in only:
        if name not in known:
            fault = "No scenario, contender or study is called"
            raise UsageError(unknown(fault, name, known))
    return SuitePlan(
        _QUICK if quick else _FULL,
        repeats or (1 if quick else _FULL_REPEATS),
        _chosen(SCENARIOS, only, quick=quick),
        _chosen(CONTENDERS, only, quick=quick),
    )


def _chosen(every: Sequence[C], only: Sequence[str], *, quick: bool) -> tuple[C, ...]:
    """Return those that are named; if none is, those that belong to the suite."""
    named = tuple(each for each in every if each.name in only)
    return named or tuple(each for each in every if each.in_quick or not quick)


def left_to_do(plan: SuitePlan, file: ClusterFile) -> list[SuitePart]:
    """Return the jobs of `plan` that have no outcome in `file`, or could not be tried then."""
    found = [(job, file.find(job.key)) for job in plan.jobs()]
    return [job for job, outcome in found if outcome is None or outcome.skipped]


def run_parts(
    parts: Sequence[P],
    file: ClusterFile,
    run: Callable[[P], Outcome | Trial],
    shows: Shows,
    save: Callable[[ClusterFile], None],
    environment: Callable[[], Environment],
) -> ClusterFile:
    """Let `run` make all jobs, or trials, save the file after each of them, and return it."""
    for part in parts:
        shows.begin(part)
        result = run(part)
        for what in ("skipped", "failed"):
            if why := getattr(result, what, ""):
                shows.say(f"{part.name}: {part.summary} {what}: {why}")
        file = with_rows(file.with_result(environment(), result))
        save(file)
    return file


def with_rows(file: ClusterFile) -> ClusterFile:
    """Return `file` with the rows and the sentences that its outcomes make."""
    sides = {each.name: each.side for each in CONTENDERS}
    rows = []
    for task in dict.fromkeys(outcome.key.task for outcome in file.outcomes):
        chosen = [outcome for outcome in file.outcomes if outcome.key.task == task]
        made: list[Row] = []
        for scenario in SCENARIOS:
            entries = entries_of(chosen, scenario.name, sides)
            made += rows_of(scenario, entries, task.target_loss)
        is_quick = any(task == scenario.task_of(_QUICK) for scenario in SCENARIOS)
        rows += of_section(BENCH, [*made, *rows_of_ripples(chosen)], quick=is_quick)
    sentences = dict.fromkeys(
        f"{outcome.key.scenario}: {outcome.key.contender}: {outcome.skipped or outcome.failed}"
        for outcome in file.outcomes
        if outcome.figures is None
    )
    sentences |= dict.fromkeys(
        f"{trial.key.case}: {trial.key.variant}: {trial.failed}"
        for trial in file.trials
        if trial.failed
    )
    rows += rows_of_trials(file.trials)
    return msgspec.structs.replace(file, rows=rows, skipped=list(sentences))
