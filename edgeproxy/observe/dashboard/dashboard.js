// A snapshot, then changes once a second, over one connection that the browser itself takes up again.

import { drawChart, forgetChart } from "./chart.js";
import { byId, clock, say } from "./dom.js";
import { drawMap } from "./map.js";
import { drawRegions } from "./regions.js";
import { drawRequests, newest } from "./requests.js";
import { budgets, drawSummary } from "./summary.js";
import { legend } from "./terms.js";
import { theme } from "./theme.js";

const HOUR_S = 3600;
const STALE_MS = 5000;

const state = { slices: new Map(), recent: [] };
let known = false;
let heard = 0;
let waiting = false;

function take(message, fresh) {
  const { slices, recent, ...rest } = message;
  Object.assign(state, rest);
  if (fresh) {
    state.slices.clear();
    state.recent = [];
  }
  for (const slice of slices) state.slices.set(slice.start, slice);
  for (const start of state.slices.keys()) if (start < state.now - HOUR_S) state.slices.delete(start);
  state.recent = newest([...state.recent, ...recent]);
  known = true;
  heard = performance.now();
  soon();
}

// A tab that nobody looks at draws nothing; one that is looked at, once a frame at most.
function soon() {
  if (waiting || !known) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function draw() {
  byId("version").textContent = state.version;
  byId("budget").textContent = budgets(state).text;
  drawSummary(state);
  drawChart(state);
  drawRegions(state);
  drawMap(state);
  drawRequests(state);
  freshness();
}

function freshness() {
  const age = performance.now() - heard;
  const stale = !known || age > STALE_MS;
  document.body.classList.toggle("stale", stale && known);
  byId("live").className = stale ? "warn" : "good";
  say(byId("live"), !known ? "connecting…" : stale ? `no news since ${clock(state.now)}: these figures are old` : "live");
}

const events = new EventSource("/admin/events");
events.addEventListener("snapshot", (event) => take(JSON.parse(event.data), true));
events.addEventListener("delta", (event) => take(JSON.parse(event.data), false));
setInterval(freshness, 1000);
addEventListener("resize", soon);
byId("legend").append(...legend());
byId("close").addEventListener("click", () => byId("details").close());
theme(() => {
  forgetChart();
  soon();
});
