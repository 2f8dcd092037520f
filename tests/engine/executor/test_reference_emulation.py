"""The oracle's roundings are the native kernels', one matrix at a time, and why more than that cannot be asked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from engine import _native
from engine.executor.dequantise import dequantise
from engine.executor.divergence import diverge
from engine.executor.llama import EXACT, LEVELS, Emulation, Llama, to_levels
from engine.executor.reference import ReferenceExecutor
from engine.model.arch import llama_config
from engine.model.gguf import Gguf, read
from engine.text.tokenizer import Tokenizer
from tests.engine.executor.native_models import ISAS
from tests.engine.executor.prompts import PROMPTS

TOKENS = tuple((7 * i * i + 3) % 128 for i in range(100))
BLOCKS = tuple(range(7))
SUMMED = 1e-5
"""Of a product's largest value: what summing in float32 may leave."""


def spread(rows: int, cols: int) -> torch.Tensor:
    """Blocks of many sizes: among them one of zeros, one too small to matter, one with a value that dwarfs the rest."""
    random = np.random.default_rng(3)
    x = random.normal(size=(rows, cols)) * np.exp(random.normal(0, 6, (rows, cols // 32))).repeat(32, 1)
    x[0, :32] = 0.0
    x[1, 32:64] = 1e-37
    x[2, 5] = 1e6
    x[3, :32] = np.linspace(-127, 127, 32).round() * 0.5
    return torch.from_numpy(x.astype(np.float32))


def q8_0_identity(size: int) -> bytes:
    """In Q8_0, with scales and values of exactly one: a product with it shows what its input was rounded to."""
    values = np.eye(size, dtype=np.int8).reshape(-1, 32).view(np.uint8)
    scales = np.ones((len(values), 1), np.float16).view(np.uint8)
    return np.concatenate([scales, values], axis=1).tobytes()


@pytest.mark.parametrize("bits", LEVELS)
@pytest.mark.parametrize("isa", ISAS)
def test_rounding_to_levels_is_the_kernels_bit_for_bit(isa: str, bits: int) -> None:
    x = spread(13, 64)
    packed = _native.pack("Q8_0", 64, 64, q8_0_identity(64))
    found = np.frombuffer(_native.matmul(isa, "Q8_0x16", packed, 64, 64, x.numpy().tobytes(), bits), np.float32)
    np.testing.assert_array_equal(found.reshape(13, 64), to_levels(x, bits).numpy())


@pytest.mark.parametrize("bits", LEVELS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["blk.0.attn_k.weight", "blk.12.ffn_down.weight", "blk.29.attn_output.weight"])
def test_a_product_of_the_real_model_is_the_emulations(gguf: Gguf, name: str, isa: str, bits: int) -> None:
    tensor = gguf.tensors[name]
    rows, cols = tensor.shape
    data = np.memmap(gguf.path, np.uint8, mode="r")
    raw = data[tensor.offset : tensor.offset + tensor.nbytes].tobytes()
    x = torch.from_numpy(np.random.default_rng(5).standard_t(3, (5, cols)).astype(np.float32))
    packed = _native.pack(tensor.dtype, rows, cols, raw)
    found = np.frombuffer(
        _native.matmul(isa, f"{tensor.dtype}x16", packed, rows, cols, x.numpy().tobytes(), bits), np.float32
    )
    expected = to_levels(x.double(), bits).numpy() @ dequantise(data, tensor).astype(np.float64).T
    assert np.abs(found.reshape(5, rows) - expected).max() < SUMMED * np.abs(expected).max()


def test_rounding_to_8_bits_keeps_what_is_on_the_grid_and_is_near_elsewhere() -> None:
    levels = torch.arange(-127, 128).repeat(2)[: 32 * 15].view(-1, 32).float()
    levels[:, 0] = 127
    torch.testing.assert_close(to_levels(levels * 0.25, 8), levels * 0.25, rtol=0, atol=0)
    x = spread(13, 64)
    for bits, top in LEVELS.items():
        steps = x.view(13, 2, 32).abs().amax(-1, keepdim=True) / top
        error = (to_levels(x, bits) - x).view(13, 2, 32).abs()
        assert bool((error <= 0.501 * steps + 2**-100).all())


def test_ties_go_to_the_even_level_and_what_is_not_finite_spoils_its_block_alone() -> None:
    block = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, *[0.0] * 26])
    assert to_levels(block, 8)[:6].tolist() == [127, 0, 2, 2, 0, -2]
    for odd in (float("nan"), float("inf")):
        x = torch.ones(64)
        x[40] = odd
        assert to_levels(x, 8)[:32].isfinite().all()
        assert to_levels(x, 8)[32:].isnan().all()


def test_only_block_quantised_matrices_take_levels(tiny_path: Path) -> None:
    """The tiny model's head is F16, so what changes its logits comes from the layers."""
    gguf = read(tiny_path)
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    config = llama_config(gguf)
    plain, coarse = (Llama(gguf, config, emulation, blocks=1) for emulation in (EXACT, Emulation(dtype=torch.float32)))
    torch.testing.assert_close(plain.head(hidden), coarse.head(hidden), rtol=0, atol=0)


def test_the_emulation_is_near_the_plain_oracle_and_not_equal(tiny_path: Path) -> None:
    plain = ReferenceExecutor(tiny_path, slots=1, blocks=7).text_logits(TOKENS)
    for emulation, most in [
        (Emulation(activation_bits=None, half_kv=False), 1e-5),
        (Emulation(activation_bits=None), 0.01),
        (Emulation(half_kv=False), 0.005),
        (Emulation(activation_bits=8, half_kv=False), 0.3),
        (Emulation(activation_bits=8), 0.3),
    ]:
        found = ReferenceExecutor(tiny_path, slots=1, blocks=7, emulate=emulation).text_logits(TOKENS)
        distance = np.abs(found - plain).max()
        assert most / 100 < distance < most


def test_numerics_tell_emulations_apart(tiny_path: Path) -> None:
    kinds = [EXACT, Emulation(), Emulation(half_kv=False), Emulation(activation_bits=8)]
    assert len({ReferenceExecutor(tiny_path, slots=1, blocks=1, emulate=kind).numerics for kind in kinds}) == 4


@pytest.mark.parametrize(("bits", "least", "most"), [(None, 0.0, 1e-5), (16, 0.0, 1e-4), (8, 1e-3, 0.02)])
def test_with_int8_a_last_bit_moves_the_real_model_as_far_as_int8_itself(
    model_path: Path, tokenizer: Tokenizer, bits: int | None, least: float, most: float
) -> None:
    """The same roundings, all else in float32 or float64. Hence no tolerance on logits can be asked of a whole text,
    and test_native_against_reference.py asks for other things."""
    text = tokenizer.encode(PROMPTS[-1])[:48]
    single, double = (
        ReferenceExecutor(model_path, slots=1, blocks=3, emulate=Emulation(bits, dtype=dtype)).text_logits(text)
        for dtype in (torch.float32, torch.float64)
    )
    assert least <= diverge(double, single, text).kl.mean() <= most
