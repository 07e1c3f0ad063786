"""`shoal plan`: candidates that exist, a ranking that is what was simulated, a line that works."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scenario_texts import SMALL
from typer import Typer
from typer.testing import CliRunner, Result

from thoroughness import seldom

pytest.importorskip("torch")

import shoal
from shoal.cli.plan import _with_job, plan
from shoal.errors import UsageError
from shoal.groups import Host, Rack, Topology
from shoal.plan import packets, ranking
from shoal.plan.candidates import Candidate, candidates, carried, other_sizes
from shoal.plan.failures import Failures
from shoal.scenario.measured import Measured
from shoal.scenario.spec_file import parse_scenario
from shoal.scenario.training_spec import Scenario, TrainingSpec
from shoal.strategies import STRATEGIES, make_strategy, spelled
from shoal.sweeps import make_runs

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""


BOUNDED = "shoal loss_bound=0.1"


def command(*arguments: str) -> Result:
    app = Typer()
    app.command()(plan)
    return CliRunner().invoke(app, arguments)


def plan_of(scenario: Scenario) -> ranking.Ranking:
    runs = ranking.runs_of(scenario)
    return ranking.make_plan(
        [each.result for each in make_runs(runs, ranking.Prediction, lambda _, __: None)]
    )


def alike(workers: int) -> Topology:
    return Topology.uniform(workers, 1)


UNLIKE = Topology(
    (Host((0, 1), 0, 10**9), Host((2, 3), 0, 10**8), Host((4, 5), 1, 10**9)),
    (Rack(10**9), Rack(10**9)),
)
IN_RACKS = Topology.uniform(16, 2, 4, nic_bps=10**8, oversubscription_ratio=4)
IN_THIRDS = Topology.uniform(16, 1, 8, nic_bps=10**10, oversubscription_ratio=8 / 3)
CLUSTERS = [*map(alike, [1, 2, 16]), Topology.uniform(8, 4), IN_RACKS, IN_THIRDS, UNLIKE]


def chosen(candidate: Candidate) -> dict[str, Any]:
    """Return what the candidate's line tells the optimizer, as a user's script would read it."""
    said: dict[str, Any] = {}
    optimizers = SimpleNamespace(
        Topology=shoal.Topology,
        groups=shoal.groups,
        DistributedOptimizer=lambda _, __, **options: said.update(options),
        **{spelled(word): getattr(shoal, spelled(word)) for word in STRATEGIES if word[:2] != "ps"},
    )
    exec(candidate.line, {"shoal": optimizers, "optimizer": None, "model": None})
    return said


@pytest.mark.parametrize("where", CLUSTERS)
def test_every_candidate_is_a_strategy_and_its_line_selects_it(where: Topology) -> None:
    found = candidates(where)
    assert len({each.name for each in found}) == len(found)
    for each in found:
        options = dict(each.options)
        if options.get("algorithm") == "hierarchical":
            assert "SHOAL_ALL_REDUCE=hierarchical" in each.line
            del options["algorithm"]
        if each.topology is not None:
            options["topology"] = each.topology
        strategy = make_strategy(each.strategy, options)
        strategy.check_size(where.world_size)
        selected = make_strategy(chosen(each)["sync"])
        assert selected.word == each.strategy
        assert selected.options() == strategy.options()


@pytest.mark.parametrize("where", CLUSTERS)
def test_what_hosts_and_racks_allow_is_tried(where: Topology) -> None:
    names = {each.name for each in candidates(where)}
    several = len(where.hosts) < where.world_size
    assert ("all-reduce algorithm=hierarchical" in names) == several
    assert ("ds-sync shuffle=topology" in names) == (several or len(where.racks) > 1)


def test_averages_that_hide_behind_computing_are_tried() -> None:
    found = {each.name: each for each in candidates(IN_RACKS)}
    for name in ("local-sgd interval=8", "ds-sync", "ripples-static", "ripples group_size=2"):
        assert name in found
        hidden = found[f"{name} overlap=next-steps"]
        assert 'overlap="next-steps"' in hidden.line
    overlapped = [name for name in found if "overlap" in name]
    assert len(overlapped) < 0.6 * (len(found) - len(overlapped))  # for the time that a plan takes


@pytest.mark.long
def test_steps_times_their_time_is_the_time_to_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also beside a slow worker, whose own steps take longer than those of the others."""
    forms = [each for each in candidates(alike(4)) if each.name.startswith("ripples group_size=2")]
    few = [forms[0], forms[-1]]
    monkeypatch.setattr(ranking, "candidates", lambda _: few)
    monkeypatch.setattr(ranking, "SEEDS", 1)
    for each in plan_of(parse_scenario(SMALL)).ranked:
        assert each.seconds_to_target is not None
        assert each.steps_to_target is not None
        whole = each.steps_to_target * each.step_ms / 1e3
        assert whole == pytest.approx(each.seconds_to_target)


