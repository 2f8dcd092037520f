from __future__ import annotations

import pytest

from edgeproxy.protocol.bearer import bearer_token


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER ", b"bEaReR   "])
def test_the_schemes_name_may_be_written_in_any_case(scheme: bytes) -> None:
    assert bearer_token(scheme + b"secret") == b"secret"


@pytest.mark.parametrize("value", [b"", b"secret", b"Bearer", b"Bearer ", b"Bearersecret", b"Basic secret"])
def test_another_scheme_has_no_token(value: bytes) -> None:
    assert bearer_token(value) == b""
