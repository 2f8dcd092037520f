"""Every field of a chat request does what it says, or is refused by its name: none is dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from edgeproxy.protocol.openai.fields import HONOURED, UNSUPPORTED
from engine.sequence import GenerationRequest
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.fake_executor import FakeExecutor
from tests.engine.serving import LIMITS, MODEL, TEXT, Call, Served, chat_call, says, serving

TOOL = {"type": "function", "function": {"name": "clock"}}
CALLED = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
SCHEMA = {"const": {"a": 1}}
HELLO = {"role": "user", "content": "hello"}


class Seen(NamedTuple):
    call: Call
    asked: list[GenerationRequest]
    """What the engine was asked for."""
    prompt: str

    @property
    def first(self) -> dict[str, Any]:
        """The first choice of an answer in one piece."""
        found: dict[str, Any] = self.call.json()["choices"][0]
        return found

    @property
    def content(self) -> str:
        return str(self.first["message"]["content"])

    @property
    def tokens(self) -> int:
        return int(self.call.json()["usage"]["completion_tokens"])


class Shown(NamedTuple):
    fields: dict[str, Any]
    shows: Callable[[Seen], bool]
    says: str = TEXT
    """What the model would say."""


def slot(name: str, value: Any) -> Callable[[Seen], bool]:
    return lambda seen: bool(getattr(seen.asked[0].sampling, name) == value)


def is_answered(seen: Seen) -> bool:
    """Labels change nothing."""
    return seen.content == TEXT


def is_called(seen: Seen) -> bool:
    return [call["function"]["name"] for call in seen.first["message"]["tool_calls"]] == ["clock"]


def follows(pattern: str) -> Callable[[Seen], bool]:
    return lambda seen: re.fullmatch(pattern, seen.content) is not None


WORKS: dict[str, Shown] = {
    "model": Shown({"model": MODEL}, lambda seen: seen.call.json()["model"] == MODEL),
    "messages": Shown({"messages": [HELLO]}, lambda seen: "hello" in seen.prompt),
    "stream": Shown({"stream": True}, lambda seen: len(seen.call.chunks()) > 1),
    "stream_options": Shown(
        {"stream": True, "stream_options": {"include_usage": True}},
        lambda seen: seen.call.chunks()[-1]["usage"]["completion_tokens"] > 0,
    ),
    "n": Shown({"n": 3}, lambda seen: [choice["index"] for choice in seen.call.json()["choices"]] == [0, 1, 2]),
    "max_tokens": Shown({"max_tokens": 2}, lambda seen: (seen.tokens, seen.first["finish_reason"]) == (2, "length")),
    "max_completion_tokens": Shown({"max_completion_tokens": 3}, lambda seen: seen.tokens == 3),
    "min_tokens": Shown({"min_tokens": 4}, slot("min_tokens", 4)),
    "stop": Shown({"stop": [" and"]}, lambda seen: seen.content == "Grüße 💡"),
    "include_stop_str_in_output": Shown(
        {"stop": [" and"], "include_stop_str_in_output": True}, lambda seen: seen.content == "Grüße 💡 and"
    ),
    "stop_token_ids": Shown({"stop_token_ids": [30]}, lambda seen: 30 in seen.asked[0].sampling.stop_ids),
    "ignore_eos": Shown({"ignore_eos": True, "max_tokens": 30}, lambda seen: seen.tokens == 30),
    "seed": Shown({"seed": 77}, slot("seed", 77)),
    "temperature": Shown({"temperature": 0.25}, slot("temperature", 0.25)),
    "top_p": Shown({"top_p": 0.5}, slot("top_p", 0.5)),
    "top_k": Shown({"top_k": 40}, slot("top_k", 40)),
    "min_p": Shown({"min_p": 0.05}, slot("min_p", 0.05)),
    "frequency_penalty": Shown({"frequency_penalty": 0.5}, slot("frequency", 0.5)),
    "presence_penalty": Shown({"presence_penalty": -0.5}, slot("presence", -0.5)),
    "repetition_penalty": Shown({"repetition_penalty": 1.25}, slot("repetition", 1.25)),
    "logit_bias": Shown({"logit_bias": {"5": -100}}, slot("bias", ((5, -100.0),))),
    "logprobs": Shown({"logprobs": True}, lambda seen: len(seen.first["logprobs"]["content"]) == seen.tokens - 1),
    "top_logprobs": Shown(
        {"logprobs": True, "top_logprobs": 2},
        lambda seen: {len(token["top_logprobs"]) for token in seen.first["logprobs"]["content"]} == {2},
    ),
    "response_format": Shown(
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}},
        lambda seen: json.loads(seen.content) == SCHEMA["const"],
    ),
    "structured_outputs": Shown({"structured_outputs": {"choice": ["yes", "no"]}}, follows("yes|no")),
    "guided_choice": Shown({"guided_choice": ["yes", "no"]}, follows("yes|no")),
    "guided_grammar": Shown({"guided_grammar": 'start: "a" ("b" | "c")'}, follows("a[bc]")),
    "guided_json": Shown({"guided_json": {"const": 5}}, follows("5")),
    "guided_regex": Shown({"guided_regex": "[xy]{3}"}, follows("[xy]{3}")),
    "tools": Shown({"tools": [TOOL]}, is_called, CALLED),
    "tool_choice": Shown({"tools": [TOOL], "tool_choice": "required"}, is_called),
    "parallel_tool_calls": Shown({"tools": [TOOL], "parallel_tool_calls": False}, is_called, f"{CALLED}\n{CALLED}"),
    "prompt_cache_key": Shown({"prompt_cache_key": "a"}, is_answered),
    "user": Shown({"user": "a"}, is_answered),
    "safety_identifier": Shown({"safety_identifier": "a"}, is_answered),
    "metadata": Shown({"metadata": {"a": "b"}}, is_answered),
    "priority": Shown({"priority": 5}, lambda seen: seen.asked[0].priority == 5),
    "chat_template_kwargs": Shown({"chat_template_kwargs": {"style": "brief"}}, lambda seen: "brief" in seen.prompt),
    "continue_final_message": Shown(
        {"messages": [HELLO, {"role": "assistant", "content": "Well"}], "continue_final_message": True},
        lambda seen: seen.prompt.endswith("<|im_start|>assistant\nWell"),
    ),
    "add_generation_prompt": Shown(
        {"add_generation_prompt": True}, lambda seen: seen.prompt.endswith("<|im_start|>assistant\n")
    ),
}
REFUSED: dict[str, Any] = {
    "add_special_tokens": True,
    "allowed_token_ids": [1],
    "audio": {"voice": "alloy", "format": "wav"},
    "bad_words": ["no"],
    "best_of": 2,
    "chat_template": "{{ messages }}",
    "documents": [{"title": "a"}],
    "early_stopping": True,
    "ebnf": 'root ::= "a"',
    "echo": True,
    "grammar": 'root ::= "a"',
    "guided_whitespace_pattern": "[ ]?",
    "json_schema": "{}",
    "length_penalty": 1.5,
    "logits_processors": ["a"],
    "lora_path": "a",
    "mm_processor_kwargs": {"a": 1},
    "n_predict": 5,
    "no_stop_trim": True,
    "prompt_embeds": "a",
    "prompt_logprobs": 1,
    "regex": "a",
    "repeat_penalty": 1.1,
    "return_hidden_states": True,
    "return_tokens_as_token_ids": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": 0,
    "stop_regex": "a",
    "structural_tag": "{}",
    "truncate_prompt_tokens": 5,
    "typical_p": 0.5,
    "use_beam_search": True,
    "adaptive_target": 0.5,
    "custom_logit_processor": "a",
    "custom_params": {"a": 1},
    "dry_multiplier": 0.8,
    "dynatemp_range": 0.5,
    "input_ids": [1],
    "logprob_token_ids": [1],
    "lora": [{"id": 0, "scale": 1}],
    "max_new_tokens": 5,
    "min_keep": 2,
    "min_new_tokens": 5,
    "mirostat": 2,
    "n_cmpl": 2,
    "n_discard": 5,
    "n_indent": 4,
    "n_keep": 5,
    "n_probs": 3,
    "parse_tool_calls": False,
    "post_sampling_probs": True,
    "reasoning": {"effort": "high"},
    "reasoning_budget": 0,
    "repeat_last_n": 64,
    "repetition_detection": {"max_pattern_size": 3},
    "response_fields": ["content"],
    "return_meta_info": True,
    "return_prompt_text": True,
    "return_prompt_token_ids": True,
    "return_routed_experts": True,
    "return_tokens": True,
    "samplers": ["top_k"],
    "sampling_seed": 7,
    "session_params": {"id": "a"},
    "t_max_predict_ms": 500,
    "task": "title",
    "tfs_z": 0.9,
    "thinking_budget_tokens": 0,
    "thinking_token_budget": 5,
    "top_n_sigma": 1.5,
    "vllm_xargs": {"a": 1},
    "watermarking": True,
    "xtc_probability": 0.5,
    "cache_salt": "a",
    "function_call": "auto",
    "functions": [{"name": "f"}],
    "modalities": ["text", "audio"],
    "moderation": {},
    "prediction": {"type": "content", "content": "a"},
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "return_token_ids": True,
    "service_tier": "flex",
    "store": True,
    "verbosity": "low",
    "web_search_options": {},
}
WRONG: dict[str, Any] = {
    "prompt_cache_key": 5,
    "user": ["a"],
    "safety_identifier": {},
    "metadata": {"a": 1},
    "priority": "high",
    "chat_template_kwargs": [],
    "continue_final_message": "yes",
    "parallel_tool_calls": 1,
    "stream_options": [],
    "min_tokens": 1.5,
    "include_stop_str_in_output": "yes",
    "seed": float(2**70),
}


def test_no_field_is_without_its_test() -> None:
    assert set(WORKS) == HONOURED
    assert set(REFUSED) == set(UNSUPPORTED)


@pytest.fixture(scope="module")
def template(chat_template: ChatTemplate) -> ChatTemplate:
    """The model's own, and something that it can be given."""
    return ChatTemplate("{% if style %}{{ style }}{% endif %}" + chat_template.source)


