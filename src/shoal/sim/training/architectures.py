"""The papers' models, layer by layer, from their published definitions: sizes and multiplications.

Parameters and multiply-accumulates are counted, not measured; the tests hold the published totals.
A layer's share of computing is its share of the multiply-accumulates of one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from shoal.arguments import unknown
from shoal.errors import UsageError
from shoal.sim.training.model import Layer, ModelSize


@dataclass(frozen=True, slots=True)
class Counted:
    """One layer of an architecture."""

    name: str
    parameters: int
    products: int
    """Multiply-accumulates of the forward pass for one sample."""
    shapes: tuple[tuple[int, ...], ...]
    """The shapes of its matrices; its other parameters are vectors."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Layers from the first to the last."""

    name: str
    layers: tuple[Counted, ...]

    @property
    def parameters(self) -> int:
        """The parameters of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def products(self) -> int:
        """Multiply-accumulates of the forward pass for one sample."""
        return sum(layer.products for layer in self.layers)

    def size(self) -> ModelSize:
        """Return what the simulator needs of it."""
        total = self.products
        return ModelSize(
            self.name,
            tuple(
                Layer(each.name, each.parameters, each.products / total, each.shapes)
                for each in self.layers
            ),
        )


def _conv(
    name: str, inputs: int, outputs: int, kernel: int | tuple[int, int], side: int, *, norm: bool
) -> Counted:
    """Count a convolution to `side` by `side` places, with a bias or a normalisation's two."""
    high, wide = (kernel, kernel) if isinstance(kernel, int) else kernel
    weights = inputs * outputs * high * wide
    parameters, shape = weights + outputs * (2 if norm else 1), (outputs, inputs, high, wide)
    return Counted(name, parameters, weights * side * side, (shape,))


def _dense(name: str, inputs: int, outputs: int, tokens: int = 1) -> Counted:
    weights = inputs * outputs
    return Counted(name, weights + outputs, weights * tokens, ((outputs, inputs),))


_VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def _vgg16_features(side: int) -> list[Counted]:
    layers, inputs = [], 3
    for block, (channels, count) in enumerate(_VGG16):
        for each in range(count):
            name = f"conv{block + 1}.{each + 1}"
            layers.append(_conv(name, inputs, channels, 3, side >> block, norm=False))
            inputs = channels
    return layers


def _vgg16() -> list[Counted]:
    """Simonyan and Zisserman 2015, configuration D, for 224 by 224 pixels and 1,000 classes."""
    head = [_dense("fc6", 512 * 7 * 7, 4096), _dense("fc7", 4096, 4096), _dense("fc8", 4096, 1000)]
    return [*_vgg16_features(224), *head]


def _vgg16_cifar() -> list[Counted]:
    """Count the same convolutions for 32 by 32 pixels, and one layer for 10 classes."""
    return [*_vgg16_features(32), _dense("fc", 512, 10)]


def _resnet50() -> list[Counted]:
    """He et al. 2016, for 224 by 224 pixels and 1,000 classes."""
    layers = [_conv("conv1", 3, 64, 7, 112, norm=True)]
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        width, side = 64 << stage, 56 >> stage
        for block in range(count):
            name = f"conv{stage + 2}.{block + 1}"
            # the first block of a stage reads the side before it
            before = side if block or stage == 0 else 2 * side
            layers += [
                _conv(f"{name}a", inputs, width, 1, before, norm=True),
                _conv(f"{name}b", width, width, 3, side, norm=True),
                _conv(f"{name}c", width, 4 * width, 1, side, norm=True),
            ]
            if block == 0:
                layers.append(_conv(f"{name}s", inputs, 4 * width, 1, side, norm=True))
            inputs = 4 * width
    return [*layers, _dense("fc", 2048, 1000)]


def _inception_v3() -> list[Counted]:
    """Szegedy et al. 2016, for 299 by 299 pixels and 1,000 classes, with the auxiliary classifier.

    It is a part of what is trained and synchronised, and left out of a model that is used. Widths
    are those of the authors' published code, where the paper leaves them open.
    """
    stem = ((3, 32, 3, 149), (32, 32, 3, 147), (32, 64, 3, 147), (64, 80, 1, 73), (80, 192, 3, 71))
    layers = [_conv(f"conv{k + 1}", *sizes, norm=True) for k, sizes in enumerate(stem)]
    for name, inputs, pooled in (("5b", 192, 32), ("5c", 256, 64), ("5d", 288, 64)):
        double: _Branch = ((64, 1, 35), (96, 3, 35), (96, 3, 35))
        large: _Branch = ((48, 1, 35), (64, 5, 35))
        layers += _mixed(f"mixed{name}", inputs, ((64, 1, 35),), large, double, ((pooled, 1, 35),))
    double = ((64, 1, 35), (96, 3, 35), (96, 3, 17))
    layers += _mixed("mixed6a", 288, ((384, 3, 17),), double)
    for name, width in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        narrow, line, last = (width, 1, 17), (width, (1, 7), 17), (192, (1, 7), 17)
        large, double = (narrow, line, last), (narrow, line, line, line, last)
        one = ((192, 1, 17),)
        layers += _mixed(f"mixed{name}", 768, one, large, double, one)
    layers += _mixed("auxiliary", 768, ((128, 1, 5), (768, 5, 1)))
    layers.append(_dense("auxiliary.fc", 768, 1000))
    narrow, line = (192, 1, 17), (192, (1, 7), 17)
    layers += _mixed("mixed7a", 768, (narrow, (320, 3, 8)), (narrow, line, line, (192, 3, 8)))
    for name, inputs in (("7b", 1280), ("7c", 2048)):
        # two read the same 384 channels side by side, which count as one after the other
        fork = ((384, (1, 3), 8), (384, (1, 3), 8))
        split, double = ((384, 1, 8), *fork), ((448, 1, 8), (384, 3, 8), *fork)
        layers += _mixed(f"mixed{name}", inputs, ((320, 1, 8),), split, double, ((192, 1, 8),))
    return [*layers, _dense("fc", 2048, 1000)]


