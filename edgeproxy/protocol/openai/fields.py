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
    }
)

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's, each with the values that ask for nothing.
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True, False),  # about tools, and there are none
    "prediction": (),
    "prompt_cache_key": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none",),
    "tools": ([],),
    "user": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    # Ours to come, in the words of other engines.
    "add_generation_prompt": (True,),
    "cache_salt": (),
    "chat_template_kwargs": ({},),
    "continue_final_message": (False,),
    "priority": (0,),
    "return_token_ids": (False,),
}
"""Fields of the schema that are not honoured yet -> values that change nothing and are let through."""

MESSAGE_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "reasoning_content": ("",),
    "refusal": (),
    "tool_calls": ([],),
}
MESSAGE_HONOURED = frozenset({"role", "content", "tool_call_id"})


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
