// The latency budget's terms, in the order in which they happen, as a bar and as a waterfall.

import { element, milliseconds, number, row } from "./dom.js";

export const TERMS = [
  ["client", "client round trip"],
  ["edge", "edge"],
  ["hold", "held here"],
  ["failover", "failover"],
  ["rtt", "region round trip"],
  ["parse", "parse"],
  ["queue", "queue"],
  ["prefill", "prefill"],
  ["first", "first decode"],
  ["unexplained", "unexplained"],
  ["relay", "relay"],
];

export function termsOf(request) {
  return TERMS.map(([name, label]) => ({ name, label, seconds: request[`${name}_s`] || 0 })).filter((term) => term.seconds > 0);
}

// Of a request without a first token: what is known, and the rest of its life as a term of its own.
function untilItsEnd(request) {
  const terms = termsOf(request);
  const known = terms.reduce((sum, term) => sum + (term.name === "client" ? 0 : term.seconds), 0);
  const seconds = request.total_s - known;
  return seconds > 0 ? [...terms, { name: "unexplained", label: "no first token", seconds }] : terms;
}

const spoken = (terms) => terms.map((term) => `${term.label} ${milliseconds(term.seconds)}`).join(", ");

const MOST = 20; // times the request: of a larger budget it would be no more than a line

// The bar's full width is the budget, or the request itself where it took longer; a mark stands at the budget, unless that
// is so large that it lies beyond the bar.
export function bar(request, tall = false) {
  const made = element("div", tall ? "bar tall" : "bar");
  const terms = termsOf(request);
  const budget = request.budget_s;
  const spent = terms.reduce((sum, term) => sum + term.seconds, 0);
  const full = Math.max(spent, Math.min(budget, MOST * spent));
  for (const term of terms) {
    const part = element("i", term.name);
    part.style.width = `${(100 * term.seconds) / full}%`;
    part.title = `${term.label} ${milliseconds(term.seconds)}`;
    made.append(part);
  }
  if (budget <= full) {
    const mark = element("b");
    mark.style.left = `calc(${(100 * budget) / full}% - 2px)`;
    made.append(mark);
  }
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", spoken(terms) || "nothing measured");
  return made;
}

// A row a term, each beginning where the one before ended. A table, so that it can be read aloud as it is.
export function waterfall(request) {
  const answered = request.wait_s !== null;
  const terms = answered ? termsOf(request) : untilItsEnd(request);
  const total = Math.max(request.budget_s, terms.reduce((sum, term) => sum + term.seconds, 0));
  const body = element("tbody");
  let begun = 0;
  for (const term of terms) {
    const track = element("div", "track");
    const part = element("i", term.name);
    part.style.marginLeft = `${(100 * begun) / total}%`;
    part.style.width = `max(${(100 * term.seconds) / total}%, 2px)`;
    track.append(part);
    const name = element("th", "", term.label);
    name.scope = "row";
    body.append(row(name, number(milliseconds(term.seconds)), element("td", "wide", track)));
    begun += term.seconds;
  }
  const own = request.own_budget_s ? `; its client's own ${milliseconds(request.own_budget_s)}` : "";
  const budget = `budget ${milliseconds(request.budget_s)}${own}`;
  const caption = answered
    ? `the user waits ${milliseconds(request.wait_s)} for the first token, ${budget}; ${milliseconds(request.first_token_s)} of it passed at the proxy and behind it`
    : `ended after ${milliseconds(request.total_s)} without a first token, ${budget}`;
  const table = element("table", "waterfall", element("caption", "", caption));
  table.append(body);
  return table;
}

export const legend = () => TERMS.map(([name, label]) => element("li", name, label));
