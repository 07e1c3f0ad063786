"""The words that options take, for help and completion: their own rooms would load torch.

A test holds each of these to the list of its room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

DATASETS: Final = (
    "digits",
    "fashion-mnist",
    "cifar10",
    "cifar10-jpeg",
    "text-stdlib",
    "text-web",
    "flights",
    "reviews",
)
MODELS: Final = (
    "mlp",
    "lenet",
    "lenet-small",
    "resnet8",
    "vgg11",
    "vgg16",
    "wrn",
    "char-gpt",
    "minilm",
    "deepfm",
)
TRANSPORTS: Final = ("gloo", "shoal")
HOLES: Final = ("zero", "divide-by-count", "error-feedback")
WIRE_TYPES: Final = ("float32", "float16", "bfloat16")


def completing(words: Sequence[str]) -> Callable[[str], list[str]]:
    """Return what a shell asks for the words that begin with what has been typed."""

    def complete(incomplete: str) -> list[str]:
        return [each for each in words if each.startswith(incomplete)]

    return complete
