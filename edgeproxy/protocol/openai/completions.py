"""The older completions: a prompt as text or tokens in, text that goes on with it out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edgeproxy.protocol.openai.chat import (
    Choice,
    Completion,
    CompletionStream,
    FinishReason,
    Logprobs,
    TokenLogprob,
)
from edgeproxy.protocol.openai.checks import INT32, Json, boolean, integer, listed, required, whole
from edgeproxy.protocol.openai.decoding import Decoding, decoding_of, min_tokens_of, unknown_options
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.fields import HONOURED, UNSUPPORTED, Ignored, refuse_unsupported, without_best_of
from edgeproxy.protocol.openai.messages import MAX_PROMPT_CHARS
from edgeproxy.protocol.openai.schema import check_labels

MAX_PROMPTS = 64
MAX_PROMPT_TOKENS = 1 << 18
MAX_LOGPROBS = 20
DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""
_CHAT_ONLY = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "max_completion_tokens",
        "top_logprobs",
        "chat_template_kwargs",
        "continue_final_message",
        "add_generation_prompt",
    }
)
_ONLY_HERE = frozenset({"prompt", "echo", "add_special_tokens"})
COMPLETION_HONOURED = (HONOURED - _CHAT_ONLY) | _ONLY_HERE
COMPLETION_UNSUPPORTED = {
    **dict.fromkeys(_CHAT_ONLY, ()),
    **{name: neutral for name, neutral in UNSUPPORTED.items() if name not in _ONLY_HERE},
    "suffix": ("",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(Decoding):
    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool
    """The answer begins with the prompt, and its log-probabilities with those of the prompt's tokens."""

    begun: bool
    """Texts begin as all of this model's do, where it knows such a token."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where each prompt stands."""
        if len(self.prompts) == 1:
            return ("prompt",)
        return tuple(f"prompt[{index}]" for index in range(len(self.prompts)))

    @property
    def prompt_chars(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)


def completion_request(body: Json) -> CompletionRequest:
    """Raises ApiError 400 naming the field in `param`."""
    present = without_best_of({name: value for name, value in body.items() if value is not None})
    ignored = Ignored(refuse_unsupported(present, COMPLETION_HONOURED, COMPLETION_UNSUPPORTED, ""))
    ignored.add(unknown_options(present.get("stream_options")))
    check_labels(present)
    echo = boolean(present, "echo")
    most = _max_tokens(present, echo)
    request = CompletionRequest(
        **decoding_of(present),
        max_tokens=most,
        min_tokens=min_tokens_of(present, most),
        top_logprobs=integer(present, "logprobs", 0, MAX_LOGPROBS),
        ignored=ignored.told(),
        prompts=_prompts(required(present, "prompt")),
        echo=echo,
        begun=present.get("add_special_tokens") is None or boolean(present, "add_special_tokens"),
    )
    if echo and request.top_logprobs is not None and request.format is not None:
        raise invalid(
            f"'echo' with logprobs tells of a prompt that need not have the form of '{request.format.where}'.",
            "echo",
            "invalid_parameter_combination",
        )
    return request


def _max_tokens(present: Json, echo: bool) -> int:
    """0 where only the prompt is to be told again."""
    most = integer(present, "max_tokens", 0 if echo else 1, INT32)
    return DEFAULT_MAX_TOKENS if most is None else most


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """A text, a list of texts, the tokens of one prompt, or a list of such."""
    if isinstance(value, str):
        found: tuple[str | tuple[int, ...], ...] = (value,)
    elif whole(listed(value, "prompt", "a string, a list of strings, or tokens")[0]) is not None:
        found = (_ids(value, "prompt"),)
    else:
        if len(value) > MAX_PROMPTS:
            raise invalid(f"'prompt' has more than {MAX_PROMPTS} entries.", "prompt", "array_above_max_length")
        found = tuple(_prompt(item, f"prompt[{index}]") for index, item in enumerate(value))
    if sum(len(prompt) for prompt in found) > MAX_PROMPT_CHARS:
        raise invalid(
            f"The prompts have more than {MAX_PROMPT_CHARS} characters together: shorten them.",
            "prompt",
            "context_length_exceeded",
        )
    return found


def _prompt(value: Any, where: str) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    return _ids(listed(value, where, "a string or a list of tokens"), where)


def _ids(value: list[Any], where: str) -> tuple[int, ...]:
    if len(value) > MAX_PROMPT_TOKENS:
        raise invalid(f"'{where}' has more than {MAX_PROMPT_TOKENS} tokens.", where, "array_above_max_length")
    found: list[int] = []
    for index, item in enumerate(value):
        token = whole(item)
        if token is None or not 0 <= token <= INT32:
            raise invalid(f"'{where}[{index}]' is no token.", f"{where}[{index}]", "invalid_value")
        found.append(token)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class TextCompletion(Completion):
    def _whole_kind(self) -> str:
        return "text_completion"

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        return {
            "index": index,
            "text": choice.text,
            "logprobs": legacy_logprobs(choice.logprobs, 0),
            "finish_reason": choice.finish,
        }


@dataclass(frozen=True, slots=True)
class TextCompletionStream(CompletionStream):
    _told: dict[int, int] = field(default_factory=dict)
    """Characters so far, by index."""

    def role(self, index: int = 0) -> bytes:
        return b""

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: FinishReason | None, logprobs: Logprobs = None
    ) -> bytes:
        text = delta.get("content", "")
        choice = {
            "index": index,
            "text": text,
            "logprobs": legacy_logprobs(logprobs, self._told.get(index, 0)),
            "finish_reason": finish,
        }
        self._told[index] = self._told.get(index, 0) + len(text)
        return self._event([choice], {"usage": None} if self.include_usage else {})

    def _chunk_kind(self) -> str:
        return "text_completion"


def legacy_logprobs(tokens: Logprobs, offset: int) -> dict[str, Any] | None:
    """`offset`: characters of the text before the first of them."""
    if tokens is None:
        return None
    offsets, bytes_before = [], 0
    for token in tokens:
        offsets.append(offset + bytes_before)
        bytes_before += len((token.raw or b"").decode(errors="ignore"))
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [_value(token) for token in tokens],
        "top_logprobs": [_likeliest(token) for token in tokens],
        "text_offset": offsets,
    }


def _value(token: TokenLogprob) -> float | None:
    """None for the first token of a prompt, which follows nothing."""
    return None if token.logprob != token.logprob else token.logprob


def _likeliest(token: TokenLogprob) -> dict[str, float] | None:
    if token.logprob != token.logprob:
        return None
    return {token.token: token.logprob, **{other.token: other.logprob for other in token.top}}
