// openai-node by changing baseURL. Arguments: base URL, model.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const question = [{ role: "user", content: "What is the capital of France?" }];
const answer = "The capital of France is Paris.";
const city = z.object({ name: z.enum(["Paris", "Rome"]), capital: z.boolean() });
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Current weather of a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};
const asked = [{ role: "user", content: "What is the weather in Paris today?" }];

const whole = await client.chat.completions.create({ model, messages: question, temperature: 0 });
assert.equal(whole.choices[0].message.content, answer);
assert.equal(whole.usage.prompt_tokens, 37);

const chunks = [];
for await (const chunk of await client.chat.completions.create({
  model, messages: question, temperature: 0, stream: true, stream_options: { include_usage: true },
})) chunks.push(chunk);
assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), answer);
assert.equal(chunks.at(-1).usage.prompt_tokens, 37);

const runner = client.chat.completions.stream({
  model, messages: asked, tools: [weather], tool_choice: "required", parallel_tool_calls: false, temperature: 0,
});
const parts = [];
runner.on("tool_calls.function.arguments.delta", (event) => parts.push(event.arguments_delta));
const final = await runner.finalChatCompletion();
const [call] = final.choices[0].message.tool_calls;
assert.equal(final.choices[0].finish_reason, "tool_calls");
assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["city"]);
assert.ok(parts.length > 0);
assert.equal(parts.join(""), call.function.arguments);

const parsed = await client.chat.completions.parse({
  model, messages: [{ role: "user", content: "Name a city." }], temperature: 0, max_completion_tokens: 60,
  response_format: zodResponseFormat(city, "city"),
});
city.parse(parsed.choices[0].message.parsed);

await assert.rejects(client.chat.completions.create({ model: "none", messages: question }), OpenAI.NotFoundError);
await assert.rejects(
  client.chat.completions.create({ model, messages: question, n: 0 }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "n",
);

const { response } = await client.models.list().withResponse();
assert.ok(response.headers.get("x-request-id"));

const broken = await client.chat.completions.create({ model, messages: question, stream: true, max_tokens: 500 });
for await (const _ of broken) break; // leaves: the connection closes
console.log("ok");
