"""The files in examples/monitoring use what a job's page exports, and alert when they should."""

from __future__ import annotations

import json
import math
import operator
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pytest
import yaml

pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families

from shoal.watch import Verdict
from shoal.watch.exposition import exposition
from told import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.watch import Snapshot

FOLDER = Path(__file__).parents[3] / "examples" / "monitoring"
BOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
SIMPLE: Final = re.compile(r"(shoal_\w+)(?:\{(\w+)=~?\"([^\"]*)\"\})? (>|>=|==|!=) (\S+)")
"""An expression that compares a metric with a number, or with itself, and does nothing else."""
COMPARED: Final = {">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne}


def exported() -> dict[str, tuple[str, set[str]]]:
    """Return the family of each name that a series can have, and its labels."""
    names: dict[str, tuple[str, set[str]]] = {}
    lines = re.findall(r"^# TYPE (\S+) (\S+)$", exposition(shown()), re.MULTILINE)
    kinds = dict(lines)
    for family in text_string_to_metric_families(exposition(shown())):
        for sample in family.samples:
            is_part = sample.name not in kinds
            whole = re.sub("_(bucket|sum|count)$", "", sample.name) if is_part else sample.name
            names.setdefault(sample.name, (whole, set()))[1].update(sample.labels)
    assert {family for family, _ in names.values()} == set(kinds), "each has a series in this job"
    return names


EXPORTED = exported()


def targets() -> Iterator[tuple[str, str]]:
    """Yield each expression of the files, with the texts that name labels of its series."""
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"], target["legendFormat"]
    for annotation in BOARD["annotations"]["list"]:
        yield annotation["expr"], ""
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"], ""
    for rule in RULES:
        yield rule["expr"], " ".join(rule["annotations"].values())


@pytest.mark.parametrize(("expression", "text"), sorted(set(targets())))
def test_every_series_and_label_that_the_files_use_is_exported(expression: str, text: str) -> None:
    used = set(re.findall(r"shoal_\w+", expression))
    assert used
    assert used <= EXPORTED.keys()
    assert expression.count("(") == expression.count(")")
    labels = set.intersection(*(EXPORTED[name][1] for name in used))
    named = set(re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", text))
    picked = set(re.findall(r"(\w+)=~?\"", expression))
    picked |= set(re.findall(r"by \((\w+)\)", expression))
    assert named <= labels
    assert picked - {"job"} <= labels  # Prometheus itself adds the job


def test_the_board_shows_every_family() -> None:
    on_board = {
        name
        for panel in BOARD["panels"]
        for target in panel["targets"]
        for name in re.findall(r"shoal_\w+", target["expr"])
    }
    families = {family for family, _ in EXPORTED.values()}
    assert {EXPORTED[name][0] for name in on_board} == families


def test_panels_have_numbers_and_places_of_their_own() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken
        taken |= cells


def alerts(snapshot: Snapshot) -> set[tuple[str, str]]:
    """Return which simple rules hold of a snapshot, and for which rank."""
    series = [
        sample
        for family in text_string_to_metric_families(exposition(snapshot))
        for sample in family.samples
    ]
    found = set()
    for rule in RULES:
        if (match := SIMPLE.fullmatch(rule["expr"])) is None:
            continue
        name, label, pattern, sign, limit = match.groups()
        for sample in [each for each in series if each.name == name]:
            wanted = label is None or re.fullmatch(pattern, sample.labels[label])
            other = sample.value if limit == name else float(limit)
            if wanted and COMPARED[sign](sample.value, other):
                found.add((rule["alert"], sample.labels["rank"]))
    return found


def well() -> Snapshot:
    """Return a snapshot of a job with which nothing is wrong."""
    nothing = Verdict(kind="nothing", sentence="Nothing stands out.")
    bare = shown()
    workers = [
        msgspec.structs.replace(each, state="alive", own_ms=40.0, age_s=1.0)
        for each in bare.workers
    ]
    return msgspec.structs.replace(bare, workers=tuple(workers), verdicts=(nothing,))


def with_verdict(**verdict: Any) -> Snapshot:
    return msgspec.structs.replace(well(), verdicts=(Verdict(sentence="It is so.", **verdict),))


def with_worker(**figures: Any) -> Snapshot:
    first, *others = well().workers
    changed = msgspec.structs.replace(first, **figures)
    return msgspec.structs.replace(well(), workers=(changed, *others))


FAULTS: Final = {
    "nothing": (well(), set()),
    "a slow worker, and one that is lost": (
        shown(),
        {("ShoalWorkerSlow", "1"), ("ShoalHeldUp", "1"), ("ShoalWorkerGone", "2")},
    ),
    "stuck": (with_verdict(kind="stuck", rank=2), {("ShoalJobStuck", "2")}),
    "a lossy link": (with_verdict(kind="lossy link", rank=1, to=0), {("ShoalLinkBad", "1")}),
    "a slow link": (
        with_verdict(kind="slow link", rank=1, to=0, cost_ms=50.0),
        {("ShoalLinkBad", "1"), ("ShoalHeldUp", "1")},
    ),
    "a long way": (with_verdict(kind="long way", rank=1), {("ShoalLinkBad", "1")}),
    "no number": (with_worker(loss=math.nan), {("ShoalLossNotANumber", "0")}),
    "silence": (with_worker(age_s=90.0), {("ShoalWorkerSilent", "0")}),
    "loss of sums": (with_worker(effective_loss=0.2), {("ShoalSumsIncomplete", "0")}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_alerts_fire_for_their_fault_and_nothing_else(fault: str) -> None:
    snapshot, expected = FAULTS[fault]
    assert alerts(snapshot) == expected


def test_each_rule_is_tried_or_is_of_several_moments() -> None:
    tried = {name for _, expected in FAULTS.values() for name, _ in expected}
    others = {rule["alert"] for rule in RULES} - tried
    assert others == {"ShoalMembersKeepChanging", "ShoalSamplesDropped", "ShoalNotServed"}
    for rule in RULES:
        assert rule["annotations"]["summary"].endswith((".", ")."))


def test_prometheus_reads_the_rules_and_the_page() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert [(FOLDER / name).exists() for name in config["rule_files"]] == [True]
    (scraped,) = config["scrape_configs"]
    assert "metrics_path" not in scraped  # its usual one is the page's
