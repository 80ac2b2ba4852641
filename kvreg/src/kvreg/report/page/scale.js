"use strict";
// Scales of a chart: from values to places, and the values worth a line.

/** A linear or logarithmic scale from [low, high] to [start, end] in pixels. */
function makeScale(kind, low, high, start, end) {
  const to = kind === "log" ? Math.log : (value) => value;
  const span = to(high) - to(low) || 1;
  return (value) => start + ((to(value) - to(low)) / span) * (end - start);
}

/** About `count` round values inside [low, high]. */
function roundTicks(low, high, count = 4) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

/** Powers of ten inside [low, high], with their halves and fifths where there are few. */
function logTicks(low, high) {
  const factors = Math.log10(high / low) > 2.5 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks;
}

/** The range of all values of some series with their bounds, with room above and below. */
function rangeOf(series, {kind, zero, include = []}) {
  const values = series.flatMap((one) => one.points.flatMap((at) => [at.y, at.low, at.high])).concat(include)
    .filter((value) => value !== null && value !== undefined && (kind !== "log" || value > 0));
  if (!values.length) return [0, 1];
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (kind === "log") return [low / 1.25, high * 1.25];
  const room = (high - low || Math.abs(high) || 1) * 0.07;
  low -= room;
  high += room;
  if (zero && low > 0) low = 0;
  if (zero && Math.min(...values) >= 0) low = 0;
  return [low, high];
}
