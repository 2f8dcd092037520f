"""Each kind of server is understood in its own words, and no words of any server are a fault."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.protocol.node.foreign import GAUGES, Told, context_of, load_of, shaped_error, timings_of

VLLM = b"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
"""
SGLANG = b"""sglang:num_running_reqs{model_name="a b{c}"} 4
sglang:num_queue_reqs{model_name="a b{c}"} 1
sglang:token_usage{model_name="a b{c}"} 0.28
"""
LLAMACPP = b"""# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 2
llamacpp:requests_deferred 5
llamacpp:predicted_tokens_seconds 38.1
"""


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("vllm", VLLM, Told(5, 7, 0.375)),
        ("vllm", VLLM.replace(b"kv_cache_usage", b"gpu_cache_usage"), Told(5, 7, 0.375)),
        ("sglang", SGLANG, Told(4, 1, 0.28)),
        ("sglang", SGLANG.replace(b"\n", b"\r\n"), Told(4, 1, 0.28)),
        ("llamacpp", LLAMACPP, Told(2, 5, None)),
        ("llamacpp", LLAMACPP.replace(b" 2\n", b" 2 1760000000000\n"), Told(2, 5, None)),
    ],
)
def test_load_is_read_in_each_kinds_words(kind: str, text: bytes, told: Told) -> None:
    assert load_of(kind, text) == told


@pytest.mark.parametrize(
    "text",
    [
        b"",
        VLLM.replace(b"3.0", b"NaN"),
        VLLM.replace(b"3.0", b"-9"),
        VLLM.replace(b"3.0", b"+Inf"),
        VLLM.replace(b"3.0", b"1e300"),
        VLLM.replace(b"vllm:num_requests_waiting{", b"vllm:other{"),
        LLAMACPP,
    ],
)
def test_numbers_that_are_no_counts_are_not_taken_for_an_idle_server(text: bytes) -> None:
    assert load_of("vllm", text) is None


def test_a_kind_without_metrics_has_no_load() -> None:
    assert load_of("openai", VLLM) is None


@given(st.sampled_from(sorted(GAUGES)), st.binary(max_size=200))
def test_no_exposition_is_a_fault(kind: str, text: bytes) -> None:
    name = GAUGES[kind].running[0]
    load_of(kind, text)
    load_of(kind, name + text)
    load_of(kind, name + b" " + text)


MODELS = orjson.dumps(
    {"object": "list", "data": [{"id": "other", "max_model_len": 9}, {"id": "m", "max_model_len": 4096}]}
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (MODELS, 4096),
        (MODELS.replace(b'"m"', b'"n"'), 9),
        (orjson.dumps({"default_generation_settings": {"n_ctx": 2048}, "total_slots": 4}), 2048),
        (orjson.dumps({"object": "list", "data": [{"id": "m"}]}), None),
        (orjson.dumps({"data": [{"id": "m", "max_model_len": "4096"}, 7]}), None),
        (b"[]", None),
        (b"<html>", None),
    ],
)
def test_the_context_is_found_where_it_is_told(answer: bytes, expected: int | None) -> None:
    assert context_of(answer, "m") == expected


def test_timings_are_seconds_and_cached_tokens() -> None:
    timings = {"cache_n": 12, "prompt_n": 30, "prompt_ms": 250.5, "predicted_n": 9, "predicted_ms": 900}
    assert timings_of({"timings": timings}) == (0.2505, 0.9, 12)
    assert timings_of({"timings": timings | {"cache_n": -1}}) == (0.2505, 0.9, 0)
    for wrong in ({}, {"timings": None}, {"timings": {"prompt_ms": 1}}, {"timings": timings | {"predicted_ms": -1}}):
        assert timings_of(wrong) is None


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        (
            {"object": "error", "message": "too long", "type": "BadRequestError", "param": None, "code": 400},
            "too long",
            None,
        ),
        ({"error": {"message": "too long", "type": "BadRequestError", "code": 400}}, "too long", None),
        (
            {"error": {"code": 400, "message": "n_ctx exceeded", "type": "exceed_context_size_error"}},
            "n_ctx exceeded",
            None,
        ),
        ({"error": "model 'x' not found"}, "model 'x' not found", None),
        ({"detail": "Not Found"}, "Not Found", None),
        ({"detail": [{"loc": ["body", "n"], "msg": "too small", "type": "v"}]}, "body.n: too small", None),
        ({"detail": [1, {"msg": 2}]}, "the node refused the request with status 400", None),
        ([], "the node refused the request with status 400", None),
    ],
)
def test_errors_come_out_as_openai_shapes_them(body: object, message: str, code: str | None) -> None:
    error = orjson.loads(shaped_error(400, orjson.dumps(body)))["error"]
    assert (error["message"], error["code"]) == (message, code)
    assert set(error) == {"message", "type", "param", "code"}


def test_an_error_that_has_the_shape_passes_as_it_is() -> None:
    body = b'{ "error": {"message": "m", "type": "t", "param": null, "code": 400, "more": 1} }'
    assert shaped_error(400, body) is body


@given(st.binary(max_size=60))
def test_no_error_body_is_a_fault(body: bytes) -> None:
    assert orjson.loads(shaped_error(422, body))["error"]["message"]