async def asked(tokenizer: Tokenizer, template: ChatTemplate, fields: dict[str, Any], text: str = TEXT) -> Seen:
    async with serving(FakeExecutor(script=says(tokenizer, text), built_for=LIMITS), tokenizer, template) as served:
        found = heard(served)
        call = await chat_call(served.app, more=fields).done()
    prompt = b"".join(
        tokenizer.name_of(token).encode() if tokenizer.is_control(token) else tokenizer.bytes_of(token)
        for token in (found[0].prompt if found else ())
    )
    return Seen(call, found, prompt.decode())


def heard(served: Served) -> list[GenerationRequest]:
    found: list[GenerationRequest] = []
    generate = served.engine.generate

    def listening(request: GenerationRequest) -> Any:
        found.append(request)
        return generate(request)

    served.engine.generate = listening  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("name", sorted(WORKS))
async def test_a_field_that_is_honoured_shows(tokenizer: Tokenizer, template: ChatTemplate, name: str) -> None:
    fields, shows, text = WORKS[name]
    seen = await asked(tokenizer, template, fields, text)
    assert seen.call.status == 200, seen.call.body
    assert b"x-edge-ignored" not in seen.call.headers
    assert shows(seen), seen.call.body


@pytest.mark.parametrize("name", sorted(REFUSED | WRONG))
async def test_a_field_that_is_not_is_refused_by_its_name(
    tokenizer: Tokenizer, template: ChatTemplate, name: str
) -> None:
    seen = await asked(tokenizer, template, {name: (REFUSED | WRONG)[name]})
    assert seen.call.status == 400, seen.call.body
    assert seen.call.json()["error"]["param"] == name
    assert name in seen.call.json()["error"]["message"]
    assert not seen.asked


async def test_a_template_can_be_given_anything(tokenizer: Tokenizer, template: ChatTemplate) -> None:
    odd = {"self": 1, "args": 2, "kwargs": 3, "": 4, "a b": [None, {}], "loop": 5, "style": None}
    assert (await asked(tokenizer, template, {"chat_template_kwargs": odd})).call.status == 200


async def test_reasoning_is_asked_for_in_vain_of_a_model_that_does_not_reason(
    tokenizer: Tokenizer, template: ChatTemplate
) -> None:
    for effort, status in ("high", 400), ("minimal", 400), ("none", 200), (None, 200):
        assert (await asked(tokenizer, template, {"reasoning_effort": effort})).call.status == status


async def test_what_other_engines_take_for_nothing_is_nothing(tokenizer: Tokenizer, template: ChatTemplate) -> None:
    neutral = {name: values[0] for name, values in UNSUPPORTED.items() if values}
    seen = await asked(tokenizer, template, neutral | {"mirostat_tau": 5, "dry_base": 1.75})
    assert seen.content == TEXT
    assert seen.call.headers[b"x-edge-ignored"] == b"mirostat_tau, dry_base"
