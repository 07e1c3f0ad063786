"""Charts: where values lie, that what is missing is said, that text stays text."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from shoal.report.charts import Bar, BarPanel, Line, LinePanel, draw_charts

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*panels: BarPanel | LinePanel) -> ET.Element:
    return ET.fromstring(draw_charts([panels], "what it shows", ["a note"]))


def widths(root: ET.Element) -> list[float]:
    return [float(each.get("width", "")) for each in root.iter(f"{SVG}rect")][1:]


def texts(root: ET.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


def test_bars_are_as_long_as_their_values_and_a_missing_one_is_said() -> None:
    bars = [Bar("one", 0, 1.0), Bar("three", 1, 3.0), Bar("none", 2, None), Bar("<&>", 3, 2.0, 1.0)]
    root = drawn(BarPanel("title", "seconds", bars))
    one, three, two = widths(root)
    assert three / one == 3.0 or abs(three / one - 3) < 0.01
    assert abs(two / one - 2) < 0.01
    assert texts(root).count("not met") == 1
    assert {"one", "three", "none", "<&>", "a note", "title", "seconds"} <= set(texts(root))


def test_lines_break_where_a_value_is_missing() -> None:
    whole = Line("whole", 0, [1.0, 2.0, 3.0], [None, 0.5, None])
    broken = Line("broken", 1, [1.0, None, 3.0], [None] * 3, is_dashed=True)
    root = drawn(LinePanel("title", "ms", "size", ["2", "4", "8"], [whole, broken]))
    dots = [each.get("class") for each in root.iter(f"{SVG}circle")]
    assert dots.count("dot s0") == 3
    assert dots.count("dot s1") == 2
    assert "broken (1 not met)" in texts(root)
    strokes = [each for each in root.iter(f"{SVG}path") if each.get("class") == "line s1"]
    assert len(strokes) == 1  # the legend's: no two values follow each other


def test_nothing_to_draw_is_still_a_picture() -> None:
    root = drawn(BarPanel("empty", "s", [Bar("none", 0, None)]))
    assert widths(root) == []
