"use strict";
// The panels of every model and token shape: against concurrency, latency, and memory.

const CONCURRENCY = {values: ANALYSIS.design.concurrencies, label: "concurrency"};

/** The levels at which a subject was tried; a chart needs two. */
function levelsOf(model, workload) {
  const tried = new Set(armsOf(model, workload).map((arm) => arm.concurrency));
  return ANALYSIS.design.concurrencies.filter((level) => tried.has(level));
}

/** A row of panels for each chosen model. */
function modelRows(target, draw) {
  const rows = chosenModels().map((model) => {
    const panels = chosenWorkloads().filter((workload) => levelsOf(model, workload).length).map((workload) => draw(model, workload));
    return panels.length ? html("div", {class: "model-row"}, html("h3", {}, model), html("div", {class: "panels"}, panels)) : null;
  });
  target.replaceChildren();
  fill(target, rows);
}

/** What the head of a panel says of a crossover. */
function verdictAside(found) {
  if (!found) return null;
  const value = found.first_sustained_favorable;
  if (Number.isInteger(value)) return {text: `▲ ${found.at_top_of_grid ? "at" : "from"} ${value}`, kind: "pays"};
  if (found.pending) return {text: value, kind: ""};
  if (value.startsWith("RESOURCE_GATED@")) return {text: `✕ gated at ${value.split("@")[1]}`, kind: "gated"};
  return {text: found.estimable ? "– none" : "not estimable", kind: ""};
}

function drawCurves() {
  const metric = ANALYSIS.metrics[STATE.metric];
  const pair = currentPair();
  const difference = STATE.view === "difference";
  byId("curve-about").textContent = difference
    ? `Difference of TP${pair.candidate_tp} from TP${pair.baseline_tp} in ${metric.label}, as a share of TP${pair.baseline_tp}'s mean: mean of the matched repetitions with the paired ${100 * ANALYSIS.rule.level}% interval that the verdicts are read from.`
    : ANALYSIS.label
      ? `Mean ${metric.label} of each degree (${ANALYSIS.label}; ${metric.better} is better). There are no intervals: repetitions inside one server are no replications.`
      : `Mean ${metric.label} of each degree with its ${100 * ANALYSIS.rule.level}% interval over repetitions (${metric.better} is better).${ANALYSIS.alone ? "" : " Verdicts come from paired differences, not from whether these bars overlap."}`;
  modelRows(byId("curve-panels"), (model, workload) => (difference ? differencePanel : valuePanel)(model, workload, metric));
  byId("curve-legend").replaceChildren();
  if (!difference) {
    fill(byId("curve-legend"), legend(byId("curve-panels"), ANALYSIS.design.tp.map((tp, index) => ({id: `tp${tp}`, label: `TP${tp}`, index}))));
  }
  if (!ANALYSIS.label && !ANALYSIS.alone) fill(byId("curve-legend"), html("span", {}, "Signs below a chart are the verdicts; the dashed line is the first sustained favourable level."));
}

function frame(model, workload, metricName) {
  const points = pointsOf(model, workload);
  const found = crossoverOf(model, workload, metricName);
  const first = found && Number.isInteger(found.first_sustained_favorable) ? found.first_sustained_favorable : null;
  return {
    title: workload.replaceAll("_", " "),
    aside: verdictAside(found),
    x: {...CONCURRENCY, values: levelsOf(model, workload)},
    gated: points.filter((point) => point.gated).map((point) => point.concurrency),
    signs: ANALYSIS.label ? null : points.filter((point) => point.metrics[metricName]).map((point) => [point.concurrency, point.metrics[metricName].verdict]),
    crossover: first,
    tip: (level) => comparisonTip(model, workload, level, metricName),
  };
}

// The repetitions that stayed below the boundary are no fair sample of an arm that passed it.
const isGated = (arm) => Object.values(arm.states).includes("RESOURCE_GATED");

function valuePanel(model, workload, metric) {
  const series = ANALYSIS.design.tp.map((tp, index) => ({
    id: `tp${tp}`, index, curve: true, band: true,
    points: armsOf(model, workload).filter((arm) => arm.tp === tp && arm.metrics[STATE.metric] && !isGated(arm)).map((arm) => {
      const found = arm.metrics[STATE.metric];
      const bounds = ANALYSIS.label ? null : found.interval; // repetitions inside one server have none
      return {x: arm.concurrency, y: found.mean, low: bounds && Math.max(0, bounds[0]), high: bounds && bounds[1]};
    }),
  }));
  return panel({...frame(model, workload, STATE.metric), y: {kind: "linear", unit: metric.unit, zero: true}, series});
}

/** A metric's relative difference at each concurrency, as a series. */
function relativeSeries(model, workload, metricName, id, index) {
  const points = pointsOf(model, workload).filter((point) => !point.gated && point.metrics[metricName] && point.metrics[metricName].relative !== null);
  return {
    id, index, curve: true, band: index === 0,
    points: points.map((point) => {
      const found = point.metrics[metricName];
      const scale = found.mean ? found.relative / found.mean : 0; // one over the baseline's mean
      return {x: point.concurrency, y: found.relative, low: found.interval && found.interval[0] * scale, high: found.interval && found.interval[1] * scale};
    }),
  };
}

const shareAxis = {kind: "linear", signed: true, include: [0], format: (value) => `${value > 0 ? "+" : ""}${tickText(100 * value)}%`};

function differencePanel(model, workload, metric) {
  const pair = currentPair();
  return panel({
    ...frame(model, workload, STATE.metric),
    y: {...shareAxis, unit: `TP${pair.candidate_tp} − TP${pair.baseline_tp}`},
    better: metric.better === "higher" ? "up" : "down",
    betterLabel: `shaded: TP${pair.candidate_tp} better`,
    series: [relativeSeries(model, workload, STATE.metric, "difference", 0)],
  });
}

