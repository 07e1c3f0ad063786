"""The page of all metrics has those that are served, with their kinds, labels and sentences."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from shoal.watch.exposition import exposition
from shoal.watch.metrics import TransportCollector
from shoal.wire import OperationStats
from told import shown
from transport_statistics import seen_from

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "metrics.md").read_text()

Row = tuple[str, str, str, str]


def table(heading: str) -> list[Row]:
    """Return the rows below a heading: name, kind, labels, sentence."""
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*) \|$", part, re.MULTILINE)


def row(name: str, kind: str, labels: set[str], text: str) -> Row:
    return name, kind, ", ".join(f"`{label}`" for label in sorted(labels)), text


def of_a_job() -> list[Row]:
    rows = []
    for family in text_string_to_metric_families(exposition(shown())):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append(row(name, family.type, labels, family.documentation))
    return rows


def of_a_transport(*, by_peer: bool) -> list[Row]:
    ended = OperationStats(ended=1, failed=0, wait_s=0.0, last=1, peaks=())
    stats = replace(seen_from(0, {1: {}}), operations={"all-reduce": ended})
    rows = []
    for family in TransportCollector(lambda: stats, by_peer=by_peer).collect():
        labels = {label for sample in family.samples for label in sample.labels}
        name = family.name + ("_total" if family.type == "counter" else "")
        rows.append(row(name, family.type, labels, family.documentation))
    return rows


def test_the_metrics_of_a_job_are_all_there() -> None:
    assert table("Of a job") == of_a_job()


def test_the_metrics_of_a_transport_are_all_there() -> None:
    assert table("Of each rank's transport") == of_a_transport(by_peer=False)


def test_what_is_served_of_peers_only_is_said() -> None:
    usual = {name for name, *_ in of_a_transport(by_peer=False)}
    of_peers = of_a_transport(by_peer=True)
    assert table("Of peers only") == [each for each in of_peers if each[0] not in usual]
