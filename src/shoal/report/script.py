"""The script of the report page: has the figures drawn, and handles the controls and zooming.

The figures lie in the page as JSON; `drawing_script` draws one.
"""

from __future__ import annotations

SCRIPT = """
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const touch = matchMedia("(pointer: coarse)").matches;
  const hidden = new Set();
  const zoomed = new Map();
  let rank0 = false;

  const isShown = ({meta, visible}) => {
    if (!meta) return visible ?? true;
    return !hidden.has(meta.label) && (!meta.rank0 || rank0);
  };
  const draw = (element) => {
    const key = element.dataset.figure;
    const drawn = Figures.draw(element, figures[key], isShown, zoomed.get(key));
    if (!touch) zoomable(element, drawn);
  };
  const drawAll = () => document.querySelectorAll(".figure").forEach(draw);

  const zoomable = (element, {place, back, left, right, top, bottom, svg, make}) => {
    const key = element.dataset.figure;
    svg.addEventListener("dblclick", () => { zoomed.delete(key); draw(element); });
    svg.addEventListener("mousedown", (down) => {
      const within = (event) => Math.min(Math.max(place(event)[0], left), right);
      const from = within(down);
      const band = make(svg, "rect", {class: "band", x: from, y: top, width: 0,
                                      height: bottom - top});
      const move = (event) => {
        const to = within(event);
        band.setAttribute("x", Math.min(from, to));
        band.setAttribute("width", Math.abs(to - from));
      };
      const up = (event) => {
        removeEventListener("mousemove", move);
        const [low, high] = [from, within(event)].sort((one, other) => one - other);
        band.remove();
        if (high - low < 8) return;
        zoomed.set(key, [back(low), back(high)]);
        draw(element);
      };
      addEventListener("mousemove", move);
      addEventListener("mouseup", up, {once: true});
      down.preventDefault();
    });
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
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) { width = innerWidth; drawAll(); }
  });
  addEventListener("beforeprint", drawAll);
})();
"""
"""Plain JavaScript, run after `drawing_script.DRAWING`."""
