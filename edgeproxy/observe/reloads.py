"""Whether what is in force is what the operator's files say, and whether the proxy is going down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ReloadStatus:
    """For /admin/status and metrics."""

    loaded_at: float
    """Unix seconds: since when the configuration is in force."""
    reloads: int = 0
    failures: int = 0
    error: str | None = None
    """Why the files, as they are now, could not be used; what was in force before stays."""
    stopping: bool = False
    """A signal has asked the proxy to end; what has begun may end first."""
    certificate_not_after: float | None = None
    """Unix seconds at which the public certificate in force expires; None without TLS."""
    needs_restart: tuple[str, ...] = ()
    """What has changed in the file and comes into force at the next start only."""
