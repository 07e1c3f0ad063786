"""What Prometheus reads, parsed by its own parser: every figure of a snapshot, under its name."""

from __future__ import annotations

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from shoal.errors import ResourceError, UsageError
from shoal.watch.metrics import MetricsServer, serve_if_asked
from shoal.wire.stats import (
    LoopStats,
    OperationStats,
    PeerStats,
    Traffic,
    TransportStats,
)

if TYPE_CHECKING:
    from collections.abc import Callable

COUNTS = {
    "sent_packets": 900,
    "sent_bytes": 1_300_000,
    "sent_again_packets": 30,
    "parity_packets": 40,
    "refused_packets": 4,
    "important_sent_packets": 500,
    "received_packets": 700,
    "placed_bytes": 1_000_000,
    "rebuilt_packets": 5,
    "important_received_packets": 450,
    "unused_packets": 6,
    "rejected_packets": 7,
    "known_packets": 720,
    "missing_packets": 20,
    "probes": 8,
    "bitmaps": 9,
    "stops": 10,
    "avoided_paths": 2,
    "renewal_due_bytes": 1100,
    "renewal_missing_bytes": 110,
}


def traffic(factor: int) -> dict[str, Any]:
    classes = tuple(factor * k for k in range(8))
    return {
        **{name: factor * count for name, count in COUNTS.items()},
        "seconds": 2.0,
        "sent_packets_by_class": classes,
        "received_packets_by_class": classes,
        "sum_due_bytes": tuple(100 * k for k in classes),
        "sum_allowed_bytes": tuple(10 * k for k in classes),
        "sum_missing_bytes": classes,
        "wait_s": 0.25 * factor,
        "moving_s": 0.5 * factor,
    }


def snapshot() -> TransportStats:
    return TransportStats(
        rank=1,
        total=Traffic(**traffic(5)),
        peers={
            peer: PeerStats(**traffic(factor), round_trip_s=0.001 * factor, credit_packets=factor)
            for peer, factor in ((0, 2), (3, 3))
        },
        operations={
            "all-reduce": OperationStats(
                ended=12, failed=1, wait_s=3.5, last=12, peaks=((2, 0.9), (12, 0.1))
            )
        },
        busy_s=1.5,
        loop=LoopStats(send_calls=40, receive_calls=50, sleeps=60),
        budget_packets=512.0,
        deadline_s=60.0,
        under_way=2,
        oldest_s=0.5,
    )


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation.endswith(".")
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample
            assert sample.labels["rank"] == "1"
            rest = [f"{k}={v}" for k, v in sorted(sample.labels.items()) if k != "rank"]
            key = (sample.name, *rest)
            assert key not in found
            found[key] = sample.value
    return found


def test_a_scrape_says_what_the_snapshot_says() -> None:
    server = MetricsServer(snapshot, 0, by_peer=True)
    try:
        found = scrape(server.port)
    finally:
        server.close()
    for peer, factor in (("0", 2), ("3", 3)):
        of_peer = f"peer={peer}"
        for name, count in COUNTS.items():
            if name.startswith("important_"):
                way = name.split("_")[1]
                important = (f"shoal_{way}_packets_total", "importance=important", of_peer)
                ordinary = (f"shoal_{way}_packets_total", "importance=ordinary", of_peer)
                assert found[important] == factor * count
                assert found[ordinary] == factor * (COUNTS[f"{way}_packets"] - count)
            elif name not in ("sent_packets", "received_packets"):
                suffix = "" if name == "missing_packets" else "_total"
                assert found[f"shoal_{name}{suffix}", of_peer] == factor * count
        for k in range(8):
            of_class = (f"layer_class={k}", of_peer)
            assert found["shoal_sum_due_bytes_total", *of_class] == 100 * factor * k
            assert found["shoal_sum_allowed_bytes_total", *of_class] == 10 * factor * k
            assert found["shoal_sum_missing_bytes_total", *of_class] == factor * k
            assert found["shoal_sent_class_packets_total", *of_class] == factor * k
            assert found["shoal_received_class_packets_total", *of_class] == factor * k
        assert found["shoal_peer_wait_seconds_total", of_peer] == 0.25 * factor
        assert found["shoal_peer_moving_seconds_total", of_peer] == 0.5 * factor
        assert found["shoal_round_trip_seconds", of_peer] == 0.001 * factor
        assert found["shoal_credit_packets", of_peer] == factor
    assert found["shoal_operations_total", "operation=all-reduce"] == 12
    assert found["shoal_failed_operations_total", "operation=all-reduce"] == 1
    assert found["shoal_operation_wait_seconds_total", "operation=all-reduce"] == 3.5
    assert found["shoal_operation_longest_wait_seconds", "operation=all-reduce"] == 0.9
    assert found["shoal_deadline_seconds",] == 60
    assert found["shoal_operations_under_way",] == 2
    assert found["shoal_rejected_datagrams_total",] == 35
    assert found["shoal_receive_calls_total",] == 50


