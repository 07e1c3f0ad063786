"""Strategies can be told apart, whoever looks."""

from __future__ import annotations

from itertools import combinations

import pytest
from report_samples import ENVIRONMENT, STRATEGIES, make_run

from shoal.jobs.result import ResultFile
from shoal.report.palette import (
    HOME_SLOTS,
    STRATEGY_COLORS,
    SYMBOLS,
    THEME,
    assign_styles,
    css_variables,
)
from shoal.report.reported_scenario import group_scenarios

Vector = tuple[float, float, float]

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
VISION: dict[str, tuple[Vector, Vector, Vector]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
TO_XYZ = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
MIN_DISTANCE = 14.0  # CIE76; about 2 is just noticeable side by side
MIN_CONTRAST = 2.5


def linear(color: str) -> Vector:
    def channel(value: float) -> float:
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = (channel(int(color[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return (red, green, blue)


def times(matrix: tuple[Vector, Vector, Vector], vector: Vector) -> Vector:
    x, y, z = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return (x, y, z)


def lab(color: str, vision: str) -> Vector:
    seen = times(VISION[vision], linear(color))
    red, green, blue = (min(1.0, max(0.0, value)) for value in seen)
    whites = (0.95047, 1.0, 1.08883)
    x, y, z = (
        (v / w) ** (1 / 3) if v / w > 0.008856 else 7.787 * v / w + 16 / 116
        for v, w in zip(times(TO_XYZ, (red, green, blue)), whites, strict=True)
    )
    return (116 * y - 16, 500 * (x - y), 200 * (y - z))


def contrast(first: str, second: str) -> float:
    light, dark = sorted((times(TO_XYZ, linear(c))[1] for c in (first, second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_no_two_strategies_look_alike(vision: str, theme: int):
    for first, second in combinations([pair[theme] for pair in STRATEGY_COLORS], 2):
        a, b = lab(first, vision), lab(second, vision)
        distance = sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5
        assert distance >= MIN_DISTANCE, (first, second)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_lines_and_words_stand_out_from_the_background(theme: int):
    surface = THEME["surface"][theme]
    for pair in STRATEGY_COLORS:
        assert contrast(pair[theme], surface) >= MIN_CONTRAST
    for word in ("text", "muted"):
        assert contrast(THEME[word][theme], surface) >= 4.5


def styles_of(*strategies: str) -> dict[str, tuple[str, str]]:
    runs = [make_run(strategy, duration_ms=200) for strategy in strategies]
    scenarios = group_scenarios(ResultFile(environment=ENVIRONMENT, runs=runs))
    return {k: (s.color, s.symbol) for k, s in assign_styles(scenarios).items()}


def test_a_strategy_looks_the_same_whatever_is_beside_it():
    assert styles_of("ripples")["ripples"] == styles_of(*STRATEGIES)["ripples"]


def test_unknown_strategies_get_what_is_left():
    styles = styles_of("mine", "all-reduce", "yours")

    assert len(set(styles.values())) == 3
    assert styles["all-reduce"] == styles_of("all-reduce")["all-reduce"]


def test_more_runs_than_colors_still_differ_by_symbol():
    styles = styles_of(*(f"s{number}" for number in range(15)))

    assert len(set(styles.values())) == 15


def test_every_home_has_a_color_and_a_symbol():
    assert sorted(HOME_SLOTS.values()) == list(range(len(STRATEGY_COLORS)))
    assert len(SYMBOLS) == len(set(SYMBOLS)) == len(STRATEGY_COLORS)


def test_both_themes_define_every_color():
    light, dark = css_variables().split("@media")

    assert light.count("#") == dark.count("#") == len(THEME) + len(STRATEGY_COLORS)
