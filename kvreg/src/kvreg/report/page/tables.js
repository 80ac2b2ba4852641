"use strict";
// Tables that sort by their heads and filter by words and choices.

/**
 * A table in `target`. columns: [{key, label, kind: "text" | "number", show(row)}];
 * rows(): the rows; choices: [{key, label}] are filters by value; extra: nodes beside the filters.
 */
function dataTable(target, {name, columns, rows, choices, extra = [], rowClass = () => null}) {
  const order = {key: null, down: false};
  const wanted = {};
  const search = html("input", {type: "search", placeholder: "words", oninput: () => draw()});
  const count = html("span", {class: "count", role: "status"});
  const selects = choices.map(({key, label}) => {
    const select = html("select", {"data-filter": key, onchange: () => { wanted[key] = select.value; draw(); }});
    return {key, select, node: html("label", {}, label, select)};
  });
  const body = html("tbody");
  const heads = columns.map((column) => html("th", {scope: "col", class: column.kind === "number" ? "number" : null, "aria-sort": "none"},
    html("button", {type: "button", onclick: () => sortBy(column.key)}, column.label)));
  const save = html("button", {type: "button", onclick: () => saveCsv(name, columns, selected())}, "Save as CSV");

  function sortBy(key) {
    order.down = order.key === key ? !order.down : false;
    order.key = key;
    draw();
  }

  function selected() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows().filter((row) => {
      const text = columns.map((column) => String(column.show ? column.show(row) : row[column.key] ?? "")).join(" ").toLowerCase();
      return words.every((word) => text.includes(word)) && Object.entries(wanted).every(([key, value]) => !value || String(row[key]) === value);
    });
    if (!order.key) return found;
    const empty = (value) => value === null || value === undefined || value === "";
    return found.sort((one, other) => {
      const [a, b] = [one[order.key], other[order.key]];
      if (empty(a) || empty(b)) return empty(a) - empty(b); // what is missing stays last
      const compared = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", {numeric: true});
      return order.down ? -compared : compared;
    });
  }

  function offer() {
    const all = rows();
    for (const {key, select} of selects) {
      const values = [...new Set(all.map((row) => row[key]))].sort((a, b) => (typeof a === "number" ? a - b : String(a).localeCompare(String(b))));
      select.replaceChildren(html("option", {value: ""}, "any"), ...values.map((value) => html("option", {value}, String(value).replaceAll("_", " "))));
      select.value = wanted[key] || "";
    }
  }

  function draw() {
    const found = selected();
    body.replaceChildren(...found.map((row) => html("tr", {class: rowClass(row)}, columns.map((column, index) =>
      html(index ? "td" : "th", {scope: index ? null : "row", class: column.kind === "number" ? "number" : null}, column.node ? column.node(row) : column.show ? column.show(row) : row[column.key] ?? "")))));
    heads.forEach((head, index) => head.setAttribute("aria-sort", columns[index].key !== order.key ? "none" : order.down ? "descending" : "ascending"));
    count.textContent = `${found.length} of ${rows().length} rows`;
  }

  fill(target, html("div", {class: "filters"}, html("label", {}, "Search", search), selects.map(({node}) => node), extra, save, count),
    html("div", {class: "table-frame", tabindex: 0, role: "region", "aria-label": `${name}, scrolls`}, html("table", {class: "data"}, html("thead", {}, html("tr", {}, heads)), body)));
  return () => { offer(); draw(); };
}

/** Give the rows to the user as a file. */
function saveCsv(name, columns, rows) {
  const quoted = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const lines = [columns.map((column) => column.key), ...rows.map((row) => columns.map((column) => quoted(String(row[column.key] ?? ""))))];
  const address = URL.createObjectURL(new Blob([lines.map((line) => `${line.join(",")}\n`).join("")], {type: "text/csv"}));
  html("a", {href: address, download: `${name}.csv`}).click();
  URL.revokeObjectURL(address);
}

const sign = (verdict) => html("span", {class: `mark ${verdict}`}, html("i", {}, SIGNS[verdict]), ` ${verdict}`);