def test_where_exchanges_are_long_the_plan_hides_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of 20 ms, exchanges of 26: four steps hide one, and what is stale costs steps."""
    monkeypatch.setattr(ranking, "SEEDS", 1)
    few = [each for each in candidates(alike(4)) if each.name.startswith("local-sgd interval=4")]
    monkeypatch.setattr(ranking, "candidates", lambda _: few)
    text = SMALL[: SMALL.index("[[training.slow]]")].replace("workers = 2", "workers = 1")
    text = text.replace("count = 2", "count = 4").replace("100_000", "2_000_000")
    found = plan_of(parse_scenario(text))
    assert [each.name for each in found.ranked] == [
        "local-sgd interval=4 overlap=next-steps",
        "local-sgd interval=4",
    ]
    hides, waits = found.ranked
    assert hides.step_ms < 0.6 * waits.step_ms
    assert hides.consensus_distance > waits.consensus_distance


@pytest.mark.long
def test_who_hardly_exchanges_takes_more_steps() -> None:
    """Workers alone take several times as many, so exchanges that come late cost something."""
    text = SMALL[: SMALL.index("[[training.slow]]")].replace("workers = 2", "workers = 4")
    scenario = parse_scenario(text)
    assert scenario.training is not None
    job = replace(scenario.training, steps=300)
    large = replace(job, parameters=100_000_000)
    alone, pairs = Candidate("local-sgd", {"interval": 301}), Candidate("ad-psgd")
    soon, never, late = (
        ranking.predict(scenario.cluster, training, each, ranking.TARGET).seconds_to_target
        for training, each in ((job, pairs), (job, alone), (large, pairs))
    )
    assert soon is not None
    for seconds in (never, late):
        assert seconds is None or seconds > 2 * soon


@pytest.mark.parametrize("where", CLUSTERS)
def test_a_line_has_its_transport(where: Topology) -> None:
    for each in candidates(where):
        over = carried(each)
        carriers = [("shoal", 0.0), ("shoal", 0.1), ("cubic", 0.0)]
        if each.strategy == "ad-psgd":
            del carriers[1]
        if each.options.get("algorithm") == "hierarchical":
            del carriers[1:]
        if each.options.get("low_rank"):
            del carriers[1]
        if each.strategy == "all-reduce" and len(carriers) > 1:
            behind = [carrier for carrier in carriers if carrier[0] == "shoal"]
            forward = {**each.options, "overlap": "next-forward"}
            assert [one.options for one in over[len(carriers) :]] == [forward] * len(behind)
            carriers += behind
        wires = ["float32"] * len(carriers)
        if each.options.get("overlap"):
            carriers += carriers[:2]
            wires += ["float16"] * 2
        assert [(each.transport, each.loss_bound) for each in over] == carriers
        assert [each.wire for each in over] == wires
        for one in over:
            said = chosen(one)
            strategy = make_strategy(said.pop("sync"))
            assert strategy.word == each.strategy
            if "algorithm" not in one.options:
                assert one.options.items() <= strategy.options().items()
            wanted = {"transport": "shoal" if one.transport == "shoal" else "gloo"}
            wanted |= {"wire": one.wire} if one.wire != "float32" else {}
            assert one.wire == "float32" or strategy.can_round
            assert said == wanted | ({"loss_bound": 0.1} if one.loss_bound else {})


def test_where_links_lose_transports_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TCP all-reduce waits for what was lost; a bound lets some of it go."""
    monkeypatch.setattr(ranking, "TARGET", 0.3)
    monkeypatch.setattr(ranking, "SEEDS", 1)
    few = [each for each in candidates(alike(2)) if each.name in ("all-reduce", "ps-bsp")]
    monkeypatch.setattr(ranking, "candidates", lambda _: few)
    text = SMALL[: SMALL.index("[[training.slow]]")].replace("workers = 2", "workers = 1")
    lossy = text.replace('delay = "10 us"', 'delay = "10 us"\nloss = "2 %"')
    (tmp_path / "cluster.toml").write_text(lossy)
    file = tmp_path / "plan.json"
    kept = "--jobs", "1", "--runs", str(tmp_path / "runs.jsonl")
    result = command(str(tmp_path / "cluster.toml"), "--json", str(file), *kept)
    assert result.exit_code == 0, result.output
    *notes, left_out = [x for x in result.stderr.splitlines() if x.startswith("note: ")]
    assert notes == [f"note: {each}" for each in packets.NOTES]
    assert left_out.startswith("note: Not compared over transports: the transports newreno, ")
    found = json.loads(file.read_text())["plan"]
    assert {each["transport"] for each in found["screened"]} == {""}
    flows = {each["name"]: each for each in found["screened"]}
    ranked = {(each["name"], each["transport"]): each for each in found["ranked"]}
    assert set(ranked) == {
        (name, transport) for name in flows for transport in ("shoal", BOUNDED, "cubic")
    } | {("all-reduce overlap=next-forward", transport) for transport in ("shoal", BOUNDED)}
    for (name, transport), each in ranked.items():
        name = name.removesuffix(" overlap=next-forward")
        assert each["steps_to_target"] == flows[name]["steps_to_target"]
        factor = each["step_ms"] / flows[name]["step_ms"]
        assert each["seconds_to_target"] == pytest.approx(factor * flows[name]["seconds_to_target"])
        assert (0 < each["lost_share"] < 0.1) if transport == BOUNDED else each["lost_share"] == 0
    for name in flows:
        times = [ranked[name, one]["step_ms"] for one in (BOUNDED, "shoal", "cubic")]
        assert times[0] < 1.05 * times[1] < times[2]  # a bound may save nothing
    assert result.stdout.splitlines()[-1] == found["ranked"][0]["line"]


