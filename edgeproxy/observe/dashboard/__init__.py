"""The operator's pages: static files beside this one, fed by `/admin/events`.

No build step and nothing from elsewhere. uPlot (MIT, vendor/uplot-LICENSE) is vendored as its authors published it;
a test holds its hash.
"""

from __future__ import annotations

from importlib.resources import files
from typing import NamedTuple

PAGE = "index.html"
CHAT = "chat.html"
IMMUTABLE = ("uplot-1.6.32.js", "uplot-1.6.32.css")
"""Names that hold their version: a browser need not ask for them again."""
ASSETS = (
    PAGE,
    CHAT,
    "dashboard.css",
    "dashboard.js",
    "chart.js",
    "chat.js",
    "dom.js",
    "icon.svg",
    "map.js",
    "regions.js",
    "requests.js",
    "summary.js",
    "terms.js",
    "theme.js",
)
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_KINDS = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml; charset=utf-8",
}


class Asset(NamedTuple):
    name: str
    content: bytes
    kind: str
    """Media type."""


def asset(name: str) -> Asset | None:
    """None where there is no such file. Pages are found without their ending, too."""
    if f"{name}.html" in ASSETS:
        name = f"{name}.html"
    if name in IMMUTABLE:
        place = files(__name__) / "vendor" / name
    elif name in ASSETS:
        place = files(__name__) / name
    else:
        return None
    return Asset(name, place.read_bytes(), _KINDS[name.rpartition(".")[2]])
