"""docs/conformance.md says what its result file says, and explains every refusal."""

from __future__ import annotations

import json
import re
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


def test_nothing_fails_and_every_refusal_is_explained() -> None:
    code = "import json, reasons; print(json.dumps(list(reasons.REFUSED)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, check=True)
    kept = json.loads((ROOT / "docs" / "data" / "conformance.json").read_text())
    explained = json.loads(done.stdout)
    for name, found in kept["outcomes"]["shoal"].items():
        assert found["outcome"] in ("passed", "skipped", "refused"), name
        if found["outcome"] == "refused":
            assert any(re.search(said, found["reason"]) for said in explained), name
            assert found["by_method"] == "passed", name
