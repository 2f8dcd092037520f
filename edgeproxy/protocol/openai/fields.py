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
    # Of other engines (ChatCompletionRequest of vLLM and of SGLang, the schema of llama.cpp's server), as far as an
    # answer would be another one. What only tunes one of these (`mirostat_tau`, `dry_base`) does nothing without it.
    "adaptive_target": (-1,),
    "add_special_tokens": (False,),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (),
    "cache_salt": (),
    "chat_template": (),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "documents": ([],),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "early_stopping": (False,),
    "ebnf": (),
    "echo": (False,),
    "grammar": ("",),
    "guided_whitespace_pattern": (),
    "input_ids": (),
    "json_schema": (),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "logprob_token_ids": (),
    "lora": ([],),
    "lora_path": (),
    "max_new_tokens": (),
    "min_keep": (0,),
    "min_new_tokens": (0,),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "n_cmpl": (1,),
    "n_discard": (0,),
    "n_indent": (0,),
    "n_keep": (0, -1),  # nothing is ever shifted out of a context
    "n_predict": (-1,),
    "n_probs": (0,),
    "no_stop_trim": (False,),
    "parse_tool_calls": (True,),
    "post_sampling_probs": (False,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "reasoning": ({}, {"effort": "none"}, {"enabled": False}),
    "reasoning_budget": (-1,),
    "regex": ("",),
    "repeat_last_n": (-1,),
    "repeat_penalty": (1,),
    "repetition_detection": (),
    "response_fields": ([],),
    "return_hidden_states": (False,),
    "return_meta_info": (False,),
    "return_prompt_text": (False,),
    "return_prompt_token_ids": (False,),
    "return_routed_experts": (False,),
    "return_token_ids": (False,),
    "return_tokens": (False,),
    "return_tokens_as_token_ids": (False,),
    "samplers": (),
    "sampling_seed": (),
    "session_params": ({},),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True, False),  # nothing shows such tokens
    "stop_regex": ("", []),
    "structural_tag": (),
    "t_max_predict_ms": (0, -1),
    "task": (),
    "tfs_z": (1,),
    "thinking_budget_tokens": (-1,),
    "thinking_token_budget": (-1,),
    "top_n_sigma": (0, -1),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
    "watermarking": (False,),
    "xtc_probability": (0,),
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
