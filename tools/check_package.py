"""Builds the source archive and the wheel, and tries what a user gets: `make check-package`.

python tools/check_package.py [--release v1.2.3] [FOLDER]

The archives go to FOLDER (dist). The wheel is installed into an environment that has nothing else,
and used from another folder, by a user whose home cannot be written to. So that no network is
needed, what the wheel depends on is taken from the environment that runs this; so is what builds.
With --release the version, the changelog and the addresses have to be those of a release.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NO_HOME = "/proc/nobody"
"""A home in which nobody can make anything, root included."""

ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""An environment in which this tree's packages are not installed ones."""

NOT_SOURCE = shutil.ignore_patterns(
    ".git", ".venv*", "build", "dist", "__pycache__", "*.egg-info", ".*_cache"
)

HELLO = """\
import torch
import shoal

session = shoal.init()
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = shoal.DistributedOptimizer(optimizer, model, sync="ripples")
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
optimizer.finish()
optimizer.average_model()
print("trained", optimizer.num_steps, shoal.__file__)
shoal.shutdown()
"""
IN_ARCHIVE = (
    "tests/core/test_quantities.py",
    "tests/thoroughness.py",
    "docs/index.md",
    "docs/demo.svg",
    "examples/train_digits.py",
    "benchmarks/shoal_bench/cli/__init__.py",
    "src/shoal/scenario/examples/lossy-star.toml",
    "Makefile",
    "constraints.txt",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
)
IN_WHEEL = (
    "shoal/py.typed",
    "shoal/__init__.pyi",
    "shoal/scenario/examples/lossy-star.toml",
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist")
    arguments.add_argument("--release", default="", metavar="TAG")
    given = arguments.parse_args()
    folder = given.folder.resolve()
    if given.release:
        check_release(given.release)
    archive, wheel = build(folder)
    check_contents(archive, wheel)
    with tempfile.TemporaryDirectory() as place:
        check_wheel(Path(place), wheel)
        check_archive(Path(place), archive)
    print(f"{archive.name} and {wheel.name} in {folder} are good.")


def check_release(tag: str) -> None:
    """Exit with a sentence unless the tree is that of the release `tag`."""
    version = version_of_tree()
    if tag != f"v{version}":
        sys.exit(f"The tag is {tag}, and src/shoal/__init__.py says {version}.")
    heading = next(
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    )
    if not heading.startswith(f"## {version} (2"):
        sys.exit(f"CHANGELOG.md begins with {heading!r}; it needs '## {version} (YEAR-MONTH-DAY)'.")
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    if any(".example" in each for each in urls.values()):
        sys.exit("[project.urls] in pyproject.toml are placeholders: say where the project is.")


def version_of_tree() -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-c", "import shoal; print(shoal.__version__)"]
    return subprocess.check_output(words, env=environment, text=True).strip()


def build(folder: Path) -> tuple[Path, Path]:
    """Return the source archive and the wheel, which is built from it."""
    for old in folder.glob("shoal-*"):
        old.unlink()
    with tempfile.TemporaryDirectory() as place:  # what building leaves behind goes with it
        tree = shutil.copytree(ROOT, Path(place) / "shoal", ignore=NOT_SOURCE)
        words = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
        done = subprocess.run(
            [*words, str(tree)], env=ALONE, capture_output=True, text=True, check=False
        )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{done.stderr}\nThe package could not be built.")
    (archive,), (wheel,) = folder.glob("shoal-*.tar.gz"), folder.glob("shoal-*.whl")
    return archive, wheel


def check_contents(archive: Path, wheel: Path) -> None:
    """Exit unless both hold what they should, and no more."""
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    missing = [name for name in IN_ARCHIVE if name not in names]
    with zipfile.ZipFile(wheel) as held:
        inside = set(held.namelist())
    missing += [name for name in IN_WHEEL if name not in inside]
    if missing:
        sys.exit(f"Missing: {', '.join(missing)}.")
    roots = {name.partition("/")[0] for name in inside}
    if extra := {each for each in roots if each != "shoal" and ".dist-info" not in each}:
        sys.exit(f"The wheel has more than the package: {', '.join(sorted(extra))}.")


def check_wheel(place: Path, wheel: Path) -> None:
    """Exit unless the wheel works in an environment of its own, away from the source."""
    home = place / "elsewhere"
    home.mkdir()
    venv.create(place / "venv", with_pip=False, symlinks=True)
    python = place / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-index", "--no-deps", str(wheel)], env=ALONE, check=True)
    (library,) = (place / "venv" / "lib").glob("python*/site-packages")
    lend_dependencies(library)
    version = version_of_tree()
    try_it(place, ["shoal", "--version"], f"shoal {version}")
    try_it(place, ["python", "-m", "shoal", "--version"], f"shoal {version}")
    try_it(place, ["shoal", "-h"], "Usage: shoal")
    try_it(place, ["shoal", "schedule", "ds-sync", "--workers", "4"], "Spectral gap")
    try_it(place, ["shoal", "simulate", "--example", "slow-worker"], "ripples")
    try_it(place, ["shoal", "simulate", "--example", "x"], "lossy-star", code=2)
    (home / "hello.py").write_text(HELLO)
    launch = ["shoal", "launch", "-n", "2", "--", "python", "hello.py"]
    try_it(place, launch, f"trained 3 {library}/shoal/")


def lend_dependencies(library: Path) -> None:
    """Link into `library` all that the running environment has installed, but for Shoal."""
    own = Path(sysconfig.get_paths()["purelib"])
    added = [line for each in own.glob("*.pth") for line in each.read_text().splitlines()]
    for folder in (own, *(Path(line) for line in added if line.endswith("site-packages"))):
        for each in folder.iterdir():
            is_ours = each.name.startswith(("shoal", "__editable__")) or each.suffix == ".pth"
            if not is_ours and not (library / each.name).exists():
                (library / each.name).symlink_to(each)


def try_it(place: Path, words: list[str], wanted: str, code: int = 0) -> None:
    """Exit unless a command of the new environment ends with `code` and prints `wanted`."""
    programs = place / "venv" / "bin"
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "HOME": NO_HOME,
        "TMPDIR": str(place),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        words,
        cwd=place / "elsewhere",
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
        executable=programs / words[0],
    )
    if done.returncode != code or wanted not in done.stdout:
        said = f"{done.stdout}\n{' '.join(words)} ended with {done.returncode}"
        sys.exit(f"{said}; wanted: {code} and {wanted!r}.")
    print(f"good: {' '.join(words)}")


def check_archive(place: Path, archive: Path) -> None:
    """Exit unless tests run in what the source archive holds."""
    with tarfile.open(archive) as file:
        file.extractall(place / "source", filter="data")
    (tree,) = (place / "source").iterdir()
    environment = os.environ | {"PYTHONPATH": f"{tree}/src:{tree}/tests:{tree}/benchmarks"}
    tests = ["tests/core/test_quantities.py", "tests/architecture/test_documents.py"]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *tests], cwd=tree, env=environment, check=True
    )


if __name__ == "__main__":
    main()
