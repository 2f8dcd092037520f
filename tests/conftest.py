"""Timing never decides a test: on a busy machine hypothesis may be slow, and is not in error for it."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("house", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")
