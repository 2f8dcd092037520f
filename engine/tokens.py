"""`/tokenize` and `/detokenize`, as vLLM has them: what a prompt costs, and what tokens say."""

from __future__ import annotations

from typing import Any

import orjson

from edgeproxy.protocol.openai.checks import Json, boolean, required, whole, wrong_type
from edgeproxy.protocol.openai.completions import MAX_PROMPT_TOKENS
from edgeproxy.protocol.openai.errors import invalid
from edgeproxy.protocol.openai.messages import MAX_PROMPT_CHARS
from edgeproxy.protocol.openai.schema import chat_request
from engine.chat import Chat
from engine.completions import Completions

_TEXT_FIELDS = frozenset({"model", "prompt", "add_special_tokens", "return_token_strs"})


async def tokenized(body: Json, chat: Chat, salt: bytes) -> bytes:
    """Of `prompt`, or of `messages` as a chat with them would be. Raises ApiError 400."""
    present = {name: value for name, value in body.items() if value is not None}
    strings = boolean(present, "return_token_strs")
    if "messages" in present:
        if "prompt" in present:
            cause = "'prompt' and 'messages' are two things to tell the tokens of: send one of them."
            raise invalid(cause, "prompt", "invalid_parameter_combination")
        del_fields = ("return_token_strs", "add_special_tokens")
        request = chat_request({name: value for name, value in present.items() if name not in del_fields})
        ids = await chat.prompt(request, salt)
    else:
        ids = await _text(present, Completions(chat), salt)
    found: dict[str, Any] = {"count": len(ids), "max_model_len": chat.opener.context, "tokens": ids}
    if strings:
        found["token_strs"] = [chat.tokenizer.name_of(token) for token in ids]
    return orjson.dumps(found)


def detokenized(body: Json, chat: Chat) -> bytes:
    """Of `tokens`. Raises ApiError 400."""
    value = required(body, "tokens")
    if not isinstance(value, list) or len(value) > MAX_PROMPT_TOKENS:
        raise wrong_type("tokens", f"a list of at most {MAX_PROMPT_TOKENS} tokens", value)
    vocab = chat.tokenizer.vocab_size
    tokens = tuple(token for token in map(whole, value) if token is not None and 0 <= token < vocab)
    if len(tokens) < len(value):
        raise invalid(f"'tokens' has an entry that is none of this model's {vocab}.", "tokens", "invalid_value")
    return orjson.dumps({"prompt": Completions(chat).decode(tokens)})


async def _text(present: Json, completions: Completions, salt: bytes) -> tuple[int, ...]:
    prompt = required(present, "prompt")
    if not isinstance(prompt, str):
        raise wrong_type("prompt", "a string", prompt)
    if len(prompt) > MAX_PROMPT_CHARS:
        raise invalid(f"'prompt' has more than {MAX_PROMPT_CHARS} characters.", "prompt", "string_above_max_length")
    for name in present:
        if name not in _TEXT_FIELDS:
            raise invalid(f"'{name}' is no field of tokenize.", name, "unsupported_parameter")
    whole = present.get("add_special_tokens") is None or boolean(present, "add_special_tokens")
    return await completions.encode(prompt, salt, whole=whole)
