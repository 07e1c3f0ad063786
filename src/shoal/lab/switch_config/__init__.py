"""The spec's queues, colors and DSCP map as configuration for real gear. Pure: text from settings.

Adding a format is one file with a function like the others, one line in `FORMATS` and one row in
docs/switch-config.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.errors import UsageError
from shoal.lab.switch_config import eos, linux_tc, nvue, sonic

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.lab.switch_config.settings import Configuration, SwitchSettings

FORMATS: Final[dict[str, Callable[[SwitchSettings], Configuration]]] = {
    "linux-tc": linux_tc.write,
    "sonic": sonic.write,
    "eos": eos.write,
    "nvue": nvue.write,
}


def switch_config(settings: SwitchSettings, form: str) -> Configuration:
    """Return `settings` in the format `form`, one of `FORMATS`. Raises `UsageError`."""
    try:
        write = FORMATS[form]
    except KeyError:
        message = f"There is no format {form!r}; there are {', '.join(FORMATS)}."
        raise UsageError(message) from None
    return write(settings)
