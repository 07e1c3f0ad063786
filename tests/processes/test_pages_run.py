"""What tutorials and how-to pages show is run, in order, in a folder of its own.

A page's blocks in `bash` run one after another. A comment before a block says more of it:

- `<!-- file: NAME -->`: it is written to that file and not run.
- `<!-- not run: WHY -->`: it is left out.
- `<!-- output -->`: each line of it has to be in what the block before printed, with any numbers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch")

from free_ports import free_ports_in_a_row
from shoal.lab.network.fabric import why_not
from thoroughness import seldom

ROOT = Path(__file__).parents[2]
FOLDERS = ("tutorials", "how-to")
PAGES = [page for each in FOLDERS for page in sorted((ROOT / "docs" / each).glob("*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NUMBER = r"[-+]?\d[\d,.]*"
SECONDS = 500
QUICK = ("choose-a-strategy", "security")
"""How-to pages that take a second; the others start jobs."""


class Block(NamedTuple):
    language: str
    mark: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [
        Block(found["language"], found["mark"] or "", found["text"])
        for found in BLOCK.finditer(page.read_text())
    ]


def pattern(line: str) -> str:
    """Return what a line of output has to look like: words as they are, any numbers, any gaps."""
    parts = re.split(rf"({NUMBER}|\s+)", line.strip())
    made = (
        r"\s+" if part.isspace() else NUMBER if re.fullmatch(NUMBER, part) else re.escape(part)
        for part in parts
    )
    return "".join(made)


def run(folder: Path, block: Block) -> str:
    """Run a block as `bash` or `python` would; return what it has printed."""
    programs = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }
    text = re.sub(r"MASTER_PORT=\d+", f"MASTER_PORT={free_ports_in_a_row(1)}", block.text)
    words = (
        ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    )
    done = subprocess.run(
        [*words, text],
        check=False,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}"
    return done.stdout


def run_page(folder: Path, page: Path) -> int:
    """Run a page's blocks; return how many were run."""
    printed, count = "", 0
    for block in blocks_of(page):
        kind, _, name = block.mark.partition(": ")
        if kind == "not run":
            assert name, "say why"
        elif kind == "file":
            (folder / name).write_text(block.text)
        elif kind == "output":
            for line in block.text.splitlines():
                assert re.search(pattern(line), printed), f"{line}\nis not in\n{printed}"
        elif block.language in {"bash", "python"}:
            printed = run(folder, block)
            count += 1
    return count


def needs_lab(page: Path) -> bool:
    return any("shoal lab run" in each.text for each in blocks_of(page) if each.language == "bash")


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "page",
    seldom(PAGES, often=[ROOT / "docs" / "how-to" / f"{name}.md" for name in QUICK]),
    ids=lambda page: page.stem,
)
def test_a_page_does_what_it_shows(tmp_path: Path, page: Path) -> None:
    if needs_lab(page) and (reason := why_not()):
        pytest.skip(reason)
    assert run_page(tmp_path, page) > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    """Nothing is left out by a slip of a mark, or by a language that nobody runs."""
    text = page.read_text()
    assert text.count("\n```") == 2 * len(blocks_of(page))
    for block in blocks_of(page):
        kind = block.mark.partition(":")[0]
        assert kind in {"", "file", "not run", "output"}, block.mark
        assert block.language in {"bash", "python"} or kind in {"file", "output"}, block.text


def test_a_line_that_is_not_printed_is_found_out() -> None:
    assert re.search(pattern("rank 3: 12 steps in 3.3 s"), "[3] rank 3: 120 steps  in 13.0 s")
    assert not re.search(pattern("rank 3: 12 steps in 3.3 s"), "[3] rank 3: 120 pushes in 13.0 s")