def test_the_best_form_of_the_best_strategies_is_worth_packets() -> None:
    made = [
        ranking.Prediction(each.name, each.line, "", 1.0, 10.0 - number / 10, 1, 0, 0, 0, 1, 0, 0)
        for number, each in enumerate(candidates(IN_RACKS))
    ]
    found = packets.worth_packets(made)
    names = [each.name.split()[0] for each in found]
    assert len(names) == len(set(names)) == 6
    assert found[-1].name == "all-reduce"  # the slowest of all, and always there
    for each in found:
        forms = [one for one in made if one.name.split()[0] == each.name.split()[0]]
        if each.name != "all-reduce":
            assert each.seconds_to_target == min(one.seconds_to_target or 0.0 for one in forms)


def test_what_no_transport_carries_is_said() -> None:
    made = [prediction(each.name, 10.0 + n) for n, each in enumerate(candidates(IN_RACKS))]
    scenario = parse_scenario(SMALL)
    assert scenario.training is not None
    said = packets.left_out(scenario, made)
    worth = packets.worth_packets(made)
    strategies = {each.name.split()[0] for each in made}
    kept = {each.name.split()[0] for each in worth}
    assert strategies == set(STRATEGIES)
    named = said.removeprefix("Not compared over transports: the strategies ").split(";")[0]
    assert set(named.split(", ")) == strategies - kept
    forms = sum(each.name.split()[0] in kept for each in made) - len(worth)
    assert f"; of each strategy all forms but the best one as flows ({forms} forms); " in said
    assert "; the transports newreno, " in said
    assert "cubic" not in said
    flows = replace(scenario, training=replace(scenario.training, level="flows"))
    assert "the strategies" not in packets.left_out(flows, made)


