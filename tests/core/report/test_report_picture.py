"""The picture for the README is a well-formed drawing of what the runs say."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from report_samples import ENVIRONMENT, STRATEGIES, make_results

from shoal.errors import ResourceError
from shoal.jobs.result import CurvePoint, ResultFile
from shoal.report.picture import make_picture, write_picture
from shoal.report.reported_scenario import group_scenarios

SAMPLES = make_results(duration_ms=800)
SVG = "{http://www.w3.org/2000/svg}"


def drawn(results: ResultFile) -> ET.Element:
    return ET.fromstring(make_picture(group_scenarios(results)))


def texts(root: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def positions(line: ET.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]


def test_there_is_a_line_and_a_name_per_run():
    root = drawn(SAMPLES)
    assert len(list(root.iter(f"{SVG}polyline"))) == len(SAMPLES.runs)
    whole = " ".join(texts(root)).replace(",", " ").replace(".", " ").split()
    assert [whole.count(name) for name in STRATEGIES] == [2] * len(STRATEGIES)
    assert {"Equal workers", "Worker 5 is 5× slower"} <= set(texts(root))


def outstanding(root: ET.Element) -> list[str]:
    return [text.text for text in root.iter(f"{SVG}text") if text.attrib["class"] == "name"]


def test_three_stand_out_with_marks_and_dashes_and_the_others_are_grey():
    root = drawn(SAMPLES)
    names = outstanding(root)
    assert len(names) == 2 * 3
    assert names[:3] == names[3:]
    assert "all-reduce" in names
    classes = [line.attrib["class"].split() for line in root.iter(f"{SVG}polyline")]
    for mark in ("circle", "square", "triangle"):
        assert sum(mark in each for each in classes) == 2
    assert sum("other" in each for each in classes) == len(SAMPLES.runs) - 2 * 3


def test_those_stand_out_that_are_soonest_where_workers_are_slow():
    runs = [
        msgspec.structs.replace(
            run, strategy=name, time_to_target_seconds=seconds, slow=slow, curve=run.curve
        )
        for slow, times in (({}, (1.0, 2.0, 3.0, 4.0)), ({"2": 5.0}, (4.0, 3.0, 2.0, 1.0)))
        for name, seconds in zip("abcd", times, strict=True)
        for run in SAMPLES.runs[:1]
    ]
    assert sorted(set(outstanding(drawn(ResultFile(environment=ENVIRONMENT, runs=runs))))) == [
        *"bcd"
    ]


def test_names_do_not_lie_over_each_other():
    """All curves end at one height here."""
    root = drawn(
        ResultFile(
            environment=ENVIRONMENT,
            runs=[msgspec.structs.replace(SAMPLES.runs[0], strategy=name) for name in "abc"],
        )
    )
    heights = [
        float(text.attrib["y"])
        for text in root.iter(f"{SVG}text")
        if text.attrib["class"] == "name"
    ]
    assert len(heights) == 3
    assert all(abs(a - b) >= 30 for a in heights for b in heights if a is not b)


def test_everything_lies_within_the_drawing():
    root = drawn(SAMPLES)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])

    for line in root.iter(f"{SVG}polyline"):
        assert all(0 <= x <= width and 0 <= y <= height for x, y in positions(line))
    for text in root.iter(f"{SVG}text"):
        assert 0 < float(text.attrib["y"]) < height


def test_higher_values_are_drawn_higher_and_later_ones_to_the_right():
    curve = [CurvePoint(float(i), float(i), 0.2 * i, None, 0.0) for i in range(5)]
    run = msgspec.structs.replace(SAMPLES.runs[0], curve=curve)

    (line,) = drawn(ResultFile(environment=ENVIRONMENT, runs=[run])).iter(f"{SVG}polyline")

    xs, ys = zip(*positions(line), strict=True)
    assert list(xs) == sorted(set(xs))
    assert list(ys) == sorted(set(ys), reverse=True)


def test_times_to_the_target_stand_beside_the_names():
    runs = [
        msgspec.structs.replace(SAMPLES.runs[0], strategy=name, time_to_target_seconds=seconds)
        for name, seconds in (("late", 9.0), ("never", None), ("early", 2.0))
    ]
    words = texts(drawn(ResultFile(environment=ENVIRONMENT, runs=runs)))
    for name, after in (("late", "9.00 s"), ("never", "not reached"), ("early", "2.00 s")):
        assert words[words.index(name) + 1] == after
    assert any(
        word.startswith("Times: until the thin dashed line is reached, 90 %") for word in words
    )


def test_the_conditions_are_stated_once():
    notes = [word for word in texts(drawn(SAMPLES)) if "padded" in word]

    assert len(notes) == 1


def test_many_runs_make_it_higher_instead_of_overflowing():
    runs = [msgspec.structs.replace(SAMPLES.runs[0], strategy=f"s{i}") for i in range(20)]

    root = drawn(ResultFile(environment=ENVIRONMENT, runs=runs))

    lowest = max(float(text.attrib["y"]) for text in root.iter(f"{SVG}text"))
    assert lowest < float(root.attrib["height"])


def test_a_run_that_was_never_measured_is_named_without_a_line():
    run = msgspec.structs.replace(SAMPLES.runs[0], curve=[], time_to_target_seconds=None)

    root = drawn(ResultFile(environment=ENVIRONMENT, runs=[run]))

    assert [line.attrib["points"] for line in root.iter(f"{SVG}polyline")] == [""]
    assert "all-reduce" in texts(root)


def test_the_same_results_make_the_same_picture(tmp_path: Path):
    write_picture(SAMPLES, tmp_path / "a.svg")
    write_picture(SAMPLES, tmp_path / "b.svg")

    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert len((tmp_path / "a.svg").read_bytes()) < 60_000


def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ResourceError, match="Cannot write the picture"):
        write_picture(SAMPLES, tmp_path / "nowhere" / "a.svg")
