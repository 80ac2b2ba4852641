"use strict";
// What is chosen: one state, and the parts of the page that are drawn again when it changes.

const STATE = {
  pair: 0, // index into ANALYSIS.pairs
  metric: ANALYSIS.primary_metric,
  view: "value", // or "difference"
  model: "", // empty: all
  workload: "",
  measurement: 0, // index into DATA.communication
  hidden: new Set(), // ids of series that are switched off
};
const LISTENERS = [];

/** Draw with `draw` now and whenever the state changes. */
function onState(draw) {
  LISTENERS.push(draw);
  draw();
}

/** Change the state. */
function setState(changes) {
  Object.assign(STATE, changes);
  for (const draw of LISTENERS) draw();
}

/** The pair that is compared; with one degree alone it is no pair, and nothing is of it. */
const currentPair = () => ANALYSIS.pairs[STATE.pair] ?? {baseline_tp: null, candidate_tp: null};
const chosenModels = () => ANALYSIS.design.models.filter((name) => !STATE.model || name === STATE.model);
const chosenWorkloads = () => DATA.workloads.filter((name) => !STATE.workload || name === STATE.workload);
const samePair = (entry, pair) =>
  entry.baseline_tp === pair.baseline_tp && entry.candidate_tp === pair.candidate_tp;

/** The arms of a subject, by TP degree and then concurrency. */
const armsOf = (model, workload) =>
  ANALYSIS.arms.filter((arm) => arm.model === model && arm.workload === workload);

/** The comparisons of a subject for the chosen pair, by concurrency. */
const pointsOf = (model, workload) =>
  ANALYSIS.points
    .filter((point) => point.model === model && point.workload === workload && samePair(point, currentPair()))
    .sort((one, other) => one.concurrency - other.concurrency);

/** The crossover of a subject by a metric for the chosen pair. */
const crossoverOf = (model, workload, metric) =>
  ANALYSIS.all_crossovers.find(
    (found) =>
      found.model === model && found.workload === workload && found.metric === metric && samePair(found, currentPair()),
  );

/** A labelled choice that is bound to one key of the state; `options` are [value, label]. */
function choice(label, key, options) {
  const select = html(
    "select",
    {"data-key": key, onchange: () => setState({[key]: typeof options[0][0] === "number" ? Number(select.value) : select.value})},
    options.map(([value, text]) => html("option", {value}, text)),
  );
  onState(() => { select.value = String(STATE[key]); });
  return html("label", {}, label, select);
}

/** Buttons of which one is pressed, bound to one key of the state. */
function switches(label, key, options) {
  const buttons = options.map(([value, text]) =>
    html("button", {type: "button", onclick: () => setState({[key]: value})}, text));
  onState(() => buttons.forEach((button, index) =>
    button.setAttribute("aria-pressed", String(STATE[key] === options[index][0]))));
  return html("span", {class: "group", role: "group", "aria-label": label}, buttons);
}

const metricChoice = () =>
  choice("Metric", "metric", Object.entries(ANALYSIS.metrics).map(([name, about]) => [name, `${about.label} (${about.unit})`]));

const pairChoice = () =>
  ANALYSIS.pairs.length < 2 ? null : choice("Degrees", "pair", ANALYSIS.pairs.map((pair, index) =>
    [index, `TP${pair.candidate_tp} against TP${pair.baseline_tp}`]));

const modelChoice = () => choice("Model", "model", [["", "all models"], ...ANALYSIS.design.models.map((name) => [name, name])]);

const workloadChoice = () => choice("Shape", "workload", [["", "all shapes"], ...DATA.workloads.map((name) => [name, shape(name)])]);
