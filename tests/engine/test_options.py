from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from edgeproxy.protocol.node.report import TOKEN_ENV
from engine.cli import main
from engine.options import check_kv_dtype, model_id, node_token, size_in_bytes

SERVE = ["serve", "--model", "x", "--port", "0", "--device", "cpu"]


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("1073741824", 1 << 30), ("2k", 2048), ("64 MiB", 64 << 20), ("3GB", 3 << 30)]
)
def test_sizes_are_bytes_or_have_a_unit(text: str, size: int) -> None:
    assert size_in_bytes(None, None, text) == size


@pytest.mark.parametrize("text", ["", "1.5GiB", "-1", "GiB", "1 PiB"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write 1073741824, 1024MiB or 1GiB"):
        size_in_bytes(None, None, text)


@pytest.mark.parametrize("option", ["--max-wait-ms", "--quantum-ms", "--sleep-after", "--stall-s", "--drain-s"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300", "-1", "soon"])
def test_a_time_that_no_clock_can_count_is_a_usage_error(option: str, value: str) -> None:
    result = CliRunner().invoke(main, [*SERVE, "--model-id", "m", option, value])
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.output


@pytest.mark.parametrize("name", ["m", "smollm2-135m-instruct", "org/model:7b", "Grüße", "two words", "a" * 128])
def test_a_name_that_a_request_can_use_is_a_models(name: str) -> None:
    assert model_id(None, None, name) == name


@pytest.mark.parametrize("name", ["", " ", " m", "m\n", "a\x00b", "\udcff", "a" * 129])
def test_a_name_that_no_request_could_use_is_a_usage_error(name: str) -> None:
    result = CliRunner().invoke(main, [*SERVE, "--model-id", name])
    assert result.exit_code == 2
    assert "is no name that a request could use" in result.output


def test_a_token_is_what_a_request_can_send_or_none() -> None:
    assert node_token("s3cret-._~+/=", TOKEN_ENV) == "s3cret-._~+/="
    assert node_token("", TOKEN_ENV) is node_token(None, TOKEN_ENV) is None


@pytest.mark.parametrize("token", ["secret\n", " secret", "two words", "Grüße", "\udcff", "a\tb"])
def test_a_token_that_no_request_can_send_is_told_without_it(token: str) -> None:
    with pytest.raises(click.UsageError) as refused:
        node_token(token, TOKEN_ENV)
    assert TOKEN_ENV in refused.value.message
    assert token not in refused.value.message


@pytest.mark.parametrize("command", [[*SERVE, "--model-id", "m"], ["inspect", "x", "--device", "cpu"]])
def test_a_type_of_kv_that_the_device_has_no_kernels_for_is_told_with_one_that_it_has(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--kv-dtype", "fp8"])
    assert result.exit_code == 2
    assert "--kv-dtype fp8 is for GPUs: on the CPU int8" in result.output


def test_each_device_has_its_own_narrow_kv() -> None:
    for kv_dtype, device in (("f16", "cpu"), ("int8", "cpu"), ("f16", "cuda"), ("fp8", "cuda")):
        check_kv_dtype(kv_dtype, device)
    with pytest.raises(click.UsageError, match="on a GPU fp8"):
        check_kv_dtype("int8", "cuda")
