"""A causal transformer over symbols: GPT-2's block (Radford et al., 2019), tied embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from shoal.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.workloads.models import ModelRequest

_HEAD_WIDTH = 16
_DEVIATION = 0.02


class Block(nn.Module):
    """Causal self-attention and an MLP, each behind a layer norm and beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // _HEAD_WIDTH
        self.norm1 = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (N, length, width) to the same shape."""
        hidden = hidden + self._attend(self.norm1(hidden))
        result: Tensor = hidden + self.mlp(self.norm2(hidden))
        return result

    def _attend(self, hidden: Tensor) -> Tensor:
        count, length, width = hidden.shape
        parts = self.query_key_value(hidden).view(count, length, 3, self.heads, _HEAD_WIDTH)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.project(mixed.transpose(1, 2).reshape(count, length, width))
        return result


class CharGpt(nn.Module):
    """Logits of the next symbol at every position."""

    def __init__(self, vocabulary: int, length: int, layers: int, width: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        self.apply(_initialize)
        self.head.weight = self.symbols.weight

    def forward(self, symbols: Tensor) -> Tensor:
        """Map symbols (N, length) to logits (N, length, vocabulary)."""
        places = torch.arange(symbols.shape[1], device=symbols.device)
        hidden = self.symbols(symbols) + self.positions(places)
        result: Tensor = self.head(self.norm(self.blocks(hidden)))
        return result


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_DEVIATION)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)


def build(request: ModelRequest) -> nn.Module:
    """Return 2 layers of width 64 by default; the width is a multiple of 16, one head each."""
    layers, width = request.pair("x", "2x64")
    if width % _HEAD_WIDTH:
        message = f"The width of char-gpt is a multiple of {_HEAD_WIDTH}, not {width}."
        raise UsageError(message)
    length = request.dataset.train_inputs.shape[1]
    return CharGpt(request.dataset.num_classes, length, layers, width)
