"""A selection of PyTorch's own conformance tests; docs/conformance.md has the outcome of all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / "conformance" / "run.py"

SELECTION = (
    "test_Backend_enum_class",
    "test_DistributedDataParallelCPU",
    "test_all_gather_coalesced_with_empty",
    "test_all_gather_object_subgroup",
    "test_all_reduce_full_group_product",
    "test_all_reduce_sum_complex",
    "test_barrier",
    "test_broadcast",
    "test_ddp_logging_data_cpu",
    "test_destroy_group",
    "test_gather",
    "test_isend",
    "test_reduce_max",
    "test_scatter_checks",
    "test_send_recv_any_source",
    "test_send_recv_with_tag",
    "test_static_graph_api_cpu",
)
"""They run under shoal's own name with three ranks: torch's file is loaded once, in ten seconds."""


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_selection_of_torchs_own_tests_passes(tmp_path: Path) -> None:
    pytest.importorskip("expecttest", reason="torch's tests need the package expecttest")
    kept = tmp_path / "outcomes.json"
    choice = [part for name in SELECTION for part in ("-k", f"^{name}$")]
    command = [sys.executable, str(RUN), "--backend", "shoal", "--json", str(kept), *choice]
    done = subprocess.run(command, capture_output=True, text=True, timeout=190, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = json.loads(kept.read_text())["outcomes"]["shoal"]
    assert {name: found["outcome"] for name, found in outcomes.items()} == dict.fromkeys(
        SELECTION, "passed"
    )
