"""All workers reach the same verdict on each other's cards, whatever differs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.control.card_difference import compare, name_ranks
from shoal.control.job_card import CardStore, JobCard, agree
from shoal.control.key import JobKey
from shoal.errors import DeadlineExceeded, MismatchError
from thoroughness import examples, seldom

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

KEY = JobKey("the key of this test job")
MODEL = ("trainable weight (10, 5) float32", "trainable bias (10,) float32")
CARD = JobCard(
    version="1.0",
    num_ranks=4,
    strategy="ripples",
    model_fingerprint=MODEL,
    python="3.11.7",
    torch="2.6.0",
)


@dataclass
class MemoryStore:
    """A store like torch's, for threads."""

    kept: dict[str, bytes] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def set(self, key: str, value: bytes) -> None:
        with self.changed:
            self.kept[key] = value
            self.changed.notify_all()

    def get(self, key: str) -> bytes:
        with self.changed:
            return self.kept[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        def is_there() -> bool:
            return all(key in self.kept for key in keys)

        with self.changed:
            if not self.changed.wait_for(is_there, timeout.total_seconds()):
                raise RuntimeError("late")


@pytest.fixture(params=["memory", "torch"])
def connect(request: pytest.FixtureRequest) -> Callable[[], CardStore]:
    """Return what gives a worker its connection to the store that all share."""
    if request.param == "memory":
        store = MemoryStore()
        return lambda: store
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    from torch.distributed import TCPStore

    limit = timedelta(seconds=20)
    master = TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)

    def open_client() -> CardStore:
        client: CardStore = TCPStore("127.0.0.1", master.port, None, False, limit)
        return client

    return open_client


def agree_all(
    connect: Callable[[], CardStore],
    cards: Mapping[int, JobCard],
    keys: Mapping[int, JobKey] | None = None,
    deadline_s: float = 20.0,
    topic: str = "run",
    members: Callable[[], Sequence[int]] = lambda: range(4),
) -> dict[int, Any]:
    """Let every worker that has a card call `agree`; return what it returned or raised."""

    def run(rank: int) -> Any:
        key = (keys or {}).get(rank, KEY)
        try:
            return agree(connect(), rank, members, key, topic, cards[rank], deadline_s)
        except (MismatchError, DeadlineExceeded) as error:
            return error

    with ThreadPoolExecutor(len(cards)) as pool:
        return dict(zip(cards, pool.map(run, cards), strict=True))


def changed(**fields: Any) -> JobCard:
    return msgspec.structs.replace(CARD, **fields)


def same_sentence(outcomes: Mapping[int, Any], kind: type[Exception]) -> str:
    assert all(type(outcome) is kind for outcome in outcomes.values()), outcomes
    (sentence,) = {str(outcome) for outcome in outcomes.values()}
    return sentence


def test_equal_cards_agree(connect: Callable[[], CardStore]) -> None:
    assert agree_all(connect, dict.fromkeys(range(4), CARD)) == dict.fromkeys(range(4), ())


@pytest.mark.parametrize("lost", seldom([0, 2], often=[0]))
def test_a_worker_that_is_lost_meanwhile_is_not_waited_for(
    connect: Callable[[], CardStore], lost: int
) -> None:
    living = [rank for rank in range(4) if rank != lost]
    cards = {**dict.fromkeys(living, CARD), 3: changed(strategy="ds-sync")}
    is_known = threading.Event()  # that it is lost: only once the others wait for it

    def members() -> Sequence[int]:
        return living if is_known.is_set() else range(4)

    with ThreadPoolExecutor(1) as pool:
        agreed = pool.submit(agree_all, connect, dict.fromkeys(living, CARD), members=members)
        with pytest.raises(TimeoutError):
            agreed.result(0.2)
        is_known.set()
        assert agreed.result(10) == dict.fromkeys(living, ())
    differing = same_sentence(
        agree_all(connect, cards, topic="again", members=members), MismatchError
    )
    assert f'Rank 3 runs strategy "ds-sync" but rank {living[0]} runs "ripples"' in differing


def test_a_different_strategy_is_named_to_everyone(connect: Callable[[], CardStore]) -> None:
    cards = {**dict.fromkeys(range(4), CARD), 3: changed(strategy="ds-sync")}
    assert same_sentence(agree_all(connect, cards), MismatchError) == (
        'Rank 3 runs strategy "ds-sync" but rank 0 runs "ripples": '
        "start every worker with the same strategy."
    )


def test_of_different_options_those_that_differ_are_named(
    connect: Callable[[], CardStore],
) -> None:
    options = {"interval": "1", "shuffle": "'grid'", "wire": "None"}
    usual, other = changed(options=options), {**options, "interval": "2", "wire": "'float16'"}
    cards = {**dict.fromkeys(range(4), usual), 2: changed(options=other)}
    assert same_sentence(agree_all(connect, cards), MismatchError) == (
        "Rank 2 runs strategy \"ripples\" with interval=2 and wire='float16' but rank 0 with"
        " interval=1 and wire=None: start every worker with the same options."
    )


def test_another_job_key_is_named_to_everyone(connect: Callable[[], CardStore]) -> None:
    outcomes = agree_all(
        connect, dict.fromkeys(range(4), CARD), {2: JobKey("some other key, not ours")}
    )
    assert same_sentence(outcomes, MismatchError) == (
        "Rank 2 has another job key than rank 0: start every worker with the same SHOAL_JOB_KEY."
    )


