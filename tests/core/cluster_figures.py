"""Figures of a job that was never run, for what is reckoned from them."""

from __future__ import annotations

from shoal_bench.cluster.outcome import Figures


def figures(seconds_to_target: float | None, final_loss: float = 0.1) -> Figures:
    """Return those of a job that took so long to its target, None if it never got there."""
    return Figures(
        seconds_to_target=seconds_to_target,
        final_loss=final_loss,
        final_accuracy=0.9,
        consensus_distance=0.0,
        steps=[3, 5],
        step_ms_p50=1.0,
        step_ms_p99=2.0,
        step_ms_max=3.0,
        sent_bytes=1_000_000,
        processors_busy=0.5,
        switch_late_ms=0.1,
        curve=[(0.0, 2.0)],
        says=["", ""],
    )
