"""The llama architecture as a GGUF file states it, held against the tensors the file has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from engine.model.gguf import Gguf, GgufError

ARCHITECTURE: Final = "llama"
MATRIX_DTYPES: Final = frozenset({"F32", "F16", "Q4_1", "Q8_0"})
VECTOR_DTYPES: Final = frozenset({"F32"})


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Shapes are (rows, columns) = (outputs, inputs); a token's activations are a row of `hidden` values."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    """Most positions the model was trained for."""
    vocab: int
    rope_theta: float
    rms_eps: float


def llama_config(gguf: Gguf) -> LlamaConfig:
    """Raises GgufError for another architecture, a missing or senseless key, and tensors that do not fit.

    The rows of attn_q and attn_k are in GGUF's order for llama: RoPE turns neighbouring pairs (2i, 2i + 1) of a head.
    """
    architecture = gguf.metadata.get("general.architecture")
    if architecture != ARCHITECTURE:
        raise _error(gguf, f"the architecture is {architecture!r}", f"this engine runs {ARCHITECTURE!r} models")
    config = _config(gguf)
    _check_config(gguf, config)
    for name, shape, dtypes in tensors_of(config):
        if name == "output.weight" and name not in gguf.tensors:
            continue
        _check_tensor(gguf, name, shape, dtypes)
    known = {name for name, _, _ in tensors_of(config)}
    if extra := next((name for name in gguf.tensors if name not in known), None):
        raise _error(gguf, f"the tensor {extra!r} is no part of a plain llama model", "use a model without it")
    return config


def tensors_of(config: LlamaConfig) -> Iterator[tuple[str, tuple[int, ...], frozenset[str]]]:
    """Name, shape and allowed dtypes of every tensor. `output.weight` may be absent: token_embd then serves as head."""
    hidden, ffn = config.hidden, config.ffn
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    yield "token_embd.weight", (config.vocab, hidden), MATRIX_DTYPES
    for layer in range(config.layers):
        prefix = f"blk.{layer}"
        yield f"{prefix}.attn_norm.weight", (hidden,), VECTOR_DTYPES
        yield f"{prefix}.attn_q.weight", (queries, hidden), MATRIX_DTYPES
        yield f"{prefix}.attn_k.weight", (keys, hidden), MATRIX_DTYPES
        yield f"{prefix}.attn_v.weight", (keys, hidden), MATRIX_DTYPES
        yield f"{prefix}.attn_output.weight", (hidden, queries), MATRIX_DTYPES
        yield f"{prefix}.ffn_norm.weight", (hidden,), VECTOR_DTYPES
        yield f"{prefix}.ffn_gate.weight", (ffn, hidden), MATRIX_DTYPES
        yield f"{prefix}.ffn_up.weight", (ffn, hidden), MATRIX_DTYPES
        yield f"{prefix}.ffn_down.weight", (hidden, ffn), MATRIX_DTYPES
    yield "output_norm.weight", (hidden,), VECTOR_DTYPES
    yield "output.weight", (config.vocab, hidden), MATRIX_DTYPES


def _config(gguf: Gguf) -> LlamaConfig:
    heads = _integer(gguf, "llama.attention.head_count")
    hidden = _integer(gguf, "llama.embedding_length")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise _error(gguf, "the tensor 'token_embd.weight' is missing", "convert the model again")
    return LlamaConfig(
        layers=_integer(gguf, "llama.block_count"),
        hidden=hidden,
        ffn=_integer(gguf, "llama.feed_forward_length"),
        heads=heads,
        kv_heads=_integer(gguf, "llama.attention.head_count_kv", heads),
        head_dim=_integer(gguf, "llama.attention.key_length", hidden // heads),
        context=_integer(gguf, "llama.context_length"),
        vocab=embedding.shape[0],
        rope_theta=_real(gguf, "llama.rope.freq_base", 10_000.0),
        rms_eps=_real(gguf, "llama.attention.layer_norm_rms_epsilon"),
    )


def _check_config(gguf: Gguf, config: LlamaConfig) -> None:
    if config.heads % config.kv_heads:
        raise _error(gguf, f"{config.heads} heads do not share {config.kv_heads} KV heads", "convert the model again")
    if config.head_dim % 2:
        raise _error(gguf, f"the head width {config.head_dim} is odd, RoPE needs pairs", "convert the model again")
    rotated = _integer(gguf, "llama.rope.dimension_count", config.head_dim)
    if rotated != config.head_dim:
        raise _error(gguf, f"RoPE on {rotated} of {config.head_dim} dimensions is not supported", "use another model")
    values = _integer(gguf, "llama.attention.value_length", config.head_dim)
    if values != config.head_dim:
        raise _error(gguf, f"values of width {values} beside keys of {config.head_dim}", "use another model")
    scaling = gguf.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none":
        raise _error(gguf, f"RoPE scaling {scaling!r} is not supported", "use a model without it")
    tokens = gguf.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, tuple) and len(tokens) != config.vocab:
        raise _error(gguf, f"{len(tokens)} tokens for {config.vocab} rows of token_embd", "convert the model again")


def _check_tensor(gguf: Gguf, name: str, shape: tuple[int, ...], dtypes: frozenset[str]) -> None:
    tensor = gguf.tensors.get(name)
    if tensor is None:
        raise _error(gguf, f"the tensor {name!r} is missing", "convert the model again")
    if tensor.shape != shape:
        raise _error(gguf, f"the tensor {name!r} has the shape {tensor.shape}, not {shape}", "convert the model again")
    if tensor.dtype not in dtypes:
        wanted = ", ".join(sorted(dtypes))
        raise _error(gguf, f"the tensor {name!r} is {tensor.dtype}", f"quantise the model to one of {wanted}")


def _integer(gguf: Gguf, key: str, default: int | None = None) -> int:
    value = gguf.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise _error(gguf, f"the metadata key {key!r} is {_shown(value)}, not a count", "convert the model again")
    return value


def _real(gguf: Gguf, key: str, default: float | None = None) -> float:
    value = gguf.metadata.get(key, default)
    if not isinstance(value, float) or not 0.0 < value < float("inf"):
        raise _error(gguf, f"the metadata key {key!r} is {_shown(value)}, not a number > 0", "convert the model again")
    return value


def _shown(value: object) -> str:
    return "missing" if value is None else repr(value)[:40]


def _error(gguf: Gguf, what: str, remedy: str) -> GgufError:
    return GgufError(f"{gguf.path}: {what}; {remedy}")
