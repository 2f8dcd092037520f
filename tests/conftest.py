"""Timing never decides a test: on a busy machine hypothesis may be slow, and is not in error for it."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
"""Of numpy, before it is imported: tests run beside one another, and threads that wait for each other's turn make small
products slow."""

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
