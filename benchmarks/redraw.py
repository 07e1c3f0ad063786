"""Draws the papers' comparisons again from their result files: docs/reproduce-*.svg.

`shoal reproduce ... --plot` draws the same after its runs, which take hours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.sweeps import Spread
from shoal_bench.cli import reproduce_combined, reproduce_dlcp, reproduce_ds_sync, reproduce_ripples
from shoal_bench.cli.reproducing import origin
from shoal_bench.reproduce import combined, dlcp, ds_sync, ripples
from shoal_bench.reproduce.claim import Claim
from shoal_bench.reproduce.learning import Learnt

ROOT = Path(__file__).parents[1]


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (ROOT / "benchmarks" / "results" / f"reproduce-{name}.json").read_text()
    )
    return found


def spread(row: dict[str, Any] | None) -> Spread | None:
    return None if row is None else Spread(**row)


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    names = ("what", "paper", "ours", "verdict", "differs")
    return [Claim(*(row[name] for name in names)) for row in rows]


def draw_ripples() -> str:
    found = read("ripples")

    def result(row: dict[str, Any]) -> ripples.Result:
        case = row["case"]
        options = tuple((key, value) for key, value in case["options"])
        step_ms = spread(row["step_ms"])
        assert step_ms is not None
        return ripples.Result(
            ripples.RipplesCase(case["strategy"], options, case["slowdown"]),
            spread(row["seconds_to_target"]),
            spread(row["steps_to_target"]),
            step_ms,
            row["wait_share"],
            row["exchange_share"],
            (),
        )

    return reproduce_ripples.figures(
        [result(each) for each in found["results"]],
        [result(each) for each in found["sweeps"]],
        claims(found["claims"]),
        Learnt(**found["learnt"]),
        found["seeds"],
    )


def draw_ds_sync() -> str:
    found = read("ds-sync")
    timings = [
        ds_sync.Timing(**{**row, "step_ms": Spread(**row["step_ms"]), "digests": ()})
        for row in found["timings"]
    ]
    return reproduce_ds_sync.figures(
        [each["name"] for each in found["jobs"]],
        timings,
        claims(found["claims"]),
        found["scenarios"],
        found["seeds"],
    )


def draw_dlcp() -> str:
    found = read("dlcp")

    def trial(row: dict[str, Any]) -> dlcp.Trial:
        known = {name: row[name] for name in dlcp.Trial.__slots__ if name in row}
        return dlcp.Trial(**{**known, "rival": dlcp.Rival(**row["rival"])})

    def of_part(part: Iterable[dlcp.Trial]) -> list[dlcp.Trial]:
        """Return the part's trials that were made; the file has them without a timeout each."""
        planned = {replace(each, min_timeout_s=None) for each in part}
        return [each for each in measured if replace(each, min_timeout_s=None) in planned]

    measured = {trial(row["trial"]): dlcp.Measured(**row["measured"]) for row in found["trials"]}
    plan = dlcp.plan(quick=False, parts=dlcp.PARTS)
    return reproduce_dlcp.figures(
        of_part(plan.flows),
        of_part(plan.end_to_end),
        measured,
        claims(found["claims"]),
        reproduce_dlcp.made_of_words(found["scenarios"], found["seeds"]),
    )


def draw_combined() -> str:
    found = read("combined")
    by_what: dict[combined.Combination, list[combined.Found]] = {}
    for row in found["found"]:
        what = row["combination"]
        combination = combined.Combination(
            what["strategy"],
            combined.NamedCarrier(**what["carrier"]),
            what["scale"],
            combined.Condition(**what["condition"]),
        )
        by_what.setdefault(combination, []).append(
            combined.Found(**{**row, "combination": combination})
        )
    return reproduce_combined.figures(by_what, origin(found["scenarios"], found["seeds"]))


DRAWINGS = {
    "ripples": draw_ripples,
    "ds-sync": draw_ds_sync,
    "dlcp": draw_dlcp,
    "combined": draw_combined,
}


def main() -> None:
    for name, draw in DRAWINGS.items():
        (ROOT / "docs" / f"reproduce-{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
