"""What a command line says of a node, in the types that a node needs: a mistake is told before anything starts."""

from __future__ import annotations

import math
import re
from typing import Any

import click

LONGEST_S = 366 * 86400.0
"""Of any duration: longer ones mean never, and what waits for them cannot count so far."""
MODEL_ID_CHARS = 128
_TOKEN = re.compile(r"[\x21-\x7e]+")


class Duration(click.FloatRange):
    """A number of seconds, or of milliseconds, that clocks can count: `nan` and `inf` are none."""

    def __init__(self, least: float, most: float = LONGEST_S) -> None:
        super().__init__(least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):  # which no comparison of a range finds
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return found


def size_in_bytes(_: object, __: object, value: str) -> int:
    """Raises click.BadParameter."""
    found = re.fullmatch(r"(\d+) ?(?:([KMGT])i?B?)?", value.strip(), re.IGNORECASE)
    if found is None:
        raise click.BadParameter(f"{value!r} is no number of bytes: write 1073741824, 1024MiB or 1GiB")
    return int(found[1]) << 10 * " KMGT".index((found[2] or " ").upper())


def model_id(_: object, __: object, value: str) -> str:
    """A name that a request can use. Raises click.BadParameter."""
    if not value.isprintable() or value.strip() != value or not 0 < len(value) <= MODEL_ID_CHARS:
        raise click.BadParameter(
            f"{value[:MODEL_ID_CHARS]!a} is no name that a request could use: write 1 to {MODEL_ID_CHARS} "
            "characters that can be printed, with no space at either end"
        )
    return value


def node_token(value: str | None, name: str) -> str | None:
    """What the environment variable `name` holds; None where it is not set or empty. Raises click.UsageError."""
    if not value:
        return None
    if not _TOKEN.fullmatch(value):  # said without it: it is a secret
        raise click.UsageError(
            f"{name} holds what no request can send (spaces, line ends, or characters beyond ASCII): give node and "
            "proxy one without, such as `openssl rand -hex 32` makes"
        )
    return value


def check_kv_dtype(kv_dtype: str, device: str) -> None:
    """Raises click.UsageError where the device has no kernels for keys and values of that type."""
    if kv_dtype == "fp8" and device == "cpu":
        raise click.UsageError("--kv-dtype fp8 is for GPUs: on the CPU int8 holds about as many tokens")
    if kv_dtype == "int8" and device == "cuda":
        raise click.UsageError("--kv-dtype int8 is for the CPU: on a GPU fp8 holds about as many tokens")
