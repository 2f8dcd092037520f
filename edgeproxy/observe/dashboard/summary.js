// In ten seconds: do users wait, where do the milliseconds go, and what do the slow ones have in common?

import { byId, clock, element, milliseconds, number, percent, plain, row, say } from "./dom.js";
import { bar } from "./terms.js";

const WINDOW_S = 300; // observe/outcomes.py

function tile(label, value, detail, className = "") {
  return element("div", `tile ${className}`, element("dt", "", label), element("dd", "", value), element("dd", "detail", detail));
}

const hours = (minutes) => (minutes < 60 ? `${minutes} min` : minutes < 1440 ? `${minutes / 60} h` : `${minutes / 1440} d`);

// What came before this proxy was started is not known to it.
function burn(pair, age) {
  const name = `burn ${hours(pair.long_minutes)} / ${hours(pair.short_minutes)}`;
  const value = `${plain(pair.long, 1)} / ${plain(pair.short, 1)}`;
  if (pair.state === "few") return tile(name, value, `too few to tell: ${pair.events} of ${pair.least}`, "few");
  const since = age < pair.long_minutes * 60 ? `; of the ${duration(age)} since the start` : "";
  const burning = pair.state === "burning";
  return tile(name, value, `${burning ? "burning: " : ""}${pair.severity} above ${Number(pair.limit.toPrecision(3))}${since}`, burning ? "bad" : "");
}

function duration(seconds) {
  const minutes = Math.max(1, Math.round(seconds / 60));
  return minutes < 120 ? `${minutes} min` : minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} d`;
}

// All that came, and what became of it: who is refused waits for nothing, and is no part of the share within the budget.
function requests(recent, age) {
  const answered = recent.answered + recent.untimed;
  const total = answered + recent.failed + recent.refused + recent.left;
  const rate = total / Math.min(WINDOW_S, Math.max(1, age));
  const others = ["failed", "refused", "left"].filter((name) => recent[name]).map((name) => `, ${recent[name].toLocaleString()} ${name}`);
  const detail = total ? `${answered.toLocaleString()} answered${others.join("")}` : "none";
  return tile("requests", total ? `${rate.toFixed(rate < 10 ? 2 : 0)} /s` : "0 /s", `${detail}, last 5 min`);
}

function example(label, share, request) {
  const made = element("div", "example");
  if (!request) {
    made.append(element("p", "quiet", `${label}: no request yet`));
    return made;
  }
  const where = [request.region, request.node].filter(Boolean).join(" / ");
  made.append(
    element("p", "", element("strong", "", label), ` ${milliseconds(share)}: request of ${clock(request.time)}, ${where}, ${milliseconds(request.wait_s)}`),
    bar(request, true),
  );
  return made;
}

function counted(counts) {
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  return Object.entries(counts)
    .sort((one, other) => other[1] - one[1])
    .map(([name, count]) => row(name, number(String(count)), number(percent(count / total))));
}

function differences(found) {
  if (!found.length) return [row(element("td", "quiet", "Nothing: no more than a few were over their budget, or all alike"))];
  return found.map((one) => row(`${one.attribute}: ${one.value}`, number(`${one.lift.toFixed(1)} ×`), number(`${one.slow} of ${one.all}`)));
}

// Models and tenants may have budgets of their own: what first tokens were charged to of late.
export function budgets(state) {
  const [least, most] = state.budgets.length ? state.budgets : [state.budget_ms / 1000, state.budget_ms / 1000];
  return { least, most, text: least === most ? `budget of ${budget(least)} goes` : `budgets of ${budget(least)} to ${budget(most)} go` };
}

const budget = (seconds) => (seconds < 10 ? `${Number((seconds * 1000).toPrecision(4))} ms` : `${Number(seconds.toPrecision(4))} s`);

export function drawSummary(state) {
  byId("verdict").className = state.verdict.mood;
  say(byId("verdict"), state.verdict.text);
  const recent = state.lately;
  const total = recent.answered + recent.failed;
  const age = state.now - state.started;
  byId("tiles").replaceChildren(
    tile("first token p50", milliseconds(state.first_token.p50), "last 5 min"),
    tile("first token p95", milliseconds(state.first_token.p95), "last 5 min"),
    tile("within budget", total ? percent(recent.within / total, 1) : "–", `objective ${percent(state.objective)}`),
    requests(recent, age),
    ...state.burn.map((pair) => burn(pair, age)),
  );
  byId("examples").replaceChildren(
    example("nearest p50", state.first_token.p50, state.examples.p50),
    example("nearest p95", state.first_token.p95, state.examples.p95),
  );
  byId("contrast").replaceChildren(...differences(state.contrast));
  byId("protocols").replaceChildren(...counted(state.protocols));
  const refused = counted(state.codes);
  byId("codes").replaceChildren(...(refused.length ? refused : [row(element("td", "quiet", "None"))]));
}