def test_rank_0_with_another_key_is_found_as_well(connect: Callable[[], CardStore]) -> None:
    outcomes = agree_all(
        connect, dict.fromkeys(range(4), CARD), {0: JobKey("a key of its own, alas")}
    )
    assert same_sentence(outcomes, MismatchError).startswith(
        "Ranks 1, 2 and 3 have another job key"
    )


def test_a_missing_worker_is_named_to_everyone(connect: Callable[[], CardStore]) -> None:
    outcomes = agree_all(connect, dict.fromkeys((0, 1, 3), CARD), deadline_s=0.3)
    assert same_sentence(outcomes, DeadlineExceeded).startswith("Rank 2 did not show up within 0.3")


def test_a_difference_is_worth_more_than_a_missing_worker(connect: Callable[[], CardStore]) -> None:
    cards = {0: CARD, 1: changed(num_ranks=2)}
    sentence = same_sentence(agree_all(connect, cards, deadline_s=0.3), MismatchError)
    assert sentence.startswith("Rank 1 expects 2 workers but rank 0 expects 4:")


def test_without_rank_0_there_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.control.job_card._GRACE_S", 0.0)
    outcome = agree_all(MemoryStore, {1: CARD}, deadline_s=0.01)[1]
    assert "Rank 0 gave no verdict" in str(outcome)


def test_other_versions_of_python_and_torch_are_remarks() -> None:
    cards = {**dict.fromkeys(range(4), CARD), 1: changed(python="3.12.1", torch="2.7.0")}
    store = MemoryStore()
    remarks = (
        "Rank 1 runs Python 3.12 but rank 0 runs 3.11.",
        "Rank 1 runs torch 2.7.0 but rank 0 runs 2.6.0.",
    )
    assert agree_all(lambda: store, cards) == dict.fromkeys(range(4), remarks)


@pytest.mark.parametrize(
    ("cards", "sentence"),
    [
        (
            {1: changed(version="2.0"), 2: changed(version="2.0")},
            "Ranks 1 and 2 run Shoal 2.0 but rank 0 runs 1.0: install the same version everywhere.",
        ),
        (
            {2: changed(model_fingerprint=MODEL[:1])},
            (
                "Rank 2 trains another model than rank 0: 1 instead of 2 entries, first different"
                " at entry 1, no entry where rank 0 has trainable bias (10,) float32:"
                " build the same model, in the same order, on every worker."
            ),
        ),
        (
            {1: changed(model_fingerprint=("trainable weight (9, 5) float32", MODEL[1]))},
            (
                "Rank 1 trains another model than rank 0: first different at entry 0,"
                " trainable weight (9, 5) float32 where rank 0 has trainable weight (10, 5)"
                " float32: build the same model, in the same order, on every worker."
            ),
        ),
    ],
)
def test_sentences(cards: dict[int, JobCard], sentence: str) -> None:
    assert compare({0: CARD, **cards}, 0) == sentence


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "Rank 3"), ([1, 2], "Ranks 1 and 2"), (range(1, 9), "Ranks 1, 2, 3, 4, 5 and 3 more")],
)
def test_ranks_are_listed_but_not_endlessly(ranks: Any, words: str) -> None:
    assert name_ranks(list(ranks)) == words


CARDS = st.builds(
    JobCard,
    version=st.sampled_from("12"),
    num_ranks=st.integers(1, 2),
    strategy=st.sampled_from("ab"),
    options=st.dictionaries(st.sampled_from("pq"), st.sampled_from("12"), max_size=2),
    model_fingerprint=st.lists(st.sampled_from("xy"), max_size=2).map(tuple),
)


@given(st.lists(CARDS, min_size=1, max_size=5))
def test_comparison_finds_a_difference_exactly_when_there_is_one(listed: list[JobCard]) -> None:
    assert bool(compare(dict(enumerate(listed)), 0)) == any(card != listed[0] for card in listed)


@settings(max_examples=examples(50))
@given(st.binary(max_size=100), st.sampled_from(["0", "1", "verdict"]))
def test_garbage_in_the_store_stops_the_job_with_a_sentence(garbage: bytes, place: str) -> None:
    class Tampered(MemoryStore):
        def set(self, key: str, value: bytes) -> None:
            super().set(key, garbage if key.endswith(f"/{place}") else value)

    store = Tampered()
    outcomes = agree_all(lambda: store, dict.fromkeys(range(4), CARD))
    assert all(isinstance(outcome, MismatchError) for outcome in outcomes.values())


def test_a_card_cannot_be_replayed_by_another_rank_or_on_another_occasion() -> None:
    store = MemoryStore()
    agree_all(lambda: store, dict.fromkeys(range(4), CARD))
    again = MemoryStore()
    again.kept = {
        key.replace("run", "later"): value for key, value in store.kept.items() if key[-1] in "12"
    }
    again.set("shoal/card/later/3", store.kept["shoal/card/run/1"])
    with pytest.raises(MismatchError, match="Ranks 1, 2 and 3 have another job key"):
        agree(again, 0, lambda: range(4), KEY, "later", CARD, 5.0)


def test_a_card_of_an_unknown_shape_is_another_version() -> None:
    class OtherCard(msgspec.Struct):
        number: int = 7

    cards: dict[int, Any] = {**dict.fromkeys(range(4), CARD), 2: OtherCard()}
    store = MemoryStore()
    sentence = same_sentence(agree_all(lambda: store, cards), MismatchError)
    assert sentence.startswith("Rank 2 shows a card that rank 0 cannot read")
