"""The notebook runs from top to bottom, and its workers train."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "first_steps.ipynb"
SECONDS = 200


def script() -> str:
    """Return the cells as one script: a line that begins with `!` is a shell's."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "outputs are not kept"
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    shell = r"import subprocess; subprocess.run(\1, shell=True, check=True)"
    return re.sub(
        r"^!(.*)$",
        lambda each: each.expand(shell).replace(each[1], repr(each[1])),
        "\n".join(texts),
        flags=re.MULTILINE,
    )


@pytest.mark.long
@pytest.mark.timeout(SECONDS)
def test_the_notebook_runs(tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", script()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rates = dict(re.findall(r"^(\S+) +([\d.]+) steps/s", done.stdout, re.MULTILINE))
    assert float(rates["ripples"]) > float(rates["all-reduce"])
    assert len(re.findall(r"rank \d: 40 steps", done.stdout)) == 3
