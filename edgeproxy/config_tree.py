"""YAML read strictly, each value with the place that it came from."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from edgeproxy.config import ConfigError

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class StrictLoader(yaml.SafeLoader):
    """Refuses repeated keys, and aliases, by which a small file can grow without bound."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not supported here", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be plain text", key.start_mark)
            if key.value in seen:
                message = f"the key {key.value!r} stands here twice; remove one"
                raise yaml.constructor.ConstructorError(None, None, message, key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class Place:
    """A value with the place it came from, so that every complaint can say where."""

    def __init__(self, path: Path, key: str, value: object) -> None:
        self.path, self.key, self.value = path, key, value

    def error(self, cause: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.path}: {self.key or 'the file'}: {cause}; {remedy}")

    def mapping(self, known: Iterable[str]) -> dict[str, Place]:
        if not isinstance(self.value, dict):
            raise self.error(f"is {kind_of(self.value)}, not a mapping", "write `key: value` lines below it")
        allowed = list(known)
        for name in self.value:
            if name not in allowed:
                near = difflib.get_close_matches(str(name), allowed, 1)
                remedy = f"did you mean {near[0]!r}?" if near else f"known keys are {', '.join(allowed)}"
                raise self.error(f"unknown key {name!r}", remedy)
        return {name: self.child(name, value) for name, value in self.value.items() if value is not None}

    def named(self) -> dict[str, Place]:
        """A mapping whose keys are names that the operator chose."""
        if not isinstance(self.value, dict) or not self.value:
            raise self.error(f"is {kind_of(self.value)}", "name at least one entry below it")
        for name in self.value:
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise self.error(f"{name!r} is no name", "use lower-case letters, digits, '.', '_' and '-'")
        return {name: self.child(name, value) for name, value in self.value.items()}

    def items(self) -> list[Place]:
        if not isinstance(self.value, list) or not self.value:
            raise self.error(f"is {kind_of(self.value)}", "write a list with at least one entry")
        return [Place(self.path, f"{self.key}[{i}]", value) for i, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str) or not self.value:
            raise self.error(f"is {kind_of(self.value)}, not text", "put the value in quotes")
        return self.value

    def flag(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.error(f"is {kind_of(self.value)}", "write true or false")
        return self.value

    def number(self, least: float, most: float) -> float:
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise self.error(f"is {kind_of(self.value)}, not a number", f"give a number from {least:g} to {most:g}")
        if not least <= self.value <= most:
            raise self.error(f"is {self.value}", f"give a number from {least:g} to {most:g}")
        return float(self.value)

    def count(self, least: int, most: int) -> int:
        number = self.number(least, most)
        if not number.is_integer():
            raise self.error(f"is {number}", "give a whole number")
        return int(number)

    def child(self, name: str, value: object) -> Place:
        return Place(self.path, f"{self.key}.{name}" if self.key else name, value)


def kind_of(value: object) -> str:
    kinds = {dict: "a mapping", list: "a list", str: "text", bool: "true/false", int: "a number", float: "a number"}
    return "missing" if value is None else kinds.get(type(value), f"a {type(value).__name__}")