/** Every comparison by the chosen metric and pair, as rows. */
function comparisonRows() {
  return ANALYSIS.points.filter((point) => samePair(point, currentPair()) && point.metrics[STATE.metric]).map((point) => {
    const found = point.metrics[STATE.metric];
    const mean = (tp) => {
      const arm = ANALYSIS.arms.find((one) => one.model === point.model && one.workload === point.workload && one.concurrency === point.concurrency && one.tp === tp);
      return arm && arm.metrics[STATE.metric] && !isGated(arm) ? arm.metrics[STATE.metric].mean : null;
    };
    const scale = found.mean ? found.relative / found.mean : 0;
    return {
      model: point.model, workload: point.workload, concurrency: point.concurrency,
      baseline: mean(point.baseline_tp), candidate: mean(point.candidate_tp), pairs: found.pairs,
      relative: point.gated ? null : found.relative,
      low: !point.gated && found.interval ? found.interval[0] * scale : null,
      high: !point.gated && found.interval ? found.interval[1] * scale : null,
      p: found.p, holm: found.holm ? found.holm.p : null,
      detectable: found.detectable ? found.detectable.relative : null, verdict: found.verdict,
    };
  });
}

function comparisonTable() {
  const pair = currentPair();
  const columns = [
    {key: "model", label: "Model"}, {key: "workload", label: "Shape"}, {key: "concurrency", label: "Conc.", kind: "number"},
    {key: "baseline", label: `TP${pair.baseline_tp}`, kind: "number", show: (row) => number(row.baseline)},
    {key: "candidate", label: `TP${pair.candidate_tp}`, kind: "number", show: (row) => number(row.candidate)},
    {key: "relative", label: "Difference", kind: "number", show: (row) => percent(row.relative)},
    {key: "low", label: "from", kind: "number", show: (row) => percent(row.low)},
    {key: "high", label: "to", kind: "number", show: (row) => percent(row.high)},
    {key: "pairs", label: "Pairs", kind: "number"},
    {key: "p", label: "p", kind: "number", show: (row) => probability(row.p)},
    {key: "holm", label: "p, Holm", kind: "number", show: (row) => probability(row.holm)},
    {key: "detectable", label: "Detectable", kind: "number", show: (row) => percent(row.detectable).replace("+", "±")},
    {key: "verdict", label: "Verdict", node: (row) => sign(row.verdict), show: (row) => row.verdict},
  ];
  byId("points-table").replaceChildren();
  return dataTable(byId("points-table"), {
    name: "comparisons", columns, rows: comparisonRows, rowClass: (row) => (row.verdict === "gated" ? "gated" : null),
    choices: [{key: "model", label: "Model"}, {key: "workload", label: "Shape"}, {key: "concurrency", label: "Conc."}, {key: "verdict", label: "Verdict"}],
    extra: [metricChoice()],
  });
}

/** Every cell: one fresh server. */
function cellRows() {
  return ANALYSIS.arms.flatMap((arm) => Object.entries(arm.states).map(([repetition, state]) => ({
    model: arm.model, workload: arm.workload, concurrency: arm.concurrency, tp: arm.tp, repetition: Number(repetition), state,
    ...Object.fromEntries(Object.keys(ANALYSIS.metrics).map((name) => [name, arm.metrics[name]?.values[repetition] ?? null])),
    memory: arm.max_gpu_memory_mib[repetition] ?? null, reason: arm.reasons[repetition] ?? "",
  })));
}

function cellTable() {
  const rows = cellRows();
  const columns = [
    {key: "model", label: "Model"}, {key: "workload", label: "Shape"}, {key: "concurrency", label: "Conc.", kind: "number"},
    {key: "tp", label: "TP", kind: "number"}, {key: "repetition", label: "Rep.", kind: "number"}, {key: "state", label: "State"},
    ...Object.entries(ANALYSIS.metrics).map(([key, about]) => ({key, label: `${about.label}, ${about.unit}`, kind: "number", show: (row) => number(row[key])})),
    {key: "memory", label: "memory, MiB", kind: "number", show: (row) => number(row.memory)},
    ...(rows.some((row) => row.reason) ? [{key: "reason", label: "Reason"}] : []),
  ];
  return dataTable(byId("cells-table"), {
    name: "cells", columns, rows: () => rows.slice(), rowClass: (row) => (row.state === "RESOURCE_GATED" ? "gated" : null),
    choices: [{key: "model", label: "Model"}, {key: "workload", label: "Shape"}, {key: "concurrency", label: "Conc."}, {key: "tp", label: "TP"}, {key: "state", label: "State"}],
  });
}
