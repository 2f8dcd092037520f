"use strict";

// Names, models and messages come from requests and nodes: they are only ever written as text.

const POLL_MS = 1000;
const SHOWN = 40;
const TERMS = [
  ["rtt", "region round trip"],
  ["edge", "edge"],
  ["failover", "failover"],
  ["parse", "parse"],
  ["queue", "queue"],
  ["prefill", "prefill"],
  ["first", "first decode"],
  ["other", "other"],
];

const byId = (id) => document.getElementById(id);

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function milliseconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const value = seconds * 1000;
  return `${value < 10 ? value.toFixed(2) : value.toFixed(1)} ms`;
}

function termsOf(request) {
  const terms = TERMS.slice(0, -1).map(([name, label]) => [name, label, request[`${name}_s`] || 0]);
  const known = terms.reduce((sum, term) => sum + term[2], 0);
  terms.push(["other", "other", Math.max(0, request.first_token_s - known)]);
  return terms.filter((term) => term[2] > 0);
}

// The bar's full width is the budget, or the request itself where it took longer; the mark stands at the budget.
function bar(request, budget) {
  const made = element("div", "bar");
  const terms = termsOf(request);
  const full = Math.max(budget, terms.reduce((sum, term) => sum + term[2], 0));
  for (const [name, , seconds] of terms) {
    const part = element("i", name);
    part.style.width = `${(100 * seconds) / full}%`;
    made.append(part);
  }
  const mark = element("b");
  mark.style.left = `calc(${(100 * budget) / full}% - 2px)`;
  made.append(mark);
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", terms.map(([, label, seconds]) => `${label} ${milliseconds(seconds)}`).join(", "));
  made.title = made.getAttribute("aria-label");
  return made;
}

function stateOf(node) {
  if (!node.ready) return ["bad", `down: ${node.trouble}`];
  return node.breaker === "closed" ? ["good", "ready"] : ["bad", `breaker ${node.breaker}`];
}

function nodeRow(node, home) {
  const row = element("tr");
  const region = element("th", "", node.region === home ? `${node.region} (home)` : node.region);
  region.scope = "row";
  const [className, state] = stateOf(node);
  row.append(
    region,
    element("td", "", node.name),
    element("td", className, state),
    element("td", "number", milliseconds(node.rtt_s)),
    element("td", "number", String(node.in_flight)),
    element("td", "", node.models.join(", ")),
  );
  return row;
}

function requestRow(request, budget) {
  const row = element("tr");
  const answered = request.first_token_s !== null;
  const verdict = answered ? (request.first_token_s <= budget ? "good" : "bad") : "";
  const cell = element("td", "wide");
  if (answered) cell.append(bar(request, budget));
  row.append(
    element("td", "", new Date(request.time * 1000).toLocaleTimeString()),
    element("td", "", request.region || "–"),
    element("td", "", request.model),
    element("td", request.status < 400 && !request.code ? "" : "bad", [request.status, request.code].filter(Boolean).join(" ")),
    element("td", "number", String(request.attempts)),
    element("td", `number ${verdict}`, milliseconds(request.first_token_s)),
    cell,
  );
  return row;
}

function verdict(status, budget) {
  const down = status.nodes.filter((node) => !node.ready).length;
  const answered = status.recent.filter((request) => request.first_token_s !== null);
  const within = answered.filter((request) => request.first_token_s <= budget).length;
  const nodes = down ? `${down} of ${status.nodes.length} nodes down` : `all ${status.nodes.length} nodes ready`;
  if (!answered.length) return `${nodes}; no requests yet`;
  return `${nodes}; ${within} of the last ${answered.length} first tokens within ${status.budget_ms} ms`;
}

function draw(status) {
  const budget = status.budget_ms / 1000;
  byId("version").textContent = status.version;
  byId("budget").textContent = `${status.budget_ms} ms`;
  say(verdict(status, budget));
  byId("nodes").replaceChildren(...status.nodes.map((node) => nodeRow(node, status.home)));
  const newest = status.recent.slice(-SHOWN).reverse();
  byId("recent").replaceChildren(...newest.map((request) => requestRow(request, budget)));
}

// A screen reader repeats a live region whenever it is written: so only when it says something new.
function say(text) {
  if (byId("verdict").textContent !== text) byId("verdict").textContent = text;
}

async function poll() {
  if (!document.hidden) {
    try {
      const answer = await fetch("/admin/status", { cache: "no-store" });
      if (!answer.ok) throw new Error(`the proxy answered ${answer.status}`);
      draw(await answer.json());
    } catch (error) {
      say(`No news from the proxy: ${error.message}`);
    }
  }
  setTimeout(poll, POLL_MS);
}

byId("legend").append(...TERMS.map(([name, label]) => element("li", name, label)));
poll();
