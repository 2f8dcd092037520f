"""A native node is killed while it streams: every client gets the text of an unbroken run, and no error."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import Any

import httpx
import orjson
import pytest

from edgeproxy.protocol.openai.sse import DONE, SseParser
from tests.e2e.deployment import MODEL, Deployment

pytestmark = pytest.mark.xdist_group("e2e")

TOKENS = 96
KILLED_AFTER = 12
"""Events of the first stream."""

STORY = {"type": "object", "properties": {"story": {"type": "string", "minLength": 600}}, "required": ["story"]}
TELL = {"type": "function", "function": {"name": "tell", "parameters": STORY}}
"""Its arguments alone are longer than an answer may be."""

REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.0, "seed": 7},
    # Many rare characters, cut into bytes, whose log-probabilities are held back with them.
    {"temperature": 1.5, "seed": 8, "top_p": 0.95, "ignore_eos": True, "logprobs": True, "top_logprobs": 2},
    {"temperature": 0, "stop": ["unlikely stop", "\n\n\n\n"]},
    {"temperature": 1.0, "seed": 9, "top_k": 40},
    {"temperature": 0.8, "seed": 10, "frequency_penalty": 0.9, "presence_penalty": 0.4, "min_tokens": 40},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {"28": -2}},
    {"temperature": 1.0, "seed": 11, "tools": [TELL], "tool_choice": "required"},
]
UNSEEDED = {"temperature": 1.0, "ignore_eos": True}


def body(fields: dict[str, Any]) -> dict[str, Any]:
    question = {"role": "user", "content": "Tell me a long story about rivers, mountains and 🌊 emoji 🏔️."}
    more = {"stream": True, "max_tokens": TOKENS, "stream_options": {"include_usage": True}}
    return {"model": MODEL, "messages": [question], **more, **fields}


async def read(client: httpx.AsyncClient, url: str, fields: dict[str, Any], said: asyncio.Event) -> dict[str, Any]:
    """What the stream told, less its id and time; `said` is set after some events."""
    found: dict[str, Any] = {"text": "", "finish": None, "tokens": 0, "roles": 0, "ids": set(), "done": False}
    found["logprobs"], found["calls"] = [], ""
    parser, events = SseParser(), 0
    async with client.stream("POST", url, json=body(fields)) as answer:
        assert answer.status_code == 200
        async for data in answer.aiter_bytes():
            assert b":e " not in data
            for event in parser.feed(data):
                events += 1
                if events == KILLED_AFTER:
                    said.set()
                if event.data == DONE:
                    found["done"] = True
                    continue
                chunk = orjson.loads(event.data)
                assert "error" not in chunk, chunk
                found["ids"].add((chunk["id"], chunk["created"]))
                if chunk["usage"]:
                    found["tokens"] = chunk["usage"]["completion_tokens"]
                for choice in chunk["choices"]:
                    found["text"] += choice["delta"].get("content") or ""
                    for call in choice["delta"].get("tool_calls") or ():
                        found["calls"] += call["function"].get("name", "") + call["function"]["arguments"]
                    found["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
                    found["roles"] += "role" in choice["delta"]
                    found["finish"] = choice["finish_reason"] or found["finish"]
    assert len(found.pop("ids")) == 1
    assert parser.tail == b""
    return found


async def test_a_killed_node_is_not_seen(own_deployment: Deployment) -> None:
    deployment = own_deployment
    url = f"{deployment.base_url}/chat/completions"
    async with httpx.AsyncClient(timeout=120) as client:
        expected = [await read(client, url, fields, asyncio.Event()) for fields in REQUESTS]
        said = [asyncio.Event() for _ in (*REQUESTS, UNSEEDED)]
        streams = [
            asyncio.create_task(read(client, url, fields, event))
            for fields, event in zip((*REQUESTS, UNSEEDED), said, strict=True)
        ]
        await asyncio.wait_for(asyncio.gather(*(event.wait() for event in said)), 60)
        (near,) = deployment.children(f"--port {deployment.near}")
        os.kill(near, signal.SIGKILL)
        *seeded, unseeded = await asyncio.gather(*streams)
        metrics = (await client.get(f"http://127.0.0.1:{deployment.admin}/metrics")).text
    assert seeded == expected
    assert len(seeded[2]["logprobs"]) == TOKENS
    assert seeded[-1]["calls"].startswith('tell{"story": "')
    assert all(found["done"] and found["roles"] == 1 for found in seeded)
    assert (unseeded["done"], unseeded["finish"], unseeded["tokens"]) == (True, "length", TOKENS)
    resumes = dict(re.findall(r'^edgeproxy_resumes_total\{outcome="(\w+)"\} (\S+)', metrics, re.MULTILINE))
    assert float(resumes["exact"]) > 0
    assert float(resumes["failed"]) == 0
