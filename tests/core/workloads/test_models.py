"""Models: published sizes, equal weights from equal seeds, learning, and who reads what."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import islice

import pytest
import torch
from data_samples import field_dataset, image_dataset, text_dataset

from shoal.errors import UsageError
from shoal.workloads.dataset import DATASETS, Dataset, InputKind, Task
from shoal.workloads.metrics import better, evaluate, loss_of
from shoal.workloads.models import MODELS, make_model, model_elements
from shoal.workloads.nets.deepfm import DeepFM
from shoal.workloads.recipes import (
    Recipe,
    default_model,
    default_recipe,
    make_optimizer,
)
from shoal.workloads.sample_shard import batches

FASHION = (1, 28, 28)
CIFAR = (3, 32, 32)


def parameter_count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "count"),
    [
        ("mlp", FASHION, 101_770),
        ("mlp:32", FASHION, 25_450),
        ("mlp:32x1", FASHION, 25_450),
        ("mlp:32x3", FASHION, 27_562),
        ("lenet", FASHION, 105_866),
        ("lenet:2", CIFAR, 545_098),
        ("lenet-small", FASHION, 11_178),
        ("resnet8", FASHION, 77_754),
        ("resnet8", CIFAR, 78_042),
        ("resnet8:0.5", FASHION, 19_810),
        ("vgg11:0.125", FASHION, 145_410),
        ("vgg11", CIFAR, 9_228_362),
        ("vgg16", CIFAR, 14_724_042),
        ("vgg16:0.25", FASHION, 922_842),
        ("wrn:10-1", FASHION, 77_562),
        ("wrn:16-4", CIFAR, 2_748_890),
    ],
)
def test_picture_models_have_their_published_size(name: str, shape, count: int):
    assert parameter_count(make_model(name, image_dataset(shape, 10), 0)) == count


@pytest.mark.parametrize("name", ["mlp:32x3", "lenet", "resnet8", "vgg11:0.125", "wrn:10-1"])
def test_elements_are_counted_without_making_a_model(name: str):
    data = image_dataset(CIFAR, 10)
    model = make_model(name, data, 0)
    statistics = sum(each.numel() for each in model.buffers() if each.is_floating_point())
    assert model_elements(name, data) == parameter_count(model) + statistics
    assert model_elements("mlp:900000000", data) > 2_700_000_000_000  # more than any memory holds


def test_other_models_have_their_published_size():
    assert parameter_count(make_model("char-gpt", text_dataset(82), 0)) == 109_522
    assert parameter_count(make_model("char-gpt", text_dataset(96), 0)) == 110_432
    assert parameter_count(make_model("char-gpt:2x64", text_dataset(), 0)) == 120_832
    twelve_fields = (800,) * 11 + (700,)
    assert parameter_count(DeepFM(twelve_fields, width=8)) == 95_934


def every_pair() -> list[tuple[str, Dataset]]:
    pairs = [
        (name, image_dataset(shape))
        for name, family in MODELS.items()
        if family.reads is InputKind.IMAGE
        for shape in ((1, 8, 8), (3, 12, 10), FASHION)
    ]
    return [
        (f"{name}:0.125" if name.startswith("vgg") else name, dataset) for name, dataset in pairs
    ] + [
        ("char-gpt", text_dataset(40, 16)),
        ("deepfm", field_dataset()),
    ]


PAIRS = every_pair()
PAIR_NAMES = [f"{name}-{tuple(dataset.train_inputs.shape[1:])}" for name, dataset in PAIRS]


@pytest.mark.parametrize(("name", "dataset"), PAIRS, ids=PAIR_NAMES)
def test_outputs_fit_the_task(name: str, dataset: Dataset):
    outputs = make_model(name, dataset, 0)(dataset.train_inputs[:6])
    shapes = {
        Task.CLASSIFICATION: (6, dataset.num_classes),
        Task.BINARY: (6,),
        Task.LANGUAGE: (6, dataset.train_inputs.shape[1], dataset.num_classes),
    }
    assert outputs.shape == shapes[dataset.task]


@pytest.mark.parametrize(("name", "dataset"), PAIRS, ids=PAIR_NAMES)
def test_equal_seeds_give_equal_weights(name: str, dataset: Dataset):
    torch.manual_seed(123)
    before = torch.get_rng_state()
    one, same, other = (make_model(name, dataset, seed).state_dict() for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


# vgg16 differs from vgg11 in its list of channels alone
LEARNERS = [
    (name, dataset)
    for name, dataset in PAIRS
    if dataset.input_kind is not InputKind.IMAGE or dataset.train_inputs.shape[1:] == (1, 8, 8)
    if not name.startswith("vgg16")
]


@pytest.mark.parametrize(
    ("name", "dataset"),
    LEARNERS,
    ids=[f"{n}-{tuple(d.train_inputs.shape[1:])}" for n, d in LEARNERS],
)
def test_forty_steps_of_the_recipe_lower_the_loss(name: str, dataset: Dataset):
    model = make_model(name, dataset, 0)
    optimizer = make_optimizer(model, default_recipe(dataset.name, name))
    inputs, targets = dataset.train_inputs, dataset.train_targets
    before = loss_of(model, inputs, targets, dataset.task).item()
    for part, wanted in islice(batches(dataset, 0, 1, 20, 0), 40):
        optimizer.zero_grad()
        loss_of(model, part, wanted, dataset.task).backward()
        optimizer.step()
    assert loss_of(model, inputs, targets, dataset.task).item() < before - 0.05


def test_deepfm_learns_a_rule_of_one_field():
    dataset = field_dataset()
    model = make_model("deepfm", dataset, 0)
    optimizer = make_optimizer(model, Recipe(50, 0.02, 0.0, 0.0, "adam"))
    for inputs, targets in islice(batches(dataset, 0, 1, 50, 0), 100):
        optimizer.zero_grad()
        loss_of(model, inputs, targets, dataset.task).backward()
        optimizer.step()
    assert evaluate(model, dataset) == 1.0


def test_no_byte_sees_a_later_one():
    dataset = text_dataset(40, 16)
    model = make_model("char-gpt", dataset, 0)
    inputs = dataset.train_inputs[:2].clone()
    before = model(inputs)
    inputs[:, 10] = (inputs[:, 10] + 1) % 40
    after = model(inputs)
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10:], after[:, 10:])


def test_untrained_language_model_knows_nothing():
    dataset = text_dataset(40, 16)
    assert evaluate(make_model("char-gpt", dataset, 0), dataset) == pytest.approx(
        math.log(40), rel=0.05
    )


def test_factorization_machine_sums_the_products_of_all_pairs():
    model = DeepFM((3, 4, 5), width=6)
    for parameter in model.mlp.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.normal_(model.first_order.weight)
    torch.nn.init.constant_(model.bias, 0.25)
    fields = torch.tensor([[2, 0, 4]])
    rows = [2, 3 + 0, 7 + 4]
    vectors = [model.embedding.weight[row].detach() for row in rows]
    expected = 0.25 + sum(model.first_order.weight[row].item() for row in rows)
    expected += sum(float(vectors[i] @ vectors[j]) for i in range(3) for j in range(i + 1, 3))
    assert model(fields).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "dataset", "reason"),
    [
        ("alexnet", image_dataset(), r"no model 'alexnet'; choose one of mlp, lenet,"),
        ("lenet-small:2", image_dataset(), "lenet-small has no variants"),
        ("vgg11:wide", image_dataset(), r"vgg11:wide is no model: .* vgg11:0\.125"),
        ("vgg11:-1", image_dataset(), "vgg11:-1 is no model"),
        ("vgg11:nan", image_dataset(), "vgg11:nan is no model"),
        ("mlp:1.5", image_dataset(), "mlp:1.5 is no model"),
        ("mlp:32x0", image_dataset(), "mlp:32x0 is no model"),
        ("wrn:11-1", image_dataset(), "wrn:11-1 is no model"),
        ("wrn:10", image_dataset(), "wrn:10 is no model"),
        ("char-gpt:2x40", text_dataset(), "multiple of 16, not 40"),
        ("lenet", image_dataset((1, 3, 3)), "4 x 4 pixels at least"),
        ("lenet", text_dataset(), "lenet reads images, but counting has symbols: choose char-gpt"),
        ("deepfm", image_dataset(), "deepfm reads categorical fields, but pictures has images"),
    ],
)
def test_impossible_models_are_refused(name: str, dataset: Dataset, reason: str):
    with pytest.raises(UsageError, match=reason):
        make_model(name, dataset, 0)


def token_dataset() -> Dataset:
    tokens = torch.tensor([[101, 7, 102, 0], [101, 8, 9, 102]])
    return Dataset(
        "few reviews",
        Task.BINARY,
        InputKind.TOKENS,
        tokens,
        torch.tensor([0, 1]),
        tokens,
        torch.tensor([0, 1]),
        2,
    )


def test_minilm_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"needs transformers: pip install .*\[text\]'"):
        make_model("minilm", token_dataset(), 0)


def test_minilm_maps_tokens_to_one_logit_and_ignores_padding():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from shoal.workloads.nets.minilm import MiniLM

    config = transformers.BertConfig(
        vocab_size=120,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=1,
    )
    model = MiniLM(transformers.BertForSequenceClassification(config)).eval()
    tokens = token_dataset().train_inputs
    logits = model(tokens)
    assert logits.shape == (2,)
    torch.testing.assert_close(model(tokens[:1, :3]), logits[:1])


@pytest.mark.parametrize("dataset", list(DATASETS))
def test_every_data_set_has_a_model_that_reads_it(dataset: str):
    family = default_model(dataset).partition(":")[0]
    assert MODELS[family].reads is DATASETS[dataset].input_kind


def test_targets_are_better_than_guessing():
    guessing = {Task.CLASSIFICATION: 0.1, Task.BINARY: 0.5, Task.LANGUAGE: math.log(256)}
    for dataset, loader in DATASETS.items():
        target = default_recipe(dataset, default_model(dataset)).target
        assert target is None or better(loader.task, target, guessing[loader.task])
    assert default_recipe("fashion-mnist", "lenet").target == 0.89
    assert default_recipe("fashion-mnist", "lenet:3").target is None


def test_variant_with_settings_of_its_own_has_them():
    assert default_recipe("reviews", "minilm:2").learning_rate == 1e-4
    assert default_recipe("reviews", "minilm:3") == default_recipe("reviews", "minilm")


def test_recipes_for_unknown_names_are_refused():
    with pytest.raises(UsageError, match="no model 'alexnet'"):
        default_recipe("digits", "alexnet")
    with pytest.raises(UsageError, match="no data set 'mnist'"):
        default_model("mnist")
    with pytest.raises(UsageError, match="no optimizer 'lion'"):
        make_optimizer(make_model("mlp", image_dataset(), 0), Recipe(1, 0.1, 0.0, 0.0, "lion"))


def test_optimizer_leaves_frozen_parameters_out():
    model = make_model("mlp", image_dataset(), 0)
    next(model.parameters()).requires_grad_(requires_grad=False)
    optimizer = make_optimizer(model, default_recipe("digits", "mlp"))
    assert len(optimizer.param_groups[0]["params"]) == 3
    assert optimizer.param_groups[0]["nesterov"]


def test_importing_the_room_loads_no_torch():
    program = (
        "import sys, shoal.workloads as room; "
        "names = [*room.DATASETS, *room.MODELS]; "
        "room.default_recipe('digits', 'mlp'); "
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules or not names)"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=50, check=False)
    assert done.returncode == 0


def test_everything_the_room_promises_is_there():
    import shoal.workloads as room

    assert all(getattr(room, name) is not None for name in dir(room))
    assert {"DATASETS", "MODELS", "load_dataset", "make_model"} <= set(dir(room))
    with pytest.raises(AttributeError):
        room.nothing  # noqa: B018 - the access is the test
