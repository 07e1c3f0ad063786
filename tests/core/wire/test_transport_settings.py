"""What the environment says about the transport, and what it cannot say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.errors import UsageError
from shoal.transport.endpoint import TransportConfig
from shoal.transport.holes import ERROR_FEEDBACK, ZERO
from shoal.wire.settings import USUAL_PATHS, from_environment


def test_nothing_said_is_the_plain_transport() -> None:
    sums = from_environment({}).sums
    assert (sums.loss_bound, sums.policy, sums.algorithm, sums.per_host) == (0, ZERO, "auto", 0)
    assert sums.wire is None


def test_sums_are_made_as_the_environment_says() -> None:
    sums = from_environment(
        {
            "SHOAL_LOSS_BOUND": "0.05",
            "SHOAL_HOLES": "error-feedback",
            "SHOAL_ALL_REDUCE": "hierarchical",
            "LOCAL_WORLD_SIZE": "4",
            "SHOAL_WIRE": "bfloat16",
        }
    ).sums
    assert (sums.loss_bound, sums.policy) == (0.05, ERROR_FEEDBACK)
    assert (sums.algorithm, sums.per_host) == ("hierarchical", 4)
    assert sums.wire == "bfloat16"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHOAL_LOSS_BOUND", "1"),
        ("SHOAL_LOSS_BOUND", "-0.1"),
        ("SHOAL_LOSS_BOUND", "nan"),
        ("SHOAL_LOSS_BOUND", "a little"),
        ("SHOAL_HOLES", "black"),
        ("SHOAL_ALL_REDUCE", "tree"),
        ("SHOAL_WIRE", "float64"),
        ("LOCAL_WORLD_SIZE", "0"),
        ("SHOAL_LANES", "0"),
        ("SHOAL_LANES", "two"),
        ("SHOAL_PATHS", "1000000"),
        ("SHOAL_SPRAY", "0"),
        ("SHOAL_TAGS", "some"),
        ("SHOAL_SHARED_MEMORY", "yes"),
        ("SHOAL_RATE", "1 Gbit/s"),  # and receivers grant credit
        ("SHOAL_ADVERTISE", "x"),
        ("SHOAL_PORTS", "70000-70001"),
        ("SHOAL_PORTS", "1-99999"),
        ("SHOAL_PORTS", "0-10"),
        ("SHOAL_PORTS", "4100-4000"),
        ("SHOAL_PORTS", "4000-x"),
    ],
)
def test_what_means_nothing_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name):
        from_environment({name: value})


def test_packets_are_paced_tagged_and_sprayed_as_the_environment_says() -> None:
    usual = TransportConfig()
    assert from_environment({}).transport == replace(usual, paths=USUAL_PATHS)
    assert from_environment({"SHOAL_PATHS": "1"}).transport == usual
    paced = {"SHOAL_RATE_CONTROL": "fixed", "SHOAL_RATE": "200 Mbit/s"}
    assert from_environment(paced).transport.rate_bytes_per_us == 25.0
    without = {"SHOAL_RATE_CONTROL": "timely"}
    assert from_environment(without).transport.rate_bytes_per_us == usual.rate_bytes_per_us
    assert from_environment({"SHOAL_SPRAY": "1"}).transport.spray_unit == 1
    tags = {
        word: from_environment({"SHOAL_TAGS": word}).transport
        for word in ("both", "layers", "importance", "none")
    }
    assert [each.layer_tags for each in tags.values()] == [True, True, False, False]
    assert [each.importance_tags for each in tags.values()] == [True, False, True, False]


@pytest.mark.parametrize(
    ("environment", "shares"),
    [
        ({}, True),
        ({"SHOAL_SHARED_MEMORY": "0"}, False),
        ({"SHOAL_RATE_CONTROL": "credit"}, True),
        ({"SHOAL_RATE_CONTROL": "fixed"}, False),
        ({"SHOAL_STOP_EARLY": "1"}, False),
        ({"SHOAL_STOP_EARLY": "1", "SHOAL_SHARED_MEMORY": "1"}, True),
    ],
)
def test_ranks_of_a_host_share_memory_unless_it_is_about_datagrams(
    environment: dict[str, str], shares: bool
) -> None:
    assert from_environment(environment).shares_memory is shares


@pytest.mark.parametrize("rate", ["200", "fast", "0 bit/s", "1 bit/s", "-1 Mbit/s"])
def test_a_rate_that_cannot_be_is_refused_by_name(rate: str) -> None:
    with pytest.raises(UsageError, match=r"SHOAL_RATE\b"):
        from_environment({"SHOAL_RATE_CONTROL": "fixed", "SHOAL_RATE": rate})


def test_several_addresses_are_several_interfaces() -> None:
    settings = from_environment({"SHOAL_BIND": "10.0.0.1,10.1.0.1", "SHOAL_PATHS": "2"})
    assert [each.bind for each in settings.interfaces] == ["10.0.0.1", "10.1.0.1"]
    assert settings.transport.paths == 2
    with pytest.raises(UsageError, match="SHOAL_ADVERTISE 1"):
        from_environment({"SHOAL_BIND": "10.0.0.1,10.1.0.1", "SHOAL_ADVERTISE": "192.0.2.1"})


def test_of_all_addresses_the_one_towards_the_meeting_place_is_told() -> None:
    given = {"SHOAL_BIND": "0.0.0.0", "MASTER_ADDR": "127.0.0.1"}
    assert from_environment(given).advertise == "127.0.0.1"
    assert from_environment({**given, "SHOAL_ADVERTISE": "192.0.2.1"}).advertise == "192.0.2.1"
    assert from_environment({"SHOAL_BIND": "127.0.0.1", "MASTER_ADDR": "::1"}).advertise is None


@pytest.mark.parametrize(("bind", "master"), [("::", "127.0.0.1"), ("0.0.0.0", "::1")])
def test_a_meeting_place_of_the_other_version_of_ip_tells_no_address(
    bind: str, master: str
) -> None:
    with pytest.raises(UsageError, match="Set SHOAL_ADVERTISE"):
        from_environment({"SHOAL_BIND": bind, "MASTER_ADDR": master})
