"use strict";
// Elements, numbers and the data of this page. Text enters the page as text nodes alone, so that no
// name in the data can become markup.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ANALYSIS = DATA.analysis;
const SVG = "http://www.w3.org/2000/svg";
const SIGNS = {favourable: "▲", unfavourable: "▽", inconclusive: "○", gated: "✕"};

/** The element with this id. */
const byId = (id) => document.getElementById(id);

/** Put `children` (nodes, texts, null) into `node`. */
function fill(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

function withAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  return node;
}

/** An HTML element. */
const html = (name, attributes, ...children) =>
  fill(withAttributes(document.createElement(name), attributes), ...children);

/** An SVG element. */
const svg = (name, attributes, ...children) =>
  fill(withAttributes(document.createElementNS(SVG, name), attributes), ...children);

/** A number with about three significant digits and thousands set apart. */
function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return value.toLocaleString("en-US", {maximumFractionDigits: 0});
  if (size >= 100) return value.toFixed(0);
  if (size === 0) return "0";
  const digits = Math.max(0, 2 - Math.floor(Math.log10(size)));
  return value.toFixed(Math.min(digits, 6));
}

/** A round number on an axis: no digits that say nothing. */
const tickText = (value) => (Math.abs(value) >= 1000 ? number(value) : String(Number(value.toPrecision(6)))).replace("-", "−");

/** A share as a signed percentage. */
function percent(value) {
  if (value === null || value === undefined) return "–";
  const shown = (100 * value).toFixed(1);
  return `${value >= 0 ? "+" : "−"}${shown.replace("-", "")}%`;
}

/** "12.3 [11, 13]". */
const interval = (value, bounds, format = number) =>
  bounds ? `${format(value)} [${format(bounds[0])}, ${format(bounds[1])}]` : format(value);

/** A probability. */
const probability = (p) => (p === null || p === undefined ? "–" : p < 0.001 ? "<0.001" : p.toFixed(3));

/** Bytes in binary units. */
function bytes(size) {
  for (const [unit, scale] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (size >= scale) return `${tickText(size / scale)} ${unit}`;
  }
  return `${size} B`;
}

/** A workload with its token shape. */
function shape(workload) {
  const tokens = ANALYSIS.design.workloads[workload];
  return `${workload.replaceAll("_", " ")} (${tokens.input_tokens} in, ${tokens.output_tokens} out)`;
}
