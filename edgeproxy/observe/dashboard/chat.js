// A chat to try the fleet with: which region answers, when its first word comes, and where the time went.

import { byId, element, milliseconds, say } from "./dom.js";
import { details } from "./requests.js";
import { legend } from "./terms.js";
import { theme } from "./theme.js";

const turns = [];
let running = null;

function choose(place, values, first) {
  place.replaceChildren(...[...(first ? [["", first]] : []), ...values.map((value) => [value, value])].map(([value, text]) => {
    const made = element("option", "", text);
    made.value = value;
    return made;
  }));
}

async function offer() {
  const answer = await fetch("/admin/status", { cache: "no-store" });
  const status = await answer.json();
  const models = [...new Set(status.nodes.flatMap((node) => node.models))].filter((name) => !name.endsWith("*"));
  choose(byId("model"), models);
  choose(byId("region"), [...new Set(status.nodes.map((node) => node.region))], "the one that answers first");
}

function speak(role, text) {
  const words = element("p", "words", text);
  byId("talk").append(element("section", `turn ${role}`, element("h3", "", role), words));
  words.scrollIntoView({ block: "nearest" });
  return words;
}

function headers() {
  const found = { "content-type": "application/json" };
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
  }
  return said;
}

async function ask(text) {
  turns.push({ role: "user", content: text });
  speak("user", text);
  const words = speak("assistant", "…");
  const body = { model: byId("model").value, messages: turns, stream: true, stream_options: { include_usage: true }, max_tokens: Number(byId("length").value) };
  const begun = performance.now();
  running = new AbortController();
  const answer = await fetch("/admin/chat", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: running.signal });
  if (!answer.ok) throw new Error((await answer.json()).error.message);
  turns.push({ role: "assistant", content: await listen(answer, words, begun) });
  return answer.headers.get("x-request-id");
}

// The record is written when the request has ended, which is a moment after its last byte.
async function explain(identity) {
  for (let tries = 0; tries < 10; tries += 1) {
    const status = await (await fetch("/admin/status", { cache: "no-store" })).json();
    const found = status.recent.findLast((request) => request.request_id === identity);
    if (found) {
      byId("where").replaceChildren(...(await details(found)));
      return;
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function submit(event) {
  event.preventDefault();
  const text = byId("text").value.trim();
  if (!text || running) return;
  byId("text").value = "";
  try {
    await explain(await ask(text));
  } catch (error) {
    if (turns.at(-1)?.role === "user") turns.pop();
    say(byId("timing"), error.name === "AbortError" ? "Stopped." : error.message);
  } finally {
    running = null;
  }
}

byId("ask").addEventListener("submit", submit);
byId("stop").addEventListener("click", () => running?.abort());
byId("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) submit(event);
});
byId("legend").append(...legend());
theme();
offer();
