"""Exchanges that hide behind computing give bit for bit what waiting at once gives.

Every script of `overlap_scripts` is trained under each word of `overlap` in the same processes;
losses, parameters, statistics and the optimizer's state are compared as bits. Gloo adds in a fixed
order for any number of workers, as parameter servers do; Shoal's transport adds in the order of
arrival, which two workers cannot tell apart.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from thoroughness import seldom

torch = pytest.importorskip("torch")
from overlap_scripts import OPTIMIZERS, SCRIPTS, SYNCS, UNEQUAL, begin, train_once  # noqa: E402
from torch import nn  # noqa: E402

import shoal  # noqa: E402
from shoal.train.piece_means import PieceMeans  # noqa: E402

if TYPE_CHECKING:
    from worker_processes import RunWorkers

HIDING = {
    "all-reduce": ("backward", "next-forward"),
    "low rank": ("backward", "next-forward"),
    "ripples": ("none", "next-forward"),
}
"""The words of `overlap` with one result; the first hides nothing after backward."""


def hiding(sync: str, script: str) -> tuple[str, ...]:
    words = HIDING.get(sync, ("none", "next-forward", "layers"))
    return tuple(word for word in words if not (word == "layers" and script in REFUSED))


def train_every_way(scripts: list[tuple[str, str]], transport: str, sync: str) -> list[Any]:
    rank = begin()
    outcomes = []
    for script, optimizer in scripts:
        for word in hiding(sync, script):
            try:
                outcome = train_once(rank, script, optimizer, transport, SYNCS[sync](word))
            except Exception as error:
                error.add_note(f"in script {script!r} with {optimizer} and {word}")
                raise
            outcomes.append((script, optimizer, word, outcome))
    shoal.shutdown()
    return outcomes


def check_equal(outcomes: list[Any], *, are_replicas_equal: bool = True) -> None:
    at_once: dict[int, Any] = {}
    for by_rank in zip(*outcomes, strict=True):
        for rank, (script, optimizer, word, hidden) in enumerate(by_rank):
            if word in ("none", "backward"):
                at_once[rank] = hidden
            eager = at_once[rank]
            assert repr(hidden["trace"]) == repr(eager["trace"]), (script, optimizer, word)  # NaN
            for part in ("model", "state", "classes"):
                assert hidden[part] == eager[part], (script, optimizer, word, part)
        if are_replicas_equal and script not in UNEQUAL:
            first = by_rank[0][3]["model"]
            assert all(hidden["model"] == first for *_, hidden in by_rank), script


GROUPS = {
    "first": [
        "plain",
        "accumulating",
        "clipping",
        "averaging_parameters",
        "saving",
    ],
    "second": [
        "reading_aliases",
        "using_a_weight_behind_autograd",
        "keeping_graphs",
        "moving_a_frozen_layer_before_a_step",
    ],
    "third": [
        "scheduled",
        "discarding",
        "changing_one_gradient",
        "scaling",
    ],
    "fourth": [
        "evaluating",
        "writing_to_aliases",
        "closing",
        "stopping_early",
    ],
}
GROUPS["others"] = [
    script.__name__
    for script in SCRIPTS
    if script.__name__ not in itertools.chain.from_iterable(GROUPS.values())
]


@pytest.mark.parametrize(
    ("sync", "transport", "group"),
    seldom(
        itertools.product(SYNCS, ("gloo", "shoal"), GROUPS),
        often=[
            ("all-reduce", "shoal", "first"),
            ("ds-sync", "shoal", "second"),
            ("ps-bsp", "shoal", "third"),
            ("local-sgd", "shoal", "fourth"),
        ],
    ),
)
@pytest.mark.parametrize("optimizer", seldom(["momentum", "adam"], often=["adam"]))
def test_what_hides_has_the_same_bits(
    run_workers: RunWorkers, sync: str, transport: str, group: str, optimizer: str
) -> None:
    cases = [(script, optimizer) for script in GROUPS[group]]
    outcomes = run_workers(train_every_way, size_of(sync, transport), cases, transport, sync)
    check_equal(outcomes, are_replicas_equal=sync in ("all-reduce", "low rank", "ps-bsp"))
    assert all(hidden["state"] for worker in outcomes for *_, hidden in worker)


def size_of(sync: str, transport: str) -> int:
    """Return how many workers do not see the order in which a transport adds up."""
    if sync in ("ds-sync", "ripples-static"):  # pairs of a grid
        return 4 if sync == "ds-sync" or transport == "gloo" else 2
    return 3 if transport == "gloo" and sync != "ripples" else 2


REFUSED = {
    "clipping": "added to between its use and step(): use overlap='next-forward'",
    "changing_one_gradient": "a gradient scaler, zero_grad() or a look at it",
    "scaling": "while backward is running",
    "discarding": "zero_grad()",
    "clearing_to_zero_before_a_step": "zero_grad()",
    "accumulating_without_no_sync": "no_sync() for all but a step's last",
    "accumulating_the_wrong_way_round": "no_sync() for all but a step's last",
    "changing_the_rate": "uses the learning rate and other options",
    "ending_before_a_step": "between its use and step()",
}


ALSO_REFUSED = {
    "looking_at_a_parameter_before_a_step": "what it has changed) was touched",
    "saving_before_a_step": "between its use and step()",
}
"""What averages refuse, which change parameters before `step()`."""


def refused(script: str, sync: str) -> str:
    rank = begin()
    with pytest.raises(shoal.UsageError) as caught:
        train_once(rank, script, "momentum", "gloo", SYNCS[sync]("layers"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("sync", "script"),
    seldom(
        [
            *(("ps-bsp", script) for script in REFUSED),
            *(("ds-sync", script) for script in (*REFUSED, *ALSO_REFUSED)),
        ],
        often=[
            ("ps-bsp", "discarding"),
            ("ds-sync", "clipping"),
            ("ds-sync", "accumulating_without_no_sync"),
            ("ds-sync", "looking_at_a_parameter_before_a_step"),
        ],
    ),
)
def test_what_changes_gradients_that_have_been_used_is_refused(
    run_workers: RunWorkers, sync: str, script: str
) -> None:
    for sentence in run_workers(refused, 1 if sync == "ps-bsp" else 2, script, sync):
        assert {**REFUSED, **ALSO_REFUSED}[script] in sentence


def means_begun_in_backward() -> list[tuple[list[int], list[int]]]:
    """Return the pieces whose means have begun before each step, and those that begin in it."""
    rank = begin()
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = shoal.DistributedOptimizer(
        optimizer, model, shoal.LocalSGD(interval=2, overlap="layers")
    )
    begun: list[int] = []
    start = PieceMeans.begin

    def begin_and_note(means: PieceMeans, places: Any = None) -> None:
        begun.extend(places)
        start(means, places)

    PieceMeans.begin = begin_and_note  # type: ignore[method-assign]
    seen = []
    for _ in range(4):
        wrapped.zero_grad()
        model(torch.randn(4, 8) + rank).square().sum().backward()
        early = begun[:]
        begun.clear()
        wrapped.step()
        seen.append((early, begun[:]))
        begun.clear()
    wrapped.finish()
    return seen


def test_means_begin_in_backward_rear_pieces_first(run_workers: RunWorkers) -> None:
    for steps in run_workers(means_begun_in_backward, 2):
        # statistics are piece 0, then layers from the front; an average is due every other step
        assert steps == [([], []), ([3, 2, 1], [0])] * 2


AT_ONCE = {
    "shared memory": "shares its memory",
    "a generator": "overlap='layers' is for averages by a schedule",
    "a job that loses workers": "in a job that goes on without lost workers they may not happen",
}


def refused_at_once(what: str) -> str:
    begin(min_workers=1 if what == "a job that loses workers" else None)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    if what == "shared memory":
        model[1].weight.data = model[0].weight.data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sync = "ripples" if what == "a generator" else "local-sgd"
    with pytest.raises(shoal.UsageError) as caught:
        shoal.DistributedOptimizer(optimizer, model, sync, overlap="layers")
    return str(caught.value)


@pytest.mark.parametrize("what", AT_ONCE)
def test_where_no_layer_can_go_ahead_is_refused(run_workers: RunWorkers, what: str) -> None:
    (sentence,) = run_workers(refused_at_once, 1, what)
    assert AT_ONCE[what] in sentence


@pytest.mark.parametrize(
    ("sync", "transport"),
    seldom([("all-reduce", "gloo"), ("all-reduce", "shoal"), ("ds-sync", "gloo")], often=[]),
)
def test_every_optimizer_ends_with_the_same_bits(
    run_workers: RunWorkers, sync: str, transport: str
) -> None:
    cases = [("plain", name) for name in OPTIMIZERS]
    outcomes = run_workers(train_every_way, 2, cases, transport, sync)
    check_equal(outcomes, are_replicas_equal=sync == "all-reduce")


@pytest.mark.long  # test_transport_torch_ddp.py compiles, too
@pytest.mark.parametrize("sync", ["all-reduce", "ds-sync"])
def test_a_compiled_model_ends_with_the_same_bits(run_workers: RunWorkers, sync: str) -> None:
    cases = [("compiled", "momentum")]
    outcomes = run_workers(train_every_way, 2, cases, "shoal", sync)
    check_equal(outcomes, are_replicas_equal=sync == "all-reduce")
