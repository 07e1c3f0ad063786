"""The transport's metrics, served to Prometheus over HTTP.

Owns the names of the metrics and when they are served; `prometheus_client` (an extra) owns the
format and the server. Every scrape takes a snapshot of its own, so no figures are kept up to date
without a reader. Names and units follow Prometheus' conventions; every sample bears the rank.

| variable | meaning | default |
| --- | --- | --- |
| SHOAL_METRICS_PORT | first port to serve on; add the rank on this host | none: not served |
| SHOAL_METRICS_BIND | address to serve on | 127.0.0.1 |
| SHOAL_METRICS_DETAIL | `peers`: by peer and layer class, many series | all peers together |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from shoal.errors import ResourceError, UsageError
from shoal.extras import install
from shoal.launch import rank_on_host

if TYPE_CHECKING:
    from shoal.wire import OperationStats, Traffic, TransportStats, UdpEngine

LOOPBACK: Final = "127.0.0.1"
LARGEST_PORT: Final = 65535
_PEERS: Final = "peers"

Labelled = Iterable[tuple[tuple[str, ...], float]]
"""Figures, each with its values of further labels."""


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric of each peer; `labels` are its labels beyond `rank` and `peer`."""

    name: str
    text: str
    values: Callable[[Traffic], Labelled]
    labels: tuple[str, ...] = ()
    counts: bool = True
    """Whether the metric only grows."""
    is_detail: bool = False
    """Whether the figure exists only by peer, or splits another metric by class."""


def _field(name: str) -> Callable[[Traffic], Labelled]:
    return lambda peer: [((), getattr(peer, name))]


def _classes(name: str) -> Callable[[Traffic], Labelled]:
    return lambda peer: [((str(k),), value) for k, value in enumerate(getattr(peer, name))]


def _importance(way: str) -> Callable[[Traffic], Labelled]:
    def values(peer: Traffic) -> Labelled:
        important = getattr(peer, f"important_{way}_packets")
        whole = getattr(peer, f"{way}_packets")
        return [(("important",), important), (("ordinary",), max(0, whole - important))]

    return values


_OF_PEERS: Final = (
    _Metric("sent_bytes", "Payload of data packets sent.", _field("sent_bytes")),
    _Metric("sent_packets", "Data packets sent.", _importance("sent"), ("importance",)),
    _Metric(
        "sent_class_packets",
        "Data packets sent, by the layer class in their tags.",
        _classes("sent_packets_by_class"),
        ("layer_class",),
        is_detail=True,
    ),
    _Metric(
        "sent_again_packets",
        "Data packets sent again because an earlier copy was not acknowledged.",
        _field("sent_again_packets"),
    ),
    _Metric(
        "parity_packets",
        "Packets sent that bear parity, from which receivers rebuild what got lost.",
        _field("parity_packets"),
    ),
    _Metric(
        "rebuilt_packets",
        "Data packets that got lost and were rebuilt from parity.",
        _field("rebuilt_packets"),
    ),
    _Metric(
        "avoided_paths",
        "Times that a source port was left alone because packets from it got lost.",
        _field("avoided_paths"),
    ),
    _Metric(
        "refused_packets",
        "Data packets that this machine's kernel did not take for sending.",
        _field("refused_packets"),
    ),
    _Metric(
        "placed_bytes",
        "Payload of data packets received and put in its place.",
        _field("placed_bytes"),
    ),
    _Metric("received_packets", "Data packets received.", _importance("received"), ("importance",)),
    _Metric(
        "received_class_packets",
        "Data packets received, by the layer class in their tags.",
        _classes("received_packets_by_class"),
        ("layer_class",),
        is_detail=True,
    ),
    _Metric(
        "unused_packets",
        "Data packets received that were repeated or came too late.",
        _field("unused_packets"),
    ),
    _Metric(
        "rejected_packets",
        "Datagrams of the peer that were replayed, cut off or out of place.",
        _field("rejected_packets"),
    ),
    _Metric(
        "known_packets", "Packets that the peer is known to have sent.", _field("known_packets")
    ),
    _Metric(
        "missing_packets",
        "Packets that the peer is known to have sent and that are not here, or not yet.",
        _field("missing_packets"),
        counts=False,
    ),
    _Metric(
        "probes", "Questions sent to the peer after it was silent for too long.", _field("probes")
    ),
    _Metric(
        "bitmaps",
        "Answers sent to the peer that said which packets were missing.",
        _field("bitmaps"),
    ),
    _Metric(
        "stops", "Messages whose sender was told that the rest is not needed.", _field("stops")
    ),
    _Metric(
        "sum_due_bytes",
        "Bytes that the peer was to contribute to sums with a loss bound.",
        _classes("sum_due_bytes"),
        ("layer_class",),
    ),
    _Metric(
        "sum_allowed_bytes",
        "Bytes that the bound would let go missing of the peer's contributions.",
        _classes("sum_allowed_bytes"),
        ("layer_class",),
    ),
    _Metric(
        "sum_missing_bytes",
        "Bytes of the peer's contributions that sums were made without.",
        _classes("sum_missing_bytes"),
        ("layer_class",),
    ),
    _Metric(
        "renewal_due_bytes",
        "Bytes of parameters pulled from the peer with a loss bound.",
        _field("renewal_due_bytes"),
    ),
    _Metric(
        "renewal_missing_bytes",
        "Bytes of pulled parameters that got lost and kept their older value.",
        _field("renewal_missing_bytes"),
    ),
    _Metric(
        "peer_wait_seconds",
        "Time from asking for an operation to the peer's first packet in it, added up.",
        _field("wait_s"),
    ),
    _Metric(
        "peer_moving_seconds",
        "Time from the first to the last packet of the peer's messages, added up.",
        _field("moving_s"),
    ),
    _Metric(
        "round_trip_seconds",
        "Smoothed round trip time to the peer, its processing included.",
        _field("round_trip_s"),
        counts=False,
        is_detail=True,
    ),
    _Metric(
        "credit_packets",
        "Packets that may be sent to the peer now.",
        _field("credit_packets"),
        counts=False,
        is_detail=True,
    ),
)

