"""The spec's queues, colors and DSCP map as configuration for real gear. Pure: text from settings.

Adding a format is one file with functions like the others, one line in `FORMATS` and one row in
docs/switch-config.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.lab.switch_config import eos, linux_tc, nvue, sonic
from shoal.lab.switch_config.switch_settings import SwitchSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.lab.switch_config.switch_settings import Configuration
    from shoal.scenario import ClusterSpec


@dataclass(frozen=True, slots=True)
class Format:
    """How to write for a device, and what it calls its ports, from 0 on."""

    write: Callable[[SwitchSettings], Configuration]
    port_name: Callable[[int], str]


FORMATS: Final[dict[str, Format]] = {
    "linux-tc": Format(linux_tc.write, linux_tc.port_name),
    "sonic": Format(sonic.write, sonic.port_name),
    "eos": Format(eos.write, eos.port_name),
    "nvue": Format(nvue.write, nvue.port_name),
}


def switch_config(settings: SwitchSettings, form: str) -> Configuration:
    """Return `settings` in the format `form`, one of `FORMATS`. Raises `UsageError`."""
    return _format(form).write(settings)


def switch_configs(spec: ClusterSpec, form: str) -> dict[str, Configuration]:
    """Return the configuration of every switch with a port, by its name. Raises `UsageError`.

    Ports have the names that the format gives them in the order of the spec's cables; the first
    sentence of the notes says where each leads.
    """
    return {
        name: switch_config(_settings_of(spec, place, _format(form)), form)
        for place, name in enumerate(spec.topology.switches)
        if any(cable.source == -1 - place for cable in spec.topology.cables)
    }


def _settings_of(spec: ClusterSpec, switch: int, form: Format) -> SwitchSettings:
    topology = spec.topology
    own = [cable for cable in topology.cables if cable.source == -1 - switch]
    ports = {form.port_name(place): cable for place, cable in enumerate(own)}
    leads = ", ".join(f"{name} to {topology.name_of(its.target)}" for name, its in ports.items())
    return SwitchSettings(
        {name: cable.port for name, cable in ports.items()},
        spec.queues,
        spec.shared_buffer,
        (f"Ports of {topology.switches[switch]}: {leads}.",),
    )


def _format(form: str) -> Format:
    try:
        return FORMATS[form]
    except KeyError:
        message = f"There is no format {form!r}; there are {', '.join(FORMATS)}."
        raise UsageError(message) from None
