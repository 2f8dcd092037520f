"""The `engine` command: serve a node, pack, inspect and time a model."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from engine.options import Duration, check_kv_dtype, model_id, node_token, size_in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

KV_TOKENS = 8192
MODEL_HELP = "package:distribution/file, or the path of a GGUF file or an image."


_arithmetic = click.option(
    "--arithmetic",
    type=click.Choice(["int16", "int8", "float32"]),
    default="int16",
    show_default=True,
    help="Of activations. int16 is as exact as float32 and faster; int8 is faster still, and only close to it.",
)

_device = (
    click.option(
        "--device",
        type=click.Choice(["auto", "cpu", "cuda"]),
        default="auto",
        show_default=True,
        help="auto: a GPU where NVIDIA's driver and edgeproxy[gpu] are there.",
    ),
    click.option(
        "--gpu-dtype",
        type=click.Choice(["bf16", "f16"]),
        default="bf16",
        show_default=True,
        help="What a GPU computes in.",
    ),
    click.option(
        "--gpu-weights",
        type=click.Choice(["kept", "dense"]),
        default="kept",
        show_default=True,
        help="On a GPU: matrices in the file's 8 or 4 bits, or all of them as --gpu-dtype.",
    ),
)


def _model_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What decides how much memory a model takes; the same for every command that asks."""
    options = (
        click.option("--threads", type=click.IntRange(1, 256), help="Compute threads.  [default: one per core]"),
        click.option("--kv-tokens", default=KV_TOKENS, show_default=True, type=click.IntRange(16), help="KV pool."),
        click.option("--slots", default=16, show_default=True, type=click.IntRange(1, 4096), help="Running sequences."),
        click.option(
            "--step-tokens", default=128, show_default=True, type=click.IntRange(1, 1 << 16), help="Per step."
        ),
        _arithmetic,
        click.option(
            "--kv-dtype",
            type=click.Choice(["f16", "int8", "fp8"]),
            default="f16",
            show_default=True,
            help="Of keys and values. int8 (on the CPU alone) and fp8 (on GPUs alone) hold about twice as many tokens "
            "in the same memory.",
        ),
        *_device,
        click.option(
            "--cache",
            type=click.Path(file_okay=False, path_type=Path),
            help="Packed images.  [default: the user's cache]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _options(model: str, threads: int | None, **sizes: Any) -> Any:
    from engine.startup import ModelOptions, chosen_device

    sizes["device"] = chosen_device(sizes["device"], say=lambda text: click.echo(text, err=True))
    check_kv_dtype(sizes.get("kv_dtype", "f16"), sizes["device"])
    return ModelOptions(model, threads or len(os.sched_getaffinity(0)), **sizes)


def _told(error: Exception) -> str:
    from engine import memory

    return memory.exhausted() if memory.is_short(error) else str(error)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="edgeproxy", prog_name="engine")
def main() -> None:
    """A small inference engine: one node of a region, with an OpenAI-compatible API."""


@main.command()
@click.option("--model", required=True, help=MODEL_HELP)
@click.option("--model-id", required=True, callback=model_id, help="The name that requests use.")
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", default=8101, show_default=True, type=click.IntRange(0, 65535), help="0: any free port.")
@_model_options
@click.option("--queue", default=64, show_default=True, type=click.IntRange(0, 1 << 16), help="Most waiting requests.")
@click.option(
    "--max-wait-ms",
    default=3000.0,
    show_default=True,
    type=Duration(0, 600_000),
    help="Refuse (429) what finds no place and is expected to wait for longer.",
)
@click.option(
    "--admission",
    type=click.Choice(["guarantee", "optimistic"]),
    default="guarantee",
    show_default=True,
    help="What a request is promised: memory for all of max_tokens, or a start that may be interrupted and resumed.",
)
@click.option(
    "--quantum-ms",
    default=10.0,
    show_default=True,
    type=Duration(0.1, 10_000),
    help="Of prefill in a step, per waiting prompt.",
)
@click.option(
    "--kv-store", type=click.Path(dir_okay=False, path_type=Path), help="File for KV that memory cannot hold."
)
@click.option("--kv-store-size", default="1GiB", show_default=True, callback=size_in_bytes, help="Most bytes of it.")
@click.option(
    "--sleep-after",
    type=Duration(1),
    metavar="SECONDS",
    help="Without a request for so long, give memory back until the next.  [default: never]",
)
@click.option(
    "--stall-s",
    default=30.0,
    show_default=True,
    type=Duration(0.1),
    help="Not ready when nothing got done for so long; ends with status 70 after twice as long.",
)
@click.option(
    "--drain-s",
    default=30.0,
    show_default=True,
    type=Duration(0),
    help="For what runs and the store, at the end.",
)
@click.option(
    "--traces-to",
    metavar="URL",
    help="OpenTelemetry collector (OTLP over HTTP), with edgeproxy[otel].  [default: none]",
)
@click.option(
    "--verify", is_flag=True, help="Read the weights before the start, not after it: 25 ms for 100 MB in memory."
)
@click.option("--allow-host", multiple=True, help="A further name to accept in Host; may be repeated.")
@click.option("--exit-with-parent", is_flag=True, help="End when the parent dies or standard input ends.")
def serve(
    model: str,
    model_id: str,
    host: str,
    port: int,
    queue: int,
    max_wait_ms: float,
    admission: str,
    quantum_ms: float,
    kv_store: Path | None,
    kv_store_size: int,
    sleep_after: float | None,
    stall_s: float,
    drain_s: float,
    traces_to: str | None,
    allow_host: tuple[str, ...],
    exit_with_parent: bool,
    **sizes: Any,
) -> None:
    """Serve one model over HTTP; it is packed on first use.

    The node token comes from the environment variable EDGEPROXY_NODE_TOKEN.
    """
    if sizes["slots"] > sizes["step_tokens"]:
        raise click.UsageError(f"--step-tokens {sizes['step_tokens']} must be at least --slots {sizes['slots']}")
    if exit_with_parent:
        from engine import parent

        parent.exit_with_parent()
    from engine.progress import PackProgress
    from engine.startup import Start, StartError

    try:
        with PackProgress() as progress, Start(_options(model, **sizes), progress) as start:
            from edgeproxy.protocol.node.report import TOKEN_ENV
            from engine import server
            from engine.admission import Mode

            options = server.ServeOptions(
                model_id=model_id,
                host=host,
                port=port,
                queue=queue,
                max_wait_s=max_wait_ms / 1000,
                admission=Mode(admission),
                quantum_s=quantum_ms / 1000,
                kv_store=kv_store,
                kv_store_bytes=kv_store_size,
                sleep_s=sleep_after,
                stall_s=stall_s,
                drain_s=drain_s,
                traces_to=traces_to,
                allow_hosts=allow_host,
                token=node_token(os.environ.get(TOKEN_ENV), TOKEN_ENV),
            )
            status = server.serve(options, start)
    except StartError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(status)


@main.command()
@click.argument("model")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="The image to write.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to keep it without -o.  [default: the user's cache]",
)
@_arithmetic
@_device[0]
@_device[1]
@_device[2]
def pack(model: str, out: Path | None, cache: Path | None, **layout: Any) -> None:
    """Pack a GGUF file into an image that nodes map and run in place, in the layout of the device."""
    from engine.model.cache import default_folder, opened
    from engine.model.source import check_published, resolve
    from engine.progress import PackProgress

    try:
        from engine.model.pack import check_place
        from engine.model.pack import pack as write
        from engine.startup import packer_of

        packer = packer_of(_options(model, 1, kv_tokens=KV_TOKENS, **layout))
        with PackProgress() as progress:
            if out is None:
                image = opened(model, cache or default_folder(), packer, progress, thorough=True)
            else:
                out = out.resolve()  # behind a link: that stays where it is
                check_place(out)
                check_published(model)
                image = write(resolve(model), out, packer, progress)
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        raise click.ClickException(_told(error)) from error
    click.echo(image.path)


@main.command()
@click.argument("model")
@click.option(
    "--verify",
    is_flag=True,
    help="Read the weights too: an image's hashes; of a GGUF file, that no number is NaN or infinite, and the hash of "
    "the package that it is in.",
)
@_model_options
def inspect(model: str, verify: bool, **sizes: Any) -> None:
    """Show what a GGUF file or an image holds, and the memory that a node of it takes."""
    from engine import inspect as view

    try:
        view.show(_options(model, **sizes), verify)
    except ValueError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("model")
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1), help="Medians are of that many.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@_model_options
def bench(model: str, runs: int, as_json: bool, **sizes: Any) -> None:
    """Time the engine in process, without HTTP: prefill and decode."""
    from engine import bench as timing
    from engine.progress import PackProgress
    from engine.startup import StartError

    try:
        with PackProgress() as progress:
            timing.run(_options(model, **sizes), progress, runs, as_json, lambda line: click.echo(line, err=True))
    except (ValueError, StartError, MemoryError) as error:
        raise click.ClickException(_told(error)) from error
