// A chat to try the fleet with: which region answers, when its first word comes, and where the time went.

import { byId, element, milliseconds, say } from "./dom.js";
import { details } from "./requests.js";
import { legend } from "./terms.js";
import { theme } from "./theme.js";

const turns = [];
let running = null;

// Named here, so that a request that was stopped or refused is found as well as one that was answered.
function identity() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return `chat-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

// A browser's own words for a connection that failed tell nobody what to look at.
async function reached(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The proxy cannot be reached; is it running?");
  }
}

async function refusal(answer) {
  const told = await answer.json().catch(() => null);
  return new Error(`${answer.status}: ${told?.error?.message ?? "no reason given"}`);
}

function choose(place, values, first) {
  place.replaceChildren(...[...(first ? [["", first]] : []), ...values.map((value) => [value, value])].map(([value, text]) => {
    const made = element("option", "", text);
    made.value = value;
    return made;
  }));
}

// Of a pattern only clients know the names: any can be written, and one that nobody serves is refused by the proxy.
function write(models, named) {
  const made = element("input");
  made.id = "model";
  made.required = true;
  made.placeholder = models.join(", ");
  made.value = named[0] ?? "";
  made.setAttribute("list", "models");
  choose(byId("models"), named);
  byId("model").replaceWith(made);
}

async function offer() {
  const answer = await reached("/admin/status", { cache: "no-store" });
  const status = await answer.json();
  const models = [...new Set(status.nodes.flatMap((node) => node.models))];
  const named = models.filter((name) => !name.endsWith("*"));
  if (named.length === models.length) choose(byId("model"), named);
  else write(models, named);
  choose(byId("region"), [...new Set(status.nodes.map((node) => node.region))], "the one that answers first");
}

function speak(role, text) {
  const words = element("p", "words", text);
  byId("talk").append(element("section", `turn ${role}`, element("h3", "", role), words));
  follow(true);
  return words;
}

// The conversation scrolls by itself: however long it is, what came of it stays in reach. Who reads further up is left there.
function follow(always) {
  const talk = byId("talk");
  const left = talk.scrollHeight - talk.scrollTop - talk.clientHeight;
  if (always || left < 80) talk.scrollTop = talk.scrollHeight;
}

function headers(name) {
  const found = { "content-type": "application/json", "x-request-id": name };
  if (byId("region").value) found["x-edge-region"] = byId("region").value;
  if (byId("key").value) found.authorization = `Bearer ${byId("key").value}`;
  return found;
}

// Events of a stream, as they come; a chunk of bytes may end anywhere.
async function* eventsOf(body) {
  let rest = "";
  for await (const text of body.pipeThrough(new TextDecoderStream())) {
    const parts = (rest + text).split(/\r?\n\r?\n/);
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function listen(answer, words, begun) {
  let first = null;
  let said = "";
  for await (const event of eventsOf(answer.body)) {
    if (event.error) throw new Error(event.error.message);
    const text = event.choices?.[0]?.delta?.content ?? "";
    if (text && first === null) {
      first = performance.now() - begun;
      say(byId("timing"), `First word here after ${milliseconds(first / 1000)}, from region ${answer.headers.get("x-edge-region") || "–"}`);
    }
    said += text;
    words.textContent = said;
    follow(false);
  }
  return said;
}

async function ask(text, words, name) {
  const body = { model: byId("model").value.trim(), messages: [...turns, { role: "user", content: text }], stream: true, stream_options: { include_usage: true }, max_tokens: Number(byId("length").value) };
  const begun = performance.now();
  const answer = await reached("/admin/chat", { method: "POST", headers: headers(name), body: JSON.stringify(body), signal: running.signal });
  if (!answer.ok) throw await refusal(answer);
  const said = await listen(answer, words, begun);
  turns.push({ role: "user", content: text }, { role: "assistant", content: said });
}

// The record is written when the request has ended, which is a moment after its last byte; or never, if it did not arrive.
async function explain(name) {
  for (let tries = 0; tries < 10; tries += 1) {
    const answer = await reached(`/admin/requests/${name}`, { cache: "no-store" });
    if (running) return; // the next one is under way
    if (answer.ok) {
      byId("where").replaceChildren(...(await details(await answer.json())));
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

// What came of it stays to be read, but is no part of what the model is told next; the message can be sent again.
function failed(error, text, words) {
  const stopped = error.name === "AbortError";
  const told = stopped ? "Stopped." : error.message;
  if (words.textContent === "…") words.textContent = "";
  words.after(element("p", stopped ? "quiet" : "bad", `${sentence(told)} This turn is not part of the conversation.`));
  follow(true);
  if (!byId("text").value) byId("text").value = text;
  say(byId("timing"), told);
}

const sentence = (text) => (/[.!?]$/.test(text) ? text : `${text}.`);

function busy(is) {
  byId("send").disabled = is;
  byId("stop").disabled = !is;
}

async function submit(event) {
  event.preventDefault();
  const text = byId("text").value.trim();
  if (!text || running) return;
  byId("text").value = "";
  running = new AbortController();
  busy(true);
  speak("user", text);
  const words = speak("assistant", "…");
  const name = identity();
  say(byId("timing"), "Waiting for the first word…");
  byId("where").replaceChildren();
  try {
    await ask(text, words, name);
  } catch (error) {
    failed(error, text, words);
  } finally {
    running = null;
    busy(false);
  }
  await explain(name).catch((error) => say(byId("timing"), error.message));
}

byId("ask").addEventListener("submit", submit);
byId("stop").addEventListener("click", () => running?.abort());
byId("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey) return;
  event.preventDefault();
  byId("ask").requestSubmit(); // with the form's own checks: a number of tokens out of range is told there
});
byId("legend").append(...legend());
theme();
offer().catch((error) => say(byId("timing"), error.message));
