"""The commands of `edgeproxy`."""

from __future__ import annotations

import datetime
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

import click

from edgeproxy.config import Address

if TYPE_CHECKING:
    from edgeproxy.server import Running

CONFIG = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    default="regions.yaml",
    envvar="EDGEPROXY_CONFIG",
    show_default=True,
    show_envvar=True,
    help="The deployment: regions, nodes and the ports to listen on.",
)
ADMIN = click.option(
    "--admin",
    "base_url",
    help="Admin listener, as URL or HOST:PORT, where the deployment's own is not to be asked.",
    callback=lambda context, parameter, value: None if value is None else _base_url(value),
)
ADMIN_KEY = click.option(
    "--admin-key-file",
    "key_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that holds an admin key, for a listener on another machine; or put the key into EDGEPROXY_ADMIN_KEY.",
)
STATE = click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default=lambda: _state_folder(),
    show_default="$XDG_STATE_HOME/edgeproxy",
    help="Folder for the development certificate.",
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="edgeproxy")
def main() -> None:
    """An OpenAI-compatible proxy that sends each request to the region that will answer first."""


@main.command()
@CONFIG
@STATE
@click.option(
    "--drain",
    type=click.FloatRange(0, 3600),
    default=20.0,
    show_default=True,
    help="Seconds that SIGTERM waits for answers in progress. Ctrl-C does not wait.",
)
@click.option(
    "--notice",
    type=click.FloatRange(0, 600),
    default=0.0,
    show_default=True,
    help="Seconds that SIGTERM still takes requests, while /readyz says no: for load balancers to see.",
)
def serve(config: Path, state: Path, drain: float, notice: float) -> None:
    """Start the proxy, and the nodes and relays that the deployment asks it to launch."""
    from edgeproxy.access.keys import KeysError
    from edgeproxy.access.origin import BindError
    from edgeproxy.config import ConfigError
    from edgeproxy.config_file import load
    from edgeproxy.server import StartError, serve
    from edgeproxy.wire.tls import TlsError

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        serve(load(config), state=state, drain_s=drain, notice_s=notice, announce=_announce)
    except (ConfigError, KeysError, BindError, StartError, TlsError) as error:
        _fail(str(error))


@main.command()
@CONFIG
def check(config: Path) -> None:
    """Say whether a deployment can be used, and what is in force."""
    from edgeproxy.access.keys import KeysError
    from edgeproxy.access.origin import BindError
    from edgeproxy.config import ConfigError
    from edgeproxy.config_file import load
    from edgeproxy.preflight import doubts, usable
    from edgeproxy.summary import summary
    from edgeproxy.wire.tls import TlsError

    try:
        found = load(config)
        keys, warnings = usable(found), doubts(found, datetime.datetime.now(datetime.UTC))
    except (ConfigError, KeysError, BindError, TlsError) as error:
        _fail(str(error))
    click.echo("\n".join(summary(found, keys_required=keys.required)))
    for warning in warnings:
        click.echo(f"Warning: {warning}", err=True)


@main.command()
@click.option("--tenant", required=True, help="Whom the key is for: lower-case letters, digits, '.', '_' and '-'.")
@click.option("--file", "path", type=click.Path(path_type=Path, dir_okay=False), default="keys.yaml", show_default=True)
@click.option("--disclose", is_flag=True, help="The tenant may see timings, regions and nodes of its requests.")
@click.option("--admin", is_flag=True, help="The key opens the admin listener from other machines.")
@click.option("--region", "regions", multiple=True, help="Serve the tenant only here (repeat for several).")
def keys(tenant: str, path: Path, disclose: bool, admin: bool, regions: tuple[str, ...]) -> None:
    """Make a bearer key: its hash is added to the file, the key itself is shown once and stored nowhere."""
    from edgeproxy.access.keys import KeysError, add_key

    try:
        key = add_key(path, tenant, disclose=disclose, admin=admin, regions=regions)
    except KeysError as error:
        _fail(str(error))
    click.echo(key)
    click.echo(
        f"Its hash is in {path}; name that file as `keys:` in regions.yaml. The key is not shown again.", err=True
    )


@main.command()
@CONFIG
@ADMIN
@ADMIN_KEY
@click.argument("request_id", required=False)
def explain(config: Path, base_url: str | None, key_file: Path | None, request_id: str | None) -> None:
    """Say why a request went where it went. REQUEST_ID is the answer's x-request-id; without it, the last request."""
    from edgeproxy.admin_key import AdminKeyError, admin_key
    from edgeproxy.explain import ExplainError, explained

    try:
        click.echo(explained(base_url or _admin_url(config), request_id, admin_key(key_file, os.environ)))
    except (ExplainError, AdminKeyError) as error:
        _fail(str(error))


