from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.protocol.openai.errors import ApiError
from edgeproxy.protocol.openai.fields import HONOURED, MESSAGE_UNSUPPORTED, UNSUPPORTED
from edgeproxy.protocol.openai.schema import MAX_PROMPT_CHARS, Message, chat_request, parse_json

SECRET = "hunter2"


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        chat_request(body(**fields))
    assert caught.value.status == 400
    return caught.value


def test_the_least_request_takes_the_defaults() -> None:
    request = chat_request(body())
    assert request.messages == (Message("user", "hi"),)
    assert (request.model, request.stream, request.include_usage) == ("m", False, False)
    assert (request.max_tokens, request.stop, request.seed, request.ignore_eos) == (None, (), None, False)
    assert (request.temperature, request.top_p, request.top_k, request.ignored) == (1.0, 1.0, 0, ())


def test_every_honoured_field_is_read() -> None:
    request = chat_request(
        body(
            stream=True,
            stream_options={"include_usage": True},
            max_completion_tokens=7,
            stop=["a", "b"],
            seed=-5,
            temperature=0,
            top_p=0.5,
            top_k=40,
            ignore_eos=True,
            min_p=0.05,
            repetition_penalty=1.1,
            frequency_penalty=-2,
            presence_penalty=2,
            logit_bias={"7": -100, "0": 1.5},
            min_tokens=3,
            stop_token_ids=[5, 6.0],
            logprobs=True,
            top_logprobs=4,
        )
    )
    assert (request.stream, request.include_usage, request.max_tokens, request.stop) == (True, True, 7, ("a", "b"))
    assert (request.seed, request.temperature, request.top_p, request.top_k) == (-5, 0.0, 0.5, 40)
    assert request.ignore_eos
    assert (request.min_p, request.repetition_penalty) == (0.05, 1.1)
    assert (request.frequency_penalty, request.presence_penalty) == (-2.0, 2.0)
    assert (request.logit_bias, request.stop_token_ids) == (((7, -100.0), (0, 1.5)), (5, 6))
    assert (request.min_tokens, request.top_logprobs) == (3, 4)


def test_log_probabilities_are_told_only_where_asked_for() -> None:
    asked: list[dict[str, Any]] = [{}, {"logprobs": False, "top_logprobs": 0}, {"logprobs": True}]
    assert [chat_request(body(**fields)).top_logprobs for fields in asked] == [None, None, 0]


def test_no_more_tokens_are_asked_for_than_may_be_made() -> None:
    assert chat_request(body(min_tokens=3, max_tokens=3)).min_tokens == 3
    assert refused(min_tokens=4, max_completion_tokens=3).param == "min_tokens"


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_a_field_of_the_schema_that_is_not_built_is_refused_by_name(name: str) -> None:
    error = refused(**{name: {"asks": SECRET}})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert SECRET not in error.message


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_a_field_that_asks_for_nothing_is_let_through(name: str) -> None:
    for neutral in (None, *UNSUPPORTED[name]):
        assert chat_request(body(**{name: neutral})).ignored == ()


@pytest.mark.parametrize("name", sorted(HONOURED - {"model", "messages"}))
def test_null_means_absent(name: str) -> None:
    assert chat_request(body(**{name: None})) == chat_request(body())


@pytest.mark.parametrize(("name", "value"), [("n", True), ("logprobs", 0), ("store", 0), ("logprobs", 1)])
def test_what_only_looks_neutral_is_refused(name: str, value: Any) -> None:
    assert refused(**{name: value}).param == name


def test_fields_that_nobody_defines_are_named_and_few() -> None:
    request = chat_request(
        {
            "model": "m",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}], "weight": 1}
            ],
            "foo": 1,
            **{f"x{n}": n for n in range(100)},
        }
    )
    assert request.ignored[:2] == ("foo", "x0")
    assert len(request.ignored) == 17
    assert request.ignored[-1] == "and_87_more"
    few = chat_request({"model": "m", "messages": [{"role": "user", "content": "a", "weight": 1}], "foo": 1})
    assert few.ignored == ("foo", "messages[0].weight")


def test_fields_that_nobody_defines_are_named_wherever_they_stand() -> None:
    mark = {"type": "ephemeral"}
    function = {"name": "f", "cache_control": mark}
    call = {"id": "c", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}", "parsed": {}}}
    request = chat_request(
        body(
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": mark}]},
                {"role": "assistant", "tool_calls": [{**call, "extra": 1}], "annotations": [{"type": "url_citation"}]},
            ],
            tools=[{"type": "function", "function": function, "cache_control": mark, "bar": 1}],
            tool_choice={"type": "function", "function": {"name": "f"}, "why": "so"},
            stream=True,
            stream_options={"often": True},
        )
    )
    assert request.ignored == (
        "messages[0].content[0].cache_control",
        "messages[1].annotations",
        "messages[1].tool_calls[0].extra",
        "messages[1].tool_calls[0].function.parsed",
        "stream_options.often",
        "tools[0].cache_control",
        "tools[0].bar",
        "tools[0].function.cache_control",
        "tool_choice.why",
    )
    assert request.tools.callable[0].view == {"type": "function", "function": {"name": "f"}}


