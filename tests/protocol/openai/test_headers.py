"""Only what is listed passes, in either direction."""

from __future__ import annotations

from edgeproxy.protocol.openai.headers import TO_CLIENT, find, media_type, to_client, to_node

HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}


def test_hop_by_hop_fields_pass_nowhere() -> None:
    fields = dict.fromkeys(HOP_BY_HOP, b"x")
    assert to_client(fields.items()) == []
    assert not {name for name, _ in to_node(fields, b"id")} & HOP_BY_HOP


def test_framing_is_the_listeners() -> None:
    assert b"content-length" not in TO_CLIENT


def test_client_secrets_do_not_reach_a_node() -> None:
    fields = dict.fromkeys((b"authorization", b"cookie", b"x-edge-stream", b"x-api-key", b"x-node-token"), b"secret")
    assert all(value != b"secret" for _, value in to_node(fields, b"id"))


def test_trace_context_and_request_id_reach_a_node() -> None:
    sent = to_node({b"traceparent": b"00-1-2-01", b"tracestate": b"a=1", b"x-request-id": b"other"}, b"id")
    assert find(sent, b"traceparent") == b"00-1-2-01"
    assert find(sent, b"tracestate") == b"a=1"
    assert [value for name, value in sent if name == b"x-request-id"] == [b"id"]
    assert find(sent, b"accept-encoding") == b"identity"


def test_retry_hints_reach_the_client_and_node_details_do_not() -> None:
    answer = [
        (b"content-type", b"application/json"),
        (b"retry-after", b"3"),
        (b"server", b"node/1"),
        (b"set-cookie", b"a=b"),
        (b"x-node-report", b"{}"),
        (b"server-timing", b"queue;dur=1"),
        (b"openai-organization", b"operator"),
        (b"x-ratelimit-remaining-tokens", b"9"),
    ]
    assert to_client(answer) == [answer[0], answer[1], answer[7]]


def test_media_type_is_compared_without_case_and_parameters() -> None:
    assert media_type(b"Application/JSON ; charset=utf-8") == b"application/json"
    assert media_type(None) == b""
