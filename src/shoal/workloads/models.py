"""The models by name, and how one is made to fit a data set.

Owns the list of families and the reading of names such as vgg11:0.125, where the part after the
colon is the family's own variant. Each family is one file in nets/, loaded when it is asked for,
so listing the names needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal.workloads.dataset import InputKind

if TYPE_CHECKING:
    from torch import nn

    from shoal.workloads.dataset import Dataset


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of model."""

    summary: str
    """A description of one line, for a list."""

    reads: InputKind
    """The only kind of input that it takes."""

    module: str
    """File in nets/; it has `build(request) -> nn.Module`."""

    variant: str = ""
    """What may follow the colon, with an example; empty where nothing may."""


MODELS: dict[str, Family] = {
    "mlp": Family(
        "one hidden layer", InputKind.IMAGE, "mlp", "hidden units, mlp:128, x layers, mlp:128x4"
    ),
    "lenet": Family(
        "two convolutions, two linear layers", InputKind.IMAGE, "lenet", "width, lenet:2"
    ),
    "lenet-small": Family("half a LeNet on a picture of half the size", InputKind.IMAGE, "lenet"),
    "resnet8": Family(
        "residual network of 8 layers", InputKind.IMAGE, "resnet", "width, resnet8:0.5"
    ),
    "vgg11": Family("VGG-11 with batch norm", InputKind.IMAGE, "vgg", "width, vgg11:0.125"),
    "vgg16": Family("VGG-16 with batch norm", InputKind.IMAGE, "vgg", "width, vgg16:0.25"),
    "wrn": Family("wide residual network", InputKind.IMAGE, "wrn", "depth-width, wrn:10-1"),
    "char-gpt": Family(
        "small transformer that predicts the next byte",
        InputKind.SYMBOLS,
        "char_gpt",
        "layers x width, char-gpt:2x64",
    ),
    "minilm": Family(
        "pretrained MiniLM, fine-tuned", InputKind.TOKENS, "minilm", "layers, minilm:2"
    ),
    "deepfm": Family(
        "factorization machine and MLP over embeddings",
        InputKind.FIELDS,
        "deepfm",
        "embedding width, deepfm:8",
    ),
}
"""Every model Shoal can train, by the name users type."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a family's `build` is given."""

    family: str
    variant: str
    """What followed the colon; empty where there was none."""

    dataset: Dataset

    def number(self, default: float) -> float:
        """Return the variant as a positive number, `default` if it is missing."""
        try:
            number = float(self.variant or default)
        except ValueError:
            raise self.unreadable() from None
        if not 0 < number < float("inf"):
            raise self.unreadable()
        return number

    def whole_number(self, default: int) -> int:
        """Return the variant as a positive whole number, `default` if it is missing."""
        number = self.number(default)
        if number != int(number):
            raise self.unreadable()
        return int(number)

    def pair(self, separator: str, default: str) -> tuple[int, int]:
        """Return a variant such as 10-1 as two positive whole numbers."""
        left, _, right = (self.variant or default).partition(separator)
        if not (left.isdecimal() and right.isdecimal() and int(left) and int(right)):
            raise self.unreadable()
        return int(left), int(right)

    def unreadable(self) -> UsageError:
        """Return the error that says which variants the family has."""
        message = f"{self.family}:{self.variant} is no model: the family's variants are "
        return UsageError(message + MODELS[self.family].variant + ".")


def make_model(name: str, dataset: Dataset, seed: int) -> nn.Module:
    """Return a new model for the inputs and classes of `dataset`; equal seeds, equal weights.

    It maps inputs (N, ...) to logits: (N, classes), or (N,) for a binary task, or (N, length,
    vocabulary) for a language. Torch's global random state is left as it was.

    Raises `UsageError` for an unknown name, a variant that the family has not, or a data set that
    the model cannot read.
    """
    import torch

    family, variant = family_of(name), name.partition(":")[2]
    _check(family, variant, dataset)
    module = import_module(f"shoal.workloads.nets.{MODELS[family].module}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = module.build(ModelRequest(family, variant, dataset))
    return model


def model_elements(name: str, dataset: Dataset) -> int:
    """Return how many parameters and statistics (batch norm's) a model has, without making one.

    Raises `UsageError` as `make_model` does. A pretrained one is made for it: none is large.
    """
    import torch

    is_pretrained = MODELS[family_of(name)].reads is InputKind.TOKENS
    with torch.device("cpu" if is_pretrained else "meta"):
        model = make_model(name, dataset, 0)
    statistics = (each for each in model.buffers() if each.is_floating_point())
    return sum(each.numel() for each in (*model.parameters(), *statistics))


def family_of(name: str) -> str:
    """Return the family of a model's name, vgg11 of vgg11:0.125. Raises `UsageError` if unknown."""
    family = name.partition(":")[0]
    if family not in MODELS:
        raise UsageError(unknown("There is no model", family, MODELS))
    return family


def _check(family: str, variant: str, dataset: Dataset) -> None:
    if variant and not MODELS[family].variant:
        message = f"{family} has no variants: leave out {variant!r}."
        raise UsageError(message)
    if MODELS[family].reads is not dataset.input_kind:
        fitting = [name for name, other in MODELS.items() if other.reads is dataset.input_kind]
        message = (
            f"{family} reads {MODELS[family].reads.value}, but {dataset.name} has "
            f"{dataset.input_kind.value}: choose {' or '.join(fitting)}."
        )
        raise UsageError(message)
