// One row a node: how far, how busy, how healthy. Stale or unknown is a dash, never a zero.

import { byId, element, milliseconds, number, percent, plain, price, row } from "./dom.js";

function stateOf(node) {
  if (!node.ready) return ["bad", `down: ${node.trouble}`];
  if (node.breaker !== "closed") return ["bad", `breaker ${node.breaker}`];
  if (node.instruments && node.instruments.sleeping) return ["quiet", "ready, asleep"];
  return ["good", node.standby ? "standby" : "ready"];
}

// Of 1,000 tokens in the node's region over the last hour, for each model that it serves.
function costs(node, state) {
  const here = state.costs.filter(([model, region]) => region === node.region && node.models.includes(model));
  if (here.length < 2) return price(here.length ? here[0][2] : null);
  return here.map(([model, , cost]) => `${model} ${price(cost)}`).join(", ");
}

function nodeRow(node, state) {
  const region = element("th", "", node.region === state.home ? `${node.region} (home)` : node.region);
  region.scope = "row";
  const [className, text] = stateOf(node);
  const report = node.report;
  const shown = node.instruments || {};
  const load = report ? `${report.running} + ${report.waiting}` : String(node.in_flight);
  return row(
    region,
    node.name,
    element("td", className, text),
    number(milliseconds(node.rtt_s)),
    number(milliseconds(node.rtt_min_s)),
    number(load),
    number(milliseconds(node.queue_s)),
    number(percent(node.kv_used)),
    number(percent(shown.kvr)),
    number(percent(state.errors.get(node.region))),
    number(plain(shown.susi)),
    number(plain(shown.mpfr, 3)),
    number(milliseconds(shown.gap_p50_s)),
    number(price(node.price_per_hour)),
    number(costs(node, state)),
    node.models.join(", "),
  );
}

// Of the last requests: by how much of the time that it took a first token missed its forecast, the median per region.
function errors(requests) {
  const missed = new Map();
  for (const request of requests) {
    if (request.region === null || request.expected_s === null || !request.shown_s) continue;
    const found = missed.get(request.region) || [];
    found.push(Math.abs(request.expected_s - request.shown_s) / request.shown_s);
    missed.set(request.region, found);
  }
  return new Map([...missed].map(([region, shares]) => [region, shares.sort((one, other) => one - other)[shares.length >> 1]]));
}

export function drawRegions(state) {
  const shown = { ...state, errors: errors(state.recent) };
  byId("nodes").replaceChildren(...state.nodes.map((node) => nodeRow(node, shown)));
}
