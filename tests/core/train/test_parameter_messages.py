"""How a model is cut for parameter servers: what each server keeps of each piece."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.errors import UsageError
from shoal.train.flat_parameters import FlatParameters
from shoal.train.model_pieces import ModelPieces
from shoal.train.servers.protocol import Channels, Kind, Request, RequestWords
from shoal.train.servers.shard import ModelLayout, PieceSpan, TrainedSpan


@pytest.mark.parametrize("num_servers", [1, 2, 3, 4])
def test_servers_keep_every_element_of_every_piece_once(num_servers: int) -> None:
    pieces = (
        PieceSpan(0, range(7, 10), is_statistics=True),
        PieceSpan(0, range(7), is_statistics=False),
        PieceSpan(1, range(2), is_statistics=False),
    )
    layout = ModelLayout(pieces, (), num_servers)
    flats = [torch.arange(10.0), torch.arange(2.0)]
    for number, piece in enumerate(pieces):
        parts = [layout.part_of(flats, number, server) for server in range(num_servers)]
        held = flats[piece.flat][piece.elements.start : piece.elements.stop]
        assert torch.equal(torch.cat(parts), held)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1, "each as much of each"
        assert all(
            len(part) == 0 or part.untyped_storage().data_ptr() == held.untyped_storage().data_ptr()
            for part in parts
        )


def test_a_trained_parameter_lies_in_one_piece() -> None:
    spans = [(0, range(4, 9)), (0, range(2)), (1, range(3)), (0, range(2, 4))]
    pieces = (
        PieceSpan(0, range(4), is_statistics=False),
        PieceSpan(0, range(4, 9), is_statistics=False),
        PieceSpan(1, range(3), is_statistics=False),
    )
    layout = ModelLayout(pieces, tuple(TrainedSpan(*span, 0) for span in spans), 2)
    assert [layout.trained_in(piece) for piece in range(3)] == [[1, 3], [0], [2]]


def test_pieces_follow_the_order_of_the_first_forward_pass() -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(300, 300, bias=False)
            self.norm = nn.BatchNorm1d(300, affine=False)
            self.first = nn.Linear(300, 300, bias=False)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.last(self.norm(self.first(inputs)))

    model = Turned()
    cut = ModelPieces(model, FlatParameters(model))
    assert [piece.is_statistics for piece in cut.pieces] == [True, False, False]
    assert [layers.front for layers in cut.layers] == [0, 0, 1], "as they were registered"
    model(torch.randn(4, 300))
    cut.settle_order()
    assert [layers.front for layers in cut.layers] == [0, 1, 0]
    assert all(layers.depth == 2 for layers in cut.layers)


def test_more_servers_cut_a_model_into_fewer_pieces() -> None:
    model = nn.Sequential(*(nn.Linear(600, 600, bias=False) for _ in range(4)))
    flat = FlatParameters(model)
    assert [len(ModelPieces(model, flat, n).pieces) for n in (0, 1, 2, 8)] == [4, 4, 2, 1]


def test_a_request_is_read_as_it_was_written() -> None:
    words = RequestWords.allocate(num_parameters=9, num_hyperparameters=2)
    for request in (
        Request(Kind.PUSH, range(1, 3), [0, 8], [0.5, 0.1]),
        Request(Kind.LEAVE, range(4), [], [0.0, -2.0]),
    ):
        words.write(request)
        assert words.read() == request


def test_a_model_of_too_many_pieces_is_refused() -> None:
    channels = Channels.among(range(8, 88), 39)
    numbers = [channels.requests, *channels.pushes, *channels.pulls]
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= set(range(8, 88))
    with pytest.raises(UsageError, match="more types"):
        Channels.among(range(8, 88), 40)
