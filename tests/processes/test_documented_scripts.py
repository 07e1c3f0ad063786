"""The scripts that documents show run: the README's diff, and the page on several machines."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from forked_process import ForkedProcess

from free_ports import free_ports_in_a_row

ROOT = Path(__file__).parents[2]
USERS = """\
import torch
from torch import nn
from torch.nn.functional import cross_entropy as loss_function
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dataset = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
model = nn.Linear(8, 2)
epochs = 2
"""
"""What a reader of the diff has already."""


def fence(page: str, language: str, word: str) -> str:
    text = (ROOT / page).read_text()
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return found


def run(folder: Path, script: str) -> None:
    """Run a script as the only worker of a job."""
    (folder / "train.py").write_text(script)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_ports_in_a_row(1))}
    environment = os.environ | place | {"RANK": "0", "WORLD_SIZE": "1"}
    process = ForkedProcess(environment, run_file, str(folder), "train.py")
    try:
        _, errors = process.communicate(timeout=50)
    finally:
        process.kill()
    assert (process.returncode, errors) == (0, "")


def run_file(folder: str, name: str) -> None:
    """Do what `python name` does in the folder."""
    os.chdir(folder)
    sys.argv = [name]
    runpy.run_path(name, run_name="__main__")


def test_the_diff_runs_before_and_after(tmp_path: Path) -> None:
    lines = fence("README.md", "diff", "shoal.init()").splitlines()
    for kept in " -", " +":
        shown = "\n".join(line[1:] for line in lines if line[0] in kept)
        run(tmp_path, USERS + shown)


def test_the_script_with_samples_runs(tmp_path: Path) -> None:
    run(
        tmp_path,
        fence("docs/samples.md", "python", "ElasticSampler").replace(", num_workers=1", ""),
    )


def test_the_script_for_several_machines_runs(tmp_path: Path) -> None:
    script = fence("docs/several-machines.md", "python", "shoal.init(")
    run(tmp_path, script.replace("control_port=29501", ""))
    assert (tmp_path / "model.pt").exists()
