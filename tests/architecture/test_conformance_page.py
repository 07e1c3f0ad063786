"""docs/conformance.md says what its result file says, and explains every failure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests" / "conformance"


def test_the_page_is_what_the_results_say() -> None:
    script = FOLDER / "table.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_failure_is_explained() -> None:
    code = "import json, reasons; print(json.dumps(reasons.FAILURES))"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, check=True)
    kept = json.loads((ROOT / "docs" / "data" / "conformance.json").read_text())
    ours = kept["outcomes"]["shoal"]
    failing = {name for name, found in ours.items() if found["outcome"] == "failed"}
    assert failing == set(json.loads(done.stdout))
