"""The architectures have as many parameters as has been published of them."""

from __future__ import annotations

from math import prod

import pytest

from shoal.collectives import WHOLE_SUMS
from shoal.errors import UsageError
from shoal.sim.training.architectures import ARCHITECTURES, architecture


@pytest.mark.parametrize(
    ("name", "parameters", "billion_products"),
    [
        ("vgg16", 138_357_544, 15.47),
        ("vgg16-cifar", 14_719_818, 0.3132),
        ("resnet50", 25_557_032, 4.089),
        ("inception-v3", 27_161_264, 5.719),
        ("bert-large", 335_141_888, None),
    ],
)
def test_totals_are_the_published_ones(
    name: str, parameters: int, billion_products: float | None
) -> None:
    found = architecture(name)
    assert found.parameters == parameters
    if billion_products is not None:
        assert found.products / 1e9 == pytest.approx(billion_products, rel=1e-3)


def test_inception_has_its_auxiliary_classifier_in_the_middle() -> None:
    layers = architecture("inception-v3").layers
    auxiliary = [place for place, each in enumerate(layers) if each.name.startswith("auxiliary")]
    without = [each for place, each in enumerate(layers) if place not in auxiliary]
    assert sum(each.parameters for each in without) == 23_834_568
    assert sum(each.products for each in without) / 1e9 == pytest.approx(5.713, rel=1e-3)
    assert layers[auxiliary[0] - 1].name.startswith("mixed6e")
    assert layers[auxiliary[-1] + 1].name.startswith("mixed7a")
    assert len({each.name for each in layers}) == len(layers)


@pytest.mark.parametrize(("name", "millions"), [("wrn-26-10", 36.5), ("transformer", 65)])
def test_totals_are_near_the_rounded_ones(name: str, millions: float) -> None:
    assert architecture(name).parameters / 1e6 == pytest.approx(millions, rel=0.05)


def test_shares_add_up_and_buckets_hold_all() -> None:
    size = architecture("vgg16").size()
    assert sum(layer.share for layer in size.layers) == pytest.approx(1)
    buckets = size.buckets(None, num_hosts=8)
    assert sum(bucket.bytes for bucket in buckets) == size.bytes
    assert sum(bucket.share for bucket in buckets) == pytest.approx(2 / 3)
    # the classifier's gradients, most of the model, are there first
    assert buckets[0].share < 0.01


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_no_matrix_is_little(name: str) -> None:
    found = architecture(name)
    in_matrices = [sum(map(prod, layer.shapes)) for layer in found.layers]
    for layer, elements in zip(found.layers, in_matrices, strict=True):
        assert elements <= layer.parameters, layer.name
    assert sum(in_matrices) > 0.99 * found.parameters


def test_factors_take_the_place_of_matrices_that_are_much_larger() -> None:
    layers = {layer.name: layer for layer in architecture("vgg16").size().layers}
    assert layers["fc6"].elements_sent(4) == 4 * (4_096 + 25_088) + 4_096
    first = layers["conv1.1"]
    assert first.elements_sent(16) == first.parameters == first.elements_sent(0)
    whole, factors = (
        sum(bucket.sent(number) for bucket in architecture("vgg16").size().buckets(None, 8, 4))
        for number in (WHOLE_SUMS - 1, WHOLE_SUMS)
    )
    assert whole == 4 * 138_357_544
    assert factors == pytest.approx(4 * 335_000, rel=0.01), "added up by hand"


def test_a_bucket_is_as_urgent_as_its_front_most_layer() -> None:
    """VGG-16: layers 15, 14 and 13 have a bucket each; the others begin at 10, 5 and 0, of 16."""
    buckets = architecture("vgg16").size().buckets(None, num_hosts=8)
    assert [bucket.layer_class for bucket in buckets] == [7, 7, 6, 5, 2, 0]


def test_an_unknown_architecture_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="choose one of vgg16"):
        architecture("alexnet")
