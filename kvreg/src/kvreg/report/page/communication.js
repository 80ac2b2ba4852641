"use strict";
// All-reduce between ranks: time and bandwidth against payload, and the fitted lines.

const TIMERS = ["host", "event", "graph"];
const measured = () => DATA.communication[STATE.measurement].result;
const available = (result) => TIMERS.filter((timer) => result.timers[timer].available);

function drawCommunication() {
  const result = measured();
  const {design, environment} = result;
  const devices = [...new Set(environment.devices.map((device) => device.name))].join(", ");
  const variables = Object.entries(environment.variables).map(([name, value]) => `${name}=${value}`).join(" ");
  byId("communication-about").textContent = [
    `${design.ranks} ranks over ${design.backend}, ${design.backend === "nccl" ? devices : "host memory: this says nothing about GPUs"}${design.peer ? "" : ", peer access off"}.`,
    `${result.repetitions.length} repetitions in fresh processes, ${design.collectives} all-reduces for each payload; the slowest rank counts. torch ${environment.torch}, NCCL ${environment.nccl || "none"}. ${variables}`,
    `Bus bandwidth is payload over time × ${tickText(result.bus_factor)}.`,
  ].join(" ");
  const timers = available(result);
  byId("communication-panels").replaceChildren();
  fill(byId("communication-panels"), timePanel(result, timers), bandwidthPanel(result, timers));
  byId("communication-legend").replaceChildren();
  fill(byId("communication-legend"),
    legend(byId("communication-panels"), timers.map((timer) => ({id: `timer-${timer}`, label: timer, index: TIMERS.indexOf(timer)}))),
    html("span", {}, "Thin lines are the fits by relative error."),
    TIMERS.filter((timer) => !timers.includes(timer)).map((timer) => html("span", {}, `${timer}: not available (${result.timers[timer].reason})`)));
  byId("communication-fits").replaceChildren(fitTable(result, timers));
}

/** Payloads as an axis: all of them are places, every other one has a label. */
function payloadAxis(result) {
  const sizes = result.design.payloads.slice().sort((one, other) => one - other);
  const every = Math.ceil(sizes.length / 6);
  return {values: sizes, labels: sizes.filter((_, index) => index % every === 0), format: bytes, label: "payload per rank"};
}

/** A fitted line over the payloads, as a series of `value(size, time in microseconds)`. */
function fitSeries(entry, timer, axis, value) {
  const fit = entry.fits.relative;
  const index = TIMERS.indexOf(timer);
  if (!fit || fit.algorithm_bandwidth_GB_per_s.value === null || fit.intercept_us.value <= 0) return null;
  const [low, high] = [axis.values[0], axis.values[axis.values.length - 1]];
  const sizes = Array.from({length: 61}, (_, step) => low * (high / low) ** (step / 60));
  const points = sizes.map((size) => ({x: size, y: value(size, fit.intercept_us.value + size / fit.algorithm_bandwidth_GB_per_s.value / 1000)}));
  return {id: `timer-${timer}`, index, fit: true, points};
}

function communicationPanel(result, timers, title, y, measure, value) {
  const axis = payloadAxis(result);
  const series = timers.flatMap((timer) => {
    const entry = result.timers[timer];
    return [fitSeries(entry, timer, axis, value), {id: `timer-${timer}`, index: TIMERS.indexOf(timer), points: entry.payloads.map(measure)}];
  }).filter(Boolean);
  return panel({wide: true, title, x: axis, y, series, tip: (size) => payloadTip(result, timers, size)});
}

const timePanel = (result, timers) => communicationPanel(
  result, timers, "Time of one all-reduce", {kind: "log", unit: "µs"},
  (row) => ({x: row.bytes, y: row.us, low: row.p05_us, high: row.p95_us}),
  (size, time) => time,
);

const bandwidthPanel = (result, timers) => communicationPanel(
  result, timers, "Bus bandwidth", {kind: "linear", unit: "GB/s", zero: true},
  (row) => ({x: row.bytes, y: row.bus_bandwidth_GB_per_s}),
  (size, time) => (size / time / 1000) * result.bus_factor,
);

function payloadTip(result, timers, size) {
  const rows = timers.flatMap((timer) => {
    const row = result.timers[timer].payloads.find((one) => one.bytes === size);
    if (!row) return [];
    const off = row.residuals.relative;
    return [
      [timer, `${number(row.us)} µs [${number(row.p05_us)}, ${number(row.p95_us)}]`],
      [`${timer}, bus bandwidth`, `${number(row.bus_bandwidth_GB_per_s)} GB/s${off ? `, ${percent(off.relative)} off the fit` : ""}`],
    ];
  });
  return {title: `${bytes(size)} per rank (5% to 95%)`, rows};
}

function fitTable(result, timers) {
  const precise = (value) => (value === null ? "open" : Math.abs(value) >= 1000 ? number(value) : value.toPrecision(4));
  const estimate = (one) => `${precise(one.value)} [${precise(one.low)}, ${precise(one.high)}]`;
  const rows = timers.flatMap((timer) => Object.entries(result.timers[timer].fits).map(([name, fit]) =>
    html("tr", {}, html("th", {scope: "row"}, timer), html("td", {}, name),
      [fit.intercept_us, fit.algorithm_bandwidth_GB_per_s, fit.bus_bandwidth_GB_per_s].map((one) => html("td", {class: "number"}, estimate(one))),
      html("td", {}, fit.interval_from))));
  const head = ["Timer", "Fit", "Latency a, µs", "Algorithm bandwidth b, GB/s", "Bus bandwidth, GB/s", "Interval from"];
  return html("table", {class: "plain"},
    html("caption", {}, `T(S) = a + S/b with ${100 * result.level}% intervals (Student t). plain: least squares; relative: weighted by 1/T², so that small payloads count.`),
    html("thead", {}, html("tr", {}, head.map((text) => html("th", {scope: "col"}, text)))), html("tbody", {}, rows));
}
