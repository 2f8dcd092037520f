"""The operator's page: static files beside this one, drawn from `/admin/status`."""

from __future__ import annotations

from importlib.resources import files

ASSETS = ("index.html", "dashboard.css", "dashboard.js")
"""The first is the page itself."""
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_KINDS = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}


def asset(name: str) -> tuple[bytes, str] | None:
    """Content and media type; None where there is no such file."""
    if name not in ASSETS:
        return None
    return (files(__name__) / name).read_bytes(), _KINDS[name.rpartition(".")[2]]
