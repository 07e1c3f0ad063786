"""Tensors that share memory: which they are, and that they go on sharing it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

from shoal.errors import UsageError  # noqa: E402
from shoal.train.alike_at_first import fingerprint_model  # noqa: E402
from shoal.train.flat_parameters import FlatParameters  # noqa: E402
from shoal.train.known_tensors import KnownBuffers  # noqa: E402
from shoal.train.shared_memory import stretches_of  # noqa: E402


class Tied(nn.Module):
    """Two Parameters on one memory, a parameter that is a part of another, and views as buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight.data = self.embedding.weight.data
        self.first_rows = nn.Parameter(self.embedding.weight.data[:2])
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("column", self.embedding.weight.data[:, 1])
        self.kept = self.norm.weight.data[1:]


def test_tensors_that_shared_memory_share_it_still_and_hold_the_same_values() -> None:
    model = Tied()
    before = {name: each.detach().clone() for name, each in model.state_dict().items()}
    flat = FlatParameters(model)
    for name, each in model.state_dict().items():
        assert torch.equal(each, before[name]), name
    assert model.head.weight.data_ptr() == model.embedding.weight.data_ptr()
    with torch.no_grad():
        for buffer in flat.buffers:
            buffer.zero_()
        model.head.weight[0] = 1.0
        model.norm.weight[1] = 2.0
    assert model.embedding.weight[0].tolist() == model.first_rows[0].tolist() == [1.0] * 4
    assert model.column.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert model.kept.tolist() == [2.0, 0.0, 0.0]


def test_what_shares_memory_is_averaged_once() -> None:
    flat = FlatParameters(Tied())
    (numbers,) = flat.buffers
    assert (
        numbers.numel() == 5 * 4 + 4 + 4 + 4 + 4
    )  # the weights, the norm's two and its statistics
    assert flat.statistics == (range(28, 36),)


def test_shared_memory_is_kept_when_the_model_was_moved_out_of_it() -> None:
    model = Tied()
    flat = FlatParameters(model)
    address = model.head.weight.data_ptr()
    for parameter in model.parameters():
        parameter.data = parameter.data.clone() + 1.0
    expected = model.embedding.weight.detach().clone()
    flat.take_back()
    assert model.head.weight.data_ptr() == model.embedding.weight.data_ptr() == address
    assert torch.equal(model.embedding.weight, expected)


def test_a_buffer_that_is_a_view_of_a_parameter_is_no_statistic() -> None:
    assert [each.shape for each in KnownBuffers(Tied()).tensors] == [(4,), (4,)]


def test_each_parameter_is_a_storage_of_its_own_to_torch() -> None:
    model = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 2))
    alone = _saved_bytes(model[1].state_dict())
    flat = FlatParameters(model)
    assert _saved_bytes(model[1].state_dict()) == alone
    with torch.no_grad():
        flat.buffers[0].fill_(3.0)
    assert all(bool((each == 3.0).all()) for each in model.parameters())


def _saved_bytes(state: dict[str, Tensor]) -> int:
    file = io.BytesIO()
    torch.save(state, file)
    return len(file.getvalue())


def test_tensors_of_two_types_on_one_memory_are_refused_in_a_sentence() -> None:
    model = nn.Linear(2, 2)
    model.register_buffer("bits", model.weight.data.view(torch.int32))
    with pytest.raises(UsageError, match="tensor of another type"):
        FlatParameters(model)


def test_updates_of_single_parameters_are_refused_where_they_share_memory() -> None:
    FlatParameters(nn.Linear(2, 2)).check_apart("this")
    with pytest.raises(UsageError, match="shares its memory"):
        FlatParameters(Tied()).check_apart("this")


def test_models_that_share_memory_otherwise_do_not_fit_together() -> None:
    def fingerprint(*, tied: bool) -> list[str]:
        model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
        if tied:
            model[1].weight.data = model[0].weight.data
        return fingerprint_model(model, torch.optim.SGD(model.parameters(), lr=1.0))

    assert fingerprint(tied=True) == [*fingerprint(tied=False), "one memory 0.weight 1.weight"]


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 20), st.integers(1, 4), st.integers(1, 3)),
        max_size=8,
    )
)
def test_stretches_are_the_connected_parts_of_what_overlaps(
    views: list[tuple[int, int, int, int]],
) -> None:
    bases = [torch.zeros(40), torch.zeros(40)]
    tensors = [bases[b].as_strided((size,), (step,), first) for b, first, size, step in views]
    covered = [
        {(b, each) for each in range(first, first + (size - 1) * step + 1)}
        for b, first, size, step in views
    ]
    groups: list[set[int]] = []
    for index in range(len(views)):
        touching = [g for g in groups if any(covered[index] & covered[each] for each in g)]
        groups = [g for g in groups if g not in touching]
        groups.append({index}.union(*touching))
    found = {frozenset(map(id, each.tensors)) for each in stretches_of(tensors)}
    assert found == {frozenset(id(tensors[index]) for index in group) for group in groups}
