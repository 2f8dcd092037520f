// The last requests with their decisions; a click shows one request's waterfall and what the choice knew.

import { byId, clock, element, milliseconds, number, row } from "./dom.js";
import { bar, waterfall } from "./terms.js";

const SHOWN = 40;
const REFUSED = 8; // of them: who is refused in a loop leaves room for who is served
const KEPT = 200;

function runnerUp(request) {
  const other = request.runner_up;
  return other ? `${other.node} ${milliseconds(other.total_s)}` : "–";
}

function requestRow(request) {
  const answered = request.wait_s !== null;
  const mood = answered ? (request.wait_s <= request.budget_s ? "good" : "bad") : "";
  const opener = element("button", "link", clock(request.time));
  opener.addEventListener("click", () => show(request));
  opener.setAttribute("aria-label", `request ${request.request_id} of ${clock(request.time)}: details`);
  const status = [request.status, request.code].filter(Boolean).join(" ");
  return row(
    opener,
    number(milliseconds(request.wait_s), mood),
    element("td", request.status < 400 && !request.code ? "" : "bad", status),
    request.region || "–",
    request.reason || "–",
    runnerUp(request),
    request.model,
    request.protocol,
    number(String(request.attempts)),
    element("td", "wide", answered ? bar(request) : null),
  );
}

const key = (request) => `${request.request_id} ${request.time}`;
const refused = (request) => request.kind === "refused" || request.kind === "left";

// The last ones, each once, the oldest first as they come; of refused ones a few.
export function newest(requests, most = KEPT, mostRefused = REFUSED * (KEPT / SHOWN)) {
  const kept = [];
  let turned = 0;
  for (const request of [...new Map(requests.map((one) => [key(one), one])).values()].reverse()) {
    if (refused(request) && ++turned > mostRefused) continue;
    if (kept.push(request) === most) break;
  }
  return kept.reverse();
}

// Rows that stand stay where they are, so that neither focus nor selection is lost once a second.
export function drawRequests(state) {
  const body = byId("recent");
  const wanted = newest(state.recent, SHOWN, REFUSED).reverse();
  const keys = new Set(wanted.map(key));
  const standing = new Map();
  for (const found of [...body.rows]) {
    if (keys.has(found.dataset.key)) standing.set(found.dataset.key, found);
    else found.remove();
  }
  let next = body.firstElementChild;
  for (const request of wanted) {
    const found = standing.get(key(request)) || requestRow(request);
    if (found === next) {
      next = next.nextElementSibling;
      continue;
    }
    found.dataset.key = key(request);
    body.insertBefore(found, next);
  }
  if (!wanted.length) body.append(row(element("td", "quiet", "No requests yet")));
  const turned = wanted.filter(refused).length;
  const few = turned === REFUSED ? `, of those that were refused the last ${REFUSED}` : "";
  byId("counted").textContent = `${state.count} requests since the start, ${wanted.length} of the newest here${few}.`;
}

const FORECAST = [
  ["network_s", "network"],
  ["queue_s", "queue"],
  ["prefill_s", "prefill"],
  ["decode_s", "decode"],
  ["total_s", "total"],
];

// What came stands with the node that it came from: after a failover neither the chosen nor the next best may be that.
function forecasts(decision) {
  const options = [["chosen", decision.chosen], ["runner-up", decision.runner_up]];
  const came = decision.actual_s === null ? null : decision.node;
  if (came && !options.some(([, option]) => option?.node === came)) options.push(["answered", { node: came }]);
  const head = row(element("th", "", "forecast"), ...options.map(([label]) => element("th", "number", label)));
  const names = row("node", ...options.map(([, option]) => number(option ? option.node : "–")));
  const rows = FORECAST.map(([field, label]) => row(label, ...options.map(([, option]) => number(milliseconds(option?.[field] ?? null)))));
  const actual = row("actual", ...options.map(([, option]) => number(came && option?.node === came ? milliseconds(decision.actual_s) : "–")));
  return element("table", "", element("thead", "", head), element("tbody", "", names, ...rows, actual));
}

function failed(failure) {
  const node = failure.replace(/: over_budget$/, "");
  return node === failure ? `failed: ${failure}` : `refused by ${node}, as the client asked: its own budget cannot be met there`;
}

export async function details(request) {
  const parts = [];
  if (request.wait_s !== null || request.attempts) parts.push(waterfall(request));
  const answered = request.status < 400 && request.node;
  const facts = [
    ...(answered ? [`answered by ${request.node} in ${request.region}`] : []),
    `status ${[request.status, request.code].filter(Boolean).join(" ")}`,
    `reason ${request.reason || "–"}`,
    `${request.prompt_tokens ?? "–"} prompt tokens, ${request.cached_tokens ?? "–"} of them cached`,
    `${request.completion_tokens ?? "–"} tokens answered in ${milliseconds(request.total_s)}`,
    ...(request.failures || []).map(failed),
    ...(request.resumed_on || []).map((node) => `resumed on ${node}`),
    ...(request.client_gone ? ["the client left before the end"] : []),
  ];
  parts.push(element("p", "quiet", facts.join("; ")));
  const answer = await fetch(`/admin/decisions/${encodeURIComponent(request.request_id)}`, { cache: "no-store" });
  if (answer.ok) parts.push(forecasts(await answer.json()));
  else parts.push(element("p", "quiet", request.reason ? "What the choice knew is no longer kept: only those of the last 1,000 requests are, of answered ones, failed and refused each." : "It was refused before a node was chosen."));
  return parts;
}

let opened = null; // an answer that comes late is not another request's

async function show(request) {
  opened = request;
  byId("details-title").textContent = `Request ${request.request_id}`;
  byId("details-body").replaceChildren(element("p", "quiet", "Loading…"));
  byId("details").showModal();
  const parts = await details(request).catch(() => [element("p", "bad", "The proxy cannot be reached; is it running?")]);
  if (opened === request) byId("details-body").replaceChildren(...parts);
}