_Branch: TypeAlias = Sequence[tuple[int, int | tuple[int, int], int]]
"""Convolutions one after another: (outputs, kernel, side)."""


def _mixed(name: str, inputs: int, *branches: _Branch) -> list[Counted]:
    """Count branches that read the same channels."""
    layers = []
    for branch, convolutions in zip("abcd", branches, strict=False):
        channels = inputs
        for k, (outputs, kernel, side) in enumerate(convolutions):
            here = f"{name}.{branch}{k + 1}"
            layers.append(_conv(here, channels, outputs, kernel, side, norm=True))
            channels = outputs
    return layers


def _wide_resnet(depth: int, width: int, classes: int) -> list[Counted]:
    """Zagoruyko and Komodakis 2016, for 32 by 32 pixels."""
    layers, inputs = [_conv("conv1", 3, 16, 3, 32, norm=False)], 16
    for stage in range(3):
        outputs, side = (16 << stage) * width, 32 >> stage
        for block in range((depth - 4) // 6):
            name = f"conv{stage + 2}.{block + 1}"
            layers += [
                _conv(f"{name}a", inputs, outputs, 3, side, norm=True),
                _conv(f"{name}b", outputs, outputs, 3, side, norm=True),
            ]
            if block == 0:
                layers.append(_conv(f"{name}s", inputs, outputs, 1, side, norm=False))
            inputs = outputs
    return [*layers, _dense("fc", inputs, classes)]


def _transformer(
    layers: int, width: int, inner: int, vocabulary: int, *, decoder: bool, tokens: int
) -> list[Counted]:
    """Vaswani et al. 2017; a decoder's layers attend twice. Embeddings multiply nothing."""
    made = [Counted("embedding", vocabulary * width, 0, ((vocabulary, width),))]
    for side in range(2 if decoder else 1):
        for each in range(layers):
            attentions = 2 if side else 1
            attend = attentions * 4 * (width * width + width)
            feed = 2 * width * inner + inner + width
            norms = (attentions + 1) * 2 * width
            products = (attentions * 4 * width * width + 2 * width * inner) * tokens
            shapes = [(width, width)] * (4 * attentions) + [(inner, width), (width, inner)]
            name = f"layer{side}.{each + 1}"
            made.append(Counted(name, attend + feed + norms, products, tuple(shapes)))
    return made


def _bert_large() -> list[Counted]:
    """Devlin et al. 2019: 24 layers of 1,024, 30,522 word pieces, sequences of 384 as in SQuAD."""
    layers = _transformer(24, 1024, 4096, 30_522, decoder=False, tokens=384)
    shapes = ((512, 1024), (2, 1024))
    positions = Counted("positions", (512 + 2) * 1024 + 2 * 1024, 0, shapes)
    return [layers[0], positions, *layers[1:], _dense("pooler", 1024, 1024)]


def _deepfm() -> list[Counted]:
    """Guo et al. 2017 on Criteo's 39 fields: embeddings of 10 and a weight, three layers of 400.

    How many values the fields have depends on how rare ones are merged; a million is assumed.
    """
    rows, fields, width, inner = 1_000_000, 39, 10, 400
    hidden = [_dense(f"mlp{k}", inner if k else fields * width, inner) for k in range(3)]
    embedding = Counted("embedding", rows * (width + 1), 0, ((rows, width), (rows, 1)))
    return [embedding, *hidden, _dense("out", inner, 1)]


ARCHITECTURES: Final[dict[str, Callable[[], Sequence[Counted]]]] = {
    "vgg16": _vgg16,
    "vgg16-cifar": _vgg16_cifar,
    "resnet50": _resnet50,
    "inception-v3": _inception_v3,
    "wrn-26-10": lambda: _wide_resnet(26 + 2, 10, 10),
    "transformer": lambda: _transformer(6, 512, 2048, 37_000, decoder=True, tokens=32),
    "bert-large": _bert_large,
    "deepfm": _deepfm,
}


def architecture(name: str) -> Architecture:
    """Return the architecture of this name. Raises `UsageError` if there is none."""
    if name not in ARCHITECTURES:
        raise UsageError(unknown("There is no architecture", name, ARCHITECTURES))
    return Architecture(name, tuple(ARCHITECTURES[name]()))
