"""One color and one marker symbol per strategy, the same in every figure, in light and in dark.

Owns the colors. They are told apart with any common color vision deficiency, which a test checks by
simulating each; the symbols serve whoever sees no colors at all. Figures name colors as CSS
variables, so that one page serves both themes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from shoal.strategies import STRATEGIES

if TYPE_CHECKING:
    from shoal.report.reported_scenario import ReportedScenario

STRATEGY_COLORS = (
    ("#727B8A", "#6D7888"),
    ("#CD9A01", "#F0E04A"),
    ("#20332E", "#BB675D"),
    ("#A861BD", "#F040CA"),
    ("#D0625A", "#FFC1A0"),
    ("#3FB489", "#18D468"),
    ("#1040BC", "#56AEFA"),
    ("#561866", "#9F4AF0"),
    ("#941C00", "#EA5414"),
    ("#467BFF", "#CBE6FF"),
    ("#7D00FD", "#A7381A"),
    ("#1A0026", "#B2B1B1"),
)
"""(on light, on dark), in the order in which strategies that have none of their own get them."""

SYMBOLS = (
    "circle",
    "diamond",
    "star",
    "hexagon",
    "triangle-down",
    "triangle-up",
    "square",
    "cross",
    "x",
    "pentagon",
    "hexagram",
    "triangle-right",
)

HOME_SLOTS = {word: slot for slot, word in enumerate(STRATEGIES)}
"""Slots of Shoal's own strategies, so that each looks the same in all reports."""

THEME = {
    "page": ("#F6F7F9", "#0D1117"),
    "surface": ("#FFFFFF", "#151B23"),
    "text": ("#1B2430", "#E4E9F0"),
    "muted": ("#5B6675", "#98A4B3"),
    "line": ("#DFE3E9", "#2A333F"),
    "grid": ("#ECEFF3", "#232B36"),
    "accent": ("#0B6E99", "#5CB8E4"),
    "best": ("#E6F3EC", "#173327"),
    "compute": ("#D5DBE3", "#3A4553"),
    "wait": ("#EFA92E", "#F0B445"),
    "exchange": ("#34558B", "#6C9BE0"),
}
"""Everything that is not a strategy: (on light, on dark)."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a strategy looks."""

    slot: int

    @property
    def color(self) -> str:
        """The strategy's color as a CSS variable."""
        return f"var(--strategy-{self.slot % len(STRATEGY_COLORS)})"

    @property
    def symbol(self) -> str:
        """The marker on its lines. Beyond so many runs colors repeat, with other symbols."""
        rounds, place = divmod(self.slot, len(SYMBOLS))
        return SYMBOLS[place] if rounds == 0 else SYMBOLS[(place + 3) % len(SYMBOLS)] + "-open"


Styles: TypeAlias = Mapping[str, Style]
"""Label of a run -> how it looks."""


def assign_styles(scenarios: Iterable[ReportedScenario]) -> Styles:
    """Give every label in `scenarios` a style: known strategies their own, others what is left."""
    strategies = {
        entry.label: entry.run.strategy for scenario in scenarios for entry in scenario.entries
    }
    styles: dict[str, Style] = {}
    for label, strategy in strategies.items():
        slot = HOME_SLOTS.get(strategy)
        if slot is not None and Style(slot) not in styles.values():
            styles[label] = Style(slot)
    left = _free_slots(len(strategies), styles.values())
    for label in strategies:
        if label not in styles:
            styles[label] = Style(left.pop(0))
    return styles


def css_variables() -> str:
    """Return the style sheet that defines every color, light first, dark where preferred."""
    names = [*THEME, *(f"strategy-{slot}" for slot in range(len(STRATEGY_COLORS)))]
    pairs = [*THEME.values(), *STRATEGY_COLORS]
    light, dark = (
        "".join(f"--{name}:{pair[theme]};" for name, pair in zip(names, pairs, strict=True))
        for theme in (0, 1)
    )
    return (
        f":root{{color-scheme:light dark;{light}}}"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}"
    )


def _free_slots(count: int, taken: Iterable[Style]) -> list[int]:
    used = {style.slot for style in taken}
    return [slot for slot in range(count + len(HOME_SLOTS)) if slot not in used]