def test_calibrated_flows_carry_every_strategy_and_random_groups_of_other_sizes() -> None:
    made = [prediction(each.name, 10.0 + n) for n, each in enumerate(candidates(IN_RACKS))]
    found = packets.worth_packets(made, every_strategy=True)
    assert {each.name.split()[0] for each in found} == {each.name.split()[0] for each in made}
    text = SMALL[: SMALL.index("[[training.slow]]")].replace("workers = 2", "workers = 8")
    scenario = parse_scenario(text.replace("steps = 12", 'steps = 12\nlevel = "flows"'))
    usual, more = (ranking.runs_of(scenario, has_time=has) for has in (False, True))
    names = [run.arguments["candidate"].name for run in more[len(usual) :: ranking.SEEDS]]
    assert names == [
        "ds-sync shuffle=random group_size=2",
        "ds-sync shuffle=random group_size=2 interval=4",
        "ripples-random group_size=2",
        "ripples-random group_size=2 interval=4",
        "ripples-random group_size=4",
        "ripples-random group_size=4 interval=4",
    ]
    over = packets.runs_of(scenario, [prediction(names[0], 1.0)])
    assert {run.arguments["candidate"].options["group_size"] for run in over} == {2}
    assert packets.notes(scenario)[-1] == packets.SERVERS_OVER_TCP


@pytest.mark.parametrize("where", CLUSTERS)
def test_random_groups_of_other_sizes_can_be_drawn_and_chosen(where: Topology) -> None:
    for each in other_sizes(where):
        strategy = make_strategy(each.strategy, dict(each.options))
        strategy.check_size(where.world_size)
        selected = make_strategy(chosen(each)["sync"])
        assert selected.options() == strategy.options()


