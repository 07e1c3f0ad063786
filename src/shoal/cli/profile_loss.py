"""`shoal profile-loss`: how much loss a training forgives. Owns options, progress and files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.arguments import seconds
from shoal.cli.options import require_finite, require_positive, require_writable
from shoal.cli.parts_progress import PartsProgress
from shoal.cli.train import DatasetOption, ModelOption  # noqa: TC001 - typer reads them
from shoal.errors import UsageError
from shoal.report import output_console

if TYPE_CHECKING:
    from shoal.jobs import RunProgress, RunSpec
    from shoal.plan import Arm, LossFile, LossJob, LossProfile
    from shoal.workloads import Dataset

_BOUNDS = "0,0.01,0.05,0.1,0.2,0.4"
_QUICK_BOUNDS = "0,0.1"
_HOLES = "zero,divide-by-count,error-feedback"
_EVALUATIONS = 60
"""How often a run is evaluated, about."""

_STEPS, _QUICK_STEPS = 600, 80
_SEEDS, _QUICK_SEEDS = 3, 1
_USUAL_SECONDS = 15.0
"""The seconds that a run is assumed to take before one has been timed."""

BoundsOption = Annotated[str | None, typer.Option(help=f"Shares to try; default {_BOUNDS}.")]
HolesOption = Annotated[str, typer.Option(help="What lost parts may count as; each is tried.")]
AblationOption = Annotated[
    str,
    typer.Option(
        metavar="none|layers|magnitude|all",
        help="Also lose only front or back layers, or large gradients first.",
    ),
]
TargetOption = Annotated[
    float | None, typer.Option(help="Metric to reach; default: see --target-share.")
]
ShareOption = Annotated[
    float, typer.Option(help="Target as a share of what runs without loss gain.")
]
LimitOption = Annotated[
    float,
    typer.Option(help="Most rounds to the target, as a multiple of those without loss."),
]
SeedsOption = Annotated[
    int | None, typer.Option(help="Runs with each loss bound, each with another seed.")
]
StepsOption = Annotated[int | None, typer.Option(help="Steps of every run.")]
EvaluateOption = Annotated[
    int | None, typer.Option(help="Steps between evaluations; default: 60 in a run.")
]
JsonOption = Annotated[
    Path | None, typer.Option(help="Keep the runs here; those already here are not repeated.")
]


@dataclass(frozen=True, slots=True)
class _Part:
    """A run, for the progress display."""

    name: str
    summary: str

    def seconds(self, *, quick: bool) -> float:
        """Return about how long it takes."""
        return _USUAL_SECONDS / 3 if quick else _USUAL_SECONDS


def profile_loss(
    dataset: DatasetOption = "digits",
    model: ModelOption = None,
    workers: Annotated[int, typer.Option(help="Worker processes on this machine.")] = 4,
    bounds: BoundsOption = None,
    holes: HolesOption = _HOLES,
    ablation: AblationOption = "none",
    target: TargetOption = None,
    target_share: ShareOption = 0.95,
    limit: LimitOption = 1.05,
    seeds: Annotated[
        int | None, typer.Option(help="Runs with each loss bound, each with another seed.")
    ] = None,
    max_steps: StepsOption = None,
    evaluate_every: EvaluateOption = None,
    evaluation_samples: Annotated[int, typer.Option(help="Test samples to look at.")] = 2000,
    batch_size: Annotated[int | None, typer.Option(help="Samples per worker and step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the recipe's.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds any wait for a worker may last.")] = 60.0,
    json: JsonOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few short runs: an indication.")] = False,
) -> None:
    """Measure how much packet loss a training forgives.

    Finds the largest loss bound under which a training takes no more rounds to its target. Trains
    with real processes over Shoal's transport, without loss and with packets really lost.
    """
    from shoal.carriers import check_transport
    from shoal.jobs import RunSpec
    from shoal.plan import Criterion, LossFile, arms_of, print_profile, read_loss_file
    from shoal.workloads import default_model

    if seeds is None:
        seeds = _QUICK_SEEDS if quick else _SEEDS
    if max_steps is None:
        max_steps = _QUICK_STEPS if quick else _STEPS
    require_positive(
        workers=workers, seeds=seeds, max_steps=max_steps, evaluate_every=evaluate_every,
        evaluation_samples=evaluation_samples, batch_size=batch_size,
        learning_rate=learning_rate, limit=limit,
    )  # fmt: skip
    seconds(deadline, "--deadline")
    require_finite(target=target, target_share=target_share)
    require_writable(json)
    criterion = Criterion(target=target, share=target_share, limit=limit)
    if bounds is None:
        bounds = _QUICK_BOUNDS if quick else _BOUNDS
    policies = _words(holes)
    if not policies:
        message = f"--holes takes policies with commas between them, such as {_HOLES}."
        raise UsageError(message)
    arms = arms_of(_numbers(bounds), policies, ablation)
    run = RunSpec(
        strategy="all-reduce",
        dataset=dataset,
        model=model or default_model(dataset),
        workers=workers,
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_steps=max_steps,
        snapshot_steps=evaluate_every or max(1, max_steps // _EVALUATIONS),
        evaluation_samples=evaluation_samples,
    )
    for arm in arms:
        check_transport("shoal", arm.bound, arm.holes)
    data, job = _prepare(run)
    criterion.check(job.max_steps // job.evaluate_every + 1)
    file = read_loss_file(json) if json is not None and json.exists() else LossFile()
    profile = _measure(file, json, data, job, arms, seeds, deadline=deadline, quick=quick)
    print_profile(profile, criterion, output_console())


def _numbers(text: str) -> list[float]:
    """Return the numbers in a list such as "0,0.05,0.1"."""
    try:
        numbers = [float(word) for word in _words(text)]
    except ValueError:
        numbers = []
    if not numbers:
        message = (
            f"--bounds takes numbers with commas between them, such as 0.05,0.1, not {text!r}."
        )
        raise UsageError(message)
    return numbers


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _prepare(spec: RunSpec) -> tuple[Dataset, LossJob]:
    """Load the data and say what all runs have in common; refuse what cannot be trained."""
    from shoal.plan import LossJob
    from shoal.workloads import Task, load_dataset, make_model, metric_name

    spec.validate()
    if spec.workers < 2:
        raise UsageError("A worker alone sends nothing that could get lost: take 2 or more.")
    data = load_dataset(spec.dataset)
    network = make_model(spec.model, data, spec.seed)
    recipe = spec.recipe()
    job = LossJob(
        dataset=spec.dataset,
        model=spec.model,
        workers=spec.workers,
        batch_size=recipe.batch_size,
        learning_rate=recipe.learning_rate,
        num_parameters=sum(parameter.numel() for parameter in network.parameters()),
        max_steps=spec.max_steps or 0,
        evaluate_every=spec.snapshot_steps or 0,
        evaluation_samples=min(spec.evaluation_samples or 0, len(data.test_inputs)),
        metric=metric_name(data.task),
        lower_is_better=data.task is Task.LANGUAGE,
    )
    return data, job


def _measure(
    file: LossFile,
    path: Path | None,
    data: Dataset,
    job: LossJob,
    arms: Sequence[Arm],
    seeds: int,
    *,
    deadline: float,
    quick: bool,
) -> LossProfile:
    """Make the runs that `file` lacks, writing each as it ends; return the job's profile."""
    from shoal.jobs import WorkerPool, describe_environment
    from shoal.plan import DROPPING, LossProfile, make_run, missing_runs, with_run, write_loss_file

    profile = file.profile_of(job) or LossProfile(job=job, environment=describe_environment())
    runs = missing_runs(profile, arms, seeds)
    parts = [
        _Part(f"run {number} of {len(runs)}", f"{arm}, seed {seed}")
        for number, (arm, seed) in enumerate(runs, 1)
    ]
    if not runs:
        return profile
    start = _Part("start", f"{job.workers} workers")
    with (
        PartsProgress([start, *parts], quick=quick) as progress,
        WorkerPool(
            job.workers,
            variables=DROPPING,
            deadline_s=deadline,
            uses_transport=True,
        ) as pool,
    ):
        progress.begin(start)
        pool.start()
        for part, (arm, seed) in zip(parts, runs, strict=True):
            progress.begin(part)

            def show(state: RunProgress, part: _Part = part) -> None:
                step = min(state.steps)
                progress.note(f"{part.summary}, step {step}", step / job.max_steps)

            profile = with_run(profile, make_run(pool, data, job, arm, seed, show))
            if path is not None:
                write_loss_file(path, file.with_profile(profile))
    return profile
