"""The fields of a chat request: honoured, or not yet and then refused, never dropped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edgeproxy.protocol.openai.checks import Json, whole
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
        "include_stop_str_in_output",
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
    # Of other engines, as far as an answer would be another one.
    "add_special_tokens": (False,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (),
    "cache_salt": (),
    "chat_template": (),
    "documents": ([],),
    "early_stopping": (False,),
    "ebnf": (),
    "echo": (False,),
    "grammar": ("",),
    "guided_whitespace_pattern": (),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "lora_path": (),
    "mm_processor_kwargs": ({},),
    "n_predict": (-1,),
    "no_stop_trim": (False,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "regex": ("",),
    "repeat_penalty": (1,),
    "return_hidden_states": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),  # nothing shows such tokens
    "stop_regex": ("", []),
    "structural_tag": (),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
}
"""Fields that are not honoured -> values that change nothing and are let through."""

MESSAGE_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "function_call": (),
}
MESSAGE_HONOURED = frozenset({"role", "content", "name", "reasoning_content", "refusal", "tool_call_id", "tool_calls"})
OPTIONS_UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "continuous_usage_stats": (False,),
    "include_obfuscation": (False,),
}
OPTIONS_HONOURED = frozenset({"include_usage"})
"""Of `stream_options`."""
MAX_IGNORED = 16
"""Most names that are told of fields that nobody defines."""


class Ignored:
    """Fields that nobody defines: the first by their names, of the others how many. One of each request."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: list[str] = []
        self._more = 0
        self.add(names)

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            if len(self._names) < MAX_IGNORED:
                self._names.append(name)
            else:
                self._more += 1

    def told(self) -> tuple[str, ...]:
        return (*self._names, f"and_{self._more}_more") if self._more else tuple(self._names)


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


def without_best_of(present: Json) -> Json:
    """The best n of n are all, whatever they are told of as."""
    if whole(present.get("best_of")) != (whole(present.get("n")) or 1):
        return present
    return {name: value for name, value in present.items() if name != "best_of"}


def _same(value: Any, neutral: Any) -> bool:
    """Equality that tells true from 1, as JSON does."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
