"""What a deployment means, in lines for people: what is in force, defaults included."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from edgeproxy.config import Config, GatewayLimits, Launch, NodeConfig, RegionConfig


def summary(config: Config, *, keys_required: bool) -> list[str]:
    lines = [f"{config.path} is valid", *_listeners(config)]
    lines.append(f"  keys       {f'asked for, by {config.keys}' if keys_required else 'none; loopback only'}")
    if config.hosts:
        lines.append(f"  hosts      {', '.join(config.hosts)}, beside loopback and the addresses above")
    lines.append(f"  traces     {config.traces_to or 'none'}")
    lines.append(f"  objective  {config.objective:.4g} of the first tokens within the budget")
    lines.append("  limits     " + ", ".join(_limits(config.limits)))
    for region in config.regions:
        lines += _region(region)
    for model in config.models:
        lines += _model(config, model)
    return lines


def _listeners(config: Config) -> Iterator[str]:
    listen, tls = config.listen, config.tls
    if listen.http is not None:
        yield f"  http       {listen.http}"
    if listen.https is not None:
        chain = f"certificate {tls.certificate}" if tls.certificate is not None else "a development certificate"
        yield f"  https      {listen.https} (HTTP/1.1, HTTP/2, HTTP/3), {chain}"
    yield f"  admin      {listen.admin or 'none: no metrics and no dashboard'}"


def _limits(limits: GatewayLimits) -> Iterator[str]:
    """By the names that they have in the file."""
    for field in fields(limits):
        yield f"{field.name} {getattr(limits, field.name)}"


def _region(region: RegionConfig) -> Iterator[str]:
    relay = f" behind a relay that adds {region.relay.delay_ms:g} ms" if region.relay else ""
    place = " at {:g}, {:g} (degrees north, east)".format(*region.location) if region.location else ""
    yield f"  region {region.name}{relay}{place}"
    for node in region.nodes:
        standby = ", standby: serves only while no other node of the model is fit" if node.standby else ""
        yield f"    {node.name}: {node.kind} at {node.url}{standby}"
        yield f"      serves {', '.join(_served(node))}"
        if node.price_per_hour is not None:
            yield f"      costs {node.price_per_hour:g} an hour"
        yield from (f"      {line}" for line in _how(node))


def _served(node: NodeConfig) -> Iterator[str]:
    for model in node.models:
        theirs = node.name_of(model)
        yield model if theirs == model else f"{model} (there {theirs})"


def _how(node: NodeConfig) -> Iterator[str]:
    if node.launch is not None:
        yield f"started by the proxy: {', '.join(_launch(node.launch))}"
    if node.api_key_env is not None:
        yield f"key from ${node.api_key_env}"
    if node.tls is not None:
        told: list[tuple[str, Path | str | None]] = [
            ("authorities", node.tls.ca),
            ("own certificate", node.tls.certificate),
            ("name", node.tls.name),
        ]
        yield f"TLS: {', '.join(f'{name} {value}' for name, value in told if value is not None)}"
    if node.continue_final_message:
        yield "goes on with other nodes' streams from their text"


def _launch(launch: Launch) -> Iterator[str]:
    yield launch.source
    for field in fields(launch):
        value = getattr(launch, field.name)
        if field.name != "source" and value is not None:
            yield f"{field.name} {value}"


def _model(config: Config, model: str) -> Iterator[str]:
    budget = config.budgets.get(model, config.budget_ms)
    fallback = config.fallbacks.get(model)
    yield f"  model {model}"
    yield f"    nodes {', '.join(config.models[model])}; budget of a first token {budget:g} ms"
    if fallback is not None:
        yield f"    falls back to {fallback} while no node serves it"
