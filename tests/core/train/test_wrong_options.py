"""Values of the wrong kind are refused in a sentence when they are given, not later in another."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import shoal
from shoal.carriers.transports import check_transport
from shoal.collectives.buckets import layout_buckets
from shoal.control.key import JobKey
from shoal.errors import UsageError
from shoal.groups import GeneratorConfig
from shoal.strategies import check_strategy, make_strategy
from shoal.trace import ListSink
from shoal.train.replica import Replica, Stopwatch

WHOLE_NUMBERS: dict[str, Callable[[Any], object]] = {
    "interval of local SGD": lambda value: shoal.LocalSGD(interval=value),
    "interval of DS-Sync": lambda value: shoal.DSSync(interval=value),
    "interval of Ripples": lambda value: shoal.Ripples(interval=value),
    "interval of static Ripples": lambda value: shoal.RipplesStatic(interval=value),
    "interval of random Ripples": lambda value: shoal.RipplesRandom(interval=value),
    "group size of DS-Sync": lambda value: shoal.DSSync(group_size=value),
    "group size of Ripples": lambda value: shoal.Ripples(group_size=value),
    "workers per host": lambda value: shoal.RipplesStatic(workers_per_host=value),
    "threshold": lambda value: shoal.Ripples(slowdown_threshold=value),
    "staleness": shoal.ParameterServer,
    "staleness of SSP": lambda value: shoal.ParameterServer.ssp(staleness=value),
    "bucket": lambda value: layout_buckets([1], 4, bucket_bytes=value),
    "control port": lambda value: shoal.init(control_port=value),
}


@pytest.mark.parametrize("value", [1.5, "4", -1, True])
@pytest.mark.parametrize("what", WHOLE_NUMBERS)
def test_whole_numbers_are_asked_for(what: str, value: Any) -> None:
    with pytest.raises(UsageError, match=r"must be a whole number .*, not .*\.$"):
        WHOLE_NUMBERS[what](value)


FLAGS: dict[str, Callable[[Any], object]] = {
    "group_buffer": lambda value: shoal.Ripples(group_buffer=value),
    "global_division": lambda value: shoal.Ripples(global_division=value),
    "inter_intra": lambda value: shoal.Ripples(inter_intra=value),
    "refined_filter": lambda value: shoal.Ripples(refined_filter=value),
    "scale_updates": lambda value: shoal.ParameterServer(1, scale_updates=value),
    "scale_updates of ASP": lambda value: shoal.ParameterServer.asp(scale_updates=value),
}


@pytest.mark.parametrize("value", ["False", 0, None])
@pytest.mark.parametrize("what", FLAGS)
def test_flags_are_asked_for(what: str, value: Any) -> None:
    name = what.partition(" ")[0]
    with pytest.raises(UsageError, match=rf"^{name} must be True or False, not "):
        FLAGS[what](value)


def test_a_control_port_is_one_that_exists() -> None:
    with pytest.raises(UsageError, match="from 0 to 65535, not 70000"):
        shoal.init(control_port=70_000)


def test_numbers_of_a_generator_are_plain_enough_to_be_sent() -> None:
    numpy = pytest.importorskip("numpy")
    config = GeneratorConfig(group_size=numpy.int64(4), slowdown_threshold=numpy.int64(2))
    assert type(config.group_size) is type(config.slowdown_threshold) is int


def test_a_loss_bound_is_refused_as_such() -> None:
    for value in (-0.1, "0.1", None):
        with pytest.raises(UsageError, match="A loss bound is a share"):
            check_strategy(make_strategy("all-reduce"), 2, value, None)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="A loss bound is a share"):
            check_transport("shoal", value, "zero")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="A pull's bound is a share"):
        shoal.ParameterServer(pull_bound="0.1")  # type: ignore[arg-type]


def test_words_are_words() -> None:
    with pytest.raises(UsageError, match=r"Peers are chosen by .*, not \[1\]\."):
        shoal.ADPSGD(peers=[1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"DS-Sync shuffles by .*, not \[1\]\."):
        shoal.DSSync(shuffle=[1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"There is no strategy \['ripples'\]"):
        make_strategy(["ripples"])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Unknown policy for holes \['zero'\]"):
        check_transport("shoal", 0.0, ["zero"])  # type: ignore[arg-type]


def test_what_a_job_is_told_at_its_start() -> None:
    for value in ("60", None, float("nan"), 3e6):
        with pytest.raises(UsageError, match="The deadline must be a positive number of seconds"):
            shoal.init(deadline_s=value)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="The deadline must be a positive number of seconds"):
            shoal.connect(deadline_s=value)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="A job key must be a text") as caught:
        JobKey(b"a secret of sufficient length")  # type: ignore[arg-type]
    assert "secret" not in str(caught.value)


def test_a_trace_takes_spans_and_samples() -> None:
    sink = ListSink()
    assert Stopwatch(0, sink).sink is sink
    for value in (3, 0, "trace.json"):
        with pytest.raises(UsageError, match=r"A trace needs record\(\)"):
            Stopwatch(0, value)  # type: ignore[arg-type]


def test_a_seed_can_be_sent() -> None:
    none: Any = SimpleNamespace()

    def replica(seed: Any) -> Replica:
        return Replica(none, none, none, none, none, none, "test", 0, 1, seed, 1.0, none)

    assert replica(-1).seed == -1
    for value in (None, "a", 1.5, 1 << 70):
        with pytest.raises(UsageError, match="The seed must be a whole number"):
            replica(value)


@pytest.mark.parametrize(
    ("sync", "option", "wanted"),
    [
        ("ripples", {"group_size": 3}, "go into it: sync=shoal.Ripples(group_size=3)."),
        (shoal.DSSync(), {"interval": 2}, "go into it: sync=shoal.DSSync(interval=2)."),
        ("ps-ssp", {"staleness": 1}, "go into it: sync=shoal.ParameterServer.ssp(staleness=1)."),
        ("all-reduce", {"group_size": 3}, "; others have it: sync=shoal.DSSync(group_size=3)."),
        ("ripples", {"bucket": 1}, "has no option 'bucket', and nor has strategy 'ripples'."),
    ],
)
def test_an_option_of_a_strategy_is_told_where_it_belongs(
    sync: Any, option: dict[str, Any], wanted: str
) -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError) as refused:
        shoal.DistributedOptimizer(optimizer, model, sync, **option)
    assert str(refused.value).startswith("DistributedOptimizer has no option")
    assert str(refused.value).endswith(wanted)