def test_unless_asked_for_peers_there_are_few_series_whatever_the_job() -> None:
    many = replace(snapshot(), peers=dict.fromkeys(range(2, 300), snapshot().peers[0]))
    server = MetricsServer(lambda: many, 0)
    try:
        found = scrape(server.port)
    finally:
        server.close()
    assert len(found) <= 100
    labels = {label.partition("=")[0] for _, *rest in found for label in rest}
    assert labels == {"importance", "operation"}
    assert found["shoal_sent_bytes_total",] == 5 * COUNTS["sent_bytes"]
    assert found["shoal_received_packets_total", "importance=important"] == 5 * 450
    assert found["shoal_sum_missing_bytes_total",] == 5 * sum(range(8))
    assert found["shoal_peer_wait_seconds_total",] == 0.25 * 5


def test_peers_are_asked_for_by_the_environment() -> None:
    closers: list[Callable[[], None]] = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {"SHOAL_METRICS_PORT": str(port - 1), "SHOAL_METRICS_DETAIL": "peers"}
    serve_if_asked(engine(closers), environment)
    assert scrape(port)["shoal_round_trip_seconds", "peer=3"] == 0.003
    closers.pop()()
    with pytest.raises(UsageError, match="SHOAL_METRICS_DETAIL is 'peers' or nothing, not 'all'"):
        serve_if_asked(engine(closers), {**environment, "SHOAL_METRICS_DETAIL": "all"})


def test_every_scrape_is_a_snapshot_of_its_own() -> None:
    deadlines = iter([60.0, 5.0])
    server = MetricsServer(lambda: replace(snapshot(), deadline_s=next(deadlines)), 0)
    try:
        found = [scrape(server.port)["shoal_deadline_seconds",] for _ in range(2)]
    finally:
        server.close()
    assert found == [60.0, 5.0]


def engine(closers: list[Callable[[], None]], rank: int = 1) -> Any:
    return SimpleNamespace(
        stats=snapshot, at_close=closers.append, endpoint=SimpleNamespace(rank=rank)
    )


def test_the_environment_asks_for_it_by_the_rank_on_the_host() -> None:
    closers: list[Callable[[], None]] = []
    serve_if_asked(engine(closers), {})
    assert not closers
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for rank, local in ((1, None), (7, "1")):
        environment = {"SHOAL_METRICS_PORT": str(port - 1)}
        if local is not None:
            environment["LOCAL_RANK"] = local
        serve_if_asked(engine(closers, rank), environment)
        assert scrape(port)["shoal_deadline_seconds",] == 60
        with pytest.raises(ResourceError, match=f"127.0.0.1:{port}: Address already in use"):
            MetricsServer(snapshot, port)
        closers.pop()()
    with pytest.raises(OSError, match="refused"):
        scrape(port)


@pytest.mark.parametrize("text", ["0", "-1", "many", "65535"])
def test_a_port_that_is_none_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"SHOAL_METRICS_PORT must be a port .*\.$"):
        serve_if_asked(engine([]), {"SHOAL_METRICS_PORT": text, "LOCAL_RANK": "1"})


def test_each_help_text_can_be_read_alone() -> None:
    """Prometheus and Grafana show a metric without the one above it."""
    from shoal.watch import metrics

    texts = [each.text for each in metrics._OF_PEERS]
    texts += [text for _, text, *_ in (*metrics._OF_OPERATIONS, *metrics._OF_RANK)]
    assert len(set(texts)) == len(texts)
    for text in texts:
        assert " them" not in text
        assert text.endswith(".")
        assert text[0].isupper()
