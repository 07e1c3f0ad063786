"""`shoal train`: one model, one strategy, real worker processes on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from shoal.arguments import seconds
from shoal.cli import words
from shoal.cli.display import RunDisplay
from shoal.cli.options import (
    WatchOption,
    choose_strategy,
    parse_options,
    parse_slow,
    require_finite,
    require_positive,
    require_writable,
)
from shoal.report import output_console
from shoal.scenario import slow_words
from shoal.strategies import STRATEGIES
from shoal.watch import watch_address

if TYPE_CHECKING:
    from shoal.jobs import RunOutcome, RunSpec
    from shoal.watch import WatchAddress

ComputeOption = Annotated[
    float | None,
    typer.Option(help="Pad each step's compute to this many ms by sleeping."),
]
SlowOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RANK:FACTOR[:PROBABILITY]",
        help="Make a worker slower, always or in steps drawn at random; may be repeated.",
    ),
]
StepsOption = Annotated[
    int | None, typer.Option(help="Steps per worker; default: 200, or no limit with --max-seconds.")
]
TargetOption = Annotated[float | None, typer.Option(help="Stop when the averaged model meets it.")]
DecayOption = Annotated[
    bool, typer.Option("--decay", help="Lower the learning rate evenly, to 1 % at --max-steps.")
]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Option of the strategy; may be repeated."),
]
SyncOption = Annotated[
    str,
    typer.Option(
        metavar="STRATEGY",
        help=f"How workers synchronize: {', '.join(STRATEGIES)}.",
        autocompletion=words.completing(list(STRATEGIES)),
    ),
]
DatasetOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help=f"Data set: {', '.join(words.DATASETS)}. See docs/data-sets.md.",
        autocompletion=words.completing(words.DATASETS),
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"Model: {', '.join(words.MODELS)}; the default suits the data set.",
        autocompletion=words.completing(words.MODELS),
    ),
]
TransportOption = Annotated[
    str,
    typer.Option(
        metavar="gloo|shoal",
        help="What workers communicate over: PyTorch's gloo (TCP), or Shoal's transport (UDP).",
        autocompletion=words.completing(words.TRANSPORTS),
    ),
]
LossBoundOption = Annotated[
    float, typer.Option(help="Share of each sum that --transport shoal may lose.")
]
HolesOption = Annotated[
    str,
    typer.Option(
        metavar="|".join(words.HOLES),
        help="What a lost part of a sum counts as.",
        autocompletion=words.completing(words.HOLES),
    ),
]
WireOption = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(words.WIRE_TYPES),
        help="Number type in which --transport shoal sends gradients and, with --overlap"
        " next-steps, parameters; the default is the tensors' own type.",
        autocompletion=words.completing(words.WIRE_TYPES),
    ),
]
PullBoundOption = Annotated[
    float | None,
    typer.Option(
        help="Share of each pull from a parameter server that --transport shoal may lose; the"
        " default is none."
    ),
]
OverlapOption = Annotated[
    str | None,
    typer.Option(
        metavar="WORD",
        help="What runs while workers exchange. For all-reduce: backward (default) or"
        " next-forward. For parameter servers: none (default), next-forward or layers. Where"
        " parameters are averaged: none (default), next-forward, layers (by a schedule) or"
        " next-steps.",
    ),
]
MetricsOption = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        help="Serve the transport's metrics to Prometheus, those of rank r on port PORT + r.",
    ),
]
HostOption = Annotated[
    int | None, typer.Option(help="Form groups as if this many workers shared a host.")
]
ControlPortOption = Annotated[
    int,
    typer.Option(metavar="PORT", min=0, max=65535, help="Port of the control plane; 0: any."),
]


def train(
    sync: SyncOption = "ripples",
    dataset: DatasetOption = "digits",
    model: ModelOption = None,
    workers: Annotated[int, typer.Option(help="Worker processes on this machine.")] = 4,
    compute_ms: ComputeOption = None,
    slow: SlowOption = None,
    target: TargetOption = None,
    max_steps: StepsOption = None,
    max_seconds: Annotated[float | None, typer.Option(help="Time limit of the run.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per worker and step.")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Default: the recipe's.")] = None,
    decay: DecayOption = False,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and schedules.")] = 0,
    option: StrategyOption = None,
    workers_per_host: HostOption = None,
    transport: TransportOption = "gloo",
    loss_bound: LossBoundOption = 0.0,
    holes: HolesOption = "error-feedback",
    wire: WireOption = None,
    pull_bound: PullBoundOption = None,
    overlap: OverlapOption = None,
    deadline: Annotated[float, typer.Option(help="Seconds any wait for a worker may last.")] = 60.0,
    control_port: ControlPortOption = 0,
    json: Annotated[Path | None, typer.Option(help="Write the result here.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace for Perfetto here.")] = None,
    metrics_port: MetricsOption = None,
    watch: WatchOption = None,
) -> None:
    """Train a real model with worker processes on this machine."""
    from shoal.jobs import RunSpec
    from shoal.strategies import check_strategy
    from shoal.workloads import default_model

    require_positive(
        workers=workers,
        workers_per_host=workers_per_host,
        compute_ms=compute_ms,
        max_steps=max_steps,
        max_seconds=max_seconds,
        batch_size=batch_size,
        learning_rate=learning_rate,
    )
    seconds(deadline, "--deadline")
    require_finite(target=target)
    require_writable(json, trace)
    asked = {"overlap": overlap, "pull_bound": pull_bound}
    options = parse_options(option or []) | {k: v for k, v in asked.items() if v is not None}
    check_strategy(choose_strategy(sync, options), workers, loss_bound, wire)
    factors, probabilities = parse_slow(slow or [])
    spec = RunSpec(
        strategy=sync,
        strategy_options=options,
        dataset=dataset,
        model=model or default_model(dataset),
        workers=workers,
        batch_size=batch_size,
        learning_rate=learning_rate,
        decay=decay,
        compute_ms=compute_ms,
        slow=factors,
        slow_probability=probabilities,
        max_steps=max_steps if max_steps or max_seconds else 200,
        max_seconds=max_seconds,
        target=target,
        seed=seed,
        transport=transport,
        loss_bound=loss_bound,
        holes=holes,
        wire=wire,
        workers_per_host=workers_per_host,
        metrics_port=metrics_port,
        is_traced=trace is not None,
    )
    spec.validate()
    outcome = _run(spec, deadline, control_port, watch_address(watch, os.environ))
    _write(outcome, json, trace)


def _run(
    spec: RunSpec, deadline: float, control_port: int, watch: WatchAddress | None
) -> RunOutcome:
    """Run `spec` in a pool of its own, showing it on standard error."""
    from shoal.jobs import WorkerPool, run_spec
    from shoal.workloads import load_dataset, make_model, metric_name

    console = Console(stderr=True)
    dataset = load_dataset(spec.dataset)
    make_model(spec.model, dataset, spec.seed)  # one that cannot be is better found out now
    console.print(describe(spec), highlight=False)
    with WorkerPool(
        spec.workers,
        deadline_s=deadline,
        control_port=control_port,
        uses_transport=spec.transport == "shoal",
        watch=watch,
    ) as pool:
        with console.status("starting workers"):
            pool.start()
        with RunDisplay(
            f"{spec.strategy} on {spec.workers} workers", metric_name(dataset.task), spec.max_steps
        ) as display:
            return run_spec(pool, spec, dataset, display.show)


def describe(spec: RunSpec) -> str:
    """Return in words what a run does, the padding included."""
    text = f"Training {spec.model} on {spec.dataset} with {spec.workers} workers, {spec.strategy}."
    if spec.transport != "gloo":
        text += f" Over {spec.transport}"
        if spec.loss_bound:
            text += f", losing at most {spec.loss_bound:.0%} of what is summed ({spec.holes})"
        text += "."
        text += f" Floats are sent as {spec.wire}." if spec.wire else ""
    if spec.compute_ms is not None:
        text += (
            f" Each step's compute is padded to {spec.compute_ms:g} ms by sleeping, so that the"
            f" workers stand for {spec.workers} machines."
        )
    if spec.metrics_port is not None:
        last = spec.metrics_port + spec.workers - 1
        text += f" Metrics are served at http://127.0.0.1:{spec.metrics_port}/metrics"
        text += f", up to port {last} for rank {spec.workers - 1}." if spec.workers > 1 else "."
    for rank, factor in spec.slow.items():
        text += f" Rank {rank} is {slow_words(factor, spec.slow_probability.get(rank, 1.0))}."
    return text


def _write(outcome: RunOutcome, json: Path | None, trace: Path | None) -> None:
    """Print the summary to standard output and write the files that were asked for."""
    from shoal.jobs import ResultFile, describe_environment, write_results, write_trace
    from shoal.report import print_table
    from shoal.trace import TraceHeader

    results = ResultFile(environment=describe_environment(), runs=[outcome.result])
    if json is not None:  # first, for whoever reads the table may have gone
        write_results(json, results)
    if trace is not None:
        run = outcome.result
        header = TraceHeader(run.strategy, run.workers, run.num_parameters)
        write_trace(trace, outcome.spans, samples=outcome.samples, header=header)
    print_table([results], output_console())
