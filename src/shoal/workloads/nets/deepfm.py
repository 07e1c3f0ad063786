"""DeepFM: a factorization machine and an MLP that share their embeddings (Guo et al., 2017)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from shoal.workloads.models import ModelRequest

_HIDDEN = 64
_DEVIATION = 0.01


class DeepFM(nn.Module):
    """The logit of yes: bias + first-order weights + pairwise products + MLP of the embeddings."""

    offsets: Tensor
    """First row of each field in the tables that all fields share."""

    def __init__(self, field_sizes: Sequence[int], width: int) -> None:
        super().__init__()
        sizes = torch.tensor(field_sizes)
        self.register_buffer("offsets", sizes.cumsum(0) - sizes, persistent=False)
        self.first_order = nn.Embedding(sum(field_sizes), 1)
        self.embedding = nn.Embedding(sum(field_sizes), width)
        self.bias = nn.Parameter(torch.zeros(()))
        self.mlp = nn.Sequential(
            nn.Linear(len(field_sizes) * width, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, 1),
        )
        nn.init.zeros_(self.first_order.weight)
        nn.init.normal_(self.embedding.weight, std=_DEVIATION)

    def forward(self, fields: Tensor) -> Tensor:
        """Map field values (N, fields) to logits (N,)."""
        rows = fields + self.offsets
        vectors = self.embedding(rows)
        # the sum over pairs of inner products is half of (square of sum - sum of squares)
        pairs = (vectors.sum(dim=1).square() - vectors.square().sum(dim=1)).sum(dim=1) / 2
        linear = self.first_order(rows).sum(dim=(1, 2))
        result: Tensor = self.bias + linear + pairs + self.mlp(vectors.flatten(1)).squeeze(1)
        return result


def build(request: ModelRequest) -> nn.Module:
    """Return embeddings of width 8 by default and two hidden layers of 64 units."""
    return DeepFM(request.dataset.field_sizes, request.whole_number(8))
