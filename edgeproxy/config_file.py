"""Reads regions.yaml. Unknown and repeated keys are errors: a typo must not silently become a default."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import urlsplit

import yaml

from edgeproxy.config import (
    Address,
    Config,
    ConfigError,
    GatewayLimits,
    Listen,
    NodeConfig,
    NodeKind,
    NodeTls,
    QuicLibrary,
    RegionConfig,
    RelayConfig,
    Tls,
)
from edgeproxy.config_launch import read_launch
from edgeproxy.config_tree import Place, StrictLoader, kind_of

MAX_FILE_BYTES = 2**20
_TOP = "listen tls quic keys hosts budget_ms budgets objective traces_to fallbacks limits regions".split()
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,126}\*?")


def load(path: Path) -> Config:
    """Raises ConfigError naming the file, the key and the remedy."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); give another file with --config") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    return parse(text, path)


def parse(text: str, path: Path) -> Config:
    """`path` names the file in errors and is what relative paths in it start from."""
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes; split the deployment into several proxies")
    try:
        tree = yaml.load(text, Loader=StrictLoader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply; regions.yaml needs five levels") from error
    return _config(Place(path, "", tree), path)


def _config(root: Place, path: Path) -> Config:
    top = root.mapping(_TOP)
    if "regions" not in top:
        raise root.error("has no `regions`", "add at least one region with one node")
    regions = tuple(_region(name, node) for name, node in top["regions"].named().items())
    _unique_nodes(root, regions)
    fallbacks = _fallbacks(top["fallbacks"], regions) if "fallbacks" in top else {}
    return Config(
        path=path,
        listen=_listen(top["listen"]) if "listen" in top else Listen(Address("127.0.0.1", 8080), None, None),
        tls=_tls(top["tls"], path.parent) if "tls" in top else Tls(None, None),
        regions=regions,
        keys=path.parent / top["keys"].text() if "keys" in top else None,
        hosts=tuple(item.text().lower() for item in top["hosts"].items()) if "hosts" in top else (),
        budget_ms=top["budget_ms"].number(1, 600_000) if "budget_ms" in top else 150.0,
        budgets=_budgets(top["budgets"], regions) if "budgets" in top else {},
        objective=top["objective"].number(0.5, 0.99999) if "objective" in top else 0.95,
        quic=_quic(top["quic"]) if "quic" in top else "aioquic",
        traces_to=_collector(top["traces_to"]) if "traces_to" in top else None,
        fallbacks=fallbacks,
        limits=_limits(top["limits"]) if "limits" in top else GatewayLimits(),
    )


def _collector(node: Place) -> str:
    found = urlsplit(node.text())
    if found.scheme not in ("http", "https") or not found.hostname:
        raise node.error(f"{node.value!r} is no URL", "name the collector, for example http://127.0.0.1:4318/v1/traces")
    return node.text()


def _listen(node: Place) -> Listen:
    found = {name: _address(item) for name, item in node.mapping(("http", "https", "admin")).items()}
    seen: dict[Address, str] = {}
    for name, address in found.items():
        if address.port and address in seen:
            raise node.error(f"{name} and {seen[address]} are both {address}", "give each its own port")
        seen[address] = name
    if "http" not in found and "https" not in found:
        raise node.error("opens neither http nor https", "clients need one of them: http: 127.0.0.1:8080")
    return Listen(found.get("http"), found.get("https"), found.get("admin"))


def _address(node: Place) -> Address:
    host, _, port = node.text().rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise node.error(f"{node.value!r} is no address", "write host:port, for example 127.0.0.1:8080")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def _tls(node: Place, folder: Path) -> Tls:
    found = node.mapping(("certificate", "key"))
    if set(found) != {"certificate", "key"}:
        raise node.error("needs both `certificate` and `key`", "give both, or neither for a development certificate")
    return Tls(folder / found["certificate"].text(), folder / found["key"].text())


def _quic(node: Place) -> QuicLibrary:
    library = node.text()
    if library not in get_args(QuicLibrary):
        raise node.error(f"{library!r} is no QUIC library for HTTP/3", f"use one of {', '.join(get_args(QuicLibrary))}")
    if library == "qh3" and find_spec("qh3") is None:
        remedy = (
            "install the extra `[fast]` (in a checkout: .venv/bin/pip install -c constraints.txt qh3), or use aioquic"
        )
        raise node.error("qh3 is not installed", remedy)
    return cast(QuicLibrary, library)


def _limits(node: Place) -> GatewayLimits:
    readers: dict[str, Callable[[Place], Any]] = {
        "body_bytes": lambda n: n.count(1024, 2**30),
        "bodies_bytes": lambda n: n.count(2**20, 2**40),
        "hold_headers_s": lambda n: n.number(0.1, 600),
        "attempts": lambda n: n.count(1, 16),
        "first_byte_s": lambda n: n.number(0.1, 3600),
        "stall_s": lambda n: n.number(0.1, 3600),
        "resume_after_s": lambda n: n.number(0.1, 3600),
        "hedge_share": lambda n: n.number(0, 0.02),
    }
    return GatewayLimits(**{name: readers[name](item) for name, item in node.mapping(readers).items()})


def _region(name: str, node: Place) -> RegionConfig:
    found = node.mapping(("nodes", "relay", "location", "price_per_hour"))
    if "nodes" not in found:
        raise node.error("has no `nodes`", "list at least one node below it")
    price = _price(found)
    nodes = tuple(_node(f"{name}-{i}", item, price) for i, item in enumerate(found["nodes"].items(), 1))
    relay = None
    if "relay" in found:
        delay = found["relay"].mapping(("delay_ms",)).get("delay_ms")
        if delay is None:
            raise found["relay"].error("has no `delay_ms`", "give the round trip to add, in milliseconds")
        relay = RelayConfig(delay.number(0, 10_000))
    return RegionConfig(name, nodes, relay, _location(found["location"]) if "location" in found else None)


def _price(found: dict[str, Place], otherwise: float | None = None) -> float | None:
    """Of a node-hour; of no matter which currency, as long as it is one."""
    return found["price_per_hour"].number(0, 1e6) if "price_per_hour" in found else otherwise


def _location(node: Place) -> tuple[float, float]:
    degrees = node.items()
    if len(degrees) != 2:
        raise node.error("is no place", "write [degrees north, degrees east], for example [52.4, 4.9]")
    return degrees[0].number(-90, 90), degrees[1].number(-180, 180)


def _node(default_name: str, node: Place, price: float | None) -> NodeConfig:
    """`price`: the region's, for nodes that have none of their own."""
    found = node.mapping(
        (
            *("name", "kind", "url", "models", "names", "launch"),
            *("api_key_env", "tls", "continue_final_message", "standby", "price_per_hour"),
        )
    )
    for needed in ("url", "models"):
        if needed not in found:
            raise node.error(f"has no `{needed}`", "a node needs `url` and `models`")
    kind = found["kind"].text() if "kind" in found else "native"
    if kind not in get_args(NodeKind):
        raise found["kind"].error(f"{kind!r} is no kind of node", f"use one of {', '.join(get_args(NodeKind))}")
    launch = read_launch(found["launch"]) if "launch" in found else None
    if launch is not None and kind != "native":
        raise found["launch"].error(f"a {kind} node cannot be launched", "start it yourself, or use `kind: native`")
    models = tuple(_model(item) for item in found["models"].items())
    return NodeConfig(
        name=found["name"].text() if "name" in found else default_name,
        kind=kind,  # type: ignore[arg-type]  # checked above
        url=_origin(found["url"], launched=launch is not None),
        models=models,
        launch=launch,
        api_key_env=found["api_key_env"].text() if "api_key_env" in found else None,
        tls=_node_tls(found["tls"], found["url"].text()) if "tls" in found else None,
        names=_names(found["names"], models) if "names" in found else (),
        continue_final_message=_continues(found["continue_final_message"], kind)
        if "continue_final_message" in found
        else False,
        standby=found["standby"].flag() if "standby" in found else False,
        price_per_hour=_price(found, price),
    )


def _node_tls(node: Place, url: str) -> NodeTls:
    found = node.mapping(("ca", "certificate", "key", "name"))
    if not url.startswith("https:"):
        raise node.error("is for nodes with an https URL", "write https://host:port, or leave it out")
    if ("certificate" in found) != ("key" in found):
        raise node.error("needs both `certificate` and `key`, or neither", "name the PEM file of each")
    files = {name: node.path.parent / item.text() for name, item in found.items() if name != "name"}
    return NodeTls(name=found["name"].text() if "name" in found else None, **files)


def _continues(node: Place, kind: str) -> bool:
    wanted = node.flag()
    if wanted and kind not in ("vllm", "sglang"):
        raise node.error(f"a {kind} node knows no such field", "leave it out; native nodes resume exactly")
    return wanted


def _names(node: Place, models: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """`public id: what the node calls it`."""
    found = node.mapping(models)
    return tuple((model, name.text()) for model, name in found.items())


def _origin(node: Place, *, launched: bool) -> str:
    """scheme://host:port and nothing more: a path or credentials here would be sent to the wrong place."""
    remedy = "write scheme://host:port, for example http://127.0.0.1:8101"
    try:
        parts = urlsplit(node.text())
        port = parts.port
    except ValueError as error:
        raise node.error(f"is no URL ({error})", remedy) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise node.error(f"{node.value!r} is no origin", remedy)
    if parts.query or parts.fragment or parts.username is not None:
        raise node.error("carries more than scheme, host and port", remedy)
    if launched and (parts.scheme != "http" or port is None or parts.hostname not in ("127.0.0.1", "::1")):
        raise node.error("a launched node listens on loopback over http", "write http://127.0.0.1:PORT")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


def _model(node: Place) -> str:
    name = node.text()
    if not _MODEL.fullmatch(name):
        raise node.error(
            f"{name!r} is no model id", "use letters, digits and . _ : / - (a trailing * matches the rest)"
        )
    return name


def _budgets(node: Place, regions: tuple[RegionConfig, ...]) -> dict[str, float]:
    """Model -> milliseconds."""
    if not isinstance(node.value, dict) or not node.value:
        raise node.error(f"is {kind_of(node.value)}", "write `model: milliseconds` lines below it")
    _served(node, node.value, regions)
    return {
        str(name): Place(node.path, f"{node.key}.{name}", value).number(1, 600_000)
        for name, value in node.value.items()
    }


def _served(node: Place, names: Iterable[object], regions: tuple[RegionConfig, ...]) -> None:
    models = {model for region in regions for one in region.nodes for model in one.models}
    for name in names:
        if name not in models:
            raise node.error(f"{name!r} is served by no node", "name models as the nodes name them")


def _fallbacks(node: Place, regions: tuple[RegionConfig, ...]) -> dict[str, str]:
    """Model -> model; both are served, and no chain leads back to its beginning."""
    if not isinstance(node.value, dict) or not node.value:
        raise node.error(f"is {kind_of(node.value)}", "write `model: model to answer instead` lines below it")
    found = {str(name): node.child(name, value).text() for name, value in node.value.items()}
    for name, other in found.items():
        _served(node, (name, other), regions)
        if other == name:
            raise node.error(f"{name!r} falls back to itself", "name another model")
    return found


def _unique_nodes(root: Place, regions: tuple[RegionConfig, ...]) -> None:
    seen: set[str] = set()
    launched: dict[str, str] = {}
    for region in regions:
        for node in region.nodes:
            if node.name in seen:
                raise root.error(f"two nodes are named {node.name!r}", "give each node its own `name`")
            seen.add(node.name)
            if node.launch is not None and launched.setdefault(node.url, node.name) != node.name:
                other = launched[node.url]
                raise root.error(f"{other} and {node.name} are both launched at {node.url}", "give each its own port")
