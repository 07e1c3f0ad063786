"""A start of a job meets nothing that an earlier one has left in the store."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from shoal.errors import DeadlineExceeded  # noqa: E402
from shoal.session.fresh_store import fresh_store  # noqa: E402

SIZE = 4


def start(store: Any, occasion: str = "here", *, latest_s: float = 0.0, seed: int = 0) -> list[Any]:
    """Be all ranks of a start, each beginning at a time of its own; return their stores."""
    dice = random.Random(seed)
    delays = [dice.uniform(0, latest_s) for _ in range(SIZE)]

    def join(rank: int) -> Any:
        time.sleep(delays[rank])
        return fresh_store(store, occasion, rank, SIZE, deadline_s=10)

    with ThreadPoolExecutor(SIZE) as threads:
        return list(threads.map(join, range(SIZE)))


@pytest.mark.parametrize("seed", range(5))
def test_every_start_has_a_part_of_the_store_in_common_and_for_itself(seed: int) -> None:
    store = dist.HashStore()
    for number in range(3):
        parts = start(store, latest_s=0.05, seed=10 * seed + number)
        assert not any(part.check(["address"]) for part in parts)
        parts[0].set("address", str(number))
        assert {part.get("address") for part in parts} == {str(number).encode()}


def test_what_a_start_that_broke_off_has_left_does_no_harm() -> None:
    store = dist.HashStore()
    for rank in (0, 2):  # the others died before they got here
        with pytest.raises(DeadlineExceeded, match="did not start within"):
            fresh_store(store, "here", rank, SIZE, deadline_s=0.1)
    parts = start(store, latest_s=0.02)
    parts[3].set("fact", "new")
    assert parts[1].get("fact") == b"new"
    with pytest.raises(DeadlineExceeded, match=r"Ranks \[0, 2, 3\] did not start within 0.2 s"):
        fresh_store(store, "here", 1, SIZE, deadline_s=0.2)  # alone, where all have been before


def test_occasions_of_one_start_have_parts_of_their_own() -> None:
    store = dist.HashStore()
    one, other = start(store, "one"), start(store, "other")
    one[0].set("fact", "1")
    assert not other[0].check(["fact"])


def test_a_store_that_answers_one_question_at_a_time_will_do(tmp_path: Path) -> None:
    store = dist.FileStore(str(tmp_path / "store"), SIZE)
    for number in range(2):
        parts = start(store)
        assert not parts[1].check(["fact"])
        parts[0].set("fact", str(number))
        assert parts[3].get("fact") == str(number).encode()
