"""A llama in a few lines of torch, in float32 over the executor's own weights, as they are multiplied: what its logits
are held to."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.executor.cuda import CudaExecutor
from engine.executor.gpu.buffers import angles
from engine.executor.gpu.matrix import GROUP, Matrix
from engine.executor.gpu.weights import Layer
from engine.model.arch import LlamaConfig


def logits(executor: CudaExecutor, config: LlamaConfig, tokens: Sequence[int], *, fp8: bool = False) -> Tensor:
    """After the last token, [vocab], on the CPU. fp8: keys and values are rounded to it."""
    weights, dtype = executor.weights, executor.weights.head.values.dtype
    hidden = dense(weights.embedding, dtype)[torch.tensor(tokens, device=executor.device.torch_device)]
    turns = angles(config, len(tokens)).to(hidden.device)
    for layer in weights.layers:
        hidden = hidden + _attention(config, layer, _norm(config, hidden, layer.attn_norm), turns, fp8, dtype)
        normed = _norm(config, hidden, layer.ffn_norm)
        gate, up = normed @ dense(layer.gate, dtype).T, normed @ dense(layer.up, dtype).T
        hidden = hidden + (F.silu(gate) * up) @ dense(layer.down, dtype).T
    return (_norm(config, hidden[-1:], weights.norm) @ dense(weights.head, dtype).T)[0].cpu()


def dense(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """[rows, cols], float32: of few bits rounded to the dtype, as before they are multiplied."""
    if matrix.bits not in (4, 8):
        return matrix.values.float()
    levels = matrix.values.float()
    if matrix.bits == 4:
        levels = torch.stack([matrix.values & 15, matrix.values >> 4], -1).flatten(1).float()
    values = levels.view(matrix.rows, -1, GROUP) * matrix.scales.float()[..., None]
    if matrix.bits == 4:
        values = values + matrix.minimums.float()[..., None]
    return values.view(matrix.rows, matrix.cols).to(dtype).float()


def _norm(config: LlamaConfig, hidden: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], weight, config.rms_eps)


def _attention(config: LlamaConfig, layer: Layer, x: Tensor, turns: Tensor, fp8: bool, dtype: torch.dtype) -> Tensor:
    count, dim = len(x), config.head_dim
    queries = _rope((x @ dense(layer.q, dtype).T).view(count, config.heads, dim), turns)
    keys = _rope((x @ dense(layer.k, dtype).T).view(count, config.kv_heads, dim), turns)
    values = (x @ dense(layer.v, dtype).T).view(count, config.kv_heads, dim)
    if fp8:
        keys, values = (part.to(torch.float8_e4m3fn).float() for part in (keys, values))
    keys, values = (part.repeat_interleave(config.heads // config.kv_heads, 1) for part in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(dim)
    future = torch.ones(count, count, device=x.device).triu(1).bool()
    weights = scores.masked_fill(future, -math.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values).reshape(count, -1) @ dense(layer.output, dtype).T


def _rope(vectors: Tensor, turns: Tensor) -> Tensor:
    half = vectors.shape[-1] // 2
    cosine, sine = turns[:, None, :half], turns[:, None, half:]
    even, odd = vectors[..., ::2], vectors[..., 1::2]
    return torch.stack([even * cosine - odd * sine, even * sine + odd * cosine], -1).flatten(-2)
