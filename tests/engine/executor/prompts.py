"""Ten prompts unlike one another, for comparing executors on the real model."""

from __future__ import annotations

PROMPTS = (
    "What is the capital of France?",
    "Write a Python function that returns the n-th Fibonacci number.",
    "List three fruits, one per line.",
    "Compute 17 * 23 and explain each step.",
    "Traduis en français : « The weather is nice today. »",
    "Tell me a short story about a robot who learns to paint. 🤖🎨",
    'Give me a JSON object with the keys "name" and "age".',
    "日本の首都はどこですか。",
    "Why is the sky blue? Answer in one sentence.",
    "Summarise the following text in one sentence: " + "The river rose in the night and by morning the mill stood in "
    "water up to its second window. The miller, who had seen worse, moved the flour to the loft, counted the sacks "
    "twice, and sat down to wait. Towards noon a boat came from the village with bread, a lantern and a letter. " * 4,
)
