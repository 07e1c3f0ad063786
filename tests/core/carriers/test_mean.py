"""The compiled mean has the bits of torch's own operations, one after another."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shoal.carriers.mean import BLOCK, NARROW_TYPES, WIDE_TYPES, Mean  # noqa: E402


@pytest.mark.parametrize("dtype", [*WIDE_TYPES, *NARROW_TYPES])
@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1), (3, 1), (2, 5, 1)])
@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("length", [1, 2 * BLOCK + 17])
def test_a_mean_has_the_bits_of_single_operations(
    dtype: torch.dtype, weights: tuple[int, ...], finish: bool, length: int
) -> None:
    generator = torch.Generator().manual_seed(length)
    parts = [torch.randn(length, generator=generator).to(dtype) for _ in weights]
    target = parts[1].clone()
    total = parts[1] if dtype in WIDE_TYPES else parts[1].float()
    total = total * weights[1]
    others = [member for member in range(len(weights)) if member != 1]
    for member in others:
        total = total + parts[member].to(total.dtype) * weights[member]
    if finish:
        total = total / sum(weights)
    Mean(weights, me=1).combine(target, [(m, parts[m]) for m in others], finish=finish)
    assert torch.equal(target, total.to(dtype))
