"""Whether a deployment can be used, as far as that can be known before anything is opened.

`edgeproxy check` and `serve` ask the same question here, so that one never calls valid what the other refuses.
"""

from __future__ import annotations

import datetime

from edgeproxy.access.keys import Keys
from edgeproxy.access.origin import check_bind
from edgeproxy.config import Config, ConfigError
from edgeproxy.observe.trace import TraceError, exporter
from edgeproxy.upstream.launch import check_children
from edgeproxy.upstream.node import Fleet
from edgeproxy.wire.certificates import out_of_date
from edgeproxy.wire.tls import server_context


def usable(config: Config) -> Keys:
    """The deployment's keys. Raises ConfigError, KeysError, BindError and TlsError."""
    keys = Keys(config.keys)
    for address in (config.listen.http, config.listen.https, config.listen.admin):
        if address is not None:
            check_bind(address, keys_required=keys.required)
    if config.tls.certificate is not None and config.tls.key is not None:
        server_context(config.tls.certificate, config.tls.key, ())
    Fleet.from_config(config, token="")
    check_children(config)
    if config.traces_to is not None:
        try:
            exporter()
        except TraceError as error:
            raise ConfigError(f"{config.path}: {error}") from error
    return keys


def doubts(config: Config, now: datetime.datetime) -> list[str]:
    """What a usable deployment is to be warned of. An edge whose certificate has expired serves all the same: some
    clients may still accept it. Raises TlsError."""
    found = None if config.tls.certificate is None else out_of_date(config.tls.certificate, now)
    return [] if found is None else [f"clients will refuse the certificate: {found}"]
