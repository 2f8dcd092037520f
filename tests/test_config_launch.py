"""What `launch:` says of a node that the proxy starts, and what of it the engine could not do."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import click
import pytest

from edgeproxy.config import Arithmetic, ConfigError, Device, GpuDtype, GpuWeights, KvDtype, Launch
from edgeproxy.config_file import parse
from edgeproxy.config_launch import STEP_TOKENS
from engine.cli import serve

PATH = Path("/etc/edgeproxy/regions.yaml")


def launched(more: str) -> Launch:
    node = f"{{url: 'http://127.0.0.1:1', models: [m], launch: {{source: x, {more}}}}}"
    launch = parse(f"regions: {{a: {{nodes: [{node}]}}}}", PATH).regions[0].nodes[0].launch
    assert launch is not None
    return launch


def test_what_is_not_said_is_the_engines_default() -> None:
    assert launched("kv_dtype: int8, arithmetic: int8") == Launch("x", kv_dtype="int8", arithmetic="int8")


def test_a_launched_node_may_be_one_on_a_gpu() -> None:
    found = launched("device: cuda, gpu_dtype: f16, gpu_weights: dense, kv_dtype: fp8, slots: 64, step_tokens: 2048")
    assert found == Launch(
        "x", device="cuda", gpu_dtype="f16", gpu_weights="dense", kv_dtype="fp8", slots=64, step_tokens=2048
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("kv_dtype: f8", "'f8' is no type of keys and values; use one of f16, int8, fp8"),
        ("arithmetic: int4", "'int4' is no arithmetic of the engine; use one of int16, int8, float32"),
        ("admission: never", "'never' is no way to admit requests; use one of guarantee, optimistic"),
        ("device: gpu", "'gpu' is no device of the engine; use one of auto, cpu, cuda"),
        ("gpu_dtype: f32", "'f32' is no type that a GPU computes in; use one of bf16, f16"),
        ("gpu_weights: int4", "'int4' is no way to hold weights on a GPU; use one of kept, dense"),
        ("device: cuda, kv_dtype: int8", "'int8' is not for `device: cuda`; use f16 or fp8"),
        ("device: cpu, kv_dtype: fp8", "'fp8' is not for `device: cpu`; use f16 or int8"),
        ("slots: 129", "129 slots do not fit into a step of 128 tokens; write `step_tokens: 129` or more"),
        ("slots: 64, step_tokens: 32", "64 slots do not fit into a step of 32 tokens"),
        ("slots: 0", "slots"),
    ],
)
def test_what_the_engine_would_refuse_at_each_start_is_refused_before(more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        launched(more)


def test_launch_and_the_engine_have_the_same_options() -> None:
    options = {option.name: option for option in serve.params}
    for field in fields(Launch):
        assert field.name == "source" or field.name in options
    for key, names in (
        *(("arithmetic", Arithmetic), ("kv_dtype", KvDtype)),
        *(("device", Device), ("gpu_dtype", GpuDtype), ("gpu_weights", GpuWeights)),
    ):
        choice = options[key].type
        assert isinstance(choice, click.Choice)
        assert set(get_args(names)) == set(choice.choices)
    assert options["step_tokens"].default == STEP_TOKENS
