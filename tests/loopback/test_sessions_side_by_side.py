"""Workers that train several models ask in several sessions, in turn: nobody waits in a circle."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control_handlers import handler_of
from shoal.control import handler as handler_module
from shoal.control.messages import Assigned, Done, GroupRequest, Join, Leave
from shoal.groups import GeneratorConfig
from thoroughness import examples


def play(config: GeneratorConfig, orders: list[list[str]], random: Random) -> tuple[int, int]:
    """Let each worker ask in the sessions of its order, the next one once it is answered.

    Return how many requests were made and how often a member was left out.
    """
    handler = handler_of(len(orders), 1_000)
    sessions = sorted({name for order in orders for name in order})
    for rank, name in ((rank, name) for rank in range(len(orders)) for name in sessions):
        handler.handle(b"%d" % rank, Join(name, rank, rank // 2, config, 1), 0)
    to_do = [list(order) for order in orders]
    waiting: dict[int, str] = {}
    now_ns, parted = 0, 0
    here = set(range(len(orders)))
    while here:
        able = sorted(here - waiting.keys())
        assert able, f"deadlock: all wait, {waiting}"
        rank, now_ns = random.choice(able), now_ns + 1
        if not to_do[rank]:
            here.discard(rank)
        for name in sessions if rank not in here else to_do[rank][:1]:
            message: Any = GroupRequest(name, rank, 0) if rank in here else Leave(name, rank)
            if rank in here:
                waiting[rank] = name
            for identity, reply in handler.handle(b"%d" % rank, message, now_ns):
                assert isinstance(reply, Assigned | Done), reply
                if isinstance(reply, Assigned):
                    other = int(identity)
                    assert waiting.pop(other) == reply.session == to_do[other][0]
                    del to_do[other][: not reply.more]
        states = [session.generator.counters.parted for session in handler.dump(now_ns).sessions]
        parted = max(parted, sum(states))
    return now_ns, parted


configurations = st.builds(
    GeneratorConfig,
    group_size=st.integers(2, 4),
    group_buffer=st.booleans(),
    global_division=st.booleans(),
    inter_intra=st.booleans(),
    slowdown_threshold=st.sampled_from([None, 2]),
)


@settings(max_examples=examples(150))
@given(
    config=configurations,
    orders=st.lists(
        st.lists(st.sampled_from(["g", "d", "e"]), max_size=12), min_size=4, max_size=7
    ),
    seed=st.integers(0, 2**32),
)
def test_workers_that_ask_in_any_order_are_all_answered(
    config: GeneratorConfig, orders: list[list[str]], seed: int
) -> None:
    play(config, orders, Random(seed))


@pytest.mark.parametrize("config", [GeneratorConfig(), GeneratorConfig.random_mode(3)])
def test_a_loop_over_two_models_would_stop_without_the_parting(
    config: GeneratorConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = [["g", "d"] * 50 for _ in range(6)]
    requests, parted = play(config, loops, Random(3))
    assert 0 < parted < requests
    monkeypatch.setattr(handler_module, "waiting_for", lambda *_: set())
    with pytest.raises(AssertionError, match="deadlock"):
        play(config, loops, Random(3))


def test_one_model_s_groups_are_never_parted() -> None:
    _, parted = play(GeneratorConfig.random_mode(3), [["g"] * 50 for _ in range(6)], Random(3))
    assert parted == 0
