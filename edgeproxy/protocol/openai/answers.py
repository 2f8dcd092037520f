"""What an answer must be to be one: a server that speaks of something else does not serve the API."""

from __future__ import annotations


def is_completion(value: object) -> bool:
    """Whether a parsed body is a chat or older completion: at least one choice, each with its message or text."""
    choices = value.get("choices") if isinstance(value, dict) else None
    return isinstance(choices, list) and bool(choices) and all(map(_answers, choices))


def is_chunk(value: object) -> bool:
    """Whether a parsed event is one of a stream of completions. `choices` may be empty: of usage, or of a filter."""
    return isinstance(value, dict) and isinstance(value.get("choices"), list)


def _answers(choice: object) -> bool:
    if not isinstance(choice, dict):
        return False
    return isinstance(choice.get("message"), dict) or isinstance(choice.get("text"), str)
