"""The part of the page's script that draws a figure: axes, marks and what pointing at them says.

A figure is data and layout in names that plotly.js uses, of which it knows what `report.figures`
makes: lines, markers, horizontal bars and boxes. It is drawn as SVG whose colors are CSS variables,
so that a change of theme needs no drawing.
"""

from __future__ import annotations

DRAWING = r"""
const Figures = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const make = (parent, name, attributes, text) => {
    const node = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes))
      key === "style" ? node.setAttribute("style", value) : node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    parent.append(node);
    return node;
  };
  const list = (value, count) => Array.isArray(value) ? value : Array(count).fill(value);
  const pen = document.createElement("canvas").getContext("2d");
  const widthOf = (text) => {
    pen.font = "12.5px " + getComputedStyle(document.body).fontFamily;
    return pen.measureText(text).width;
  };
  const steps = (low, high, about) => {
    if (!(high > low)) return [low];
    const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= raw);
    const found = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++)
      found.push(Number((at * step).toPrecision(12)));
    return found;
  };
  const plain = (value) => Math.abs(value) >= 1e5 || (value && Math.abs(value) < 1e-3)
    ? value.toExponential(0) : value.toLocaleString("en", {maximumSignificantDigits: 6});

  // What pointing says: lines apart at <br>, the first word in bold type, numbers as the template
  // has them. Text never becomes markup.
  const decoded = (text) => text.replace(/&lt;/g, "<").replace(/&gt;/g, ">")
    .replace(/&quot;/g, '"').replace(/&#x27;/g, "'").replace(/&amp;/g, "&");
  const filled = (template, x, y) => template.replace("<extra></extra>", "").replace(
    /%\{([xy])(?::\.(\d)([gf]))?\}/g, (_, axis, digits, kind) => {
      const value = axis === "x" ? x : y;
      if (!digits) return plain(value);
      return kind === "f" ? value.toFixed(digits) : String(Number(value.toPrecision(digits)));
    });
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const say = (event, text) => {
    tip.hidden = !text;
    if (!text) return;
    tip.replaceChildren(...text.split("<br>").map((line) => {
      const row = document.createElement("div");
      const bold = line.match(/^<b>(.*)<\/b>(.*)$/);
      if (bold) {
        const name = document.createElement("b");
        name.textContent = decoded(bold[1]);
        row.append(name, decoded(bold[2]));
      } else row.textContent = decoded(line);
      return row;
    }));
    const box = tip.getBoundingClientRect(), room = document.documentElement.clientWidth - 8;
    tip.style.left = Math.max(8, Math.min(event.clientX + 14, room - box.width)) + "px";
    tip.style.top = (event.clientY + 18 + box.height > innerHeight
      ? event.clientY - box.height - 10 : event.clientY + 18) + "px";
  };

  const SHAPES = {
    circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    square: (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    diamond: (r) => `M${-1.3 * r} 0L0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}Z`,
    "triangle-up": (r) => `M${-1.2 * r} ${r}L0 ${-1.2 * r}L${1.2 * r} ${r}Z`,
    "triangle-down": (r) => `M${-1.2 * r} ${-r}L0 ${1.2 * r}L${1.2 * r} ${-r}Z`,
    "triangle-right": (r) => `M${-r} ${-1.2 * r}L${1.2 * r} 0L${-r} ${1.2 * r}Z`,
    cross: (r) => `M${-r} ${-r / 3}H${-r / 3}V${-r}H${r / 3}V${-r / 3}H${r}V${r / 3}H${r / 3}`
      + `V${r}H${-r / 3}V${r / 3}H${-r}Z`,
    x: (r) => `M${-r} ${-r}L${r} ${r}M${r} ${-r}L${-r} ${r}`,
  };
  const around = (points, inner) => (r) => "M" + Array.from({length: 2 * points}, (_, place) => {
    const far = place % 2 ? r * inner : 1.25 * r, angle = Math.PI * (place / points - 0.5);
    return `${(far * Math.cos(angle)).toFixed(2)} ${(far * Math.sin(angle)).toFixed(2)}`;
  }).join("L") + "Z";
  Object.assign(SHAPES, {star: around(5, 0.5), hexagram: around(6, 0.65), pentagon: around(5, 1),
                         hexagon: around(6, 1.08)});
  const mark = (parent, symbol, x, y, size, color) => {
    const isOpen = symbol.endsWith("-open") || symbol === "x";
    const shape = (SHAPES[symbol.replace("-open", "")] ?? SHAPES.circle)(size / 2);
    return make(parent, "path", {d: shape, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`,
      style: isOpen ? `fill:none;stroke:${color};stroke-width:2` : `fill:${color}`});
  };

  const xOf = (trace) => trace.type === "box"
    ? [...trace.lowerfence, ...trace.upperfence]
    : trace.x.map((value, place) => value + (trace.base ? trace.base[place] : 0));
  const span = (axis, values) => {
    if (axis.range) return axis.range;
    const low = Math.min(...values), high = Math.max(...values);
    if (!values.length) return [0, 1];
    if (axis.type === "log") return [low / 1.15, high * 1.15];
    const from = axis.rangemode === "tozero" ? Math.min(0, low) : low;
    return [from, from + (high - from || 1) * 1.03];
  };

  const draw = (element, figure, isShown, zoomed) => {
    const {layout} = figure, data = figure.data.filter(isShown);
    const width = element.clientWidth, height = layout.height;
    const rows = layout.yaxis.categoryarray;
    const svg = document.createElementNS(NS, "svg");
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", height);
    svg.setAttribute("role", "img");
    const title = layout.xaxis.title.text;
    svg.setAttribute("aria-label", rows ? title : `${layout.yaxis.title.text} over ${title}`);
    element.replaceChildren(svg);
    const longest = rows ? Math.max(...rows.map(widthOf), 0) + 12 : layout.margin.l + 14;
    const left = Math.min(longest, width * 0.42), right = width - layout.margin.r;
    const top = layout.margin.t, bottom = height - layout.margin.b;

    const isLog = layout.xaxis.type === "log", by = isLog ? Math.log10 : (value) => value;
    const [from, to] = zoomed ?? span(layout.xaxis, data.flatMap(xOf));
    const x = (value) => left + (by(value) - by(from)) / (by(to) - by(from)) * (right - left);
    const back = (pixels) => {
      const at = by(from) + (pixels - left) / (right - left) * (by(to) - by(from));
      return isLog ? 10 ** at : at;
    };
    const [low, high] = rows ? [0, 1] : span(layout.yaxis, data.flatMap((trace) => trace.y));
    const rowHeight = rows ? (bottom - top) / Math.max(rows.length, 1) : 0;
    const y = rows ? (name) => top + rowHeight * (rows.indexOf(name) + 0.5)
      : (value) => bottom - (value - low) / (high - low) * (bottom - top);

    // axes
    const numbers = (layout.xaxis.tickvals ?? steps(from, to, Math.max(2, (right - left) / 80)))
      .filter((value) => value >= from && value <= to);
    let free = -Infinity;
    for (const value of numbers) {
      const words = layout.xaxis.ticktext
        ? layout.xaxis.ticktext[layout.xaxis.tickvals.indexOf(value)] : plain(value);
      if (layout.xaxis.showgrid !== false)
        make(svg, "path", {class: "grid", d: `M${x(value)} ${top}V${bottom}`});
      if (x(value) - widthOf(words) / 2 < free + 6) continue;
      make(svg, "text", {class: "tick", x: x(value), y: bottom + 17, "text-anchor": "middle"},
           words);
      free = x(value) + widthOf(words) / 2;
    }
    make(svg, "text", {class: "tick", x: (left + right) / 2, y: bottom + 38,
                       "text-anchor": "middle"}, title);
    if (rows) for (const name of rows) {
      let words = name;
      while (widthOf(words) > left - 10 && words.length > 4) words = words.slice(0, -2) + "…";
      make(svg, "text", {class: "row", x: left - 8, y: y(name) + 4, "text-anchor": "end"}, words);
    } else {
      for (const value of steps(low, high, 5)) {
        make(svg, "path", {class: "grid", d: `M${left} ${y(value)}H${right}`});
        make(svg, "text", {class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end"},
             plain(value));
      }
      make(svg, "text", {class: "tick", "text-anchor": "middle",
        transform: `translate(12 ${(top + bottom) / 2}) rotate(-90)`}, layout.yaxis.title.text);
    }
    make(svg, "path", {class: "axis", d: `M${left} ${bottom}H${right}`});

    const size = {x: left, y: top - 6, width: right - left + 6, height: bottom - top + 12};
    const plot = make(svg, "svg", {...size, viewBox: Object.values(size).join(" ")});  // clips
    for (const shape of layout.shapes ?? [])
      make(plot, "path", {class: "target", d: `M${left} ${y(shape.y0)}H${right}`});

    const targets = [];  // [x, y, words] of points; bars say their words by themselves
    const pointed = (node, words) => {
      node.addEventListener("pointermove", (event) => say(event, words));
      node.addEventListener("pointerdown", (event) => say(event, words));
      node.addEventListener("pointerleave", (event) => say(event, ""));
    };
    const kinds = {
      bar: (trace) => trace.x.forEach((length, place) => {
        const name = trace.row ? rows[trace.row[place]] : trace.y[place];
        const base = trace.base[place], at = y(name);
        const wide = x(base + length) - x(base), tall = rowHeight * (1 - (layout.bargap ?? 0.3));
        const color = list(trace.marker.color, 1)[0];
        const opacity = list(trace.marker.opacity ?? 1, trace.x.length)[place];
        const line = trace.marker.line
          ? `;stroke:${trace.marker.line.color};stroke-width:${trace.marker.line.width}` : "";
        const node = make(plot, "rect", {x: x(base), y: at - tall / 2, width: Math.max(wide, 0.5),
          height: tall, style: `fill:${color};fill-opacity:${opacity}${line}`});
        if (trace.text?.[place] && wide > widthOf(trace.text[place]) + 4)
          make(plot, "text", {class: "inside", x: x(base) + wide / 2, y: at + 4,
                              "text-anchor": "middle"}, trace.text[place]);
        pointed(node, trace.told
          ? `<b>${name}</b>, step ${trace.step[place]}, ${Number(length.toPrecision(3))} ms<br>`
            + trace.told[trace.words[place]]
          : trace.hovertext?.[place] ?? filled(trace.hovertemplate, length, name));
      }),
      box: (trace) => trace.y.forEach((name, place) => {
        const at = y(name), half = rowHeight * 0.3, style = `fill:none;stroke:${trace.line.color};`
          + `stroke-width:${trace.line.width}`;
        const [least, first, middle, third, most] = ["lowerfence", "q1", "median", "q3",
          "upperfence"].map((key) => trace[key][place]);
        make(plot, "path", {style, d: `M${x(least)} ${at}H${x(first)}M${x(third)} ${at}H${x(most)}`
          + `M${x(least)} ${at - half / 2}v${half}M${x(most)} ${at - half / 2}v${half}`});
        const node = make(plot, "rect", {x: x(first), y: at - half, height: 2 * half,
          width: Math.max(x(third) - x(first), 0.5),
          style: `${style};fill:${trace.line.color};fill-opacity:.25`});
        make(plot, "path", {style: `${style};stroke-width:3`,
                            d: `M${x(middle)} ${at - half}v${2 * half}`});
        pointed(node, `<b>${trace.name}</b><br>median ${plain(middle)} ms<br>middle half `
          + `${plain(first)} to ${plain(third)} ms<br>1st to 99th percentile ${plain(least)} to `
          + `${plain(most)} ms`);
      }),
      scatter: (trace) => {
        const points = trace.x.map((value, place) => [x(value), y(trace.y[place])]);
        if (trace.mode.includes("lines"))
          make(plot, "polyline", {points: points.map((each) => each.join(",")).join(" "),
            style: `fill:none;stroke:${trace.line.color};stroke-width:${trace.line.width}`
              + (trace.line.dash ? ";stroke-dasharray:2 4" : "")});
        if (trace.mode.includes("markers")) {
          const every = Math.ceil(points.length / (trace.marker.maxdisplayed ?? points.length));
          points.forEach(([at, height], place) => {
            if (place % every === 0)
              mark(plot, trace.marker.symbol, at, height, trace.marker.size, trace.marker.color);
          });
        }
        points.forEach(([at, height], place) => targets.push([at, height,
          filled(trace.hovertemplate, trace.x[place], trace.y[place])]));
      },
    };
    for (const trace of data) kinds[trace.type](trace);
    for (const note of layout.annotations ?? []) {
      const above = note.yanchor === "bottom" ? -5 : 15;
      make(svg, "text", {class: "tick", x: left + 6, y: y(note.y) + above}, note.text);
    }

    const place = (event) => {
      const box = svg.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    const nearest = (event) => {
      const [across, down] = place(event);
      let best = 24 ** 2, words = "";
      for (const [at, height, said] of targets) {
        const far = (at - across) ** 2 + (height - down) ** 2;
        if (far < best) [best, words] = [far, said];
      }
      say(event, words);
    };
    if (targets.length) {
      svg.addEventListener("pointermove", (event) => {
        if (event.target === svg || !event.target.matches("rect")) nearest(event);
      });
      svg.addEventListener("pointerdown", nearest);
      svg.addEventListener("pointerleave", (event) => say(event, ""));
    }
    return {place, back, left, right, top, bottom, svg, make};
  };
  return {draw};
})();
"""
"""Plain JavaScript, run before the controls' part."""
