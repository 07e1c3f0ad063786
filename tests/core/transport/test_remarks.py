"""Who is remarked upon: who stands out against the other peers, and nobody where all are alike."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.watch.remark import STANDS_OUT, remarks
from shoal.watch.ways import LEAST_LOST
from transport_statistics import seen_from


@pytest.mark.parametrize(
    ("figures", "kind", "sentence"),
    [
        (
            {"wait_s": 4.0},
            "slow worker",
            "Rank 2 is late: rank 0 waited for it for 4.0 s of 10.0 s, for the others for 0.5 s.",
        ),
        (
            {"moving_s": 6.0},
            "slow link",
            "The way from rank 2 to rank 0 brings 0.5 MB/s, the others 6 MB/s.",
        ),
        (
            {"known_packets": 10_000, "missing_packets": 300},
            "lossy link",
            "The way from rank 2 to rank 0 loses 3.00% of its packets, the others 0.01%.",
        ),
    ],
)
def test_who_stands_out_is_named(figures: dict[str, Any], kind: str, sentence: str) -> None:
    usual = {"wait_s": 0.5, "moving_s": 0.5, "known_packets": 10_000, "missing_packets": 1}
    usual["placed_bytes"] = 3_000_000
    stats = seen_from(0, {1: usual, 2: {**usual, **figures}, 3: usual})
    (remark,) = remarks(stats)
    assert (remark.rank, remark.kind) == (2, kind)
    assert remark.to == (None if kind == "slow worker" else 0)
    assert remark.sentence == sentence


def test_where_all_links_lose_packets_no_peer_is_named() -> None:
    lossy = {"known_packets": 10_000, "missing_packets": 100}
    (remark,) = remarks(seen_from(0, {1: lossy, 2: lossy}))
    assert (remark.kind, remark.rank) == ("lossy link", None)
    assert remark.sentence == "All links lose packets: 1.00% of them on average."


def test_nobody_is_named_where_all_are_alike() -> None:
    """As at the slow rank itself, to which everyone's messages come late."""
    same = {"wait_s": 9.0, "moving_s": 9.0, "known_packets": 10, "missing_packets": 0}
    assert remarks(seen_from(2, {0: same, 1: same, 3: same})) == ()
    assert remarks(seen_from(0, {})) == ()


def test_what_is_hardly_worth_a_word_is_not_said() -> None:
    little = {"wait_s": 0.4, "moving_s": 0.4, "known_packets": 100_000, "missing_packets": 49}
    little["placed_bytes"] = 200_000
    assert little["missing_packets"] / little["known_packets"] < LEAST_LOST
    assert remarks(seen_from(0, {1: {}, 2: little, 3: {}})) == ()
    assert STANDS_OUT > 1


def test_two_peers_do_not_stand_out_against_each_other_unless_one_does_much() -> None:
    assert remarks(seen_from(0, {1: {"wait_s": 2.0}, 2: {"wait_s": 3.0}})) == ()
