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


TOKENS = ("<|im_start|>", "<|im_end|>", *map(chr, range(0x21, 0x7F)), "Ġ", "Ċ", "th", "the")
MERGES = ("t h", "th e")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"


def write_llama(
    path: Path, config: LlamaConfig = TINY, *, dtype: str = "Q4_1", tied: bool = False, text: bool = False
) -> Path:
    """A llama of random weights (always the same): matrices of `dtype`, embedding Q8_0, head F16 unless tied.

    text: with a byte-level vocabulary and a chat template.
    """
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, "llama")
    for key, value in _keys(config).items():
        if isinstance(value, float):
            writer.add_float32(f"llama.{key}", value)
        else:
            writer.add_uint32(f"llama.{key}", value)
    if text:
        _add_text(writer, config.vocab)
    for name, shape, _ in tensors_of(config):
        if name == "output.weight" and tied:
            continue
        values = random.normal(0.0, 0.15, shape).astype(np.float32)
        add_tensor(writer, name, values + 1 if len(shape) == 1 else values, _dtype(name, shape, dtype))
    finish(writer)
    return path


def _add_text(writer: Any, vocab: int) -> None:
    unused = [f"<unused {i}>" for i in range(vocab - len(TOKENS))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*TOKENS, *unused])
    writer.add_token_types([3, 3] + [1] * (len(TOKENS) - 2) + [5] * len(unused))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)


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
