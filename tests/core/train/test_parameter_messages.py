"""A push in messages: gradients may lose something on the way, averaged buffers may not."""

from __future__ import annotations

import pytest
import torch

from shoal.train.servers.shard import ModelLayout, TrainedSpan


@pytest.mark.parametrize("buffers", [range(0), range(7, 10), range(3), range(4, 6), range(10)])
@pytest.mark.parametrize("num_shards", [1, 2, 3, 4])
def test_messages_cover_a_shard_and_keep_buffers_whole(buffers: range, num_shards: int) -> None:
    layout = ModelLayout((10, 0), (), (buffers, range(0)), num_shards)
    flats = [torch.arange(10.0), torch.empty(0)]
    seen = []
    for owner in range(num_shards):
        parts = [flat[layout.shard(number, owner)] for number, flat in enumerate(flats)]
        messages = layout.messages(parts, owner)
        assert torch.equal(
            torch.cat([part for part, *_ in messages] or [torch.empty(0)]), torch.cat(parts)
        )
        for part, lossy, _ in messages:
            assert len(part)
            assert part.untyped_storage().data_ptr() == flats[0].untyped_storage().data_ptr()
            assert all((int(each) not in buffers) == lossy for each in part)
            seen += part.tolist()
    assert seen == list(range(10))


@pytest.mark.parametrize("num_shards", [1, 2, 3, 4])
def test_messages_say_which_parameters_are_where_in_them(num_shards: int) -> None:
    spans = [range(4, 9), range(2), range(2, 4)]  # in the order of the optimizer
    layout = ModelLayout(
        (12, 3),
        tuple(TrainedSpan(0, span, 0) for span in spans),
        (range(9, 12), range(0)),
        num_shards,
    )
    flats = [torch.arange(12.0), torch.empty(3)]
    seen = {}
    for owner in range(num_shards):
        parts = [flat[layout.shard(number, owner)] for number, flat in enumerate(flats)]
        for part, lossy, layers in layout.messages(parts[:1], owner):
            assert layers.depth == 3
            for index, element in enumerate(part.tolist() if lossy else []):
                place = max(k for k, start in enumerate(layers.starts) if start <= index)
                seen[int(element)] = layers.numbers[place]
    assert seen == {e: number for number, span in enumerate(spans) for e in span}
