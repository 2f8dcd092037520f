"""GGUF files made for tests, written by the `gguf` package: an implementation of the format that is not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

from engine.model.arch import LlamaConfig, tensors_of

TINY = LlamaConfig(
    layers=2,
    hidden=64,
    ffn=96,
    heads=4,
    kv_heads=2,
    head_dim=16,
    context=256,
    vocab=128,
    rope_theta=10_000.0,
    rms_eps=9.999999747378752e-06,
)


def write_llama(path: Path, config: LlamaConfig = TINY, *, dtype: str = "Q4_1", tied: bool = False) -> Path:
    """A llama of random weights (always the same): matrices of `dtype`, embedding Q8_0, head F16 unless tied."""
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, "llama")
    for key, value in _keys(config).items():
        if isinstance(value, float):
            writer.add_float32(f"llama.{key}", value)
        else:
            writer.add_uint32(f"llama.{key}", value)
    for name, shape, _ in tensors_of(config):
        if name == "output.weight" and tied:
            continue
        values = random.normal(0.0, 0.15, shape).astype(np.float32)
        add_tensor(writer, name, values + 1 if len(shape) == 1 else values, _dtype(name, shape, dtype))
    finish(writer)
    return path


def add_tensor(writer: Any, name: str, values: np.ndarray[Any, Any], dtype: str) -> None:
    kind = GGMLQuantizationType[dtype]
    writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _keys(config: LlamaConfig) -> dict[str, int | float]:
    return {
        "block_count": config.layers,
        "embedding_length": config.hidden,
        "feed_forward_length": config.ffn,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "context_length": config.context,
        "vocab_size": config.vocab,
        "rope.freq_base": config.rope_theta,
        "attention.layer_norm_rms_epsilon": config.rms_eps,
    }


def _dtype(name: str, shape: tuple[int, ...], dtype: str) -> str:
    if len(shape) == 1:
        return "F32"
    return {"token_embd.weight": "Q8_0", "output.weight": "F16"}.get(name, dtype)
