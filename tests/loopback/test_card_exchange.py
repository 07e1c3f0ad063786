"""Cards, which hold addresses and tags: who gets to see them on their way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

from shoal.errors import MismatchError, ResourceError  # noqa: E402
from shoal.session.card_exchange import over_board, over_store  # noqa: E402

SIZE, DEADLINE_S = 3, 20.0
KEY = "a job key of the tests' own"


def exchange_all(path: Path, deadline_s: float = DEADLINE_S) -> bytes:
    """Be all ranks, who all get all cards; return what has been in the store, which is a file."""
    stores = [dist.FileStore(str(path), SIZE) for _ in range(SIZE)]

    def exchange(rank: int) -> list[bytes]:
        return over_store(stores[rank], rank, SIZE, deadline_s)(b"secret of %d" % rank)

    with ThreadPoolExecutor(SIZE) as threads:
        assert list(threads.map(exchange, range(SIZE))) == [EVERYONES] * SIZE
    return path.read_bytes()


EVERYONES = [b"secret of 0", b"secret of 1", b"secret of 2"]


def test_without_a_key_cards_are_shown_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_JOB_KEY", raising=False)
    assert b"secret of 1" in exchange_all(tmp_path / "store")


def test_with_a_key_no_card_is_ever_in_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_JOB_KEY", KEY)
    kept = exchange_all(tmp_path / "store")
    assert b"meeting" in kept
    assert b"secret of" not in kept


def test_whoever_puts_an_address_of_its_own_into_the_store_learns_no_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stranger serves at that address with another key: nobody hands anything in there."""
    from shoal.control.key import JobKey
    from shoal.control.rendezvous import CardServer
    from shoal.session import card_exchange

    monkeypatch.setenv("SHOAL_JOB_KEY", KEY)
    stranger = CardServer(JobKey("the key of somebody else"), "127.0.0.1", range(1), 1, 60.0)
    honest = card_exchange._card

    def diverted(board: object, name: str, rank: int, deadline_s: float) -> bytes:
        card = honest(board, name, rank, deadline_s)  # type: ignore[arg-type]
        return b"127.0.0.1 %d" % stranger.port if name == "meeting" else card

    monkeypatch.setattr(card_exchange, "_card", diverted)
    with stranger, pytest.raises(MismatchError, match="has another job key"):
        exchange_all(tmp_path / "store", 5.0)


def test_a_rank_that_shows_no_card_is_named() -> None:
    board = dist.HashStore()
    with pytest.raises(ResourceError, match=r"Rank 1 did not open its transport within 0\.1 s"):
        over_board(board, 0, 2, 0.1)(b"mine")