def test_workers_that_learn_alone_are_not_at_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges take seconds, steps 5 ms: all have learnt enough before the first one is over."""
    few = [Candidate("ad-psgd"), Candidate("local-sgd", {"interval": 201})]
    monkeypatch.setattr(ranking, "candidates", lambda _: few)
    monkeypatch.setattr(ranking, "TARGET", 0.8)
    monkeypatch.setattr(ranking, "_MOST_STEPS", 200)
    monkeypatch.setattr(ranking, "SEEDS", 1)
    text = SMALL[: SMALL.index("[[training.slow]]")].replace("workers = 2", "workers = 1")
    text = text.replace("count = 2", "count = 4").replace("20 ms", "5 ms")
    found = plan_of(parse_scenario(text.replace("100_000", "100_000_000")))
    pairs, alone = found.ranked
    assert (pairs.name, alone.name) == ("ad-psgd", "local-sgd interval=201")
    assert not pairs.met_alone
    assert pairs.seconds_to_target is not None
    assert pairs.seconds_to_target > 2 * 3.2, "what a worker learnt alone is in its second one"
    assert pairs.exchange_share > 0.5
    assert alone.met_alone
    assert alone.seconds_to_target is None
    assert found.reason == (
        "ad-psgd meets the target; local-sgd interval=201 does not, in 200 steps. Not counted as at"
        " the target, since workers got there by themselves, before half of their steps had been"
        " exchanged: local-sgd interval=201."
    )


def test_of_many_that_learn_alone_three_are_named() -> None:
    made = [prediction("a", 1.0)]
    made += [prediction(each, None, met_alone=True) for each in "bcdef"]
    assert ranking.make_plan(made).reason.endswith("exchanged: b; c; d; 2 more.")


@pytest.mark.parametrize("every", seldom([1, 3, 7], often=[7]))
def test_the_plan_is_ranked_by_time_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(ranking, "candidates", lambda where: candidates(where)[::every])
    monkeypatch.setattr(ranking, "TARGET", 0.3)
    monkeypatch.setattr(ranking, "SEEDS", 1)
    (tmp_path / "cluster.toml").write_text(SMALL[: SMALL.index("[[training.strategy]]")])
    kept = "--jobs", "1", "--runs", str(tmp_path / "runs.jsonl")
    result = command(str(tmp_path / "cluster.toml"), "--json", str(tmp_path / "plan.json"), *kept)
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "plan.json").read_text())["plan"]
    first, *times = [each["seconds_to_target"] for each in found["ranked"]]
    assert None not in times
    assert times == sorted(times)
    assert first <= 1.05 * times[0]
    assert {each["name"] for each in found["ranked"]} == {
        each.name for each in candidates(Topology.uniform(4, 2))[::every]
    }
    best = found["ranked"][0]
    assert result.stdout.splitlines()[1].startswith(best["name"])
    assert "\ns to target: virtual seconds until the small model" in result.stdout
    assert result.stdout.splitlines()[-1] == best["line"]
    assert best["name"] in found["reason"]
    assert "all-reduce" in found["reason"]


def test_who_goes_on_without_lost_workers() -> None:
    goes_on = {
        word: {
            each.goes_on for each in map(Candidate, [word] * 2, [{}, {"overlap": "next-forward"}])
        }
        for word in ("all-reduce", "ds-sync", "local-sgd", "ripples")
    }
    assert goes_on["all-reduce"] == {True, False}
    assert all(goes_on[word] == {True} for word in ("ds-sync", "local-sgd", "ripples"))
    assert all(Candidate(word).goes_on for word in ("ad-psgd", "ps-bsp", "ps-ssp", "ps-asp"))
    assert not Candidate("ps-bsp", {"overlap": "next-forward"}).goes_on
    assert not Candidate("ds-sync", {"shuffle": "topology"}).goes_on
    assert Candidate("all-reduce", {"algorithm": "hierarchical"}, "shoal").goes_on
    assert not Candidate("ripples", {}, "cubic").goes_on
    assert Candidate("local-sgd").interval == 8
    assert Candidate("ripples", {"interval": 4}).interval == 4
    assert Candidate("all-reduce").interval == 1


def test_where_machines_die_the_plan_takes_what_goes_on() -> None:
    deaths = Failures(64, 3_600.0, 300.0, 600.0, 60.0, deadline_s=60.0)
    made = [
        prediction("all-reduce", 10.0, goes_on=False),
        prediction("ripples", 12.0),
        prediction("ds-sync", 11.0, step_ms=80_000.0),
    ]
    assert ranking.make_plan(made).ranked[0].name == "all-reduce"
    found = ranking.make_plan(made, failures=deaths, hand_on_s=1.0)
    assert [each.name for each in found.ranked] == ["ripples", "ds-sync", "all-reduce"]
    goodputs = [each.goodput for each in found.ranked]
    assert goodputs[0] > goodputs[1] > goodputs[2]
    for each, before in zip(found.ranked, (12.0, 11.0, 10.0), strict=True):
        assert each.expected_s == pytest.approx(before / each.goodput)
    assert "as machines die" in found.reason
    seldom_die = replace(deaths, fails_every_s=1e9)
    first = ranking.make_plan(made, failures=seldom_die, hand_on_s=1.0).ranked[0]
    assert first.name == "all-reduce"
    never = replace(deaths, machines=10**6, fails_every_s=60.0)
    last = ranking.make_plan(made, failures=never, hand_on_s=1.0).ranked[-1]
    assert (last.name, last.goodput, last.expected_s) == ("all-reduce", 0.0, None)


def test_the_command_says_what_deaths_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [Candidate("all-reduce"), Candidate("all-reduce", {"overlap": "next-forward"})]
    monkeypatch.setattr(ranking, "candidates", lambda _: few)
    monkeypatch.setattr(ranking, "TARGET", 0.3)
    monkeypatch.setattr(ranking, "SEEDS", 1)
    event = '[[event]]\nat = "1 s"\nkill = 1\n'
    text = SMALL[: SMALL.index("[[training.strategy]]")]
    (tmp_path / "cluster.toml").write_text(text + event)
    file, kept = str(tmp_path / "cluster.toml"), ("--runs", str(tmp_path / "runs.jsonl"))
    deaths = "--machine-fails-every", "2 h", "--back-after", "10min", "--json"
    result = command(file, "--jobs", "1", *kept, *deaths, str(tmp_path / "plan.json"))
    assert result.exit_code == 0, result.output
    assert "goodput" in result.stdout.splitlines()[0]
    assert "machines dies every 2 h and is back after 10 min" in result.output
    assert "leaves out the events of workers" in result.output
    made = json.loads((tmp_path / "plan.json").read_text())
    assert made["failures"]["back_s"] == 600.0
    goodput = {each["name"]: each["goodput"] for each in made["plan"]["ranked"]}
    assert 0.7 < goodput["all-reduce overlap=next-forward"] < goodput["all-reduce"] < 0.95
    if made["plan"]["ranked"][0]["name"] == "all-reduce":
        assert "shoal.init(min_workers=1)" in result.stdout
    plain = command(file, "--jobs", "1", *kept)
    assert "goodput" not in plain.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--machine-fails-every", "often"), "--machine-fails-every: It takes a time"),
        (("--machine-fails-every", "0 s"), "A machine runs for more than 0 s"),
        (("--machine-fails-every", "1 d", "--back-after", "x"), "--back-after: It takes a time"),
        (("--machine-fails-every", "1 d", "--checkpoint-every", "0 s"), "Checkpoints are written"),
    ],
)
def test_times_that_cannot_be(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    (tmp_path / "cluster.toml").write_text(SMALL)
    result = command(str(tmp_path / "cluster.toml"), *arguments)
    assert isinstance(result.exception, UsageError)
    assert sentence in str(result.exception)


def prediction(name: str, seconds: float | None, **more: Any) -> ranking.Prediction:
    usual = ranking.Prediction(name, "", "", 1.0, seconds, 10, 1.0, 0, 0.0, 1.0, 0.0, 0.0)
    return replace(usual, **more)


def test_the_middle_run_of_each_candidate_counts() -> None:
    runs = {"a": (10.0, None, 12.0), "b": (11.0, 11.5, 50.0), "c": (9.0, 70.0, 80.0)}
    made = [prediction(name, each) for name, times in runs.items() for each in times]
    found = ranking.make_plan(made)
    assert [(each.name, each.seconds_to_target) for each in found.ranked] == [
        ("b", 11.5),
        ("a", 12.0),
        ("c", 70.0),
    ]


@pytest.mark.parametrize(
    "soonest",
    [{"is_exact": False}, {"steps_behind": 3}, {"consensus_distance": 2.0}],
)
def test_of_equally_fast_ones_the_plan_takes_what_risks_least(soonest: dict[str, Any]) -> None:
    made = [
        prediction("soonest", 10.0, **soonest),
        prediction("safest", 10.4),
        prediction("slower", 10.6, consensus_distance=0.0),
    ]
    found = ranking.make_plan(made)
    assert [each.name for each in found.ranked] == ["safest", "soonest", "slower"]
    assert "As good within 5%: soonest. It risks less" in found.reason


def test_a_target_that_nobody_meets_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_MOST_STEPS", 2)
    monkeypatch.setattr(ranking, "candidates", lambda where: candidates(where)[:3])
    found = plan_of(parse_scenario(SMALL))
    assert found.reason.startswith("No strategy met the target")
    assert all(each.seconds_to_target is None for each in found.ranked)
    times = [each.step_ms for each in found.ranked]
    assert times == sorted(times)


def test_where_a_worker_is_slow_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 8 workers five times slower: what waits for nobody is planned."""
    firsts: dict[str, Candidate] = {}
    for each in candidates(alike(8)):
        firsts.setdefault(each.strategy, each)
    few = [firsts[strategy] for strategy in ("all-reduce", "ds-sync", "ripples", "ps-asp")]
    monkeypatch.setattr(ranking, "candidates", lambda _: few)
    monkeypatch.setattr(ranking, "SEEDS", 1)
    scenario = parse_scenario(SMALL.replace("workers = 2", "workers = 4"))
    assert scenario.training is not None
    slow = replace(scenario, training=replace(scenario.training, slow={1: 5.0}))
    found = plan_of(slow)
    best = found.ranked[0]
    assert best.name.startswith(("ripples", "ad-psgd", "ps-asp"))
    assert best.wait_share < 0.3
    everyone = next(each for each in found.ranked if each.name == "all-reduce")
    assert everyone.seconds_to_target is not None
    assert best.seconds_to_target is not None
    assert everyone.seconds_to_target > 2 * best.seconds_to_target