_OF_OPERATIONS: Final[tuple[tuple[str, str, Callable[[OperationStats], float], bool], ...]] = (
    ("operations", "Operations that have ended.", lambda each: each.ended, True),
    (
        "failed_operations",
        "Operations that have ended with an error.",
        lambda each: each.failed,
        True,
    ),
    (
        "operation_wait_seconds",
        "Time from asking for operations to their end, added up.",
        lambda each: each.wait_s,
        True,
    ),
    (
        "operation_longest_wait_seconds",
        "Longest time from asking for an operation to its end so far.",
        lambda each: each.longest_wait_s,
        False,
    ),
)

_OF_RANK: Final[tuple[tuple[str, str, Callable[[TransportStats], float], bool], ...]] = (
    (
        "budget_packets",
        "Packets that all peers together may have under way to this rank.",
        lambda s: s.budget_packets,
        False,
    ),
    (
        "deadline_seconds",
        "Time that an operation may take before it fails.",
        lambda s: s.deadline_s,
        False,
    ),
    ("operations_under_way", "Operations that have not ended.", lambda s: s.under_way, False),
    (
        "oldest_operation_seconds",
        "Time since the oldest operation that has not ended was asked for.",
        lambda s: s.oldest_s,
        False,
    ),
    (
        "rejected_datagrams",
        "Datagrams that were not the transport's, from anybody.",
        lambda s: s.total.rejected_packets,
        True,
    ),
    ("send_calls", "System calls that sent datagrams.", lambda s: s.loop.send_calls, True),
    (
        "receive_calls",
        "System calls that received datagrams.",
        lambda s: s.loop.receive_calls,
        True,
    ),
    (
        "sleeps",
        "Times that the transport's loop slept because there was nothing to do.",
        lambda s: s.loop.sleeps,
        True,
    ),
)


