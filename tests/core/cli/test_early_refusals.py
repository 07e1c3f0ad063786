"""What cannot be simulated is said before the first run, with the line of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner, Result

from shoal import memory
from shoal.cli.plan import plan
from shoal.cli.simulate import simulate
from shoal.collectives import graphs
from shoal.errors import ResourceError, UsageError
from shoal.scenario.spec_file import parse_scenario
from shoal.sim.training.simulation import check
from shoal.transport.forms import ABSENT
from shoal.transport.graph_tables import (
    GraphOptions,
    messages_of_sum,
    piece_length,
    tables_of,
)

pytestmark = pytest.mark.timeout(300)
"""The first run of a kernel compiles it."""

TEXT = """\
[hosts]
count = 2

[switch]
port_buffer = "64 kB"

[access]
rate = "1 Gbit/s"
loss = "0 %"

[training]
parameters = 100_000
compute = "20 ms"
steps = 12
transport = "shoal"

[[training.strategy]]
sync = "all-reduce"
label = "first"

[[training.strategy]]
sync = "all-reduce"
label = "second"
"""
TCP = ('transport = "shoal"', 'transport = "cubic"')
FLOWS = ('transport = "shoal"', "")
AFTER = '\n[[event]]\nat = "0 s"\nbetween = ["host0", "switch"]\n'


def text_of(*changes: tuple[str, str], after: str = "") -> str:
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text + after


def refusal(text: str) -> str:
    with pytest.raises((UsageError, ResourceError)) as refused:
        check(parse_scenario(text, "job.toml"))
    return str(refused.value)


def command(work: object, text: str, folder: Path, *arguments: str) -> Result:
    (folder / "job.toml").write_text(text)
    app = Typer()
    app.command()(work)  # type: ignore[type-var]
    kept = str(folder / "runs.jsonl")
    return CliRunner().invoke(app, [str(folder / "job.toml"), "--runs", kept, *arguments])


def test_what_is_as_it_should_be_passes() -> None:
    for change in ((), (TCP,), (FLOWS,)):
        check(parse_scenario(text_of(*change)))


def test_an_unknown_model_is_said_where_it_is_named() -> None:
    found = refusal(text_of(("parameters = 100_000", 'model = "vgg61"')))
    assert found.startswith(
        "job.toml, line 12: There is no architecture 'vgg61'; choose one of vgg16,"
    )


def test_an_unknown_transport_of_the_job_is_said_where_it_is_named() -> None:
    found = refusal(text_of(('transport = "shoal"', 'transport = "shaol"')))
    assert found.startswith("job.toml, line 15: Unknown transport 'shaol'; choose one of shoal,")


@pytest.mark.parametrize("size", ["100 B", "1 kB"])
@pytest.mark.parametrize("carrier", [(), (TCP,)])
def test_a_buffer_that_holds_no_packet_is_said_of_the_buffer(
    size: str, carrier: tuple[tuple[str, str], ...]
) -> None:
    found = refusal(text_of(("64 kB", size), *carrier))
    assert found.startswith("job.toml, line 5: port_buffer: ")
    assert "hold no full packet" in found
    shared = ('port_buffer = "64 kB"', f'shared_buffer = "{size}"')
    assert refusal(text_of(shared, *carrier)).startswith("job.toml, line 5: shared_buffer: ")
    queues = ('port_buffer = "64 kB"', f'[[switch.queue]]\nlimit = "{size}"')
    assert refusal(text_of(queues, *carrier)).startswith("job.toml, line 6: limit: ")


def test_a_queue_that_nothing_fits_into_may_stand_beside_others() -> None:
    """Who tags packets for it wants them dropped."""
    small = ('port_buffer = "64 kB"', '[[switch.queue]]\nqueues = [6, 7]\nlimit = "100 B"')
    check(parse_scenario(text_of(small)))


@pytest.mark.parametrize(
    ("carrier", "key", "wanted"),
    [
        (FLOWS, "mtu = 9000", "mtu: It is for packets"),
        (FLOWS, 'tick = "2 us"', "tick: Only the transport 'shoal' has ticks"),
        (TCP, 'tick = "2 us"', "tick: Only the transport 'shoal' has ticks"),
        (("", ""), 'min_timeout = "1 ms"', "min_timeout: It is not for transport 'shoal'"),
    ],
)
def test_what_no_transport_of_the_job_heeds_is_said_of_the_key(
    carrier: tuple[str, str], key: str, wanted: str
) -> None:
    found = refusal(text_of(carrier, ("steps = 12", f"steps = 12\n{key}")))
    assert found.startswith(f"job.toml, line 15: {wanted}")


def test_a_buffer_is_as_good_as_the_packets_are_small() -> None:
    """Flows know no buffers; messages of 100 parameters, and packets of a small MTU, do fit."""
    small = ("64 kB", "1 kB")
    check(parse_scenario(text_of(small, FLOWS)))
    check(parse_scenario(text_of(small, ("steps = 12", "steps = 12\nmtu = 800"))))
    check(parse_scenario(text_of(small, ("100_000", "100"))))


@pytest.mark.parametrize(
    ("changes", "after", "line"),
    [
        ([("0 %", "100 %")], "", 9),
        ([], '\n[[link]]\nfrom = "host1"\nto = "switch"\nloss = 1.0\n', 28),
        ([], f"{AFTER}loss = 1.0\n", 28),
        ([("0 %", "100 %")], f"{AFTER}down = true\n", 28),
        ([FLOWS], f"{AFTER}down = true\n", 28),
        ([], '\n[[link]]\nbetween = ["host1", "switch"]\ndown = true\n', 27),
    ],
)
def test_ways_that_nothing_gets_through_are_said_where_they_are_described(
    changes: list[tuple[str, str]], after: str, line: int
) -> None:
    found = refusal(text_of(*changes, after=after))
    assert found.startswith(f"job.toml, line {line}: There is no path from ")
    assert "and stay so: " in found


def test_ways_that_open_again_and_flows_that_lose_nothing_pass() -> None:
    lost = ("0 %", "100 %")
    check(parse_scenario(text_of(lost, FLOWS)))
    opens = '\n[[event]]\nat = "1 s"\nbetween = ["{}", "switch"]\nloss = 0.0\n'
    both = opens.format("host0") + opens.format("host1")
    check(parse_scenario(text_of(lost, after=both)))
    bursts = 'loss = "100 %"\nbad_loss = 0.0\nto_bad = 0.1\nto_good = 0.1'
    check(parse_scenario(text_of(('loss = "0 %"', bursts))))


@pytest.mark.parametrize(
    "strategy",
    [
        'sync = "all-reduce"',
        'sync = "all-reduce"\nalgorithm = "ring"',
        'sync = "all-reduce"\nalgorithm = "hierarchical"',
        'sync = "ps-bsp"',
        'sync = "ps-layers"',
        'sync = "ad-psgd"',
        'sync = "ds-sync"',
        'sync = "ripples"\ngroup_size = 2',
        'sync = "local-sgd"\ninterval = 50\noverlap = "next-steps"',
    ],
)
def test_more_messages_than_there_may_be_are_known_before(strategy: str) -> None:
    text = text_of(("steps = 12", "steps = 200"), ("count = 2", "count = 4"))
    text = text[: text.index("[[training.strategy]]")] + "[[training.strategy]]\n" + strategy
    found = refusal(text.replace("100_000", "5_000_000_000_000"))
    assert found.startswith("job.toml, line 17: The transport moves at most 65,536 messages")
    check(parse_scenario(text.replace("100_000", "5_000_000_000")))


@pytest.mark.parametrize("algorithm", ["direct", "ring"])
@pytest.mark.parametrize("members", [2, 3, 5])
@pytest.mark.parametrize("count", [7, 50_000, 1_000_001])
def test_messages_of_a_sum_are_those_of_its_tables(
    algorithm: str, members: int, count: int
) -> None:
    is_ring = algorithm == "ring"
    piece = piece_length(count, ABSENT, 1440, 44, shards=members, ring=is_ring)
    graph = graphs.all_reduce(members, 0, count, piece, algorithm=algorithm)
    tables = tables_of(graph, range(members), members, 1440, ABSENT, GraphOptions())
    most = int(tables.outgoing["message"].max()) + 1
    assert messages_of_sum(count, piece, members, ring=is_ring) == most


def test_hosts_for_which_there_is_no_room_are_said_of_the_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
    found = refusal(text_of())
    assert found.startswith("job.toml, line 17: Shoal's transport on 2 hosts would take ")
    check(parse_scenario(text_of(TCP)))


def test_replicas_for_which_there_is_no_room_are_said_of_the_strategy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    learns = ("parameters = 100_000", 'model = "mlp:2000000"\ndataset = "digits"')
    monkeypatch.setattr(memory, "available_bytes", lambda: 10**9)
    found = refusal(text_of(learns, FLOWS))
    assert found.startswith("job.toml, line 18: 2 replicas of mlp:2000000, of 600.0 MB each, with")
    assert found.endswith("simulate fewer workers, or a smaller model.")


def test_copies_that_a_strategy_keeps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three models of 38 kB, their gradients, momenta and two more: 0.6 MB; copies: 0.8."""
    pytest.importorskip("torch")
    learns = ("parameters = 100_000", 'model = "mlp"\ndataset = "digits"')
    hides = 'sync = "local-sgd"\ninterval = 2\noverlap = "next-steps"\nlabel = "second"'
    text = text_of(learns, FLOWS, ('sync = "all-reduce"\nlabel = "second"', hides))
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 * 9_610 * 4 * 6)
    assert refusal(text).startswith("job.toml, line 22: 2 replicas of mlp, of 0.0 MB each, with")


def test_nothing_is_kept_of_a_file_that_is_refused(tmp_path: Path) -> None:
    result = command(simulate, text_of(("64 kB", "100 B")), tmp_path)
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "runs.jsonl").exists()


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("parameters = 100_000", 'model = "vgg61"'), "line 12: There is no architecture"),
        (('transport = "shoal"', 'transport = "shaol"'), "line 15: Unknown transport"),
        (("64 kB", "100 B"), "line 5: port_buffer: 100 B hold no full packet"),
        (("0 %", "100 %"), "line 9: There is no path from"),
        (("100_000", "5_000_000_000_000"), "line 11: The transport moves at most 65,536"),
    ],
)
def test_a_plan_is_refused_before_its_first_run(
    tmp_path: Path, change: tuple[str, str], wanted: str
) -> None:
    pytest.importorskip("torch")
    result = command(plan, text_of(change), tmp_path)
    assert isinstance(result.exception, UsageError)
    assert f"job.toml, {wanted}" in str(result.exception)
    assert not (tmp_path / "runs.jsonl").exists()
