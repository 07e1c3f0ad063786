"""What is read back from a text is what the settings say, or there is a note of it."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switch_readers import Read, read
from switch_samples import any_settings, golden_path, sharing, typical

from shoal.lab.switch_config import FORMATS, switch_config
from shoal.lab.switch_config.eos import PLATFORMS
from shoal.lab.switch_config.linux_tc import average_weight, averaging
from shoal.lab.switch_config.switch_settings import SwitchSettings
from shoal.lab.switch_config.thresholds import LARGEST_LIMIT
from shoal.switching.tables import QUEUES
from thoroughness import examples

if TYPE_CHECKING:
    from shoal.switching.settings import Profile

FORMS = list(FORMATS)
Ends = tuple[int, int, float]


def ends(profile: Profile | None) -> Ends | None:
    """Return a profile in one of the ways in which it can be written."""
    if profile is None:
        return None
    if profile.probability == 0 or profile.least_bytes == profile.most_bytes:
        return profile.most_bytes, profile.most_bytes, 1.0
    return profile.least_bytes, profile.most_bytes, profile.probability


def places(notes: tuple[str, ...]) -> set[tuple[str, int]]:
    """Return the queues that notes are about; a port's note is about all of its queues."""
    found: set[tuple[str, int]] = set()
    for group in (group for note in notes for group in re.findall(r"\[(.*)\]", note)):
        for part in group.split("; "):
            names, _, numbers = re.sub(r" queues? ", "|", part).partition("|")
            of = [int(each) for each in numbers.split(", ")] if numbers else range(QUEUES)
            found |= {(name, number) for name in names.split(", ") for number in of}
    return found


def same(one: Ends | None, other: Ends | None) -> bool:
    if one is None or other is None:
        return one is other
    return one[:2] == other[:2] and math.isclose(one[2], other[2], rel_tol=1e-5)


def deviations(settings: SwitchSettings, result: Read) -> set[tuple[str, int]]:
    """Return the queues of which the text says something else than the settings."""
    found = set()
    for name, port in settings.ports.items():
        for number, queue in enumerate(port.queues):
            place = name, number
            least, most, chance, drops = result.thresholds.get(place, (0, 0, 0.0, False))
            written = (least, most, chance) if place in result.thresholds else None
            if not same(written if drops else None, ends(queue.plain)):
                found.add(place)
            if not same(written, ends(queue.capable)):
                found.add(place)
            limit = result.limits.get(place)
            if limit != queue.limit_bytes and queue.limit_bytes is not None:
                found.add(place)
            if settings.shared_buffer_bytes is not None and queue.share != result.alphas.get(place):
                found.add(place)
            if queue.limit_packets is not None or port.limit_packets is not None:
                found.add(place)
            if result.rates[name] != port.rate:
                found.add(place)
    return found


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(deadline=None, max_examples=examples(60))
def test_what_differs_from_the_settings_is_noted(form: str, data: st.DataObject) -> None:
    wanted = data.draw(any_settings(form))
    written = switch_config(wanted, form)
    result = read(form, written.text)
    assert result.maps
    assert all(each == list(wanted.queues) for each in result.maps)
    assert result.strict == {(name, number) for name in wanted.ports for number in range(QUEUES)}
    assert deviations(wanted, result) <= places(written.notes)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(deadline=None, max_examples=examples(30))
def test_thresholds_are_those_of_one_color(form: str, data: st.DataObject) -> None:
    wanted = data.draw(any_settings(form))
    result = read(form, switch_config(wanted, form).text)
    for name, port in wanted.ports.items():
        for number, queue in enumerate(port.queues):
            place, chosen = (name, number), ends(queue.plain or queue.capable)
            if chosen is None:
                assert place not in result.thresholds
            elif place not in result.thresholds:
                assert form == "linux-tc"
                assert chosen[1] >= 1 << 30 - max(queue.average_weight, 1)
            else:
                least, most, chance, _ = result.thresholds[place]
                assert (least, most) == (max(chosen[0], 1), max(chosen[1], 1))
                rounding = 0.005 if chosen[2] >= 0.01 else 0.01
                smallest = (most - least) / 2**31 if form == "linux-tc" else 0
                assert abs(chance - max(chosen[2], smallest)) <= rounding


@pytest.mark.parametrize("form", FORMS)
def test_a_typical_switch_is_written_as_before(form: str) -> None:
    """`python tests/core/lab/switch_config/switch_samples.py` writes what is now written."""
    assert switch_config(typical(form), form).text == golden_path(form).read_text()


@pytest.mark.parametrize("form", FORMS)
def test_what_can_be_said_has_no_notes(form: str) -> None:
    wanted = typical(form)
    name = next(iter(wanted.ports))
    written = switch_config(SwitchSettings({name: wanted.ports[name]}, wanted.queues), form)
    every = ", ".join(map(str, range(QUEUES)))
    average = "RED looks at an average of weight 2^-1, the spec at the queue itself."
    platforms = "How buffers are divided differs between platforms"
    expected = {
        "linux-tc": {
            "A class of HTB has a rate of its own: 1000 bit/s, even while more urgent ones wait.",
            f"{average} [eth1 queues 0, 1, 2, 3, 4, 5, 6]",
        },
        "sonic": set(),
        "eos": {
            *PLATFORMS,
            f"{platforms}: the queue's 200000 bytes are not written. [Ethernet1 queues {every}]",
        },
        "nvue": set(),
    }
    assert set(written.notes) == expected[form]


@pytest.mark.parametrize("form", ["linux-tc", "eos", "nvue"])
def test_notes_are_comments_where_there_are_comments(form: str) -> None:
    written = switch_config(typical(form), form)
    comment = "!" if form == "eos" else "#"
    assert written.notes
    assert {f"{comment} {note}" for note in written.notes} <= set(written.text.splitlines())


@pytest.mark.parametrize("form", FORMS)
def test_shares_of_a_buffer(form: str) -> None:
    wanted = sharing(form)
    written = switch_config(wanted, form)
    result = read(form, written.text)
    if form in ("sonic", "nvue"):
        for name, port in wanted.ports.items():
            for number, queue in enumerate(port.queues):
                assert result.alphas[name, number] == queue.share
    elif form == "linux-tc":
        assert set(result.limits.values()) == {2_000_000}
    assert any("2000000 bytes" in note for note in written.notes) == (form != "sonic")


def test_linux_has_no_limit_where_there_is_none() -> None:
    wanted = typical("linux-tc")
    [*_, port] = sharing("linux-tc").ports.values()
    text = switch_config(SwitchSettings({"eth1": port}, wanted.queues), "linux-tc").text
    assert set(read("linux-tc", text).limits.values()) == {LARGEST_LIMIT}


@given(st.integers(1, 1 << 29), st.integers(1, 15))
@settings(max_examples=examples(200))
def test_a_burst_makes_the_weight(least: int, weight: int) -> None:
    packet, burst, made = averaging(least, weight)
    assert made == average_weight(least, packet, burst)
    assert burst * packet >= least
    assert 1 <= made <= weight
    if least >= 2:
        assert made == weight
