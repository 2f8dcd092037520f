"""Chat templates by jinja2: loaded with the first template, or messages, that `plain_template` is no match for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class JinjaTemplate:
    """The sandbox keeps a template from reaching anything but its arguments."""

    def __init__(self, source: str) -> None:
        """Raises ValueError with the template's own message where it cannot be compiled."""
        try:
            self._template = _environment().from_string(source)
        except (TemplateError, RecursionError) as error:
            raise ValueError(f"the chat template cannot be compiled: {error}") from error

    def render(self, given: Mapping[str, Any]) -> Iterator[str]:
        """Raises ValueError with the template's own message, and whatever else a template may do wrong."""
        try:
            yield from self._template.generate(given)  # not as keywords: any name may be among them
        except TemplateError as error:
            raise ValueError(str(error)) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
