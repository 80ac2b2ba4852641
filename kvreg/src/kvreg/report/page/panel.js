"use strict";
// One chart. It answers to the pointer and to the arrow keys: both show what is at a place.

// Sizes in units of the drawing; text keeps about its size because wide places get wide drawings.
const NARROW = {width: 380, height: 236, left: 50, right: 14, top: 20};
const WIDE = {width: 590, height: 270, left: 54, right: 16, top: 20};
const wideEnough = matchMedia("(min-width: 960px)");

/**
 * A figure with a chart.
 *
 * title, aside: {text, kind}; x: {values, format, label, log}; y: {kind, unit, zero, format, include};
 * series: [{id, index, points: [{x, y, low, high, hollow, shift}], curve, band, fit}]; gated: x values;
 * signs: [[x, verdict]]; crossover: x; boundary: {value, label}; better: "up" | "down";
 * tip: (x) => {title, rows: [[name, value]]}.
 */
function panel(chart) {
  const SIZE = chart.wide && wideEnough.matches ? WIDE : NARROW;
  const bottom = chart.signs ? 46 : 32;
  const shown = chart.series.filter((one) => !STATE.hidden.has(one.id));
  const range = rangeOf(shown, {...chart.y, include: chart.y.include || []});
  const right = SIZE.width - SIZE.right;
  const floor = SIZE.height - bottom;
  const inset = chart.series.some((one) => one.points.some((at) => at.shift)) ? 26 : 14;
  const values = chart.x.values;
  const x = makeScale("log", values[0], values[values.length - 1], SIZE.left + inset, right - inset);
  const y = makeScale(chart.y.kind, range[0], range[1], floor, SIZE.top);
  const space = {SIZE, x, y, right, floor, range, values};

  const image = svg(
    "svg",
    {viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", tabindex: 0, "aria-label": describePanel(chart)},
    gatedAreas(chart, space),
    axes(chart, space),
    betterSide(chart, space),
    landmarks(chart, space),
    shown.map((one) => drawSeries(one, space)),
    verdictSigns(chart, space),
  );
  if (chart.tip) answerToPointer(image, chart, space);
  const aside = chart.aside ? html("span", {class: chart.aside.kind || null}, chart.aside.text) : null;
  return html("figure", {class: "panel"}, html("figcaption", {}, html("b", {}, chart.title), aside), image);
}

const describePanel = (chart) =>
  `${chart.title}: ${chart.y.unit} against ${chart.x.label}. ${chart.aside ? chart.aside.text : ""} Arrow keys read the values.`;

function axes(chart, {SIZE, x, y, right, floor, range, values}) {
  const ticks = chart.y.kind === "log" ? logTicks(...range) : roundTicks(...range);
  const labels = chart.x.labels || values;
  return svg(
    "g",
    {},
    ticks.map((tick) => [
      svg("line", {class: chart.y.signed && tick === 0 ? "zero" : "grid", x1: SIZE.left, x2: right, y1: y(tick), y2: y(tick)}),
      svg("text", {x: SIZE.left - 6, y: y(tick) + 4, "text-anchor": "end"}, (chart.y.format || tickText)(tick)),
    ]),
    svg("line", {class: "axis", x1: SIZE.left, x2: right, y1: floor, y2: floor}),
    labels.map((value) => svg("text", {x: x(value), y: floor + 15, "text-anchor": "middle"}, (chart.x.format || String)(value))),
    svg("text", {x: 2, y: 11}, chart.y.unit),
    chart.signs ? null : svg("text", {x: right, y: SIZE.height - 3, "text-anchor": "end"}, chart.x.label),
  );
}

function gatedAreas(chart, {SIZE, x, floor}) {
  const gated = chart.gated || [];
  if (!gated.length) return null;
  return svg(
    "g",
    {},
    svg("defs", {}, svg("pattern", {id: "hatch", width: 8, height: 8, patternUnits: "userSpaceOnUse", patternTransform: "rotate(-45)"},
      svg("rect", {class: "hatch-back", width: 8, height: 8}), svg("line", {class: "hatch-line", x1: 0, x2: 0, y1: 0, y2: 8}))),
    gated.map((level) => [
      svg("rect", {class: "gated-area", x: x(level) - 13, width: 26, y: SIZE.top, height: floor - SIZE.top}),
      svg("text", {class: "gated-sign", x: x(level), y: SIZE.top + 16, "text-anchor": "middle"}, SIGNS.gated),
    ]),
  );
}

function betterSide(chart, {SIZE, y, right, floor, range}) {
  if (!chart.better || range[0] > 0 || range[1] < 0) return null;
  const up = chart.better === "up";
  const zero = y(0);
  return svg(
    "g",
    {},
    svg("rect", {class: "better", x: SIZE.left, width: right - SIZE.left, y: up ? SIZE.top : zero, height: Math.max(0, up ? zero - SIZE.top : floor - zero)}),
    svg("text", {class: "better-label", x: right, y: 11, "text-anchor": "end"}, chart.betterLabel),
  );
}

function landmarks(chart, {SIZE, x, y, right, floor}) {
  const parts = [];
  if (chart.crossover) {
    parts.push(svg("line", {class: "crossover", x1: x(chart.crossover), x2: x(chart.crossover), y1: SIZE.top, y2: floor}));
  }
  if (chart.boundary) {
    const at = y(chart.boundary.value);
    parts.push(svg("line", {class: "boundary", x1: SIZE.left, x2: right, y1: at, y2: at}));
    parts.push(svg("text", {class: "boundary-label", x: right, y: 11, "text-anchor": "end"}, chart.boundary.label));
  }
  return parts;
}

function drawSeries(one, {x, y}) {
  const at = one.points.filter((point) => point.y !== null && point.y !== undefined);
  const place = (point) => x(point.x) + (point.shift || 0);
  const name = `s${one.index % 4}`;
  const dash = one.fit ? (one.dash ? "dash1" : "") : one.index ? `dash${one.index % 4}` : "";
  const line = (points) => points.map((point, index) => `${index ? "L" : "M"}${place(point).toFixed(1)} ${y(point.y).toFixed(1)}`).join("");
  const bounded = at.filter((point) => point.low !== undefined && point.low !== null);
  const parts = [];
  if (one.band && bounded.length > 1) {
    const edge = (key, points) => points.map((point) => `${place(point).toFixed(1)} ${y(point[key]).toFixed(1)}`);
    parts.push(svg("path", {class: `band ${name}`, d: `M${[...edge("high", bounded), ...edge("low", [...bounded].reverse())].join("L")}Z`}));
  }
  if (one.curve || one.fit) parts.push(svg("path", {class: `curve ${name} ${dash} ${one.fit ? "fit" : ""}`, d: line(at)}));
  if (!one.fit) {
    for (const point of bounded) {
      parts.push(svg("line", {class: `whisker ${name}`, x1: place(point), x2: place(point), y1: y(point.low), y2: y(point.high)}));
    }
    for (const point of at) parts.push(marker(one.index, place(point), y(point.y), `point ${name} ${point.hollow ? "hollow" : ""}`, one.small ? 3.2 : 4));
  }
  return svg("g", {"data-series": one.id}, parts);
}

/** A sign of a series: circle, square, triangle, diamond. */
function marker(index, x, y, name, size) {
  if (index % 4 === 0) return svg("circle", {class: name, cx: x, cy: y, r: size});
  const corners = {
    1: [[-1, -1], [1, -1], [1, 1], [-1, 1]],
    2: [[0, -1.3], [1.2, 0.9], [-1.2, 0.9]],
    3: [[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]],
  }[index % 4];
  const scaled = corners.map(([dx, dy]) => `${(x + dx * size * 0.92).toFixed(1)},${(y + dy * size * 0.92).toFixed(1)}`);
  return svg("polygon", {class: name, points: scaled.join(" ")});
}

function verdictSigns(chart, {SIZE, x}) {
  if (!chart.signs) return null;
  const y = SIZE.height - 6;
  return svg("g", {}, chart.signs.map(([level, verdict]) => svg("text", {class: `sign ${verdict}`, x: x(level), y}, SIGNS[verdict])));
}

function answerToPointer(image, chart, {SIZE, x, floor, values}) {
  const guide = svg("line", {class: "guide", y1: SIZE.top, y2: floor, visibility: "hidden"});
  image.prepend(guide);
  let current = -1;
  const show = (index, clientX, clientY) => {
    current = index;
    guide.setAttribute("x1", x(values[index]));
    guide.setAttribute("x2", x(values[index]));
    guide.setAttribute("visibility", "visible");
    showTip(chart.tip(values[index]), clientX, clientY);
  };
  const hide = () => {
    current = -1;
    guide.setAttribute("visibility", "hidden");
    hideTip();
  };
  const nearest = (event) => {
    const box = image.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * SIZE.width;
    return values.reduce((best, value, index) => (Math.abs(x(value) - at) < Math.abs(x(values[best]) - at) ? index : best), 0);
  };
  const follow = (event) => show(nearest(event), event.clientX, event.clientY);
  image.addEventListener("pointermove", follow);
  image.addEventListener("pointerdown", follow);
  // A finger that is lifted leaves the chart: what it showed stays until something else is touched.
  image.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") hide(); });
  document.addEventListener("pointerdown", (event) => { if (current >= 0 && !image.contains(event.target)) hide(); });
  image.addEventListener("blur", hide);
  image.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return undefined;
    event.preventDefault();
    const index = current < 0 ? (step > 0 ? 0 : values.length - 1) : Math.min(values.length - 1, Math.max(0, current + step));
    const box = image.getBoundingClientRect();
    return show(index, box.left + (x(values[index]) / SIZE.width) * box.width, box.top + box.height / 3);
  });
}

