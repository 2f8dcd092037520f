from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import deployment as deployments
from tests.e2e.deployment import Deployment


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """One proxy with two regions for all tests that leave it as they found it."""
    started = deployments.start(tmp_path_factory.mktemp("deployment"))
    yield started
    deployments.stop(started)


@pytest.fixture
def own_deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A proxy with two regions that a test may break."""
    started = deployments.start(tmp_path)
    yield started
    deployments.stop(started)
