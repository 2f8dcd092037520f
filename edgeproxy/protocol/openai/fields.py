"""The fields of a chat request: honoured, or not yet and then refused, never dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeproxy.protocol.openai.checks import Json
from edgeproxy.protocol.openai.errors import invalid

HONOURED = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "ignore_eos",
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "repetition_penalty",
        "stop_token_ids",
        "top_logprobs",
        "add_generation_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "guided_choice",
        "guided_grammar",
        "guided_json",
        "guided_regex",
        "metadata",
        "n",
        "parallel_tool_calls",
        "priority",
        "prompt_cache_key",
        "response_format",
        "safety_identifier",
        "structured_outputs",
        "tool_choice",
        "tools",
        "user",
    }
)

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's, each with the values that ask for nothing.
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
    # Ours to come, in the words of other engines.
    "cache_salt": (),
    "return_token_ids": (False,),
}
"""Fields of the schema that are not honoured yet -> values that change nothing and are let through."""

MESSAGE_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning_content": ("",),
    "refusal": (),
}
MESSAGE_HONOURED = frozenset({"role", "content", "name", "tool_call_id", "tool_calls"})


def refuse_unsupported(
    present: Json, honoured: frozenset[str], unsupported: Mapping[str, tuple[Any, ...]], where: str
) -> list[str]:
    """The names of fields that nobody defines."""
    ignored: list[str] = []
    for name, value in present.items():
        if name in honoured:
            continue
        if name not in unsupported:
            ignored.append(where + name)
        elif not any(_same(value, neutral) for neutral in unsupported[name]):
            raise invalid(
                f"'{where}{name}' is not supported here yet: leave it out or send null.",
                where + name,
                "unsupported_parameter",
            )
    return ignored


def _same(value: Any, neutral: Any) -> bool:
    """Equality that tells true from 1, as JSON does."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
