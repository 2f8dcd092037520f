"""A certificate for the listeners that the client is tried on."""

from __future__ import annotations

import pytest

from edgeproxy.wire.tls import DevCertificate, make_dev_certificate


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> DevCertificate:
    return make_dev_certificate(tmp_path_factory.mktemp("tls"))
