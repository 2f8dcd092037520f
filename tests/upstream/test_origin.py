import pytest

from edgeproxy.upstream.origin import Origin, parse


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://127.0.0.1:8101", Origin("http", "127.0.0.1", 8101), "127.0.0.1:8101"),
        ("http://127.0.0.1:8101/", Origin("http", "127.0.0.1", 8101), "127.0.0.1:8101"),
        ("https://api.example.com", Origin("https", "api.example.com", 443), "api.example.com"),
        ("http://[::1]:9", Origin("http", "::1", 9), "[::1]:9"),
    ],
)
def test_origin_and_host_header(url: str, origin: Origin, authority: str) -> None:
    assert parse(url) == origin
    assert origin.authority == authority


@pytest.mark.parametrize(
    "url",
    ["ftp://h", "127.0.0.1:8101", "http://", "http://h/v1", "http://h?x", "http://h:99999", "http://a b", "http://ü"],
)
def test_anything_but_an_origin_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="node url"):
        parse(url)


def test_credentials_are_refused_and_not_repeated() -> None:
    with pytest.raises(ValueError, match="api_key_env") as caught:
        parse("http://user:secret@h")
    assert "secret" not in str(caught.value)