/** Show the tip beside a place of the window. */
function showTip({title, rows}, clientX, clientY) {
  const tip = byId("tip");
  tip.replaceChildren(html("b", {}, title), html("table", {}, rows.map(([name, value]) => html("tr", {}, html("td", {}, name), html("td", {}, value)))));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = clientX + 16 + box.width > window.innerWidth ? clientX - box.width - 16 : clientX + 16;
  const top = Math.min(clientY + 14, window.innerHeight - box.height - 8);
  tip.style.left = `${Math.max(6, left)}px`;
  tip.style.top = `${Math.max(6, top)}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

/** A legend whose entries switch series off and on; pointing at one dims the others in `scope`. */
function legend(scope, entries) {
  return entries.map(({id, label, index, line}) => {
    const dim = (on) => scope.querySelectorAll("[data-series]").forEach((group) =>
      group.classList.toggle("dimmed", on && group.dataset.series !== id));
    const button = html(
      "button",
      {
        type: "button", "aria-pressed": String(!STATE.hidden.has(id)),
        onclick: () => {
          const hidden = new Set(STATE.hidden);
          if (!hidden.delete(id)) hidden.add(id);
          setState({hidden});
        },
        onpointerenter: () => dim(true), onpointerleave: () => dim(false), onfocus: () => dim(true), onblur: () => dim(false),
      },
      svg("svg", {viewBox: "0 0 34 12", "aria-hidden": "true"},
        line === false ? null : svg("line", {class: `curve s${index % 4} ${index ? `dash${index % 4}` : ""}`, x1: 0, x2: 34, y1: 6, y2: 6}),
        marker(index, 17, 6, `point s${index % 4}`, 4)),
      label,
    );
    return button;
  });
}
