"""regions.yaml: what is written is what is meant, and every complaint says where and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeproxy.config import Address, ConfigError, NodeTls
from edgeproxy.config_file import load, parse

PATH = Path("/etc/edgeproxy/regions.yaml")
NODE = "regions: {near: {nodes: [{url: 'http://127.0.0.1:8101', models: [m]}]}}\n"


def test_the_default_deployment_is_valid() -> None:
    config = load(Path(__file__).parent.parent / "regions.yaml")
    assert [region.name for region in config.regions] == ["near", "far"]
    assert config.listen.http == Address("127.0.0.1", 8080)
    assert config.listen.https == Address("127.0.0.1", 8443)
    assert config.listen.admin == Address("127.0.0.1", 9080)
    assert config.regions[1].relay is not None and config.regions[1].relay.delay_ms == 40
    assert config.models == {"smollm2-135m-instruct": ("near-1", "far-1")}


def test_a_node_has_its_own_price_or_its_regions() -> None:
    text = """
regions:
  near:
    price_per_hour: 0.9
    nodes: [{url: 'http://a:1', models: [m]}, {url: 'http://a:2', models: [m], price_per_hour: 0}]
  far: {nodes: [{url: 'http://a:3', models: [m]}]}
"""
    nodes = [node for region in parse(text, PATH).regions for node in region.nodes]
    assert [node.price_per_hour for node in nodes] == [0.9, 0.0, None]


def test_relative_paths_start_at_the_file() -> None:
    config = parse(NODE + "keys: keys.txt\ntls: {certificate: c.pem, key: k.pem}\n", PATH)
    assert config.keys == PATH.parent / "keys.txt"
    assert config.tls.certificate == PATH.parent / "c.pem"


@pytest.mark.parametrize(
    ("text", "place", "remedy"),
    [
        ("", "the file", "mapping"),
        ("regions: {}", "regions", "at least one"),
        ("regions: {near: {}}", "regions.near", "at least one node"),
        ("regions: {near: {nodes: []}}", "regions.near.nodes", "at least one entry"),
        ("regions: {near: {nodes: [{url: 'http://a:1'}]}}", "regions.near.nodes[0]", "`url` and `models`"),
        ("regions: {near: {nodes: [{url: 'ftp://a:1', models: [m]}]}}", "nodes[0].url", "http://127.0.0.1:8101"),
        ("regions: {near: {nodes: [{url: 'http://u:p@a:1', models: [m]}]}}", "nodes[0].url", "scheme, host and port"),
        ("regions: {near: {nodes: [{url: 'http://a:1/v1', models: [m]}]}}", "nodes[0].url", "no origin"),
        ("regions: {near: {nodes: [{url: 'http://a:x', models: [m]}]}}", "nodes[0].url", "no URL"),
        ("regions: {near: {nodes: [{url: 'http://a:1', models: ['a b']}]}}", "models[0]", "no model id"),
        ("regions: {near: {nodes: [{url: 'http://a:1', models: [m], kind: tgi}]}}", "nodes[0].kind", "use one of"),
        (NODE + "budgetms: 3", "unknown key 'budgetms'", "'budget_ms'"),
        (NODE + "budget_ms: soon", "budget_ms", "a number from"),
        (NODE + "budget_ms: .nan", "budget_ms", "a number from"),
        (NODE + "budget_ms: true", "budget_ms", "not a number"),
        (NODE + "limits: {attempts: 2.5}", "limits.attempts", "whole number"),
        (NODE + "limits: {hedge_share: 0.1}", "limits.hedge_share", "from 0 to 0.02"),
        (
            "regions: {near: {price_per_hour: -1, nodes: [{url: 'http://a:1', models: [m]}]}}",
            "regions.near.price_per_hour",
            "from 0",
        ),
        (
            "regions: {near: {nodes: [{url: 'http://a:1', models: [m], price_per_hour: '$2'}]}}",
            "nodes[0].price_per_hour",
            "a number from",
        ),
        (NODE + "listen: {http: '8080'}", "listen.http", "host:port"),
        (NODE + "listen: {admin: '127.0.0.1:1'}", "listen", "clients need one of them"),
        (NODE + "listen: {http: 'localhost:1', admin: 'localhost:1'}", "listen", "its own port"),
        (NODE + "tls: {certificate: a.pem}", "tls", "both"),
        (NODE + "quic: quiche", "quic", "aioquic, qh3"),
        (NODE + NODE, "'regions' stands here twice", "remove one"),
        ("a: &a [1]\nb: *a", "aliases", "not supported"),
        ("? [1, 2]\n: 3", "plain text", "line 1"),
        ("regions: [", "not valid YAML", "line"),
    ],
)
def test_a_mistake_is_named_with_file_place_and_remedy(text: str, place: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text, PATH)
    message = str(caught.value)
    assert message.startswith(str(PATH))
    assert place in message
    assert remedy in message


def test_a_node_may_call_models_otherwise_and_be_allowed_to_continue_texts() -> None:
    node = "{kind: vllm, url: 'http://a:1', models: [m, k], names: {m: org/M}, continue_final_message: true}"
    found = parse(f"regions: {{a: {{nodes: [{node}]}}}}", PATH).regions[0].nodes[0]
    assert (found.name_of("m"), found.name_of("k"), found.continue_final_message) == ("org/M", "k", True)


def test_files_of_tls_to_a_node_start_at_the_file() -> None:
    node = "{url: 'https://a:1', models: [m], tls: {ca: ca.pem, certificate: c.pem, key: /k, name: n.internal}}"
    found = parse(f"regions: {{a: {{nodes: [{node}]}}}}", PATH).regions[0].nodes[0].tls
    assert found == NodeTls(PATH.parent / "ca.pem", PATH.parent / "c.pem", Path("/k"), "n.internal")


@pytest.mark.parametrize(
    ("more", "remedy"),
    [
        ("tls: {ca: x}", "write https://"),
        ("names: {x: org/M}", "known keys are m"),
        ("names: {m: 7}", "put the value in quotes"),
        ("continue_final_message: 1", "write true or false"),
        ("kind: llamacpp, continue_final_message: true", "leave it out"),
        ("continue_final_message: true", "native nodes resume exactly"),
    ],
)
def test_a_mistake_about_foreign_nodes_is_named(more: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        parse(f"regions: {{a: {{nodes: [{{url: 'http://a:1', models: [m], {more}}}]}}}}", PATH)


def test_launched_nodes_listen_on_loopback_only() -> None:
    text = "regions: {a: {nodes: [{url: 'http://10.0.0.1:1', models: [m], launch: {source: x}}]}}"
    with pytest.raises(ConfigError, match="loopback"):
        parse(text, PATH)


def test_two_nodes_of_one_name_are_refused() -> None:
    node = "{url: 'http://a:1', models: [m], name: n}"
    with pytest.raises(ConfigError, match="two nodes are named 'n'"):
        parse(f"regions: {{a: {{nodes: [{node}, {node}]}}}}", PATH)


def test_a_missing_file_says_how_to_name_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--config"):
        load(tmp_path / "none.yaml")


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "regions.yaml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(key=st.sampled_from(["listen", "tls", "keys", "hosts", "budget_ms", "limits", "regions"]), value=VALUES)
def test_any_value_anywhere_is_either_understood_or_a_config_error(key: str, value: object) -> None:
    import json

    base = {"regions": {"near": {"nodes": [{"url": "http://127.0.0.1:1", "models": ["m"]}]}}}
    try:
        parse(json.dumps({**base, key: value}), PATH)
    except ConfigError as error:
        assert str(error).startswith(str(PATH))


@given(st.text(max_size=200))
def test_any_text_is_either_understood_or_a_config_error(text: str) -> None:
    try:
        parse(text, PATH)
    except ConfigError as error:
        assert str(error).startswith(str(PATH))


def test_two_nodes_launched_at_one_address_are_refused() -> None:
    node = "{url: 'http://127.0.0.1:1', models: [m], launch: {source: x.gguf}}"
    text = f"regions: {{a: {{nodes: [{node}]}}, b: {{nodes: [{node}]}}}}"
    with pytest.raises(ConfigError, match=r"a-1 and b-1 are both launched at .*; give each its own port"):
        parse(text, Path("regions.yaml"))


def test_the_quic_library_is_the_operators_choice_and_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse(NODE, PATH).quic == "aioquic"
    assert parse(NODE + "quic: qh3", PATH).quic == "qh3"
    monkeypatch.setattr("edgeproxy.config_file.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"quic: qh3 is not installed; install the extra `\[fast\]`"):
        parse(NODE + "quic: qh3", PATH)
