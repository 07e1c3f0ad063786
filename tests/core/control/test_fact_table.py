"""What workers publish for each other: kept, replaced, taken back, and limited."""

from __future__ import annotations

import pytest

from shoal.control import fact_table
from shoal.control.fact_table import FactTable
from shoal.control.messages import Facts, ReadFacts, SetFact
from shoal.control.refusal import Refusal


def read(table: FactTable, *names: str) -> tuple[bytes | None, ...]:
    reply = table.act(ReadFacts(names))
    assert isinstance(reply, Facts)
    return reply.values


def test_a_fact_is_replaced_and_taken_back() -> None:
    table = FactTable()
    for value in (b"one", b"another", None, None, b"one"):
        table.act(SetFact("name", value))
        assert read(table, "name", "other") == (value, None)


def test_what_is_replaced_or_taken_back_leaves_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fact_table, "MAX_BYTES", 20)
    table = FactTable()
    for _ in range(10):  # nine bytes with the name's
        table.act(SetFact("name", b"value"))
    table.act(SetFact("more", b"values"))
    with pytest.raises(Refusal, match="would take more"):
        table.act(SetFact("name", b"a value"))
    assert read(table, "name") == (b"value",)
    table.act(SetFact("more", None))
    table.act(SetFact("name", b"much larger here"))
    table.act(SetFact("name", b"small"))
    table.act(SetFact("more", b"values"))
