"""The report's page draws in a real browser what its figures hold; skipped where there is none."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from report_samples import make_results

from shoal.report import write_report

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The page as the browser has it after its script: what is in each figure, by its key."""
    if BROWSER is None:
        pytest.skip("needs Chromium, to draw the page")
    folder = tmp_path_factory.mktemp("report")
    page = folder / "report.html"
    write_report(make_results(duration_ms=800), page)
    words = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder}/user",
    ]
    found = subprocess.run(
        [*words, "--window-size=1400,1000", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    ).stdout
    parts = re.split(r'<div class="figure"[^>]*data-figure="([^"]+)"[^>]*>', found)
    figures = re.search(r'id="figures">([^<]*)<', found)
    assert figures is not None
    keys = dict(
        zip(parts[1::2], (each.partition("</svg></svg>")[0] for each in parts[2::2]), strict=True)
    )
    return {"all": figures[1], **keys}


def test_every_bar_line_and_box_is_drawn(drawn: dict[str, str]) -> None:
    figures = json.loads(drawn.pop("all"))
    assert len(drawn) >= 11
    for key, svg in drawn.items():
        data = [each for each in figures[key]["data"] if each.get("visible", True)]
        bars = sum(len(each["x"]) for each in data if each["type"] == "bar")
        boxes = sum(each["type"] == "box" for each in data)
        lines = sum("lines" in each.get("mode", "") for each in data)
        assert svg.count("<rect") == bars + boxes, key
        assert svg.count("<polyline") == lines, key
        assert figures[key]["layout"]["xaxis"]["title"]["text"] in svg
        assert "NaN" not in svg
        assert "undefined" not in svg
