"""What a text says of workers that die, stand still and come, and what it cannot say."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.scenario.cluster_spec import HostEvent, WorkerEvent
from shoal.scenario.spec_file import parse_scenario, parse_spec

HEAD = 'hosts.count = 3\nhosts.workers = 2\naccess.rate = "1 Gbit/s"\n'


def event(at_s: float, **keys: object) -> str:
    lines = [f"{key} = {value!r}".replace("'", '"') for key, value in keys.items()]
    return "\n".join(["[[event]]", f'at = "{at_s} s"', *lines, ""])


def test_events_of_workers_stand_beside_those_of_links_and_hosts() -> None:
    spec = parse_spec(
        HEAD
        + event(4, join=6, host="host1")
        + event(1, kill=3)
        + event(2.5, host="host2", slower=2)
        + event(2, freeze=0, **{"for": "300 ms"})
        + event(3, join=3)
    )
    assert spec.events == (
        WorkerEvent(1.0, "kill", 3),
        WorkerEvent(2.0, "freeze", 0, lasts_s=0.3),
        HostEvent(2.5, 2, 2.0),
        WorkerEvent(3.0, "join", 3),
        WorkerEvent(4.0, "join", 6, host=1),
    )
    assert spec.worker_events == tuple(e for e in spec.events if isinstance(e, WorkerEvent))
    assert spec.host_of == [0, 0, 1, 1, 2, 2]
    assert spec.newcomers == [1]
    assert spec.without_worker_events().events == (HostEvent(2.5, 2, 2.0),)


def test_a_newcomer_may_die_and_come_again_where_it_was() -> None:
    text = HEAD + event(1, join=6, host="host2") + event(2, kill=6) + event(3, join=6)
    assert parse_spec(text).newcomers == [2]


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        (event(1, kill=6), "line 6: kill: This worker is not there then"),
        (event(1, kill=3) + event(2, kill=3), "line 9: kill: This worker is not there then"),
        (event(2, freeze=3, **{"for": "1 s"}) + event(1, kill=3), "line 6: freeze: This worker"),
        (event(1, join=3), "line 6: join: This worker is there already"),
        (event(1, join=7, host="host0"), "line 6: join: The next rank that nobody has had is 6"),
        (event(1, join=6), "line 6: join: Nobody has had this rank: say the host"),
        (event(1, kill=1) + event(2, join=1, host="host0"), "line 10: host: It comes on the host"),
        (event(1, kill=1, join=2), "line 7: join: An event is one thing"),
        (event(1, freeze=1), "line 4: 'for' is missing"),
        (event(1, freeze=1, **{"for": "0 s"}), "line 7: for: A worker stands still for more than"),
        (event(1, kill=1, slower=2), "line 7: slower: 'slower' is not known here"),
        (event(1, kill="host1"), "line 6: kill: It takes a whole number"),
    ],
)
def test_what_cannot_happen_is_refused_with_its_line(events: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_spec(HEAD + events)
    assert sentence in str(caught.value)


def test_what_the_job_needs_is_said_as_to_init() -> None:
    job = '[training]\nparameters = 10\ncompute = "1 s"\nmin_workers = 3\ndeadline = "20 s"\n'
    training = parse_scenario(HEAD + job).training
    assert training is not None
    assert (training.min_workers, training.deadline_s) == (3, 20.0)
    with pytest.raises(UsageError, match="deadline: A deadline is more than 0 s"):
        parse_scenario(HEAD + job.replace("20 s", "0 s"))