class TransportCollector:
    """Metrics of one rank, as `prometheus_client` asks for them: afresh at every scrape."""

    def __init__(self, read: Callable[[], TransportStats], *, by_peer: bool = False) -> None:
        self._read, self._by_peer = read, by_peer

    def collect(self) -> Iterator[Any]:
        """Yield metric families: of each peer, or of all together."""
        stats = self._read()
        rank = str(stats.rank)
        for metric in _OF_PEERS:
            if self._by_peer:
                rows = [
                    ((rank, str(peer), *labels), value)
                    for peer, each in stats.peers.items()
                    for labels, value in metric.values(each)
                ]
                labels: tuple[str, ...] = ("rank", "peer", *metric.labels)
            elif metric.is_detail:
                continue
            else:
                labels, rows = _together(metric, stats.total, rank)
            yield _family(metric.name, metric.text, labels, rows, counts=metric.counts)
        for name, text, figure, counts in _OF_OPERATIONS:
            rows = [((rank, kind), figure(each)) for kind, each in stats.operations.items()]
            yield _family(name, text, ("rank", "operation"), rows, counts=counts)
        for name, text, of_rank, counts in _OF_RANK:
            yield _family(name, text, ("rank",), [((rank,), of_rank(stats))], counts=counts)


def _together(
    metric: _Metric, total: Traffic, rank: str
) -> tuple[tuple[str, ...], list[tuple[tuple[str, ...], float]]]:
    """Return the labels and rows of a metric of all peers together, all layer classes in one."""
    values = list(metric.values(total))
    if metric.labels == ("layer_class",):
        return ("rank",), [((rank,), sum(value for _, value in values))]
    return ("rank", *metric.labels), [((rank, *labels), value) for labels, value in values]


def _family(name: str, text: str, labels: Iterable[str], rows: Labelled, *, counts: bool) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = CounterMetricFamily if counts else GaugeMetricFamily
    family = make(f"shoal_{name}", text, labels=list(labels))
    for values, figure in rows:
        family.add_metric(list(values), figure)
    return family


def require_client() -> None:
    """Raise `UsageError` if the package that serves metrics is not installed."""
    try:
        import prometheus_client  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        message = f"Metrics need prometheus_client: {install('metrics')}."
        raise UsageError(message) from error


class MetricsServer:
    """Serves what `read` returns at http://`bind`:`port`/metrics until it is closed.

    Serves all peers together, unless asked for metrics `by_peer`: up to 80 series for each.

    Raises `UsageError` without `prometheus_client`, `ResourceError` if the port cannot be bound.
    """

    def __init__(
        self,
        read: Callable[[], TransportStats],
        port: int,
        *,
        bind: str = LOOPBACK,
        by_peer: bool = False,
    ) -> None:
        require_client()
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(TransportCollector(read, by_peer=by_peer))
        try:
            self._server, self._thread = start_http_server(port, bind, registry)
        except OSError as error:
            message = f"Metrics cannot be served on {bind}:{port}: {error.strerror}."
            raise ResourceError(message) from error

    @property
    def port(self) -> int:
        """The port at which it serves."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving. Safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_if_asked(engine: UdpEngine, environment: Mapping[str, str] | None = None) -> None:
    """Serve the metrics of a started engine until it is closed, if the environment asks for it.

    Raises `UsageError` for an invalid port, and the errors of `MetricsServer`.
    """
    given = os.environ if environment is None else environment
    text = given.get("SHOAL_METRICS_PORT")
    if not text:
        return
    port = (int(text) if text.isdigit() else 0) + rank_on_host(engine.endpoint.rank, given)
    if not text.isdigit() or int(text) == 0 or port > LARGEST_PORT:
        message = f"SHOAL_METRICS_PORT must be a port from 1 to {LARGEST_PORT}, not {text!r}."
        raise UsageError(message)
    bind = given.get("SHOAL_METRICS_BIND") or LOOPBACK
    by_peer = asks_for_peers(given)
    engine.at_close(MetricsServer(engine.stats, port, bind=bind, by_peer=by_peer).close)


def asks_for_peers(environment: Mapping[str, str]) -> bool:
    """Return whether the environment asks for metrics of each peer. Raises `UsageError`."""
    text = environment.get("SHOAL_METRICS_DETAIL", "")
    if text not in ("", _PEERS):
        message = f"SHOAL_METRICS_DETAIL is {_PEERS!r} or nothing, not {text!r}."
        raise UsageError(message)
    return text == _PEERS
