"""The `engine` command: serve a node, inspect a model."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from engine.model.gguf import Gguf

KV_TOKENS = 8192


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """A small inference engine: one node of a region, with an OpenAI-compatible API."""


@main.command()
@click.option("--model", required=True, help="package:distribution/file, or the path of a GGUF file.")
@click.option("--model-id", required=True, help="The name that requests use.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8101, show_default=True, type=click.IntRange(0, 65535), help="0: any free port.")
@click.option("--threads", type=click.IntRange(1, 1024), help="Compute threads.  [default: one per core]")
@click.option("--kv-tokens", default=KV_TOKENS, show_default=True, type=click.IntRange(16), help="Size of the KV pool.")
@click.option("--slots", default=16, show_default=True, type=click.IntRange(1, 4096), help="Most running sequences.")
@click.option("--step-tokens", default=128, show_default=True, type=click.IntRange(1, 1 << 16), help="Most per step.")
@click.option("--queue", default=64, show_default=True, type=click.IntRange(0, 1 << 16), help="Most waiting requests.")
@click.option("--drain-s", default=30.0, show_default=True, type=click.FloatRange(0), help="For what runs, on SIGTERM.")
@click.option("--allow-host", multiple=True, help="A further name to accept in Host; may be repeated.")
@click.option("--exit-with-parent", is_flag=True, help="End when the parent dies or standard input ends.")
def serve(
    model: str,
    model_id: str,
    host: str,
    port: int,
    threads: int | None,
    kv_tokens: int,
    slots: int,
    step_tokens: int,
    queue: int,
    drain_s: float,
    allow_host: tuple[str, ...],
    exit_with_parent: bool,
) -> None:
    """Serve one model over HTTP.

    The node token comes from the environment variable EDGEPROXY_NODE_TOKEN.
    """
    from edgeproxy.protocol.node.report import TOKEN_ENV
    from engine import parent, server

    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    if exit_with_parent:
        parent.exit_with_parent()
    if slots > step_tokens:
        raise click.UsageError(f"--step-tokens {step_tokens} must be at least --slots {slots}")
    options = server.ServeOptions(
        model=model,
        model_id=model_id,
        host=host,
        port=port,
        threads=threads or len(os.sched_getaffinity(0)),
        kv_tokens=kv_tokens,
        slots=slots,
        step_tokens=step_tokens,
        queue=queue,
        drain_s=drain_s,
        allow_hosts=allow_host,
        token=os.environ.get(TOKEN_ENV) or None,
    )
    try:
        status = server.serve(options)
    except server.StartError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(status)


@main.command()
@click.argument("model")
def inspect(model: str) -> None:
    """Show what a model file holds: configuration, tensors, sizes."""
    from engine.model.gguf import read
    from engine.model.source import resolve

    try:
        _show(read(resolve(model)))
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _show(gguf: Gguf) -> None:
    from dataclasses import asdict

    from rich.console import Console
    from rich.table import Table

    from engine.model.arch import llama_config

    console = Console()
    console.print(str(gguf.path), soft_wrap=True)
    facts = Table("configuration", "value")
    for name, value in asdict(llama_config(gguf)).items():
        facts.add_row(name, str(value))
    tensors = Table("tensor", "type", "shape", "MiB")
    for tensor in gguf.tensors.values():
        tensors.add_row(tensor.name, tensor.dtype, " x ".join(map(str, tensor.shape)), f"{tensor.nbytes / 2**20:.2f}")
    total = sum(tensor.nbytes for tensor in gguf.tensors.values())
    tensors.add_section()
    tensors.add_row(f"{len(gguf.tensors)} tensors", "", "", f"{total / 2**20:.2f}")
    console.print(facts, tensors)
