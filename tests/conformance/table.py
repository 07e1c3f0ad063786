"""Writes docs/conformance.md from the outcomes that run.py has kept.

    python tests/conformance/table.py [--check]

`--check` (run by the tests) fails when the page is not what the result file says.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from reasons import REFUSED

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "data" / "conformance.json"
PAGE = ROOT / "docs" / "conformance.md"

NOT_APPLICABLE = (
    ("They need several GPUs, or NCCL by name", r"CUDA|NCCL|'nccl'"),
    ("torch has switched them off, for every backend or on this system", r"github\.com|flak"),
    ("They need a package that was not installed", r"torchvision"),
    ("Other", r""),
)
"""Why tests do not apply, with what torch says when it skips one; the first that matches."""

HEAD = """\
# PyTorch's conformance tests

PyTorch tests its own backends with `torch/testing/_internal/distributed/distributed_test.py`, which
is part of its wheel. This page says what becomes of each of those tests with
`init_process_group("shoal")`, and with gloo on the same machine. It is generated:
`python tests/conformance/run.py --json docs/data/conformance.json` runs the tests (it needs the
package `expecttest`), and `python tests/conformance/table.py` writes the page. `make test` runs a
selection.

torch decides by the backend's *name* which tests exist for it, and knows only its own. So the name
`shoal` is entered into torch's list of plugins, and a test that torch reserves for another name is
run as if shoal had that name: column "as". A test that needs more ranks than three gets them:
column "ranks". No line of torch is changed.

Most of torch's tests of DDP put each rank on a GPU. What they are about (unused parameters, static
graphs, uneven inputs, communication hooks) is tested on the host against gloo in
`tests/processes/test_transport_torch_ddp.py`.
"""


def render(results: dict[str, Any]) -> str:
    """Return the page."""
    ours, gloos = results["outcomes"]["shoal"], results["outcomes"]["gloo"]
    by_outcome: dict[str, list[str]] = defaultdict(list)
    for name in sorted(ours):
        by_outcome[ours[name]["outcome"]].append(name)
    passed, failed, skipped = (by_outcome[kind] for kind in ("passed", "failed", "skipped"))
    refused = by_outcome["refused"]
    where = results["environment"]
    versions = f"torch {where['torch']}, Python {where['python']}, {where['system']}"
    lines = [
        HEAD,
        f"Taken with {versions}, {where['taken_at'][:10]}.",
        "",
        "| | shoal | gloo |",
        "| --- | ---: | ---: |",
        f"| pass | {len(passed)} | {_count(gloos, 'passed')} |",
        f"| fail | {len(failed)} | {_count(gloos, 'failed')} |",
        f"| do not apply | {len(skipped) + len(refused)} | {_count(gloos, 'skipped')} |",
        "",
        *_failing(failed, ours, gloos),
        f"## {len(skipped) + len(refused)} do not apply",
        "",
        *_refused(refused, ours, gloos),
        *_not_applying(skipped, ours, gloos),
        *_passing(passed, ours, gloos),
    ]
    return "\n".join(lines)


def _count(outcomes: dict[str, Any], kind: str) -> int:
    return sum(found["outcome"] == kind for found in outcomes.values())


def _failing(names: list[str], ours: dict[str, Any], gloos: dict[str, Any]) -> list[str]:
    if not names:
        return []
    lines = [f"## {len(names)} fail", "", "| test | its error | gloo |", "| --- | --- | --- |"]
    lines += [f"| `{n}` | {ours[n]['reason']} | {_gloo(gloos[n])} |" for n in names]
    return [*lines, ""]


def _refused(names: list[str], ours: dict[str, Any], gloos: dict[str, Any]) -> list[str]:
    """Return a section for each of torch's checks of the backend's name."""
    lines = []
    for said, why in REFUSED.items():
        group = [name for name in names if re.search(said, ours[name]["reason"])]
        if group:
            lines += [f"torch refuses the backend for its name ({len(group)}). {why}", ""]
            lines += ["| test | torch says | by method | gloo |", "| --- | --- | --- | --- |"]
            lines += [
                f"| `{n}` | {ours[n]['reason']} | {ours[n]['by_method']} | {_gloo(gloos[n])} |"
                for n in group
            ]
            lines.append("")
    return lines


def _not_applying(names: list[str], ours: dict[str, Any], gloos: dict[str, Any]) -> list[str]:
    groups: dict[str, list[str]] = {heading: [] for heading, _ in NOT_APPLICABLE}
    for name in names:
        said = ours[name]["reason"]
        heading = next(
            head for head, text in NOT_APPLICABLE if re.search(text, said, re.IGNORECASE)
        )
        groups[heading].append(name)
    lines = []
    for heading, group in groups.items():
        if group:
            lines += [f"{heading} ({len(group)}):", ""]
            lines += ["| test | torch says | gloo |", "| --- | --- | --- |"]
            lines += [f"| `{n}` | {ours[n]['reason']} | {_gloo(gloos[n])} |" for n in group]
            lines.append("")
    return lines


def _passing(names: list[str], ours: dict[str, Any], gloos: dict[str, Any]) -> list[str]:
    lines = [
        f"## {len(names)} pass",
        "",
        "| test | ranks | as | gloo |",
        "| --- | ---: | --- | --- |",
    ]
    for name in names:
        found = ours[name]
        lines.append(
            f"| `{name}` | {found['world_size']} | {found['gates']} | {_gloo(gloos[name])} |"
        )
    return [*lines, ""]


def _gloo(found: dict[str, Any]) -> str:
    """Return what became of a test with gloo, in a word or its error."""
    if found["outcome"] == "failed":
        return f"fails: {found['reason']}".replace("|", "\\|")
    return {"passed": "passes", "skipped": "does not apply"}[found["outcome"]]


def main() -> None:
    page = render(json.loads(RESULTS.read_text()))
    if "--check" in sys.argv:
        sys.exit(0 if PAGE.read_text() == page else "conformance.md is not what the results say.")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
