"""Timing never decides a test: on a busy machine hypothesis may be slow, and is not in error for it.

Long tests run where they are asked for.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Of numpy, before it is imported: tests run beside one another, and threads that wait for each other's turn make small
products slow."""

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")


def pytest_configure(config: pytest.Config) -> None:
    """`-m ""` would say the same as nothing: whoever wants all asks for `-m "long or not long"`."""
    if not config.option.markexpr:
        config.option.markexpr = "not long"
