"""`shoal bench blame`: how often a job's own verdict is right, on a lab whose faults are known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shoal_bench.blame.trials import Trial


def blame(
    trials: Annotated[int, typer.Option(min=1, help="Trials, of which each takes 18 s.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the faults.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the trials here.")] = None,
) -> None:
    """Score what a job says of its own faults.

    Four workers on a lab; in each trial nothing is wrong, or a worker is slow, or a host's link is
    slow, long or lossy, or two of these.
    """
    from shoal.cli import require_writable
    from shoal.jobs import describe_environment, indented_json, write_whole
    from shoal.session import load_transport
    from shoal_bench.blame.trials import Outcome, score
    from shoal_bench.blame.trials import trials as made

    require_writable(json)
    load_transport()
    done: list[Trial] = []
    for trial in made(trials, seed):
        done.append(trial)
        faults = ", ".join(f"{f.what} {f.rank} ({f.size:.3g})" for f in trial.faults) or "nothing"
        said = " ".join(verdict.sentence for verdict in trial.verdicts)
        sys.stderr.write(f"{len(done):>4}  {faults}: {said}\n")
        if json is not None:
            outcome = Outcome(describe_environment(), seed, score(done), done)
            write_whole(json, indented_json(outcome))
    total = score(done)
    sys.stdout.write(
        f"precision {total.precision:.3f} ({total.num_right} of {total.num_verdicts} verdicts),"
        f" recall {total.recall:.3f} ({total.num_found} of {total.num_faults} faults), false alarms"
        f" in {total.num_false_alarms} of {total.num_healthy} healthy trials\n"
    )
