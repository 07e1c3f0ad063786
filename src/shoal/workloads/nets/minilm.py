"""MiniLM-L6-H384 (Wang et al., 2020), pretrained, with a new head of one logit to be fine-tuned.

The weights come out of a package (see sets/reviews.py); the architecture is transformers' own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from shoal.errors import DataError, UsageError
from shoal.extras import install
from shoal.workloads.cache import default_cache_dir, locked
from shoal.workloads.fetch import Fetcher
from shoal.workloads.sets.reviews import minilm_files

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from shoal.workloads.models import ModelRequest

_ALL_LAYERS = 6


class MiniLM(nn.Module):
    """The logit of yes for a text of word pieces."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, tokens: Tensor) -> Tensor:
        """Map word pieces (N, length), 0 in unused places, to logits (N,)."""
        logits: Tensor = self.encoder(input_ids=tokens, attention_mask=tokens != 0).logits
        return logits.squeeze(1)


def build(request: ModelRequest) -> nn.Module:
    """Return all six layers, or with a variant the first few of them on frozen embeddings."""
    transformers = _need_transformers()
    layers = request.whole_number(_ALL_LAYERS)
    if layers > _ALL_LAYERS:
        raise request.unreadable()
    root = request.dataset.cache_dir or default_cache_dir()
    with locked(root / ".minilm.lock"):
        files = minilm_files(Fetcher(root / "downloads", lambda *_: None))
    encoder = _pretrained(transformers, files, layers)
    if layers < _ALL_LAYERS:
        encoder.bert.embeddings.requires_grad_(requires_grad=False)
    return MiniLM(encoder)


def _pretrained(transformers: Any, files: dict[str, Path], layers: int) -> Any:
    """Return the classifier with as many of the pretrained layers as it has."""
    from safetensors.torch import load_file  # comes with transformers

    config = transformers.BertConfig.from_json_file(files["config.json"])
    config.num_labels, config.num_hidden_layers = 1, layers
    encoder = transformers.BertForSequenceClassification(config)
    left = encoder.bert.load_state_dict(load_file(files["model.safetensors"]), strict=False)
    if left.missing_keys:
        message = f"{files['model.safetensors']} has no weights named {left.missing_keys[0]}."
        raise DataError(message)
    return encoder


def _need_transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        message = f"The model minilm needs transformers: {install('text')}."
        raise UsageError(message) from error
    return transformers
