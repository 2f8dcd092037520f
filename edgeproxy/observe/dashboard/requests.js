// The last requests with their decisions; a click shows one request's waterfall and what the choice knew.

import { byId, clock, element, milliseconds, number, row } from "./dom.js";
import { bar, waterfall } from "./terms.js";

const SHOWN = 40;

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
    request.region || "–",
    request.reason || "–",
    runnerUp(request),
    request.model,
    request.protocol,
    element("td", request.status < 400 && !request.code ? "" : "bad", status),
    number(String(request.attempts)),
    number(milliseconds(request.wait_s), mood),
    element("td", "wide", answered ? bar(request) : null),
  );
}

const key = (request) => `${request.request_id} ${request.time}`;
const shown = new Set();

// Rows that stand stay where they are, so that neither focus nor selection is lost once a second.
export function drawRequests(state) {
  const body = byId("recent");
  if (!shown.size) body.replaceChildren();
  for (const request of state.recent.slice(-SHOWN)) {
    if (shown.has(key(request))) continue;
    shown.add(key(request));
    const made = requestRow(request);
    made.dataset.key = key(request);
    body.prepend(made);
  }
  while (body.rows.length > SHOWN) {
    shown.delete(body.rows[body.rows.length - 1].dataset.key);
    body.deleteRow(-1);
  }
  if (!body.rows.length) body.append(row(element("td", "quiet", "No requests yet")));
  byId("counted").textContent = `${state.count} requests since the start, the newest ${Math.min(state.count, SHOWN)} of them here.`;
}

const FORECAST = [
  ["network_s", "network"],
  ["queue_s", "queue"],
  ["prefill_s", "prefill"],
  ["decode_s", "decode"],
  ["total_s", "total"],
];

function forecasts(decision) {
  const options = [decision.chosen, decision.runner_up];
  const head = row(element("th", "", "forecast"), element("th", "number", "chosen"), element("th", "number", "runner-up"));
  const names = row("node", ...options.map((option) => number(option ? option.node : "–")));
  const rows = FORECAST.map(([field, label]) => row(label, ...options.map((option) => number(milliseconds(option && option[field])))));
  const actual = row("actual", number(milliseconds(decision.actual_s)), number("–"));
  return element("table", "", element("thead", "", head), element("tbody", "", names, ...rows, actual));
}

export async function details(request) {
  const parts = [];
  if (request.wait_s !== null) parts.push(waterfall(request));
  const facts = [
    `reason ${request.reason || "–"}`,
    `${request.prompt_tokens ?? "–"} prompt tokens, ${request.cached_tokens ?? "–"} of them cached`,
    `${request.completion_tokens ?? "–"} tokens answered in ${milliseconds(request.total_s)}`,
    ...(request.failures || []).map((failure) => `failed: ${failure}`),
    ...(request.resumed_on || []).map((node) => `resumed on ${node}`),
    ...(request.client_gone ? ["the client left before the end"] : []),
  ];
  parts.push(element("p", "quiet", facts.join("; ")));
  const answer = await fetch(`/admin/decisions/${encodeURIComponent(request.request_id)}`, { cache: "no-store" });
  if (answer.ok) parts.push(forecasts(await answer.json()));
  else parts.push(element("p", "quiet", request.reason ? "What the choice knew is no longer kept: only those of the last 1,000 requests are, of answered ones, failed and refused each." : "It was refused before a node was chosen."));
  return parts;
}

async function show(request) {
  byId("details-title").textContent = `Request ${request.request_id}`;
  byId("details-body").replaceChildren(element("p", "quiet", "Loading…"));
  byId("details").showModal();
  byId("details-body").replaceChildren(...(await details(request)));
}
