"""How the report writes numbers, metrics, machines and conditions; one wording for every output.

Owns text only. Knows nothing of tables, pages or colors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, isfinite, log10
from typing import TYPE_CHECKING

from shoal.scenario import slow_words

if TYPE_CHECKING:
    from shoal.jobs import Environment, RunResult

NOT_APPLICABLE = "–"
NOT_REACHED = "not reached"


def number(value: float, digits: int = 3) -> str:
    """Return `value` with `digits` significant digits, never fewer than its whole part has."""
    if not isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    magnitude = floor(log10(abs(value)))
    if not -4 <= magnitude < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


@dataclass(frozen=True, slots=True)
class Metric:
    """What a model is judged by, and how that is written."""

    name: str
    """ "accuracy", "AUC" or "loss", as the result says."""

    @property
    def is_higher_better(self) -> bool:
        """Whether a larger value is a better model."""
        return self.name != "loss"

    @property
    def unit(self) -> str:
        """The unit its values are written in, empty for a plain number."""
        return "%" if self.name == "accuracy" else ""

    @property
    def title(self) -> str:
        """The metric's name at the start of a heading."""
        return self.name[:1].upper() + self.name[1:]

    def scaled(self, value: float) -> float:
        """Return `value` (a share for accuracy) in the unit it is written in."""
        return value * 100 if self.unit else value

    def bare(self, value: float) -> str:
        """Return `value` without its unit, for a column whose heading has it."""
        return f"{value * 100:.1f}" if self.unit else f"{value:.3f}"

    def text(self, value: float) -> str:
        """Return `value` with its unit, without trailing zeros."""
        scaled = f"{self.scaled(value):.3f}".rstrip("0").rstrip(".")
        return f"{scaled} {self.unit}".rstrip()

    def goal(self, target: float) -> str:
        """Return `target` as short as it is clear: "90 %", "loss 0.3"."""
        return self.text(target) if self.unit else f"{self.name} {self.text(target)}"


def conditions_title(run: RunResult) -> str:
    """Return which workers were slow in `run`: what tells its scenario from the others."""
    alike: dict[str, list[str]] = {}
    for rank, factor in sorted(run.slow.items(), key=lambda item: int(item[0])):
        if factor != 1:
            alike.setdefault(how_slow(run, rank), []).append(rank)
    if not alike:
        return "Equal workers"
    parts = [
        f"worker{'s' if len(ranks) > 1 else ''} {listed(ranks)} "
        f"{'are' if len(ranks) > 1 else 'is'} {words}"
        for words, ranks in alike.items()
    ]
    return parts[0].capitalize() + "".join(f", {part}" for part in parts[1:])


def how_slow(run: RunResult, rank: str) -> str:
    """Return by how much, and how often, a worker that was made slower was."""
    return slow_words(run.slow[rank], run.slow_probability.get(rank, 1.0))


def workload_line(run: RunResult) -> str:
    """Return what `run` trained on what, without what may differ between compared strategies."""
    model = run.model
    if run.num_parameters:  # groups of arrays do not tell of the model
        model += f" ({run.num_parameters:,} parameters)"
    return f"{_count(run.workers, 'worker')} · {run.dataset} · {model}"


def padding_sentence(run: RunResult, environment: Environment | None) -> str:
    """Return what was done to make few cores stand for many machines, or that nothing was."""
    if run.compute_ms is None:
        return (
            "Steps are not padded: iterations take as long as the hardware and its load make them."
        )
    few = "" if environment is None else f" on {_count(environment.cores, 'core')}"
    return (
        f"Each step is padded to {run.compute_ms:g} ms by sleeping, so that {run.workers} workers"
        f"{few} stand for {run.workers} machines."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def environment_line(environment: Environment) -> str:
    """Return where a result was made, on one line."""
    parts = (
        f"shoal {environment.shoal}",
        f"Python {environment.python}",
        f"torch {environment.torch}" if environment.torch else "",
        environment.platform,
        environment.processor,
        _count(environment.cores, "core"),
        f"{environment.memory_gib:.1f} GiB",
        environment.taken_at.replace("T", " ").replace("Z", " UTC"),
    )
    return " · ".join(part for part in parts if part)


def listed(words: list[str]) -> str:
    """Return `words` joined by commas and a final "and"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
