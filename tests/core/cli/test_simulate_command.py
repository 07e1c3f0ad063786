"""`shoal simulate`: what it prints and writes is what was simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from scenario_texts import SMALL
from typer import Typer
from typer.testing import CliRunner, Result

from shoal.cli.simulate import simulate
from shoal.cli.sweeping import parse_seeds
from shoal.errors import UsageError
from shoal.jobs.trace_file import write_trace
from shoal.scenario.spec_file import parse_scenario, read_scenario
from shoal.sim.training.simulation import check
from shoal.sim.training.simulation import simulate as run
from shoal.sweeps import spread_of
from shoal.trace import Span, SpanKind, TraceHeader
from thoroughness import examples

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""


def command(*arguments: str) -> Result:
    app = Typer()
    app.command()(simulate)
    return CliRunner().invoke(app, arguments)


def simulate_once(folder: Path, *arguments: str) -> Result:
    """Simulate job.toml in this process; runs are kept in the same folder."""
    kept = str(folder / "runs.jsonl")
    return command(str(folder / "job.toml"), "--runs", kept, "--jobs", "1", *arguments)


def test_the_table_and_the_file_hold_every_strategy(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SMALL)
    result = simulate_once(tmp_path, "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 0, result.output
    table, legend = result.stdout.split("\n\n")
    assert [line.split()[0] for line in table.splitlines()] == ["strategy", "all-reduce", "pairs"]
    assert legend.startswith("*: the best of the column.\n")
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["seeds"] == [3]
    read = parse_scenario(SMALL)
    assert read.training is not None
    for found, strategy in zip(report["outcomes"], read.training.strategies, strict=True):
        assert found["digest"] == run(read.cluster, read.training, strategy).digest
        assert found["steps"] == 4 * 12


def test_seeds_are_repeats_with_their_interval(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SMALL)
    result = simulate_once(tmp_path, "--seeds", "3,5-6", "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["seeds"] == [3, 5, 6]
    found = [each["step_ms"] for each in report["outcomes"] if each["name"] == "pairs"]
    assert len(set(found)) == 3
    assert f"{spread_of(found).mean:.1f} ± {spread_of(found).half_width:.1f}" in result.stdout
    assert "Mean over 3 seeds, and half of its 95 % interval." in result.stdout
    # the first seed is the file's: what it came to is what one run comes to
    once = simulate_once(tmp_path, "--json", str(tmp_path / "once.json"))
    assert once.exit_code == 0
    assert json.loads((tmp_path / "once.json").read_text())["outcomes"] == report["outcomes"][:2]


def test_a_trace_replaces_the_jobs_own_times(tmp_path: Path) -> None:
    """Four workers that take 10 ms and more, by rank, in every step; nothing is spread or slow."""
    spans = [Span(SpanKind.COMPUTE, rank, 0, 0, (10 + rank) * 1_000_000) for rank in range(4)]
    write_trace(tmp_path / "trace.json", spans, header=TraceHeader("local-sgd", 4, 100_000))
    text = SMALL[: SMALL.index("[[training.strategy]]")]
    (tmp_path / "job.toml").write_text(
        text + '[[training.strategy]]\nsync = "local-sgd"\ninterval = 1000\n'
    )
    out = "--json", str(tmp_path / "out.json")
    result = simulate_once(tmp_path, "--measured", str(tmp_path / "trace.json"), *out)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["measured"] == "trace.json"
    assert report["outcomes"][0]["step_ms"] == pytest.approx(11.5)
    assert report["outcomes"][0]["seconds"] == pytest.approx(12 * 0.013)


@pytest.mark.parametrize("text", ["", "x", "5-1", "1,", "-3", "1-99999999"])
def test_seeds_that_are_none_are_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.toml").write_text(SMALL)
    result = simulate_once(tmp_path, "--seeds", text)
    assert isinstance(result.exception, UsageError)
    assert f"--seeds takes numbers such as 1-5 or 1,3,7-9, not {text!r}." in str(result.exception)


def test_no_seeds_at_all_are_the_usual_ones_and_an_empty_text_is_none() -> None:
    assert parse_seeds(None, "1-3") == (1, 2, 3)
    assert parse_seeds("2", "1-3") == (2,)
    with pytest.raises(UsageError, match="--seeds takes numbers"):
        parse_seeds("", "1-3")


def test_a_scenario_without_training_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(SMALL[: SMALL.index("[training]")])
    result = command(str(tmp_path / "lab.toml"))
    assert isinstance(result.exception, UsageError)
    assert "says nothing of training; add a [training] table" in str(result.exception)


def test_what_sums_have_lost_is_a_column_where_something_got_lost(tmp_path: Path) -> None:
    lossy = SMALL.replace('delay = "10 us"', 'delay = "10 us"\nloss = "2 %"')
    lossy = lossy.replace("steps = 12", 'steps = 12\ntransport = "shoal"')
    bounded = lossy.replace("group_size = 2", "group_size = 2\nloss_bound = 0.1")
    tables = []
    for text in (lossy, bounded):
        (tmp_path / "job.toml").write_text(text)
        result = simulate_once(tmp_path, "--json", str(tmp_path / "out.json"))
        assert result.exit_code == 0, result.output
        tables.append([line.split() for line in result.stdout.splitlines()])
    assert "lost" not in tables[0][0]
    assert tables[1][0][-1] == "lost"
    assert tables[1][1][-1] == "0.0%"
    counters = json.loads((tmp_path / "out.json").read_text())["outcomes"][1]["counters"]
    assert 0 < counters["lost_bytes"] < 0.1 * counters["lossy_bytes"]
    assert tables[1][2][-1] == f"{counters['lost_bytes'] / counters['lossy_bytes']:.1%}"


def test_how_far_workers_were_apart_is_a_column_where_they_were(tmp_path: Path) -> None:
    """A formula says nothing of it."""
    together = SMALL[: SMALL.rindex("[[training.strategy]]")].replace("spread = 0.1\n", "")
    formula = '[[training.strategy]]\nsync = "all-reduce"\nlevel = "closed-form"\nlabel = "said"\n'
    apart = '[[training.strategy]]\nsync = "ps-asp"\n'
    tables = []
    for text in (together + formula, together + formula + apart):
        (tmp_path / "job.toml").write_text(text)
        result = simulate_once(tmp_path, "--json", str(tmp_path / "out.json"))
        assert result.exit_code == 0, result.output
        tables.append([line.split() for line in result.stdout.splitlines()])
    found = [
        each["most_behind"] for each in json.loads((tmp_path / "out.json").read_text())["outcomes"]
    ]
    assert found[:2] == [0, None]
    assert found[2] > 1
    assert "behind" not in tables[0][0]
    assert tables[1][0][-1] == "behind"
    assert tables[1][1][-1] == "0.0"
    assert len(tables[1][2]) == len(tables[1][1]) - 1
    assert tables[1][3][-1] == f"{found[2]:.1f}"


def test_the_example_of_lossy_links_loses_something() -> None:
    folder = Path(__file__).parents[3] / "src" / "shoal" / "scenario" / "examples"
    read = read_scenario(folder / "lossy-links.toml")
    assert read.training is not None
    short = replace(read.training, steps=3)
    bounded = [each for each in read.training.strategies if each.loss_bound]
    assert bounded
    for strategy in bounded:
        assert 0 < run(read.cluster, short, strategy).lost_share < strategy.loss_bound


def test_a_label_is_shown_as_it_is_written(tmp_path: Path) -> None:
    labelled = SMALL.replace('"pairs"', '"pairs [/4]"')
    assert labelled != SMALL
    (tmp_path / "job.toml").write_text(labelled)
    result = simulate_once(tmp_path)
    assert result.exit_code == 0, result.output
    assert "pairs [/4]" in result.stdout


def test_what_is_not_modelled_is_said(tmp_path: Path) -> None:
    lossy = SMALL.replace('delay = "10 us"', 'delay = "10 us"\nloss = "1 %"')
    (tmp_path / "job.toml").write_text(lossy)
    assert "note: Flows lose nothing" in simulate_once(tmp_path).stderr


def test_the_examples_can_be_simulated() -> None:
    folder = Path(__file__).parents[3] / "src" / "shoal" / "scenario" / "examples"
    found = [
        read_scenario(each)
        for each in sorted(folder.glob("*.toml"))
        if "[training]" in each.read_text()
    ]
    assert found
    for each in found:
        assert each.training is not None
        short = replace(each.training, steps=2)
        strategies = each.training.strategies
        for strategy in strategies[: examples(len(strategies), least=1)]:
            assert run(each.cluster, short, strategy).seconds > 0


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (
            ("transport = 'cubic'", "transport = 'cubik'"),
            "job.toml, line 10: Unknown transport 'cubik'",
        ),
        (("sync = 'ripples'", "sync = 'riples'"), "Did you mean 'ripples'?"),
        (("group_size = 2", "group_sise = 2"), "group_sise"),
        (("dataset = 'digits'", "dataset = 'digit'"), "line 6: There is no data set 'digit'"),
        (("model = 'mlp'", "model = 'mpl'"), "There is no model 'mpl'"),
    ],
)
def test_wrong_names_are_refused_before_anything_runs(
    tmp_path: Path, change: tuple[str, str], wanted: str
) -> None:
    pytest.importorskip("torch")
    assert change[0] in NAMES
    (tmp_path / "job.toml").write_text(NAMES.replace(*change))
    runs = tmp_path / "runs.jsonl"
    refused = simulate_once(tmp_path).exception
    assert isinstance(refused, UsageError)
    assert wanted in str(refused)
    assert len(str(refused).splitlines()) == 1
    assert not runs.exists()


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        (
            'sync = "local-sgd"\ninterval = 3.0',
            "Option interval of 'local-sgd' is of type int, not",
        ),
        (
            'sync = "local-sgd"\ninterval = true',
            "Option interval of 'local-sgd' is of type int, not",
        ),
        (
            'sync = "ripples"\ninterval = 2.5',
            "Option interval of 'ripples' is of type int, not 2.5.",
        ),
        (
            'sync = "ripples"\nsize = 2',
            "Strategy 'ripples' has no option 'size'; its options: interval",
        ),
        (
            'sync = "ps-ssp"\nstaleness = "3"',
            "Option staleness of 'ps-ssp' is of type int, not '3'.",
        ),
        (
            'sync = "ps-ssp"\nstaleness = -1',
            "The staleness of ps-ssp (0 is ps-bsp) must be a whole number of at least 1, not -1.",
        ),
        ('sync = "ps-ssp"\nstaleness = 0', "The staleness of ps-ssp (0 is ps-bsp) must be"),
        ('sync = "ripples"\ngroup_size = 5', "Group size 5 is larger than the 4 workers"),
        ('sync = "ripples-random"\ngroup_size = 5', "Group size 5 is larger than the 4 workers"),
        (
            'sync = "ps-ssp"\nscale_updates = "no"',
            "Option scale_updates of 'ps-ssp' is of type bool",
        ),
        (
            'sync = "ps-bsp"\nscale_updates = false',
            "Strategy 'ps-bsp' has no option 'scale_updates'",
        ),
        ('sync = "ps-layers"\nservers = 2.0', "Option servers of 'ps-layers' is of type int"),
        ('sync = "ps-layers"\nservers = 5', "Servers are 1 to 4 of the workers, not 5."),
        ('sync = "ds-sync"\ngroup_size = 8', "A group size of 8 does not fit 4 workers"),
        ('sync = "ds-sync"\nshuffle = "x"', "DS-Sync shuffles by grid, random, topology, not 'x'."),
        (
            'sync = "ad-psgd"\npeers = "x"',
            "Peers are chosen by 'exponential' or 'random', not 'x'.",
        ),
        (
            'sync = "ad-psgd"\npeers = "x"\nlevel = "closed-form"',
            "Peers are chosen by 'exponential' or 'random', not 'x'.",
        ),
        (
            'sync = "all-reduce"\nalgorithm = "hierarchical"\nper_host = 3',
            "A hierarchical all-reduce needs equally many members on every host; 4 do not make",
        ),
        (
            'sync = "all-reduce"\nper_host = 2',
            'per_host is for algorithm = "hierarchical" alone: leave it out.',
        ),
        (
            'sync = "ad-psgd"\ntransport = "shoal"\nloss_bound = 0.1',
            "loss_bound: in simulations all that this strategy sends arrives; leave it out.",
        ),
        (
            'sync = "ds-sync"\ntransport = "shoal"\nholes = "error-feedback"',
            "holes: only where gradients are summed, packet by packet, can it be chosen",
        ),
        (
            'sync = "ps-bsp"\ntransport = "shoal"\nwire = "float16"',
            "wire: simulated for sums of gradients by all-reduce, and for averages that hide",
        ),
        (
            'sync = "ds-sync"\ntransport = "shoal"\nwire = "float16"',
            "wire: simulated for sums of gradients by all-reduce, and for averages that hide",
        ),
        (
            'sync = "ds-sync"\naverage_state = true',
            "average_state: how much there is, the optimizer of a model says that learns; name",
        ),
        (
            'sync = "ps-bsp"\ntransport = "shoal"\nloss_bound = 0.1\npull_bound = 0.2',
            "Pulls may lose no more than pushes: a pull's bound of 0.2 needs a loss bound of as",
        ),
        (
            'sync = "ps-bsp"\npull_bound = 0.1',
            "Pulls may lose no more than pushes: a pull's bound of 0.1 needs a loss bound of as",
        ),
        (
            (
                'sync = "ps-asp"\ntransport = "shoal"\nlevel = "flows"\n'
                "loss_bound = 0.1\npull_bound = 0.1"
            ),
            "pull_bound: what pulls lose is simulated packet by packet; leave it out.",
        ),
        ('sync = "ps-bsp"\npull_bound = 1.5', "A pull's bound is a share of at least 0 and less"),
        (
            'sync = "ps-ssp"\ntransport = "shoal"\nholes = "divide-by-count"',
            "Who adds up messages cannot count what came of each; choose another policy",
        ),
        (
            (
                'sync = "all-reduce"\nalgorithm = "hierarchical"\n'
                'transport = "shoal"\nloss_bound = 0.1'
            ),
            "loss_bound: in simulations all that this strategy sends arrives; leave it out.",
        ),
    ],
)
def test_options_are_refused_before_anything_runs(strategy: str, sentence: str) -> None:
    text = SMALL.replace("spread = 0.1\n", "")
    before = text[: text.index("[[training.slow]]")]
    first = '[[training.strategy]]\nsync = "all-reduce"\nlabel = "alike"\n'
    read = parse_scenario(f"{before}{first}[[training.strategy]]\n{strategy}\n", "job.toml")
    with pytest.raises(UsageError) as refused:
        check(read)
    assert str(refused.value).startswith(f"job.toml, line 19: {sentence}")


NAMES = """
[hosts]
count = 2
[access]
rate = "1 Gbit/s"
[training]
dataset = 'digits'
model = 'mlp'
compute = "1 ms"
[[training.strategy]]
sync = 'all-reduce'
transport = 'cubic'
[[training.strategy]]
sync = 'ripples'
group_size = 2
"""
