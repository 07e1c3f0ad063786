"""Lightning and JAX with their arrays on a GPU that two ranks share, over Shoal's transport."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "frameworks"))

import test_jax as on_jax
import test_torch_libraries as on_torch

from started_ranks import free_port, outcomes, printed_by_ranks, start

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.timeout(300),
]

ONE_GPU_EACH = {"accelerator": "gpu", "devices": 1, "num_nodes": 2, "use_distributed_sampler": True}
"""To Lightning the ranks are two machines, each with this GPU."""


@pytest.mark.skipif(find_spec("lightning") is None, reason="needs Lightning")
def test_lightning_trains_on_a_gpu_as_its_ddp_does_there(tmp_path: Path) -> None:
    told: dict[str, list[dict[str, Any]]] = {}
    for name in ("ddp over shoal", "all-reduce", "ripples over shoal"):
        port = free_port()
        code = on_torch.LIGHTNING.replace("sys.argv[1]", repr(name))
        common = {"WHERE": json.dumps(ONE_GPU_EACH), "TOLD": str(tmp_path), "LOCAL_RANK": "0"}
        ranks = [start(rank, 2, port, code, NODE_RANK=str(rank), **common) for rank in range(2)]
        ended = outcomes(ranks, timeout_s=90)
        assert [status for status, _, _ in ended] == [0, 0], ended[0][2][-3000:]
        told[name] = [json.loads((tmp_path / f"{name}-{rank}").read_text()) for rank in range(2)]
    wanted = told["ddp over shoal"][0]["weights"]
    for name, results in told.items():
        assert [each["device"] for each in results] == ["cuda:0", "cuda:0"]
        assert results[0]["weights"] == results[1]["weights"], name
        near = 0.1 if name.startswith("ripples") else 1e-4
        assert results[0]["weights"] == pytest.approx(wanted, abs=near), name


@pytest.mark.skipif(find_spec("jax") is None, reason="needs JAX")
@pytest.mark.parametrize("bound", ["0", "0.1"])
def test_means_are_on_the_gpu_where_the_gradients_of_jax_are(bound: str) -> None:
    results = printed_by_ranks(
        on_jax.TRAINED,
        2,
        BOUND=bound,
        JAX_PLATFORMS="cuda",
        XLA_PYTHON_CLIENT_PREALLOCATE="false",
    )
    for result in results:
        assert result["platforms"] == ["gpu"]
        assert result["types"] == ["float32", "bfloat16", "float32"]
        if bound == "0":
            assert max(result["apart"]) < 0.05
    assert results[0]["sums"] == results[1]["sums"]