def test_a_cluster_without_a_job_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(SMALL[: SMALL.index("[training]")])
    result = command(str(tmp_path / "lab.toml"))
    assert isinstance(result.exception, UsageError)
    assert "says nothing of the job" in str(result.exception)


CLUSTER = SMALL[: SMALL.index("[training]")]


def test_options_name_the_job_of_a_file_that_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "candidates", lambda where: candidates(where)[:2])
    monkeypatch.setattr(ranking, "TARGET", 0.3)
    job = '\n[training]\nmodel = "resnet50"\ncompute = "40 ms"\n'
    found = []
    for number, (text, options) in enumerate(
        [
            (CLUSTER, ("--model", "resnet50", "--compute", "40 ms")),
            (CLUSTER + job, ()),
            (CLUSTER + job.replace("resnet50", "vgg16"), ("--model", "resnet50")),
            (CLUSTER + job, ("--compute", "80 ms")),
        ]
    ):
        file, made = tmp_path / f"{number}.toml", tmp_path / f"{number}.json"
        file.write_text(text)
        result = command(str(file), *options, "--jobs", "1", "--json", str(made))
        assert result.exit_code == 0, result.output
        assert ("a step computes for 40 ms" in result.stderr) == (
            options == ("--model", "resnet50")
        )
        ranked = json.loads(made.read_text())["plan"]["ranked"]
        found.append(next(each["step_ms"] for each in ranked if each["name"] == "all-reduce"))
    assert found[0] == found[1] == found[2] < found[3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "vgg16"), "says nothing of the job; name it with --model, and --compute"),
        (("--compute", "40 ms"), "says nothing of the job"),
        (("--model", "vgg17", "--compute", "40 ms"), "no architecture 'vgg17'"),
        (("--model", "vgg16", "--compute", "0 ms"), "more than nothing"),
        (("--model", "vgg16", "--compute", "soon"), "a time such as"),
        (("--model", "vgg16", "--compute", "1 ms", "--measured", "a"), "leave --compute out"),
    ],
)
def test_a_job_that_options_do_not_make_is_refused(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    result = command(str(tmp_path / "cluster.toml"), *options)
    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)


def test_a_time_on_the_command_line_replaces_those_of_the_file_s_trace() -> None:
    cluster = parse_scenario("[hosts]\ncount = 2\n[access]\nrate = '1 Gbit/s'\n").cluster
    trace = Measured("all-reduce", 1_000, ((0.01, 0.02), (0.01, 0.02)), ())
    job = TrainingSpec(compute_s=0.015, steps=2, strategies=(), parameters=1_000, measured=trace)
    read = Scenario(cluster, job)
    assert _with_job(read, Path("job.toml"), None, None, None).training == job
    given = _with_job(read, Path("job.toml"), None, "1 s", None).training
    assert given is not None
    assert (given.compute_s, given.measured) == (1.0, None)
