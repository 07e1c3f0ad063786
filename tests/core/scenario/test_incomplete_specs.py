"""Settings that mean nothing, or half of something, are refused with their line."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.scenario.spec_file import parse_spec

STAR = '[hosts]\ncount = 2\n[access]\nrate = "10 Mbit/s"\n'
HALVES = {
    "trunk": ('[trunk]\nloss = "50 %"\n', "between switches"),
    "bad": ('[[link]]\nbetween = ["host0", "switch"]\nto_bad = "1 %"\n', "never end"),
    "late": ('[[link]]\nbetween = ["host0", "switch"]\nreorder = "1 %"\n', "no packet would be"),
    "event": (
        '[[event]]\nat = "1 s"\nbetween = ["host0", "switch"]\nto_bad = "1 %"\n',
        "never end",
    ),
    "queues": ("[[switch.queue]]\nqueues = []\n", "one queue at least"),
    "share": ("[[switch.queue]]\nqueues = [1]\nshare = 2.0\n", "shared_buffer"),
    "average": ("[[switch.queue]]\nqueues = [1]\naverage_weight = 3\n", "profiles"),
}


@pytest.mark.parametrize("name", HALVES)
def test_half_of_a_setting_is_refused(name: str) -> None:
    text, words = HALVES[name]
    with pytest.raises(UsageError, match=words) as caught:
        parse_spec(STAR + text)
    assert "line " in str(caught.value) or "spec:" in str(caught.value)


def test_a_later_event_may_say_the_other_half() -> None:
    ends = 'between = ["host0", "switch"]\n'
    spec = parse_spec(
        f'{STAR}[[link]]\n{ends}to_good = "50 %"\nbad_loss = "20 %"\nreorder_delay = "1 ms"\n'
        f'[[event]]\nat = "1 s"\n{ends}to_bad = "1 %"\nreorder = "1 %"\n'
    )
    assert len(spec.events) == 1
