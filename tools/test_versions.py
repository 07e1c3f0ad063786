"""Runs tests with several releases of Python and torch: `make test-versions`, see CONTRIBUTING.md.

python3 tools/test_versions.py [--only PYTHON/TORCH] [--keep] [--list] [TESTS ...]

The pairs are every Python with the pinned torch, and every torch with the oldest Python. Each has
an environment of its own, which is removed afterwards: torch alone may take 5 GB.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")
NEWEST = "newest"
"""The newest torch that pip finds."""
MIDDLE = "2.8"

TESTS = [
    "tests/core/transport/test_bitmap.py",
    "tests/core/transport/test_forms.py",
    "tests/core/transport/test_kept_tables.py",
    "tests/core/transport/test_transfers.py",
    "tests/core/carriers/test_any_source.py",
    "tests/core/train/test_averaged_state.py",
    "tests/core/train/test_delayed_average.py",
    "tests/core/test_diverged.py",
    "tests/core/train/test_flat_parameters.py",
    "tests/core/session/test_fresh_store.py",
    "tests/core/compiled/test_indices.py",
    "tests/core/train/test_layerwise_updates.py",
    "tests/core/carriers/test_mean.py",
    "tests/core/train/test_other_holders.py",
    "tests/core/train/test_parameter_messages.py",
    "tests/core/train/test_shared_memory.py",
    "tests/loopback",
    "tests/processes/test_averages_of_state.py",
    "tests/processes/test_ddp_hook.py",
    "tests/processes/test_distributed_optimizer.py",
    "tests/processes/test_gradients_of_a_step.py",
    "tests/processes/test_overlap.py",
    "tests/processes/test_torch_held_works.py",
    "tests/processes/test_torch_overloads.py",
    "tests/processes/test_torch_profile.py",
    "tests/processes/test_torch_reconfigured.py",
    "tests/processes/test_transport_torch_backend.py",
    "tests/processes/test_transport_torch_callbacks.py",
    "tests/processes/test_transport_torch_ddp.py",
    "tests/processes/test_transport_torch_messages.py",
    "tests/processes/test_untraced.py",
]
"""What depends on torch and on compiled code most, and what needs no machine but this one."""

TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "expecttest")


@dataclass
class Pair:
    """A Python and a torch, and what came of them."""

    python: str
    torch: str
    outcome: str = ""
    installed: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.python}/{self.torch}"

    @property
    def requirement(self) -> str:
        """What pip is asked for: a release, the latest of a series, or whatever is newest."""
        if self.torch == NEWEST:
            return "torch"
        return f"torch=={self.torch}" + (".*" if self.torch.count(".") < 2 else "")


def pinned_torch() -> str:
    found = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert found
    return found[1]


def least_torch() -> str:
    """Return the series that pyproject.toml asks for at least."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (requirement,) = project["optional-dependencies"]["torch"]
    return str(requirement.removeprefix("torch>="))


def matrix() -> list[Pair]:
    torches = [least_torch(), MIDDLE, pinned_torch(), NEWEST]
    others = [Pair(python, pinned_torch()) for python in PYTHONS[1:]]
    return [Pair(PYTHONS[0], torch) for torch in torches] + others


def find_interpreter(version: str) -> str | None:
    """Return a Python of that series that runs: one on the path, or pyenv's."""
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    built = sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))
    for each in filter(None, (sys.executable, on_path, *reversed(built))):
        asking = [each, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"]
        said = subprocess.run(asking, capture_output=True, text=True, check=False)
        if said.stdout.strip() == version:  # a shim may stand for one that is not there
            return each
    return None


def install(pair: Pair, interpreter: str, home: Path) -> str:
    """Make the environment `home`; return the last line of what went wrong, or nothing."""
    subprocess.run([interpreter, "-m", "venv", "--clear", str(home)], check=True)
    # The newest torch comes with the newest of everything, as it does to a newcomer.
    pins = [] if pair.torch == NEWEST else (ROOT / "constraints.txt").read_text().splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pin for pin in pins if not pin.startswith("torch==")))
        file.flush()
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        pip += ["--disable-pip-version-check", "-c", file.name]
        pip += ["-e", ".[torch,metrics]", "-e", "benchmarks"]
        done = subprocess.run(
            [*pip, pair.requirement, *TOOLS], cwd=ROOT, capture_output=True, text=True, check=False
        )
    if done.returncode:
        return (done.stderr.strip() or "pip failed").splitlines()[-1]
    return ""


def run_tests(pair: Pair, python: Path, tests: list[str]) -> None:
    """Run them; note the counts that pytest ends with."""
    versions = "import torch, platform; print(platform.python_version(), torch.__version__)"
    said = subprocess.run([python, "-c", versions], capture_output=True, text=True, check=True)
    pair.installed = said.stdout.strip()
    command = [str(python), "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *tests]
    last = ""
    with subprocess.Popen(
        [*command, "-m", "not long", "-r", "fEs", "--durations", "10"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        for line in running.stdout:
            print(line, end="", flush=True)
            last = line if line.strip() else last
    pair.counts = {name: int(n) for n, name in re.findall(r"(\d+) ([a-z]+)", last)}
    pair.outcome = "passed" if running.returncode == 0 else f"failed (exit {running.returncode})"


def try_pair(pair: Pair, tests: list[str], *, keep: bool) -> None:
    interpreter = find_interpreter(pair.python)
    if interpreter is None:
        pair.outcome = f"skipped: no python{pair.python} on the path or among pyenv's"
        return
    began = time.monotonic()
    home = ROOT / f".venv-versions-{pair.python}-{pair.torch}"
    print(f"== {pair.name}: {interpreter}, {pair.requirement}", flush=True)
    try:
        problem = install(pair, interpreter, home)
        if problem:
            pair.outcome = f"failed: {problem}"
        else:
            run_tests(pair, home / "bin" / "python", tests)
    finally:
        pair.seconds = time.monotonic() - began
        if not keep:
            shutil.rmtree(home, ignore_errors=True)


def print_table(pairs: list[Pair]) -> None:
    counted = ("passed", "failed", "skipped")
    print("\n| pair | installed | passed | failed | skipped | minutes | |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for pair in pairs:
        # What breaks before a test runs, as an import does, is an error to pytest.
        counts = {**pair.counts, "failed": sum(map(pair.counts.get, ("failed", "error"), (0, 0)))}
        numbers = " | ".join(str(counts.get(name, 0)) for name in counted)
        row = f"| {pair.name} | {pair.installed or '-'} | {numbers} | {pair.seconds / 60:.1f} |"
        print(f"{row} {pair.outcome} |")


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--only", metavar="PYTHON/TORCH", help="one pair, also another one")
    arguments.add_argument("--keep", action="store_true", help="keep the environments")
    arguments.add_argument("--list", action="store_true", help="only say what would be tried")
    arguments.add_argument("tests", nargs="*", default=TESTS)
    given = arguments.parse_args()
    pairs = [Pair(*given.only.split("/", 1))] if given.only else matrix()
    for pair in pairs:
        print(f"{pair.name}: {find_interpreter(pair.python) or 'no such Python: skipped'}")
    if given.list:
        return 0
    for pair in pairs:
        try_pair(pair, given.tests, keep=given.keep)
    print_table(pairs)
    return int(any(pair.outcome.startswith("failed") for pair in pairs))


if __name__ == "__main__":
    sys.exit(main())
