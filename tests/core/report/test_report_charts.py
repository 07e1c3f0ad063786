"""Charts: where values lie, that what is missing is said, that text stays text."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from shoal.report.charts import Bar, BarPanel, Line, LinePanel, TextTable, draw_charts

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
    broken = Line("broken", 1, [1.0, None, 3.0], [None] * 3)
    root = drawn(LinePanel("title", "ms", "size", ["2", "4", "8"], [whole, broken]))
    classes = [each.get("class") for each in root.iter(f"{SVG}path")]
    assert classes.count("dot s0") == 3 + 1  # one stands before the name
    assert classes.count("dot s1") == 2 + 1
    assert classes.count("line circle s0") == 2
    assert "line square s1" not in classes  # no two values follow each other
    assert "broken (1 not met)" in " ".join(texts(root))


def names_of(root: ET.Element, *names: str) -> list[float]:
    return [float(each.get("y", "")) for each in root.iter(f"{SVG}text") if each.text in names]


def test_names_stand_at_the_ends_of_lines_and_apart() -> None:
    lines = [Line(name, 0, [1.0, end], [None] * 2) for name, end in (("a", 5.0), ("b", 5.0))]
    root = drawn(
        LinePanel("title", "ms", "size", ["2", "4"], [*lines, Line("c", 0, [1.0, 0.1], [None] * 2)])
    )
    a, b, c = (names_of(root, name)[0] for name in "abc")
    assert abs(a - b) >= 14
    assert c > max(a, b) + 50


def test_values_that_are_far_apart_are_drawn_in_logarithms_and_it_is_said() -> None:
    bars = [Bar(str(value), 0, value) for value in (1.0, 10.0, 100.0)]
    root = drawn(BarPanel("title", "seconds", bars))
    assert "seconds, logarithmic" in texts(root)
    assert widths(root) == []  # a bar's length would mean nothing
    ends = [
        float(each.get("d", "").partition("H")[2])
        for each in root.iter(f"{SVG}path")
        if each.get("class") == "line s0"
    ]
    assert abs((ends[2] - ends[1]) - (ends[1] - ends[0])) < 0.2


def test_a_table_stands_on_top_with_all_of_its_words() -> None:
    table = TextTable(
        "theirs and ours", ("what", "theirs"), [("x" * 5 + " word" * 30, "1 %")], (0.7, 0.3)
    )
    panel = BarPanel("title", "seconds", [Bar("one", 0, 1.0)])
    root = ET.fromstring(draw_charts([[panel]], "what", [], table))
    assert "theirs and ours" in texts(root)
    assert " ".join(texts(root)).count("word") == 30
    (group,) = root.iter(f"{SVG}g")
    top = float(group.get("transform", "").split()[1].rstrip(")"))
    assert all(float(each.get("y", "")) < top for each in root if each.tag == f"{SVG}text")


def test_nothing_to_draw_is_still_a_picture() -> None:
    root = drawn(BarPanel("empty", "s", [Bar("none", 0, None)]))
    assert widths(root) == []
