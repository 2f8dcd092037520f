"""A schema gives values that it describes, whatever a model prefers, or is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeproxy.protocol.openai.formats import Format
from engine.constraint import only
from engine.step import Finish
from engine.text.grammar import CACHED, MAX_CHARS, Grammars, Rules, of_format
from engine.text.tokenizer import Tokenizer

Check = Callable[[Any], bool]
MOST_TOKENS = 120


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def rules_of(grammars: Grammars, schema: Any) -> Rules:
    return grammars.of_format(Format("json", orjson.dumps(schema).decode(), "x"))()


def wander(rules: Rules, tokenizer: Tokenizer, random: Random) -> str | None:
    """A text by a model without preferences that ends where it may; None where it would not end."""
    said = b""
    for _ in range(MOST_TOKENS):
        mask = rules.mask()
        assert mask is not None
        allowed = [8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
        assert allowed
        ends = [token for token in allowed if token in tokenizer.eos_ids]
        token = ends[0] if ends else random.choice(allowed)
        said += tokenizer.bytes_of(token)
        finish = rules.accept(token)
        assert finish is not Finish.ERROR
        if ends or finish is Finish.STOP:
            return said.decode()
    return None


def leaves() -> st.SearchStrategy[tuple[dict[str, Any], Check]]:
    return st.one_of(
        st.just(({"type": "null"}, lambda value: value is None)),
        st.just(({"type": "boolean"}, lambda value: isinstance(value, bool))),
        st.integers(-50, 50).map(
            lambda least: (
                {"type": "integer", "minimum": least, "maximum": least + 120},
                lambda value: type(value) is int and least <= value <= least + 120,
            )
        ),
        st.lists(st.text(max_size=4) | st.integers(0, 5), min_size=1, max_size=3).map(
            lambda choices: ({"enum": choices}, lambda value: value in choices)
        ),
        st.integers(0, 4).map(
            lambda most: (
                {"type": "string", "maxLength": most},
                lambda value: isinstance(value, str) and len(value) <= most,
            )
        ),
    )


def inside(inner: st.SearchStrategy[tuple[dict[str, Any], Check]]) -> st.SearchStrategy[tuple[dict[str, Any], Check]]:
    def listed(item: tuple[dict[str, Any], Check]) -> tuple[dict[str, Any], Check]:
        schema, check = item
        found = {"type": "array", "items": schema, "minItems": 1, "maxItems": 2}
        return found, lambda value: isinstance(value, list) and 1 <= len(value) <= 2 and all(map(check, value))

    def membered(members: dict[str, tuple[dict[str, Any], Check]]) -> tuple[dict[str, Any], Check]:
        schema = {
            "type": "object",
            "properties": {name: item for name, (item, _) in members.items()},
            "required": sorted(members),
            "additionalProperties": False,
        }

        def check(value: Any) -> bool:
            return (
                isinstance(value, dict) and set(value) == set(members) and all(members[n][1](value[n]) for n in value)
            )

        return schema, check

    return inner.map(listed) | st.dictionaries(st.text(max_size=4), inner, max_size=3).map(membered)


SCHEMAS = st.recursive(leaves(), inside, max_leaves=5)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["object", "string", "#", "^a", "(?=a)"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "enum", "$ref", "anyOf", "allOf", "oneOf", "pattern", "required", "not"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


SENSELESS = st.dictionaries(st.sampled_from(["type", "anyOf", "enum", "items", "$ref"]), JUNK)


def gives_what_it_describes(grammars: Grammars, tokenizer: Tokenizer, found: tuple[Any, Check], seed: int) -> None:
    schema, check = found
    try:
        rules = rules_of(grammars, schema)
    except ValueError as error:
        assert "no tokens for" in str(error)
        return
    text = wander(rules, tokenizer, Random(seed))
    assert text is None or check(json.loads(text)), text


def is_refused_or_gives_json(grammars: Grammars, tokenizer: Tokenizer, schema: dict[str, Any], seed: int) -> None:
    try:
        rules = rules_of(grammars, schema)
    except ValueError as error:
        assert str(error)
        return
    text = wander(rules, tokenizer, Random(seed))
    assert text is None or json.loads(text) is not Ellipsis


SOME = settings(max_examples=25, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=1000, suppress_health_check=list(HealthCheck))


@SOME
@given(found=SCHEMAS, seed=st.integers(0, 1 << 30))
def test_schemas(grammars: Grammars, tokenizer: Tokenizer, found: tuple[Any, Check], seed: int) -> None:
    gives_what_it_describes(grammars, tokenizer, found, seed)


@SOME
@given(
    schema=st.dictionaries(st.sampled_from(["type", "anyOf", "enum", "items", "$ref"]), JUNK), seed=st.integers(0, 9)
)
def test_senseless_schemas(grammars: Grammars, tokenizer: Tokenizer, schema: dict[str, Any], seed: int) -> None:
    is_refused_or_gives_json(grammars, tokenizer, schema, seed)


@pytest.mark.long
@MANY
@given(found=SCHEMAS, seed=st.integers(0, 1 << 30))
def test_a_thousand_schemas(grammars: Grammars, tokenizer: Tokenizer, found: tuple[Any, Check], seed: int) -> None:
    gives_what_it_describes(grammars, tokenizer, found, seed)


@pytest.mark.long
@MANY
@given(
    schema=st.dictionaries(st.sampled_from(["type", "anyOf", "enum", "items", "$ref"]), JUNK), seed=st.integers(0, 9)
)
def test_a_thousand_senseless_schemas(
    grammars: Grammars, tokenizer: Tokenizer, schema: dict[str, Any], seed: int
) -> None:
    is_refused_or_gives_json(grammars, tokenizer, schema, seed)


def test_what_is_compiled_is_kept_within_bounds(grammars: Grammars) -> None:
    for number in range(CACHED + 5):
        rules_of(grammars, {"const": number})
    assert len(grammars._compiled) == CACHED
    with pytest.raises(ValueError, match="longer than"):
        rules_of(grammars, {"const": "a" * MAX_CHARS})


def test_rules_of_one_grammar_know_nothing_of_each_other(grammars: Grammars, tokenizer: Tokenizer) -> None:
    make = grammars.compiled(of_format(Format("choice", '["ab", "cd"]', "x")))
    first, second = make(), make()
    first.accept(tokenizer.encode("ab")[0])
    assert first.mask() != second.mask()
    assert second.mask() == make().mask()


FIXED = st.text(st.sampled_from("ab Z09'\"_-:.,{}\n\\é"), min_size=1, max_size=24)


@given(text=FIXED)
def test_a_forced_text_has_the_tokens_that_the_tokenizer_makes_of_it(
    grammars: Grammars, tokenizer: Tokenizer, text: str
) -> None:
    rules = rules_of(grammars, {"const": [text, text]})
    whole = tokenizer.encode(json.dumps([text, text], ensure_ascii=False))
    forced = rules.forced(1000)
    assert list(forced) == whole[: len(forced)]
    assert rules.forced(1) == forced[:1]
    for token in forced:
        assert rules.mask() == only(token, tokenizer.vocab_size)
        rules.accept(token)


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(found=SCHEMAS, name=FIXED, seed=st.integers(0, 1 << 30))
def test_who_goes_on_from_any_token_forces_the_same(
    grammars: Grammars, tokenizer: Tokenizer, found: tuple[Any, Check], name: str, seed: int
) -> None:
    schema = {"type": "object", "properties": {name: found[0]}, "required": [name], "additionalProperties": False}
    try:
        make = grammars.of_format(Format("json", orjson.dumps(schema).decode(), "x"))
    except ValueError:
        return
    rules, random, tokens = make(), Random(seed), list[int]()
    for _ in range(30):
        fresh = make()
        assert [fresh.accept(token) for token in tokens] == [None] * len(tokens)
        mask = rules.mask()
        assert mask is not None
        assert (fresh.mask(), fresh.forced(50)) == (mask, rules.forced(50))
        allowed = [8 * at + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
        tokens.append(random.choice(allowed))
        if rules.accept(tokens[-1]) is not None or tokens[-1] in tokenizer.eos_ids:
            return
