"use strict";
// Puts the page together: controls, then every part that is drawn from the state.

function themeButton() {
  const button = byId("theme");
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
    label();
  });
  label();
}

/** The tables of answers are in the page already: show the chosen one, link it to the curves. */
function verdictTables() {
  const tables = [...document.querySelectorAll("table.verdicts")];
  for (const cell of document.querySelectorAll("td.answer[data-model]")) {
    const large = cell.querySelector(".large");
    const link = html("a", {href: "#curves", title: "See the curves", class: "unstyled", onclick: () =>
      setState({model: cell.dataset.model, workload: cell.dataset.workload})});
    link.append(...large.childNodes);
    large.append(link);
  }
  fill(byId("verdict-controls"), pairChoice(), metricChoice());
  onState(() => tables.forEach((table) => {
    table.hidden = !(Number(table.dataset.pair) === STATE.pair && table.dataset.metric === STATE.metric);
  }));
}

function start() {
  // On a phone one model at a time; the choice is above every group of charts.
  if (matchMedia("(max-width: 760px)").matches) STATE.model = ANALYSIS.design.models[0];
  document.querySelectorAll(".scripted").forEach((part) => { part.hidden = false; });
  themeButton();
  if (ANALYSIS.label || ANALYSIS.alone) document.querySelectorAll("#verdict-controls, #verdicts .legend").forEach((part) => { part.hidden = true; });
  else verdictTables();

  fill(byId("curve-controls"), pairChoice(), metricChoice(),
    ANALYSIS.label || ANALYSIS.alone ? null : switches("Show", "view", [["value", "Values"], ["difference", "Difference"]]), modelChoice(), workloadChoice());
  onState(drawCurves);
  // A chart is drawn for its width: again when the window passes the limit.
  wideEnough.addEventListener("change", () => setState({}));

  const has = (name) => ANALYSIS.arms.some((arm) => arm.metrics[name]);
  if (!ANALYSIS.alone && LATENCIES.every((name) => ANALYSIS.metrics[name]) && LATENCIES.some(has)) {
    fill(byId("latency-controls"), modelChoice(), workloadChoice());
    onState(drawLatency);
  } else byId("latency").hidden = true;
  if (ANALYSIS.arms.some((arm) => Object.keys(arm.max_gpu_memory_mib).length)) {
    fill(byId("memory-controls"), modelChoice(), workloadChoice());
    onState(drawMemory);
  } else byId("memory").hidden = true;

  if (DATA.communication.length) {
    if (DATA.communication.length > 1) {
      fill(byId("communication-controls"), choice("Measurement", "measurement", DATA.communication.map(({name}, index) => [index, name])));
    }
    onState(drawCommunication);
  } else byId("communication").hidden = true;

  if (ANALYSIS.alone) byId("points").hidden = true;
  else onState(comparisonTable());
  // Hundreds of rows: made when somebody wants to see them.
  document.querySelector("#cells details").addEventListener("toggle", () => cellTable()(), {once: true});
}

start();
