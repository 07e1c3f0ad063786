"""From a spec's text to every switch's configuration."""

from __future__ import annotations

import pytest
from switch_readers import read

from shoal.errors import UsageError
from shoal.lab.switch_config import FORMATS, switch_configs
from shoal.scenario.spec_file import parse_spec

SPEC = """
[hosts]
count = 4
[topology]
shape = "leaf-spine"
leaves = 2
spines = 2
[access]
rate = "100 Mbit/s"
[trunk]
rate = "50 Mbit/s"
[switch]
shared_buffer = "64 kB"
[[switch.queue]]
queues = [0, 1]
capable = { from = "30 kB" }
plain = { from = "30 kB" }
share = 0.5
[[switch.queue]]
queues = 7
limit = "10 kB"
[switch.dscp]
46 = 0
[[link]]
between = ["host1", "leaf0"]
rate = "10 Mbit/s"
"""


@pytest.mark.parametrize("form", list(FORMATS))
def test_every_switch_of_a_spec(form: str) -> None:
    spec = parse_spec(SPEC)
    written = switch_configs(spec, form)
    assert list(written) == ["leaf0", "leaf1", "spine0", "spine1"]
    names = [FORMATS[form].port_name(place) for place in range(4)]
    ends = {
        "leaf0": ["host0", "host1", "spine0", "spine1"],
        "leaf1": ["host2", "host3", "spine0", "spine1"],
        "spine0": ["leaf0", "leaf1"],
        "spine1": ["leaf0", "leaf1"],
    }
    rates = {"host0": 100, "host1": 10, "host2": 100, "host3": 100}
    for switch, configuration in written.items():
        result = read(form, configuration.text)
        leads = configuration.notes[0].removeprefix(f"Ports of {switch}: ").removesuffix(".")
        found = dict(each.split(" to ") for each in leads.split(", "))
        assert list(found) == names[: len(ends[switch])]
        assert sorted(found.values()) == ends[switch]
        assert result.rates == {name: rates.get(end, 50) * 1_000_000 for name, end in found.items()}
        assert all(each == list(spec.queues) for each in result.maps)
        assert result.maps[0][46] == 0
        assert set(result.thresholds) == {(name, number) for name in found for number in (0, 1)}
        assert {each[:2] for each in result.thresholds.values()} == {(30_000, 30_000)}
        if form in ("sonic", "nvue"):
            assert all(result.alphas[name, number] == 0.5 for name, number in result.thresholds)


@pytest.mark.parametrize("form", list(FORMATS))
def test_names_of_ports_are_those_of_the_device(form: str) -> None:
    notes = switch_configs(parse_spec(SPEC), form)["leaf0"].notes
    assert not any("names ports" in note for note in notes)


def test_an_unknown_format_of_a_spec() -> None:
    with pytest.raises(UsageError, match="no format 'ios'"):
        switch_configs(parse_spec(SPEC), "ios")


def test_a_switch_that_nothing_leaves_by_is_left_out() -> None:
    spec = parse_spec(
        '[hosts]\ncount = 2\n[topology]\nshape = "custom"\nswitches = ["a", "b"]\n'
        'connections = [["host0", "a"], ["host1", "a"]]\n[access]\nrate = "1 Gbit/s"\n'
    )
    assert list(switch_configs(spec, "eos")) == ["a"]
