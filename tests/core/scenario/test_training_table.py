"""The [training] table of a scenario: what it says, and what is wrong with it, with its line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenario_texts import SMALL

from shoal.errors import UsageError
from shoal.scenario.spec_file import parse_scenario, parse_spec
from shoal.scenario.training_spec import StrategySpec, TrainingSpec


def test_a_job_is_what_it_says() -> None:
    read = parse_scenario(SMALL)
    assert read.training == TrainingSpec(
        parameters=100_000,
        compute_s=0.02,
        steps=12,
        strategies=(
            StrategySpec("all-reduce"),
            StrategySpec("ripples", {"group_size": 2}, "pairs"),
        ),
        spread=0.1,
        slow={1: 3.0},
    )
    assert [each.name for each in read.training.strategies] == ["all-reduce", "pairs"]
    at_random = parse_scenario(SMALL.replace("factor = 3", "factor = 3\nprobability = 0.25"))
    assert at_random.training == replace(read.training, slow_probability={1: 0.25})
    assert read.cluster == parse_spec(SMALL)


def test_sizes_and_models_may_be_named() -> None:
    sized = parse_scenario(SMALL.replace("parameters = 100_000", 'size = "25 MB"')).training
    assert sized is not None
    assert sized.parameters == 6_250_000
    named = parse_scenario(SMALL.replace("parameters = 100_000", 'model = "vgg16"')).training
    assert named is not None
    assert named.model == "vgg16"


def test_a_cluster_alone_is_a_scenario() -> None:
    text = SMALL[: SMALL.index("[training]")]
    assert parse_scenario(text).training is None


def test_what_only_shoals_transport_knows_may_be_said_where_it_carries() -> None:
    """Named by the strategy, or by the job."""
    keys = 'loss_bound = 0.1\ntags = false\nwire = "bfloat16"'
    for old, new in (
        ("group_size = 2", f'transport = "shoal"\n{keys}'),
        ("steps = 12", 'steps = 12\ntransport = "shoal"'),
    ):
        text = SMALL.replace(old, new).replace("group_size = 2", keys)
        read = parse_scenario(text).training
        assert read is not None
        assert read.strategies[1].loss_bound == 0.1
        assert not read.strategies[1].tags
        assert read.strategies[1].wire == "bfloat16"


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("parameters = 100_000\n", "", "line 11: It takes a model, a number of parameters or"),
        ("steps = 12", "step = 12", "line 15: step: 'step' is not known here; known: compute"),
        ('"20 ms"', "20", "line 13: compute: It takes a time such as"),
        ('"20 ms"', '"0 s"', "line 13: compute: A step computes for more than nothing"),
        ("spread = 0.1", "spread = 9", "line 14: spread: A spread is 0 to 3"),
        ("rank = 1", "rank = 4", "line 18: rank: It takes a whole number of 0 to 3, not 4"),
        ("factor = 3", "factor = 3\nprobability = 0", "line 20: probability: A slow worker's prob"),
        ("factor = 3", "factor = 0", "line 19: factor: A worker computes 0 to 1000 times"),
        ('sync = "all-reduce"', "sync = 1", "line 22: sync: It takes a word in quotes"),
        ("group_size = 2", "group_size = [2]", "line 26: group_size: An option is a number"),
        (
            "factor = 3",
            "factor = 3\n[[training.slow]]\nrank = 1",
            "line 21: rank: Worker 1 is desc",
        ),
        (
            "group_size = 2",
            "loss_bound = 0.1",
            "line 26: loss_bound: Only the transport 'shoal' kn",
        ),
        (
            "group_size = 2",
            'holes = "zero"',
            "line 26: holes: Only the transport 'shoal' knows it",
        ),
        (
            "group_size = 2",
            'transport = "shoal"\nholes = "black"',
            "line 27: holes: It takes one of zero, divide-by-count, error-feedback",
        ),
        ("group_size = 2", "tags = true", "line 26: tags: Only the transport 'shoal' knows it"),
        (
            "group_size = 2",
            'transport = "cubic"\nloss_bound = 0',
            "line 27: loss_bound: Only the transport 'shoal' knows it: name that one, or leave it",
        ),
        ('label = "pairs"', 'label = "all-reduce"', "Two strategies are called 'all-reduce'"),
        ("steps = 12", "steps = 12\nlooks = 5", "line 16: looks: Looks are at what is learnt"),
        (
            "parameters = 100_000",
            'model = "vgg16"\nlayers = 4',
            "line 13: layers: A model has its own layers",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(old: str, new: str, wanted: str) -> None:
    assert old in SMALL
    with pytest.raises(UsageError, match=wanted):
        parse_scenario(SMALL.replace(old, new, 1), "job.toml")
