"""A llama in float64 numpy, with keys and values rounded to float16 as the native executor keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.executor.dequantise import dequantise
from engine.model.arch import llama_config
from engine.model.gguf import read

Doubles = npt.NDArray[np.float64]


def exact_logits(path: Path, tokens: Sequence[int]) -> Doubles:
    """[len(tokens), vocab]"""
    gguf = read(path)
    config = llama_config(gguf)
    data = np.fromfile(path, np.uint8)
    weights = {name: dequantise(data, tensor).astype(np.float64) for name, tensor in gguf.tensors.items()}
    count, group = len(tokens), config.heads // config.kv_heads

    def norm(x: Doubles, name: str) -> Doubles:
        scale: Doubles = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_eps)
        return x * scale * weights[name]

    def heads(x: Doubles, name: str) -> Doubles:
        return (x @ weights[name].T).reshape(count, -1, config.head_dim)

    frequencies = config.rope_theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
    turn = np.exp(1j * np.arange(count)[:, None] * frequencies)[:, None, :]

    def rotated(x: Doubles) -> Doubles:
        pairs = (x[..., 0::2] + 1j * x[..., 1::2]) * turn
        return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)

    hidden = weights["token_embd.weight"][list(tokens)]
    future = np.triu(np.ones((count, count), bool), 1)
    for layer in range(config.layers):
        x = norm(hidden, f"blk.{layer}.attn_norm.weight")
        q = rotated(heads(x, f"blk.{layer}.attn_q.weight"))
        k = rotated(heads(x, f"blk.{layer}.attn_k.weight")).astype(np.float16).astype(np.float64)
        v = heads(x, f"blk.{layer}.attn_v.weight").astype(np.float16).astype(np.float64)
        scores = np.einsum("qhd,khd->hqk", q, k.repeat(group, 1)) / np.sqrt(config.head_dim)
        scores = np.exp(np.where(future, -np.inf, scores - scores.max(-1, keepdims=True)))
        mixed = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v.repeat(group, 1))
        hidden = hidden + mixed.reshape(count, -1) @ weights[f"blk.{layer}.attn_output.weight"].T
        x = norm(hidden, f"blk.{layer}.ffn_norm.weight")
        gate, up = (x @ weights[f"blk.{layer}.ffn_{part}.weight"].T for part in ("gate", "up"))
        hidden = hidden + (gate / (1 + np.exp(-gate)) * up) @ weights[f"blk.{layer}.ffn_down.weight"].T
    head = weights.get("output.weight", weights["token_embd.weight"])
    logits: Doubles = norm(hidden, "output_norm.weight") @ head.T
    return logits
