"""Keys are found by hash, the file holds none, and what is wrong with it is said with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeproxy.access.keys import Keys, KeysError, digest, generate_key, load
from edgeproxy.access.tenants import ANONYMOUS, Tenant
from edgeproxy.protocol.openai.errors import ApiError


def write(folder: Path, text: str) -> Path:
    path = folder / "keys.yaml"
    path.write_text(text)
    return path


def bearer(key: str) -> bytes:
    return f"Bearer {key}".encode()


def test_generated_keys_are_long_and_differ() -> None:
    keys = {generate_key()[0] for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) >= 46 for key in keys)


def test_hash_is_of_the_whole_key() -> None:
    key, hashed = generate_key()
    assert digest(key.encode()).hex() == hashed


def test_key_finds_its_tenant(tmp_path: Path) -> None:
    (key, hashed), (other, hashed_other) = generate_key(), generate_key()
    path = write(
        tmp_path,
        f"keys:\n  - {{tenant: acme, sha256: '{hashed}', disclose: true, regions: [near]}}\n"
        f"  - {{tenant: beta, sha256: '{hashed_other}', admin: true, budget_ms: 300}}\n",
    )
    keys = Keys(path)
    assert keys.required
    assert keys.tenant(bearer(key)) == Tenant("acme", disclose=True, regions=frozenset({"near"}))
    assert keys.tenant(b"bearer  " + other.encode()) == Tenant("beta", admin=True, budget_s=0.3)


@pytest.mark.parametrize(
    "value", [None, b"", b"Bearer", b"Bearer ", b"Basic abc", b"Bearer nope", b"Bearer " + b"x" * 9999]
)
def test_anything_else_is_401(tmp_path: Path, value: bytes | None) -> None:
    _, hashed = generate_key()
    keys = Keys(write(tmp_path, f"keys:\n  - {{tenant: acme, sha256: '{hashed}'}}\n"))
    with pytest.raises(ApiError) as caught:
        keys.tenant(value)
    assert (caught.value.status, caught.value.code) == (401, "invalid_api_key")


def test_hash_is_no_key(tmp_path: Path) -> None:
    _, hashed = generate_key()
    keys = Keys(write(tmp_path, f"keys:\n  - {{tenant: acme, sha256: '{hashed}'}}\n"))
    with pytest.raises(ApiError):
        keys.tenant(bearer(hashed))


def test_without_a_file_everybody_is_anonymous() -> None:
    keys = Keys()
    assert not keys.required
    assert keys.tenant(None) is ANONYMOUS
    assert keys.tenant(b"Bearer anything") is ANONYMOUS


HASH = "0" * 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "keys"),
        ("keys: []", "keys"),
        ("- a", "keys"),
        ("keys:\n  - nope", "mapping"),
        (f"keys:\n  - {{sha256: '{HASH}'}}", "tenant"),
        (f"keys:\n  - {{tenant: 'A B', sha256: '{HASH}'}}", "tenant"),
        ("keys:\n  - {tenant: acme}", "sha256"),
        ("keys:\n  - {tenant: acme, sha256: ek_secret}", "sha256"),
        ("keys:\n  - {tenant: acme, sha256: 1111}", "sha256"),
        (f"keys:\n  - {{tenant: acme, sha256: '{HASH}', disclose: 1}}", "disclose"),
        (f"keys:\n  - {{tenant: acme, sha256: '{HASH}', regions: near}}", "regions"),
        (f"keys:\n  - {{tenant: acme, sha256: '{HASH}', budget_ms: soon}}", "budget_ms"),
        (f"keys:\n  - {{tenant: acme, sha256: '{HASH}', budget_ms: 0}}", "budget_ms"),
        (f"keys:\n  - {{tenant: acme, sha256: '{HASH}', ek_secret: x}}", "unknown field"),
        (f"keys:\n  - {{tenant: acme, sha256: '{HASH}'}}\n  - {{tenant: b, sha256: '{HASH}'}}", "twice"),
        ("keys: [ek_secret", "YAML"),
        ("keys: !!python/object/apply:os.system ['true']", "YAML"),
    ],
)
def test_errors_name_the_file_and_quote_no_key(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(KeysError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert said in message
    assert "ek_secret" not in message


def test_missing_file_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="edgeproxy keys"):
        load(tmp_path / "absent")


def test_failed_reload_keeps_the_keys_in_force(tmp_path: Path) -> None:
    (key, hashed), (new, hashed_new) = generate_key(), generate_key()
    path = write(tmp_path, f"keys:\n  - {{tenant: acme, sha256: '{hashed}'}}\n")
    keys = Keys(path)
    path.write_text("keys: [")
    with pytest.raises(KeysError):
        keys.reload()
    assert keys.tenant(bearer(key)).name == "acme"
    path.write_text(f"keys:\n  - {{tenant: beta, sha256: '{hashed_new}'}}\n")
    keys.reload()
    assert keys.tenant(bearer(new)).name == "beta"
    with pytest.raises(ApiError):
        keys.tenant(bearer(key))
