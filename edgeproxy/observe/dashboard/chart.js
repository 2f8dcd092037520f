// First tokens over the last hour: how many took how long (cells), p50, p95 and the budget (lines). Percentile lines alone
// would hide that there are two kinds of requests, which is what a slow region looks like.

/* global uPlot */

import { byId, clock, milliseconds, number, percent, row } from "./dom.js";
import { budgets } from "./summary.js";
import { colour } from "./theme.js";

const BINS_A_DECADE = 24; // observe/history.py
const LEAST_S = 0.001;
const SLICE_S = 10;
const MOST_S = 100; // of the bins; a budget beyond either end would press all that was seen into a line
const HOUR_S = 3600;
const LEAST_SHOWN_S = 600;
const HEIGHT = 300;
const TABLE_ROWS = 30;

const edge = (bin) => LEAST_S * 10 ** (bin / BINS_A_DECADE);

const within = (seconds) => Math.min(Math.max(seconds, LEAST_S), MOST_S);

// Ends of the axis, in seconds, for what is to be seen; null where there is nothing.
export const ends = (low, high) => uPlot.rangeLog(within(Math.min(low || 0.1, 0.02)), within(Math.max(high || 0.2, 0.5)), 10, true);

let plot = null;
let several = false; // budgets: then the largest has a line of its own
let drawn = { slices: [], most: 1 };

function cells(u) {
  const { ctx } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
  ctx.clip();
  ctx.fillStyle = colour("heat");
  for (const slice of drawn.slices) {
    const left = u.valToPos(slice.start, "x", true);
    const width = Math.max(u.valToPos(slice.start + SLICE_S, "x", true) - left, 1);
    for (const [bin, count] of slice.bins) {
      const top = u.valToPos(edge(bin + 1), "y", true);
      const bottom = u.valToPos(edge(bin), "y", true);
      ctx.globalAlpha = 0.15 + 0.85 * Math.sqrt(count / drawn.most);
      ctx.fillRect(left, top, width, Math.max(bottom - top, 2));
    }
  }
  ctx.restore();
}

function options(width) {
  const hours = (_, times) => times.map((time) => new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" }));
  const axis = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
  const line = (label, name, more) => ({ label, stroke: colour(name), width: 2, points: { show: false }, spanGaps: false, value: (_, value) => milliseconds(value), ...more });
  return {
    width,
    height: HEIGHT,
    scales: { y: { distr: 3, range: (_, low, high) => ends(low, high) } },
    axes: [{ ...axis, space: 90, values: hours }, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => (tick === null ? null : milliseconds(tick))) }],
    series: [{ label: "time", value: (_, value) => (value === null ? "–" : clock(value)) }, line("p50", "first-line"), line("p95", "second-line", { dash: [6, 3] }), ...budgetLines(line)],
    hooks: { drawClear: [cells] },
    cursor: { y: false },
  };
}

const budgetLines = (line) => (several ? ["least budget", "largest budget"] : ["budget"]).map((label) => line(label, "bad", { width: 1, dash: [2, 4] }));

// Slices in which nothing happened are gaps, not zeros.
function data(state) {
  const end = Math.ceil(state.now / SLICE_S) * SLICE_S;
  const begin = Math.max(end - HOUR_S, Math.min(end - LEAST_SHOWN_S, Math.floor(state.started / SLICE_S) * SLICE_S));
  const times = [];
  const low = [];
  const high = [];
  for (let start = begin; start < end; start += SLICE_S) {
    const slice = state.slices.get(start);
    times.push(start + SLICE_S / 2);
    low.push(slice ? slice.p50_s : null);
    high.push(slice ? slice.p95_s : null);
  }
  const { least, most } = budgets(state);
  return [times, low, high, ...(several ? [least, most] : [least]).map((budget) => times.map(() => budget))];
}

function table(slices) {
  const rows = slices.slice(-TABLE_ROWS).reverse().map((slice) =>
    row(clock(slice.start), number(String(slice.count)), number(String(slice.failed)), number(milliseconds(slice.p50_s)), number(milliseconds(slice.p95_s)), number(slice.count ? percent(slice.within / slice.count) : "–")),
  );
  byId("slices").replaceChildren(...rows);
}

export function drawChart(state) {
  const place = byId("chart");
  const slices = [...state.slices.values()].sort((one, other) => one.start - other.start);
  drawn = { slices, most: Math.max(1, ...slices.flatMap((slice) => slice.bins.map(([, count]) => count))) };
  const { least, most } = budgets(state);
  if (several !== least < most) {
    forgetChart();
    several = least < most;
  }
  if (plot === null) {
    plot = new uPlot(options(place.clientWidth), data(state), place);
  } else {
    if (plot.width !== place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT });
    plot.setData(data(state));
  }
  place.setAttribute("aria-label", `First token over the last hour; in the last five minutes p50 ${milliseconds(state.first_token.p50)}, p95 ${milliseconds(state.first_token.p95)}; as a table below`);
  table(slices);
}

// Colours are read when the chart is made.
export function forgetChart() {
  if (plot !== null) plot.destroy();
  plot = null;
}
