"""The suite: which jobs there are, in which order, and going through the jobs that are left.

Contenders take turns within a scenario, so that a drift of the machine's speed meets all of them.
Every outcome is in the file before the next job begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import msgspec

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal_bench.cluster.contenders import CONTENDERS, Contender, Side
from shoal_bench.cluster.outcome import Key
from shoal_bench.cluster.outcome_rows import BENCH, ContenderRuns, entries_of, rows_of
from shoal_bench.cluster.scenarios import SCENARIOS, ClusterScenario
from shoal_bench.cluster.search import closer_looks, finals, first_looks, look_seconds
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
    is_search: bool = False
    """Whether earlier outcomes decide which contenders run, and how often; else all do."""

    def jobs(self) -> list[SuitePart]:
        """Return every run of every contender, in their order."""
        return [
            SuitePart(scenario, contender, repeat, scenario.task_of(self.task))
            for repeat in range(self.repeats)
            for scenario in self.scenarios
            for contender in self.contenders
        ]

    def rounds(self, outcomes: Sequence[Outcome]) -> Iterator[list[SuitePart]]:
        """Yield the jobs of one round after the other; `outcomes` decide who is in the later ones.

        Without a search there is one round, of all jobs.
        """
        if not self.is_search:
            yield self.jobs()
            return
        for choose in (first_looks, closer_looks, partial(finals, repeats=self.repeats)):
            yield [
                SuitePart(scenario, contender, repeat, scenario.task_of(self.task))
                for scenario in self.scenarios
                for contender, repeat in choose(self.contenders, self._ran(scenario, outcomes))
            ]

    def seconds_of(self, job: SuitePart, outcomes: Sequence[Outcome]) -> float:
        """Return how long `job` lasts: a search ends looks at what `outcomes` show to be slow."""
        if not self.is_search or job.repeat:
            return job.task.seconds
        ran = self._ran(job.scenario, outcomes)
        return look_seconds(job.contender, ran, job.task.seconds)

    def _ran(self, scenario: ClusterScenario, outcomes: Sequence[Outcome]) -> list[ContenderRuns]:
        """Return what has run in `scenario` so far, on its task of today."""
        task, sides = scenario.task_of(self.task), _sides(self.contenders)
        chosen = [outcome for outcome in outcomes if outcome.key.task == task]
        return entries_of(chosen, scenario.name, sides)


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

    Those are scenarios and contenders; names of one kind leave the other kind whole. Where no
    contender is named the best are searched for. `repeats` is how often each named contender runs,
    or each that is among the best, None for the usual. `studies` are other names that a user may
    have meant. Raises `UsageError` for an unknown name, and for less than one repeat.
    """
    if repeats is not None and repeats < 1:
        message = f"--repeats must be at least 1, not {repeats}."
        raise UsageError(message)
    known = [*(each.name for each in SCENARIOS), *(each.name for each in CONTENDERS), *studies]
    for name in only:
        if name not in known:
            fault = "No scenario, contender or study is called"
            raise UsageError(unknown(fault, name, known))
    scenarios = tuple(each for each in SCENARIOS if each.name in only)
    contenders = tuple(each for each in CONTENDERS if each.name in only)
    return SuitePlan(
        _QUICK if quick else _FULL,
        repeats or (1 if quick else _FULL_REPEATS),
        scenarios or tuple(each for each in SCENARIOS if each.in_quick or not quick),
        contenders or tuple(each for each in CONTENDERS if each.is_first or not quick),
        is_search=not (contenders or quick),
    )


def left_to_do(
    plan: SuitePlan, file: ClusterFile, *, ran: Collection[Key] = (), again: bool = False
) -> list[SuitePart]:
    """Return the jobs that are left of the first round of `plan` that has some left.

    A job is left that has no outcome in `file`, or could not be tried then; `again` also leaves
    those that have one. `ran` are those that have just been run, which are left in no case.
    """

    def is_left(job: SuitePart) -> bool:
        outcome = file.find(job.key)
        return job.key not in ran and (again or outcome is None or bool(outcome.skipped))

    rounds = ([job for job in jobs if is_left(job)] for jobs in plan.rounds(file.outcomes))
    return next((left for left in rounds if left), [])


def run_parts(
    parts: Sequence[P],
    file: ClusterFile,
    run: Callable[[P, ClusterFile], Outcome | Trial],
    shows: Shows,
    save: Callable[[ClusterFile], None],
    environment: Callable[[], Environment],
) -> ClusterFile:
    """Let `run` make all jobs, or trials, save the file after each of them, and return it.

    It is told what the file holds by then.
    """
    for part in parts:
        shows.begin(part)
        result = run(part, file)
        for what in ("skipped", "failed"):
            if why := getattr(result, what, ""):
                shows.say(f"{part.name}: {part.summary} {what}: {why}")
        file = with_rows(file.with_result(environment(), result))
        save(file)
    return file


def with_rows(file: ClusterFile) -> ClusterFile:
    """Return `file` with the rows and the sentences that its outcomes make."""
    sides = _sides(CONTENDERS)
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


def _sides(contenders: Iterable[Contender]) -> dict[str, Side]:
    return {each.name: each.side for each in contenders}
