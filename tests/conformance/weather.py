"""What every client is asked to do: one question, one function, one form."""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel

QUESTION: Final = "What is the capital of France?"
ANSWER: Final = "The capital of France is Paris."
ASKED: Final = "What is the weather in Paris today?"


class City(BaseModel):
    """A city and whether it is a capital."""

    name: Literal["Paris", "Rome"]
    capital: bool


WEATHER: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
