// The Vercel AI SDK's openai-compatible provider by changing baseURL. Arguments: base URL, model.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, name] = process.argv.slice(2);
const provider = createOpenAICompatible({
  name: "edge", baseURL, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true,
});
const model = provider(name);
const plain = { model, temperature: 0, maxRetries: 0 };
const question = "What is the capital of France?";
const answer = "The capital of France is Paris.";
const schema = z.object({ name: z.enum(["Paris", "Rome"]), capital: z.boolean() });
const tools = {
  get_weather: tool({
    description: "Current weather of a city.",
    inputSchema: z.object({ city: z.enum(["Paris", "Rome"]) }),
  }),
};

const whole = await generateText({ ...plain, prompt: question });
assert.equal(whole.text, answer);
assert.equal(whole.usage.inputTokens, 37);
assert.equal(whole.finishReason, "stop");

const stream = streamText({ ...plain, prompt: question });
const pieces = [];
for await (const piece of stream.textStream) pieces.push(piece);
assert.equal(pieces.join(""), answer);
assert.ok(pieces.length > 1);
assert.equal((await stream.usage).inputTokens, 37);

const called = await generateText({ ...plain, prompt: "What is the weather in Paris today?", tools, toolChoice: "required" });
assert.equal(called.toolCalls[0].toolName, "get_weather");
assert.ok(["Paris", "Rome"].includes(called.toolCalls[0].input.city));
assert.equal(called.finishReason, "tool-calls");

const streamed = streamText({ ...plain, prompt: "What is the weather in Paris today?", tools, toolChoice: "required" });
const deltas = [];
for await (const part of streamed.fullStream) {
  assert.notEqual(part.type, "error", part.error);
  if (part.type === "tool-input-delta") deltas.push(part.delta);
}
const [call] = await streamed.toolCalls;
assert.deepEqual(JSON.parse(deltas.join("")), call.input);

const found = await generateObject({ ...plain, schema, prompt: "Name a city.", maxOutputTokens: 60 });
schema.parse(found.object);

const growing = streamObject({ ...plain, schema, prompt: "Name a city.", maxOutputTokens: 60 });
for await (const _ of growing.partialObjectStream);
schema.parse(await growing.object);

await assert.rejects(
  generateText({ model: provider("none"), maxRetries: 0, prompt: question }),
  (error) => error.statusCode === 404,
);
console.log("ok");
