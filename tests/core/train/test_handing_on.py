"""A newcomer's state is dealt among donors: each byte comes once, and from somebody who has it."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

import pytest
import torch

from shoal.train import handing_on, state_memory
from thoroughness import examples

if TYPE_CHECKING:
    from torch import Tensor

LARGE, PIECE = 64, 32


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "_LARGE_BYTES", LARGE)
    monkeypatch.setattr(handing_on, "_PIECE_BYTES", PIECE)


def tensors_of(random: Random) -> tuple[list[Tensor], int]:
    """Return tensors of a model, each with values of its own, and how many are buffers."""
    sizes = [random.choice((1, 3, 15, 16, 17, 40, 100)) for _ in range(random.randrange(1, 9))]
    return [torch.randn(size) for size in sizes], random.randrange(len(sizes) + 1)


@pytest.mark.parametrize("seed", range(examples(200)))
def test_all_arrives_from_donors_whose_buffers_differ(seed: int) -> None:
    random = Random(seed)
    tensors, num_buffers = tensors_of(random)
    num_trained = len(tensors) - num_buffers
    givers = tuple(range(3, 3 + random.randrange(1, 4)))
    has = {number for number in range(num_trained) if random.random() < 0.3}
    sent: dict[int, list[Tensor]] = defaultdict(list)
    for giver in givers:
        others = [torch.randn_like(each) for each in tensors[num_trained:]]
        own = tensors if giver == givers[0] else [*tensors[:num_trained], *others]
        memory, kept = state_memory.copied(own, all_of_them=False)
        sent[giver] = [
            piece.clone()
            for who, piece in handing_on._dealt(memory, kept, num_buffers, givers, has)
            if who == giver
        ]
    memory, received = state_memory.memory_for([torch.empty_like(each) for each in tensors])
    for each in received:
        each.zero_()
    for giver, piece in handing_on._dealt(memory, received, num_buffers, givers, has):
        piece.copy_(sent[giver].pop(0))
    assert not any(sent.values())
    for number, (mine, given) in enumerate(zip(received, tensors, strict=True)):
        has_come = number not in has or not state_memory.is_large(given)
        assert torch.equal(mine, given) == has_come


def test_all_donors_give_a_part_of_what_is_large() -> None:
    tensors = [torch.randn(4 * PIECE)]
    memory, kept = state_memory.copied(tensors, all_of_them=False)
    counts: dict[int, int] = defaultdict(int)
    for giver, piece in handing_on._dealt(memory, kept, 0, (0, 1, 2), ()):
        counts[giver] += len(piece)
    assert sum(counts.values()) == 16 * PIECE
    assert max(counts.values()) - min(counts.values()) <= PIECE