@main.command()
@CONFIG
@ADMIN
@ADMIN_KEY
@click.option("--once", is_flag=True, help="Show it once, for scripts.")
def top(config: Path, base_url: str | None, key_file: Path | None, once: bool) -> None:
    """Show in the terminal what the dashboard shows: verdict, regions, decisions."""
    from rich.console import Console

    from edgeproxy.admin_key import AdminKeyError, admin_key
    from edgeproxy.top import TopError
    from edgeproxy.top import top as watch

    try:
        watch(base_url or _admin_url(config), Console(), key=admin_key(key_file, os.environ), once=once)
    except (TopError, AdminKeyError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        pass


def _base_url(value: str) -> str:
    """Raises BadParameter, without what may be a secret of the caller's."""
    if "@" in value:
        from edgeproxy.admin_key import REMEDY

        raise click.BadParameter(f"a listener's address holds no user and no key; {REMEDY}")
    url = value if "://" in value else f"http://{value}"
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise click.BadParameter(
            f"{value!r} is no address of a listener; write http://127.0.0.1:9080, or 127.0.0.1:9080"
        )
    return url.rstrip("/").removesuffix("/dashboard")


def _admin_url(config: Path) -> str:
    from edgeproxy.config import ConfigError
    from edgeproxy.config_file import load

    try:
        admin = load(config).listen.admin
    except ConfigError as error:
        _fail(f"{error}\nA proxy that runs on an older one can be asked by its listener: --admin 127.0.0.1:9080")
    if admin is None:
        _fail(f"{config}: has no `listen: admin:`; decisions are told there only")
    return f"http://{_reachable(admin)}"


def _tls_port(config: Path) -> int:
    """Of the deployment; else of the one that comes with edgeproxy."""
    from edgeproxy.config import ConfigError
    from edgeproxy.config_file import load

    try:
        https = load(config).listen.https
    except ConfigError:
        https = None
    return 8443 if https is None else https.port


@main.command("dev-cert")
@CONFIG
@STATE
def dev_cert(config: Path, state: Path) -> None:
    """Make (or show) the development certificate for localhost, and say how clients come to trust it."""
    from edgeproxy.wire.tls import make_dev_certificate

    try:
        found = make_dev_certificate(state)
    except OSError as error:
        _fail(f"cannot write to {state}: {error.strerror}; give another folder with --state")
    click.echo(f"certificate  {found.certificate}")
    click.echo(f"key          {found.key}")
    click.echo(f"CA           {found.ca}")
    click.echo(f"SPKI hash    {found.spki_sha256_b64}")
    click.echo(f"valid until  {found.not_after:%Y-%m-%d %H:%M} UTC")
    click.echo(f"\nfor curl:     curl --cacert {found.ca} https://localhost:{_tls_port(config)}/v1/models")
    click.echo(f"for Chromium: --ignore-certificate-errors-spki-list={found.spki_sha256_b64}")


def _announce(running: Running) -> None:
    """The banner: what to paste where. On stdout, so that the log on stderr can be sent elsewhere."""
    listen = running.config.listen
    model = next(iter(running.fleet.models), "MODEL")
    lines = ["", "edgeproxy is ready", ""]
    if listen.http is not None:
        lines.append(f"  base URL    http://{_reachable(listen.http)}/v1")
    if listen.https is not None:
        lines.append(f"  with TLS    https://{_reachable(listen.https)}/v1   (HTTP/1.1, HTTP/2, HTTP/3)")
    if running.certificate is not None:
        lines.append(f"              trust {running.certificate.ca}")
        lines.append(f"              SPKI {running.certificate.spki_sha256_b64}")
    if listen.admin is not None:
        lines.append(f"  dashboard   http://{_reachable(listen.admin)}/dashboard   (metrics: /metrics)")
    if listen.http is not None:
        lines += _examples(f"http://{_reachable(listen.http)}/v1", model, running.config.keys is not None)
    click.echo("\n".join([*lines, ""]))
    sys.stdout.flush()


def _reachable(address: Address) -> Address:
    """An address that can be pasted: a wildcard is bound, but is no place to connect to."""
    return {"0.0.0.0": Address("127.0.0.1", address.port), "::": Address("::1", address.port)}.get(
        address.host, address
    )


def _examples(base_url: str, model: str, keys: bool) -> list[str]:
    bearer = " -H 'authorization: Bearer YOUR_KEY'" if keys else ""
    key = "YOUR_KEY" if keys else "none"
    question = '{"role": "user", "content": "What is the capital of France?"}'
    body = f'{{"model": "{model}", "temperature": 0, "messages": [{question}]}}'
    return [
        "",
        f"curl {base_url}/chat/completions -H 'content-type: application/json'{bearer} -d '{body}'",
        "",
        f"# {sys.executable}, or any Python after `pip install openai`",
        "from openai import OpenAI",
        f'client = OpenAI(base_url="{base_url}", api_key="{key}")',
        f'for chunk in client.chat.completions.create(model="{model}", temperature=0, stream=True,',
        f"        messages=[{question}]):",
        '    print(chunk.choices[0].delta.content or "", end="", flush=True)',
    ]


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "edgeproxy"


def _fail(message: str) -> NoReturn:
    click.echo(f"edgeproxy: {message}", err=True)
    sys.exit(1)
