"""What no device can be told is refused in a sentence; notes say where they belong."""

from __future__ import annotations

import pytest
from switch_samples import FORMATS, typical

from shoal.errors import UsageError
from shoal.lab.switch_config import switch_config
from shoal.lab.switch_config.switch_settings import Notes, SwitchSettings
from shoal.switching.settings import CLASS_SELECTORS, Port

PORT = Port(1_000_000)


@pytest.mark.parametrize("name", ["", "eth 0", "eth0\nqos", "0", "a" * 65, "Ethernet0|1", "é"])
def test_names_that_would_break_a_text(name: str) -> None:
    with pytest.raises(UsageError, match="A port is named by letters"):
        SwitchSettings({name: PORT}, CLASS_SELECTORS)


@pytest.mark.parametrize("queues", [CLASS_SELECTORS[:63], (*CLASS_SELECTORS[:63], 8), (-1,) * 64])
def test_maps_that_are_none(queues: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="The map of DSCPs has 64 queues from 0 to 7"):
        SwitchSettings({"swp1": PORT}, queues)


def test_a_switch_without_ports_or_memory() -> None:
    with pytest.raises(UsageError, match="without ports"):
        SwitchSettings({}, CLASS_SELECTORS)
    with pytest.raises(UsageError, match="at least 1 byte, not 0"):
        SwitchSettings({"swp1": PORT}, CLASS_SELECTORS, 0)


def test_an_unknown_format() -> None:
    known = ", ".join(FORMATS)
    with pytest.raises(UsageError, match=f"no format 'ios'; there are {known}"):
        switch_config(typical("eos"), "ios")


@pytest.mark.parametrize("name", ["interface16chars", "a/b"])
def test_names_that_linux_does_not_have(name: str) -> None:
    with pytest.raises(UsageError, match="Linux knows no interface"):
        switch_config(SwitchSettings({name: PORT}, CLASS_SELECTORS), "linux-tc")


@pytest.mark.parametrize(("form", "who"), [("sonic", "SONiC"), ("eos", "EOS"), ("nvue", "Cumulus")])
def test_names_that_a_device_does_not_have_are_noted(form: str, who: str) -> None:
    notes = switch_config(SwitchSettings({"leaf0:host1": PORT}, CLASS_SELECTORS), form).notes
    [note] = [note for note in notes if "names ports" in note]
    assert note.startswith(who)
    assert note.endswith("[leaf0:host1]")


def test_notes_say_a_thing_once_with_all_its_places() -> None:
    notes = Notes()
    notes.add("One.", "a", 3)
    notes.add("Two.")
    notes.add("One.", "b", 3)
    notes.add("One.", "a", 1)
    notes.add("Two.")
    notes.add("Three.", "c")
    notes.add("One.", "d", 3)
    assert notes.lines() == ("One. [a queues 1, 3; b, d queue 3]", "Two.", "Three. [c]")
