"""The script of the report page: draws the figures in the reader's theme and handles the controls.

The figures lie in the page as JSON. Colors in them are CSS variables, resolved when the JSON is
parsed, so that a change of theme is one more parse.
"""

from __future__ import annotations

SCRIPT = """
(() => {
  const source = document.getElementById("figures").textContent;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const resolve = (key, value) =>
    typeof value === "string" && value.startsWith("var(") ? css(value.slice(4, -1)) : value;
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {responsive: true, displayModeBar: false};
  const hidden = new Set();
  let rank0 = false;
  let figures = {};

  const themed = (layout) => {
    const grid = {gridcolor: css("--grid"), linecolor: css("--line"), zerolinecolor: css("--line"),
                  tickfont: {color: css("--muted")}, automargin: true};
    const axis = (own) => ({...grid, ...own, title: {font: {color: css("--muted"), size: 12.5},
                                                     ...(own && own.title)}});
    return {...layout, autosize: true, dragmode: touch ? false : "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: {family: getComputedStyle(document.body).fontFamily, size: 12.5, color: css("--text")},
      hoverlabel: {bgcolor: css("--surface"), bordercolor: css("--line"), align: "left",
                   font: {color: css("--text")}},
      xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis)};
  };
  const isShown = ({meta, visible}) => {
    if (!meta) return visible ?? true;
    return !hidden.has(meta.label) && (!meta.rank0 || rank0);
  };
  const draw = (element) => {
    const figure = figures[element.dataset.figure];
    const data = figure.data.map((trace) => ({...trace, visible: isShown(trace)}));
    Plotly.react(element, data, themed(figure.layout), config);
  };
  const drawAll = () => {
    figures = JSON.parse(source, resolve);
    document.querySelectorAll(".figure").forEach(draw);
  };

  document.querySelectorAll("[data-label]").forEach((box) => box.addEventListener("change", () => {
    box.checked ? hidden.delete(box.dataset.label) : hidden.add(box.dataset.label);
    document.querySelectorAll(".panels .figure").forEach(draw);
  }));
  const toggle = document.getElementById("rank0");
  toggle?.addEventListener("change", () => {
    rank0 = toggle.checked;
    document.querySelectorAll('[data-figure^="metric"]').forEach(draw);
  });
  const choice = document.getElementById("run");
  const show = () => {
    document.querySelectorAll("[data-run]").forEach((part) => {
      part.hidden = part.dataset.run !== choice.value;
    });
    const timeline = document.getElementById("timeline");
    timeline.dataset.figure = "timeline-" + choice.value;
    draw(timeline);
  };
  drawAll();
  if (choice) { choice.addEventListener("change", show); show(); }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
})();
"""
"""Plain JavaScript, run after plotly.js."""
