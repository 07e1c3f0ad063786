"""What a lab says of figures that are not its spec's: whose fault it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from shoal.lab.lab import Lab


@pytest.mark.parametrize(
    ("refused", "lost", "words"),
    [
        (0, 0, []),
        (7, 0, ["7 packets found no memory"]),
        (0, 5, ["machine itself has lost 5 frames"]),
        (7, 5, ["7 packets found no memory", "machine itself has lost 5 frames"]),
    ],
)
def test_a_full_port_is_not_the_machine_s_fault(refused: int, lost: int, words: list[str]) -> None:
    fabric = SimpleNamespace(
        loop_counts=lambda: {"refused": refused},
        overruns=lambda: refused + lost,
        paces_hosts=True,
    )
    lab = cast("Lab", SimpleNamespace(trouble="", fabric=fabric))
    found = Lab.doubts(lab)
    assert len(found) == len(words)
    assert all(word in said for word, said in zip(words, found, strict=True))