/** Everything that is known of one comparison. */
function comparisonTip(model, workload, level, metricName) {
  const metric = ANALYSIS.metrics[metricName];
  const pair = currentPair();
  const rows = armsOf(model, workload).filter((arm) => arm.concurrency === level).map((arm) => {
    const found = arm.metrics[metricName];
    const gated = Object.values(arm.states).filter((state) => state === "RESOURCE_GATED").length;
    return [`TP${arm.tp}`, gated ? `gated in ${gated} of ${Object.keys(arm.states).length}` : found ? `${interval(found.mean, ANALYSIS.label ? null : found.interval)} ${metric.unit}` : "not measured"];
  });
  const point = pointsOf(model, workload).find((one) => one.concurrency === level);
  const found = point && point.metrics[metricName];
  if (found) {
    if (!point.gated && found.relative !== null) {
      const scale = found.mean ? found.relative / found.mean : 0;
      rows.push([`TP${pair.candidate_tp} − TP${pair.baseline_tp}`, interval(found.relative, found.interval && found.interval.map((bound) => bound * scale), percent)]);
      rows.push(["pairs", String(found.pairs)]);
    }
    if (found.holm) rows.push(["p; by Holm", `${probability(found.p)}; ${probability(found.holm.p)}`]);
    if (!ANALYSIS.label) rows.push(["verdict", `${SIGNS[found.verdict]} ${found.verdict}`]);
  }
  return {title: `${workload.replaceAll("_", " ")}, concurrency ${level}`, rows};
}

const LATENCIES = ["ttft_ms", "tpot_ms"];

function drawLatency() {
  const pair = currentPair();
  byId("latency-about").textContent =
    `Difference of TP${pair.candidate_tp} from TP${pair.baseline_tp} in time to first token and in time per output token (lower is better; paired ${100 * ANALYSIS.rule.level}% intervals). More throughput need not mean that a single request is served sooner.`;
  modelRows(byId("latency-panels"), (model, workload) => panel({
    title: workload.replaceAll("_", " "),
    x: {...CONCURRENCY, values: levelsOf(model, workload)},
    y: {...shareAxis, unit: `TP${pair.candidate_tp} − TP${pair.baseline_tp}`},
    better: "down", betterLabel: `shaded: TP${pair.candidate_tp} better`,
    gated: pointsOf(model, workload).filter((point) => point.gated).map((point) => point.concurrency),
    series: LATENCIES.map((name, index) => relativeSeries(model, workload, name, name, index)),
    tip: (level) => ({
      title: `${workload.replaceAll("_", " ")}, concurrency ${level}`,
      rows: LATENCIES.flatMap((name) => comparisonTip(model, workload, level, name).rows
        .filter(([label]) => label.startsWith("TP") || label === "verdict")
        .map(([label, value]) => [`${name === "ttft_ms" ? "TTFT" : "TPOT"} ${label}`, value])),
    }),
  }));
  byId("latency-legend").replaceChildren();
  fill(byId("latency-legend"), legend(byId("latency-panels"), LATENCIES.map((id, index) => ({id, index, label: ANALYSIS.metrics[id].label}))));
}

function drawMemory() {
  byId("memory-about").textContent =
    `Largest memory of any GPU in each cell, every repetition a sign. ${DATA.boundary_mib ? `A cell past ${number(DATA.boundary_mib)} MiB is gated (hollow): it has no performance result.` : "No boundary is recorded."} The axis does not begin at zero.`;
  const degrees = ANALYSIS.design.tp;
  const panels = chosenModels().map((model) => {
    const arms = ANALYSIS.arms.filter((arm) => arm.model === model && (!STATE.workload || arm.workload === STATE.workload));
    const series = degrees.map((tp, index) => ({
      id: `memory-tp${tp}`, index, small: true,
      points: arms.filter((arm) => arm.tp === tp).flatMap((arm) => {
        const shift = (index - (degrees.length - 1) / 2) * 17 + (DATA.workloads.indexOf(arm.workload) - (DATA.workloads.length - 1) / 2) * 5;
        return Object.entries(arm.max_gpu_memory_mib).map(([repetition, value]) => ({x: arm.concurrency, y: value, shift, hollow: arm.states[repetition] === "RESOURCE_GATED"}));
      }),
    }));
    if (!series.some((one) => one.points.length)) return null;
    return panel({
      wide: true,
      title: model,
      x: CONCURRENCY,
      y: {kind: "linear", unit: "MiB per GPU", include: DATA.boundary_mib ? [DATA.boundary_mib] : []},
      boundary: DATA.boundary_mib ? {value: DATA.boundary_mib, label: `boundary ${number(DATA.boundary_mib)}`} : null,
      series,
      tip: (level) => ({
        title: `${model}, concurrency ${level}`,
        rows: arms.filter((arm) => arm.concurrency === level && Object.keys(arm.max_gpu_memory_mib).length).map((arm) =>
          [`${arm.workload.replaceAll("_", " ")}, TP${arm.tp}`, `up to ${number(Math.max(...Object.values(arm.max_gpu_memory_mib)))} MiB`]),
      }),
    });
  });
  byId("memory-panels").replaceChildren();
  fill(byId("memory-panels"), panels);
  byId("memory-legend").replaceChildren();
  fill(byId("memory-legend"), legend(byId("memory-panels"), degrees.map((tp, index) => ({id: `memory-tp${tp}`, label: `TP${tp}`, index, line: false}))),
    DATA.workloads.length > 1 ? html("span", {}, `Within a degree, from left to right: ${DATA.workloads.map((name) => name.replaceAll("_", " ")).join(", ")}.`) : null);
}
