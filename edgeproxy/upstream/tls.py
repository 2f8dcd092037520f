"""TLS to nodes: whom the proxy believes, who it says it is, and by which name it must find the node."""

from __future__ import annotations

import ssl

from edgeproxy.config import NodeTls
from edgeproxy.wire.tls import load_chain


def node_context(tls: NodeTls) -> ssl.SSLContext:
    """TLS 1.2 at least; certificates and names are always checked. Raises ValueError for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if tls.certificate is not None:
            load_chain(context, tls.certificate, tls.key)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(str(path) for path in (tls.ca, tls.certificate, tls.key) if path is not None)
        cause = error.strerror or getattr(error, "reason", None) or error
        raise ValueError(f"cannot use {files}: {cause}; give PEM files") from error
    return context
