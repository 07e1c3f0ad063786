"""A newcomer's state is dealt among donors: each byte comes once, and from somebody who has it."""

from __future__ import annotations

import io
from collections import defaultdict
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch
from torch import nn

from shoal.errors import ViewChanging
from shoal.train import handing_on, state_memory
from thoroughness import examples

if TYPE_CHECKING:
    from torch import Tensor

LARGE, PIECE = 64, 32


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "_LARGE_BYTES", LARGE)
    monkeypatch.setattr(state_memory, "_PIECE_BYTES", PIECE)


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


def model_with(base: Tensor) -> nn.Module:
    model = nn.Linear(1, 1)
    model.register_parameter("base", nn.Parameter(base.clone(), requires_grad=False))
    return model


class Newcomer:
    """A newcomer whose donors are played by the test, and what it says that it has."""

    def __init__(self, base: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        self.model = model_with(base)
        self.replica: Any = SimpleNamespace(model=self.model, communicator=self)
        self.frozen = handing_on.frozen_digests(self.replica)
        self.said: list[list[int]] = []
        monkeypatch.setattr(handing_on, "_await", lambda *_: [self._given])
        monkeypatch.setattr(handing_on, "_say", self._say)

    def take_from(self, donor: nn.Module, pieces: int = 1 << 30) -> list[Tensor]:
        """Receive a donor's state; only so many pieces of it come."""
        parameters = list(donor.parameters())
        digests = handing_on.frozen_digests(SimpleNamespace(model=donor))  # type: ignore[arg-type]
        skeleton, tensors = state_memory.taken_apart({"parameters": parameters, "buffers": []})
        file = io.BytesIO()
        torch.save((skeleton, {n: each.hex() for n, each in digests.items()}), file)
        self._given, self._left = file.getvalue(), pieces
        memory, kept = state_memory.copied(tensors, all_of_them=True)
        self._donor = lambda has: handing_on._dealt(memory, kept, 0, (0,), has)
        _, received = handing_on._receive(
            self.replica,
            None,
            (0,),
            self.frozen,  # type: ignore[arg-type]
        )
        return received

    def receive(self, piece: Tensor, _giver: int, **_options: Any) -> Newcomer:
        """Be the communicator, and the work that it returns."""
        if self._left:
            piece.copy_(next(self._pieces)[1])
        self._left -= 1
        return self

    def wait(self) -> None:
        if self._left < 0:
            raise ViewChanging

    def _say(self, *said: Any) -> None:
        self.said.append(msgspec.msgpack.decode(said[-1]))
        self._pieces = self._donor(self.said[-1])


def test_what_was_half_sent_is_not_taken_for_the_newcomers_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even if another donor has what the newcomer had before."""
    own, others = torch.arange(LARGE, dtype=torch.float32), torch.ones(LARGE)
    newcomer = Newcomer(own, monkeypatch)
    with pytest.raises(ViewChanging):
        newcomer.take_from(model_with(others), pieces=2)
    assert not torch.equal(newcomer.model.base, own), "a part of it has come"
    donor = model_with(own)
    received = newcomer.take_from(donor)
    assert newcomer.said == [[], []]
    for mine, given in zip(received, donor.parameters(), strict=True):
        assert torch.equal(mine, given)


def test_what_a_newcomer_has_is_where_the_state_is_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = torch.arange(LARGE, dtype=torch.float32)
    newcomer, donor = Newcomer(own, monkeypatch), model_with(own)
    received = newcomer.take_from(donor)
    assert newcomer.said == [[list(dict(donor.named_parameters())).index("base")]]
    for mine, given in zip(received, donor.parameters(), strict=True):
        assert torch.equal(mine, given)
