"""The compiled mean has the bits of torch's own operations, one after another."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from shoal.carriers.mean import BLOCK, NARROW_TYPES, WIDE_TYPES, Mean  # noqa: E402


@pytest.mark.parametrize("dtype", [*WIDE_TYPES, *NARROW_TYPES])
@pytest.mark.parametrize("weights", [(1, 1), (1, 1, 1), (3, 1), (2, 5, 1)])
@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("length", [1, 2 * BLOCK + 17])
@pytest.mark.parametrize("in_place", [None, 0, 1])
def test_a_mean_has_the_bits_of_single_operations(
    dtype: torch.dtype, weights: tuple[int, ...], finish: bool, length: int, in_place: int | None
) -> None:
    generator = torch.Generator().manual_seed(length)
    parts = [torch.randn(length, generator=generator).to(dtype) for _ in weights]
    in_order = [*range(1, len(weights)), 0]
    wide = [parts[m] if dtype in WIDE_TYPES else parts[m].float() for m in range(len(weights))]
    total = wide[1] * weights[1]
    for member in in_order[1:]:
        total = total + wide[member] * weights[member]
    if finish:
        total = total / sum(weights)
    out = torch.full_like(parts[0], torch.nan) if in_place is None else parts[in_place]
    Mean(weights, me=1).combine(out, [(m, parts[m]) for m in in_order], finish=finish)
    assert torch.equal(out, total.to(dtype))
