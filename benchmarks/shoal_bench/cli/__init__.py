"""The commands `shoal bench` and `shoal reproduce`, which the entry points of this name add."""

from __future__ import annotations

from typing import Final

from shoal.cli import Command

BENCH: Final = Command(
    "shoal_bench.cli.bench:bench_app", "Measure Shoal side by side with its peers."
)
REPRODUCE: Final = Command(
    "shoal_bench.cli.reproduce:reproduce_app",
    "Simulate what the papers measured, beside their figures.",
)