def test_answers_are_taken_as_clients_send_them_back() -> None:
    sent = [
        {"role": "assistant", "content": "Paris.", "reasoning_content": "France, so", "refusal": None, "audio": None},
        {"role": "assistant", "content": None, "refusal": "I cannot."},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}, {"type": "text", "text": "Sorry."}]},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "", "refusal": "", "annotations": None},
    ]
    messages = chat_request(body(messages=sent)).messages
    assert [message.content for message in messages] == ["Paris.", "I cannot.", "No.\nSorry.", "Yes."]
    assert messages[0].view() == {"role": "assistant", "content": "Paris.", "reasoning_content": "France, so"}
    assert "reasoning_content" not in messages[3].view()


@pytest.mark.parametrize("field", ["reasoning_content", "refusal"])
def test_only_answers_have_what_answers_have(field: str) -> None:
    assert refused(messages=[{"role": "user", "content": "a", field: "b"}]).param == f"messages[0].{field}"
    assert refused(messages=[{"role": "assistant", "content": "a", field: 5}]).param == f"messages[0].{field}"
    part = [{"type": "refusal", "refusal": "no"}]
    assert refused(messages=[{"role": "user", "content": part}]).param == "messages[0].content[0]"


WRONG: list[tuple[str, Any, str, str | None]] = [
    ("model", None, "model", "missing_required_parameter"),
    ("model", 5, "model", "invalid_type"),
    ("model", "", "model", "empty_string"),
    ("model", "m" * 257, "model", "string_above_max_length"),
    ("messages", None, "messages", "missing_required_parameter"),
    ("messages", "hi", "messages", "invalid_type"),
    ("messages", [], "messages", "empty_array"),
    ("messages", [5], "messages[0]", "invalid_type"),
    ("messages", [{"content": "a"}], "messages[0].role", "missing_required_parameter"),
    ("messages", [{"role": "robot", "content": "a"}], "messages[0].role", "invalid_value"),
    ("messages", [{"role": ["user"], "content": "a"}], "messages[0].role", "invalid_value"),
    ("messages", [{"role": "user"}], "messages[0].content", "missing_required_parameter"),
    ("messages", [{"role": "user", "content": 5}], "messages[0].content", "invalid_type"),
    ("messages", [{"role": "user", "content": []}], "messages[0].content", "empty_array"),
    ("messages", [{"role": "user", "content": ["a"]}], "messages[0].content[0]", "invalid_type"),
    ("messages", [{"role": "user", "content": [{"text": "a"}]}], "messages[0].content[0].type", None),
    ("messages", [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", None),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text", None),
    ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]", None),
    ("messages", [{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0]", None),
    ("messages", [{"role": "tool", "content": "a"}], "messages[0].tool_call_id", "missing_required_parameter"),
    ("messages", [{"role": "user", "content": "a", "tool_call_id": "x"}], "messages[0].tool_call_id", None),
    ("messages", [{"role": "user", "content": "a", "name": ""}], "messages[0].name", "empty_string"),
    ("messages", [{"role": "user", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls", "invalid_value"),
    ("messages", [{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function", None),
    ("messages", [{"role": "assistant", "tool_calls": 5}], "messages[0].tool_calls", "invalid_type"),
    ("messages", [{"role": "assistant"}], "messages[0].content", "missing_required_parameter"),
    ("tools", {}, "tools", "invalid_type"),
    ("tools", [5], "tools[0]", "invalid_type"),
    ("tools", [{"type": "web_search"}], "tools[0].type", "invalid_value"),
    ("tools", [{"type": "function", "function": {"name": "a b"}}], "tools[0].function.name", "invalid_value"),
    (
        "tools",
        [{"type": "function", "function": {"name": "a", "parameters": []}}],
        "tools[0].function.parameters",
        None,
    ),
    ("tools", [{"type": "function", "function": {"name": "a"}}] * 2, "tools", "invalid_value"),
    ("tools", [{"type": "function", "function": {"name": "a"}}] * 129, "tools", "array_above_max_length"),
    ("tool_choice", "required", "tool_choice", None),
    ("parallel_tool_calls", "no", "parallel_tool_calls", "invalid_type"),
    ("response_format", "json", "response_format", "invalid_type"),
    ("response_format", {}, "response_format.type", "missing_required_parameter"),
    ("response_format", {"type": "xml"}, "response_format.type", "invalid_value"),
    ("response_format", {"type": "text", "schema": {}}, "response_format.schema", "unsupported_parameter"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema", "missing_required_parameter"),
    ("response_format", {"type": "json_schema", "json_schema": {}}, "response_format.json_schema.name", None),
    ("structured_outputs", {"regex": "a", "choice": ["b"]}, "structured_outputs", "invalid_value"),
    ("structured_outputs", {"choice": []}, "structured_outputs.choice", "empty_array"),
    ("guided_json", "{", "guided_json", "invalid_value"),
    ("guided_regex", "", "guided_regex", "empty_string"),
    ("n", 0, "n", "integer_below_min_value"),
    ("n", 17, "n", "integer_above_max_value"),
    ("priority", 1001, "priority", "integer_above_max_value"),
    ("metadata", {"a": 5}, "metadata", "invalid_value"),
    ("user", 5, "user", "invalid_type"),
    ("chat_template_kwargs", {"messages": []}, "chat_template_kwargs", "invalid_value"),
    ("continue_final_message", True, "continue_final_message", "invalid_value"),
    ("add_generation_prompt", False, "add_generation_prompt", "invalid_parameter_combination"),
    ("messages", [{"role": "user", "content": "a"}] * 4097, "messages", "array_above_max_length"),
    ("stream", 1, "stream", "invalid_type"),
    ("stream", "true", "stream", "invalid_type"),
    ("stream_options", {"include_usage": True}, "stream_options", "invalid_value"),
    ("max_tokens", 0, "max_tokens", "integer_below_min_value"),
    ("max_tokens", True, "max_tokens", "invalid_type"),
    ("max_tokens", 1.5, "max_tokens", "invalid_type"),
    ("max_tokens", 10**18, "max_tokens", "integer_above_max_value"),
    ("max_tokens", 1e300, "max_tokens", "integer_above_max_value"),
    ("max_tokens", float("inf"), "max_tokens", "invalid_type"),
    ("max_completion_tokens", -1, "max_completion_tokens", "integer_below_min_value"),
    ("stop", 5, "stop", "invalid_type"),
    ("stop", "", "stop", "empty_string"),
    ("stop", ["a", ""], "stop[1]", "empty_string"),
    ("stop", ["a", 5], "stop[1]", "invalid_type"),
    ("stop", ["a"] * 5, "stop", "array_above_max_length"),
    ("stop", "a" * 257, "stop", "string_above_max_length"),
    ("seed", 2**63, "seed", "integer_above_max_value"),
    ("seed", float(2**70), "seed", "integer_above_max_value"),
    ("seed", "1", "seed", "invalid_type"),
    ("temperature", -0.1, "temperature", "decimal_below_min_value"),
    ("temperature", 2.1, "temperature", "decimal_above_max_value"),
    ("temperature", False, "temperature", "invalid_type"),
    ("temperature", float("nan"), "temperature", "invalid_type"),
    ("temperature", float("inf"), "temperature", "invalid_type"),
    ("top_p", 1.1, "top_p", "decimal_above_max_value"),
    ("top_k", -2, "top_k", "integer_below_min_value"),
    ("min_p", 1.1, "min_p", "decimal_above_max_value"),
    ("min_p", "0.1", "min_p", "invalid_type"),
    ("repetition_penalty", 0, "repetition_penalty", "decimal_below_min_value"),
    ("frequency_penalty", 2.1, "frequency_penalty", "decimal_above_max_value"),
    ("presence_penalty", -2.1, "presence_penalty", "decimal_below_min_value"),
    ("logit_bias", [], "logit_bias", "invalid_type"),
    ("logit_bias", {"a": 1}, "logit_bias", "invalid_value"),
    ("logit_bias", {"-1": 1}, "logit_bias", "invalid_value"),
    ("logit_bias", {"\u0661": 1}, "logit_bias", "invalid_value"),
    ("logit_bias", {"9" * 5000: 1}, "logit_bias", "invalid_value"),
    ("logit_bias", {"5": 101}, "logit_bias.5", "decimal_above_max_value"),
    ("logit_bias", {"5": None}, "logit_bias.5", "invalid_type"),
    ("logit_bias", {str(n): 1 for n in range(301)}, "logit_bias", "object_above_max_properties"),
    ("min_tokens", -1, "min_tokens", "integer_below_min_value"),
    ("stop_token_ids", 5, "stop_token_ids", "invalid_type"),
    ("stop_token_ids", [1, -1], "stop_token_ids[1]", "integer_below_min_value"),
    ("stop_token_ids", [None], "stop_token_ids[0]", "invalid_type"),
    ("stop_token_ids", [0] * 33, "stop_token_ids", "array_above_max_length"),
    ("logprobs", 1, "logprobs", "invalid_type"),
    ("top_logprobs", 21, "top_logprobs", "integer_above_max_value"),
    ("top_logprobs", 2, "top_logprobs", "invalid_parameter_combination"),
    ("ignore_eos", "yes", "ignore_eos", "invalid_type"),
]


@pytest.mark.parametrize(("name", "value", "param", "code"), WRONG)
def test_a_wrong_value_is_refused_by_its_path(name: str, value: Any, param: str, code: str | None) -> None:
    error = refused(**{name: value})
    assert error.param == param
    assert error.code == code or code is None


@pytest.mark.parametrize("name", sorted(MESSAGE_UNSUPPORTED))
def test_the_extras_of_an_answer_sent_back_are_let_through_when_empty(name: str) -> None:
    for neutral in (None, *MESSAGE_UNSUPPORTED[name]):
        chat_request(body(messages=[{"role": "assistant", "content": "a", name: neutral}]))


def test_null_means_absent_in_calls_that_are_sent_back() -> None:
    call = {"id": "x", "type": None, "index": None, "function": {"name": "f", "arguments": None}}
    message = chat_request(body(messages=[{"role": "assistant", "tool_calls": [call]}])).messages[0]
    assert (message.tool_calls[0].name, message.tool_calls[0].arguments) == ("f", {})


def test_roles_are_what_templates_know() -> None:
    sent = [{"role": role, "content": "a"} for role in ("system", "developer", "user", "assistant")]
    sent.append({"role": "tool", "content": "a", "tool_call_id": "x"})
    roles = [message.role for message in chat_request(body(messages=sent)).messages]
    assert roles == ["system", "system", "user", "assistant", "tool"]


def test_text_parts_are_lines() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat_request(body(messages=[{"role": "user", "content": parts}])).messages[0].content == "a\nb"


@pytest.mark.parametrize(("sent", "read"), [(-1, 0), (0, 0), (3, 3), (3.0, 3)])
def test_top_k_reads_minus_one_as_all(sent: float, read: int) -> None:
    assert chat_request(body(top_k=sent)).top_k == read


def test_both_names_of_max_tokens_must_agree() -> None:
    assert chat_request(body(max_tokens=3, max_completion_tokens=3)).max_tokens == 3
    assert refused(max_tokens=3, max_completion_tokens=4).code == "invalid_parameter_combination"


def test_obfuscation_is_refused_and_its_absence_is_not() -> None:
    assert not chat_request(body(stream=True, stream_options={"include_obfuscation": False})).include_usage
    error = refused(stream=True, stream_options={"include_obfuscation": True})
    assert error.param == "stream_options.include_obfuscation"


def test_a_prompt_over_the_limit_is_refused_however_it_is_cut() -> None:
    half = {"role": "user", "content": SECRET * (MAX_PROMPT_CHARS // len(SECRET) // 2 + 7)}
    chat_request(body(messages=[half]))
    error = refused(messages=[half, half])
    assert error.code == "context_length_exceeded"
    assert SECRET not in error.message


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b"null",
        b'"a"',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"{'a':1}",
        b'{"a":1}x',
        b"\xff\xfe{\x00}\x00",
        b'\xef\xbb\xbf{"a":1}',
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_body_that_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_json(raw)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_bytes_that_are_no_utf_8_are_told_with_their_place() -> None:
    with pytest.raises(ApiError, match=r"UTF-8 JSON: the byte 0xff at offset 10 is no part of a UTF-8 character\.$"):
        parse_json(b'{"model":"\xff"}')
    with pytest.raises(ApiError, match="surrogate"):
        parse_json(b'{"model":"\\ud800"}')


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(sorted(HONOURED | set(UNSUPPORTED) | {"foo"}))


@given(st.dictionaries(NAMES, JSON, max_size=6), st.booleans())
def test_any_object_is_a_request_or_a_400(fields: dict[str, Any], complete: bool) -> None:
    try:
        chat_request({**(body() if complete else {}), **fields})
    except ApiError as error:
        assert error.status == 400
        assert error.param
        assert error.code


@given(st.binary(max_size=64))
def test_any_bytes_are_an_object_or_a_400(raw: bytes) -> None:
    try:
        assert parse_json(raw) == orjson.loads(raw)
    except ApiError as error:
        assert error.status == 400
