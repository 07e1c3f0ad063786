"""A trace that is replayed: what it says of a job, and what is wrong with one that cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scenario_texts import SMALL

from shoal.cli.replaying import replaying
from shoal.errors import DataError, ShoalError, UsageError
from shoal.jobs.trace_file import write_trace
from shoal.scenario.measured import ExchangeTime, read_measured
from shoal.scenario.spec_file import parse_scenario, read_scenario
from shoal.scenario.training_spec import StrategySpec
from shoal.sim.training.simulation import simulate
from shoal.sim.training.software import SoftwareCost, measured_cost
from shoal.trace import Span, SpanKind, TraceHeader
from thoroughness import seldom

MS = 1_000_000
PARAMETERS = 1_000
OWN_MS = ((10, 20, 30), (40, 50, 60))
"""By rank: computing and what follows, of three steps."""


def spans(step_ms: int = 100, exchange_ms: int = 9) -> list[Span]:
    """Two workers: own time of which 2 ms are no span, waiting, an exchange, in every step.

    The exchange begins for both when rank 1 comes, which is always later.
    """
    found = []
    for rank, times in enumerate(OWN_MS):
        for step, own in enumerate(times):
            begin = step * step_ms * MS
            rest = 2 if step < 2 else 0  # nothing follows the last step
            own -= rest
            computed = begin + own * MS
            end = begin + (OWN_MS[1][step] - rest + 1 + exchange_ms) * MS
            found.append(Span(SpanKind.COMPUTE, rank, step, begin, own * MS))
            met = computed + MS
            found.append(Span(SpanKind.EXCHANGE, rank, step, met, end - met, (0, 1)))
            if step < 2:  # something else until the next step, but for 1 ms of its own
                idle = (step + 1) * step_ms * MS - MS - end
                found.append(Span(SpanKind.WAIT, rank, step, end, idle))
    return found


def recorded(folder: Path, strategy: str = "ds-sync") -> Path:
    path = folder / "trace.json"
    header = TraceHeader(strategy, 2, PARAMETERS)
    write_trace(path, spans(), header=header)
    return path


def test_own_time_is_all_but_waiting_and_exchanging(tmp_path: Path) -> None:
    found = read_measured(recorded(tmp_path), 2)
    assert found.strategy == "ds-sync"
    assert found.parameters == PARAMETERS
    for times, wanted in zip(found.step_s, OWN_MS, strict=True):
        assert [1e3 * each for each in times] == pytest.approx(wanted)
    assert found.mean_s == pytest.approx(0.035)
    (exchange,) = found.exchanges
    assert exchange == ExchangeTime(2, 6, pytest.approx(0.009))  # from the last one's arrival


def test_times_are_replayed_by_rank_and_again_from_the_beginning(tmp_path: Path) -> None:
    text = SMALL.replace("workers = 2", "workers = 1")
    job = parse_scenario(text[: text.index("[[training.slow]]")])
    replayed = replaying(job, recorded(tmp_path)).training
    assert replayed is not None
    assert replayed.spread == 0
    alone = StrategySpec("local-sgd", {"interval": 1000})
    for steps, wanted in ((3, (60, 150)), (5, (90, 240))):
        out = simulate(job.cluster, replace(replayed, steps=steps), alone)
        assert out.seconds == pytest.approx(max(wanted) / 1e3)
        assert out.step_ms == pytest.approx(sum(wanted) / 2 / steps)


def test_a_scenario_may_name_its_trace(tmp_path: Path) -> None:
    recorded(tmp_path)
    text = SMALL[: SMALL.index("[[training.slow]]")].replace("workers = 2", "workers = 1")
    text = text.replace('compute = "20 ms"\nspread = 0.1', 'measured = "trace.json"')
    (tmp_path / "job.toml").write_text(text)
    read = read_scenario(tmp_path / "job.toml").training
    assert read is not None
    assert read.measured == read_measured(tmp_path / "trace.json", 2)
    (tmp_path / "job.toml").write_text(text + 'compute = "20 ms"\n')
    with pytest.raises(UsageError, match="compute: A measured run says how long every worker"):
        read_scenario(tmp_path / "job.toml")


def test_costs_are_what_exchanges_take_beyond_their_bytes(tmp_path: Path) -> None:
    """9 ms, in which 2(S-1) = 2 messages and 32,000 bits at a rate that takes 1 ms for them."""
    found = read_measured(recorded(tmp_path), 2)
    assert measured_cost(found, 32_000_000).message_s == pytest.approx(0.004)
    assert measured_cost(found, 1e15).server_s == 0
    served = read_measured(recorded(tmp_path, "ps-bsp"), 2)
    assert measured_cost(served, 32_000_000).server_s == pytest.approx(0.008)
    summed = read_measured(recorded(tmp_path, "all-reduce"), 2)
    assert measured_cost(summed, 32_000_000).message_s == pytest.approx(0.004)
    hidden = read_measured(recorded(tmp_path, "ad-psgd"), 2)
    assert measured_cost(hidden, 32_000_000) == SoftwareCost()


def test_the_generators_answer_is_what_the_last_to_ask_waits_for(tmp_path: Path) -> None:
    """Rank 1 asks 30 ms after rank 0; both are answered 2 ms later, and meet 1 ms apart."""
    found = []
    for step in range(3):
        begin = 100 * step * MS
        for rank, asks, meets in ((0, 10, 43), (1, 40, 42)):
            found += [
                Span(SpanKind.COMPUTE, rank, step, begin, asks * MS),
                Span(SpanKind.WAIT, rank, step, begin + asks * MS, (42 - asks) * MS, (0, 1)),
                Span(SpanKind.EXCHANGE, rank, step, begin + meets * MS, (50 - meets) * MS, (0, 1)),
            ]
    path = tmp_path / "trace.json"
    write_trace(path, found, header=TraceHeader("ripples", 2, PARAMETERS))
    measured = read_measured(path, 2)
    assert measured.answer_s == pytest.approx(0.002)
    replayed = parse_scenario(SMALL).training
    assert replayed is not None
    assert replayed.replaying(measured).answer_s == measured.answer_s
    said = replace(replayed, control_delay_s=0.5)
    assert said.replaying(measured).answer_s == 0.5
    write_trace(path, found, header=TraceHeader("ds-sync", 2, PARAMETERS))
    assert replayed.replaying(read_measured(path, 2)).answer_s == 100e-6


@pytest.mark.parametrize(
    "strategy",
    seldom(
        ["ds-sync", "ripples", "all-reduce", "ps-bsp", "ps-asp"],
        often=["ds-sync", "all-reduce", "ps-asp"],
    ),
)
def test_an_exchange_takes_its_messages_longer(strategy: str) -> None:
    """Two workers on two hosts: 2(S-1) = 2 messages, of one bucket."""
    text = SMALL.replace("workers = 2", "workers = 1").replace("spread = 0.1\n", "")
    text = text[: text.index("[[training.slow]]")]
    options = {"bucket_bytes": 25 << 20} if strategy == "all-reduce" else {}
    took = [
        simulate(read.cluster, read.training, StrategySpec(strategy, options)).step_ms
        for cost in (0, 5)
        if (read := parse_scenario(f'{text}message_cost = "{cost} ms"')).training is not None
    ]
    assert took[1] - took[0] == pytest.approx(5 * 2)


def test_servers_have_a_cost_of_their_own() -> None:
    text = SMALL.replace("workers = 2", "workers = 1").replace("spread = 0.1\n", "")
    text = text[: text.index("[[training.slow]]")]
    took = [
        simulate(read.cluster, read.training, StrategySpec("ps-bsp")).step_ms
        for cost in ("", 'message_cost = "1 ms"\nserver_cost = "30 ms"\n')
        if (read := parse_scenario(text + cost)).training is not None
    ]
    assert took[1] - took[0] == pytest.approx(30)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("no JSON", "is no trace of shoal train"),
        ("[]", "is no trace of shoal train"),
        ('{"traceEvents": []}', "does not say that shoal train of this version made it"),
        ('{"otherData": {"shoal_trace": 2}}', r"another version of Shoal \(format 2, this one"),
        ('{"otherData": {"shoal_trace": 1}, "traceEvents": []}', "is no trace of shoal train"),
    ],
)
def test_what_is_no_trace_of_this_version_is_one_sentence(
    tmp_path: Path, text: str, wanted: str
) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(DataError, match=wanted) as caught:
        read_measured(path, 2)
    assert "record one with shoal train --trace" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_workers_that_a_trace_lacks_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"times of 2 workers, the cluster has 4; .*--workers 4"):
        read_measured(recorded(tmp_path), 4)
    path = recorded(tmp_path)
    document = json.loads(path.read_text())
    document["traceEvents"] = [each for each in document["traceEvents"] if each["pid"] != 1]
    path.write_text(json.dumps(document))
    with pytest.raises(DataError, match="has no step of rank 1"):
        read_measured(path, 2)
    with pytest.raises(ShoalError, match="Cannot read the trace"):
        read_measured(tmp_path / "none.json", 2)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"members": [[1], 2]}, "Expected `int`, got `array`"),
        ({"members": {"0": 1}}, "Expected `array`, got `object`"),
        ({"members": 7}, "Expected `array`, got `int`"),
    ],
)
def test_members_that_are_no_ranks_are_said(
    tmp_path: Path, wrong: dict[str, object], why: str
) -> None:
    path = recorded(tmp_path)
    trace = json.loads(path.read_text())
    trace["traceEvents"][1]["args"] = wrong
    path.write_text(json.dumps(trace))
    with pytest.raises(DataError, match=rf"no trace of shoal train \({why}"):
        read_measured(path, 2)


def test_a_time_beyond_all_counting_is_said(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    trace = json.loads(path.read_text())
    trace["traceEvents"][1]["ts"] = 1e308
    path.write_text(json.dumps(trace))
    with pytest.raises(DataError, match="no trace of shoal train"):
        read_measured(path, 2)
