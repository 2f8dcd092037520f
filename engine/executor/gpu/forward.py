"""One forward pass over a step's tokens, as a fixed list of launches over fixed buffers."""

from __future__ import annotations

from collections.abc import Callable

from engine.executor.gpu import launch
from engine.executor.gpu.buffers import Buffers
from engine.executor.gpu.launch import Shape, Tiled
from engine.executor.gpu.weights import Layer, Weights

Ready = Callable[[int], None]
"""Called before a layer's weights are first read: 0 is the embedding, n + 1 layer n, and the last the head."""


def tiles_of(shape: Shape, tokens: int) -> int:
    """Most tiles of attention that a step of so many tokens can have."""
    return min(tokens, shape.slots + tokens // shape.tile_tokens)


def forward(
    shape: Shape, weights: Weights, buffers: Buffers, tokens: int, rows: int, ready: Ready = lambda layer: None
) -> None:
    """The step's first `tokens` tokens and `rows` sampling rows -> buffers.logits[:rows]. Tokens of no slot change
    nothing that another reads."""
    step = buffers.step
    residual, delta = buffers.residual[:tokens], buffers.delta[:tokens]
    tiled = Tiled(
        *(part[: tiles_of(shape, tokens)] for part in (step.tiled.slots, step.tiled.firsts, step.tiled.counts))
    )
    ready(0)
    launch.embed_tokens(
        shape, step.tokens[:tokens], step.slots[:tokens], buffers.slots.ints, weights.embedding, residual
    )
    for index, layer in enumerate(weights.layers):
        ready(index + 1)
        launch.add_norm(shape, residual, delta if index else None, layer.attn_norm, buffers.normed[:tokens])
        _attention(shape, layer, buffers, index, tokens, tiled)
        launch.add_norm(shape, residual, delta, layer.ffn_norm, buffers.normed[:tokens])
        _feed_forward(shape, layer, buffers, tokens)
    ready(len(weights.layers) + 1)
    gathered = buffers.gathered[:rows]
    launch.gather_norm(shape, residual, delta, weights.norm, step.sample_tokens[:rows], gathered)
    launch.multiply(shape.tiles, gathered, (weights.head,), buffers.logits[:rows])


def _attention(shape: Shape, layer: Layer, buffers: Buffers, index: int, tokens: int, tiled: Tiled) -> None:
    """normed -> delta"""
    config, step, normed = shape.config, buffers.step, buffers.normed[:tokens]
    qkv = buffers.qkv[:tokens]
    launch.multiply(shape.tiles, normed, (layer.q, layer.k, layer.v), qkv)
    positions, slots, table = step.positions[:tokens], step.slots[:tokens], buffers.table
    queries = buffers.queries[:tokens]
    keys, values = buffers.kv[index, 0], buffers.kv[index, 1]
    launch.rope_and_store(shape, qkv, buffers.angles, positions, slots, table, queries, keys, values)
    attended = buffers.attended[:tokens]
    launch.attend(
        shape, queries, keys, values, table, positions, slots, tiled, buffers.sums, buffers.parts,
        attended.view(tokens, config.heads, config.head_dim),
    )  # fmt: skip
    launch.multiply(shape.tiles, attended, (layer.output,), buffers.delta[:tokens])


def _feed_forward(shape: Shape, layer: Layer, buffers: Buffers, tokens: int) -> None:
    """normed -> delta"""
    ffn = buffers.ffn[:tokens]
    launch.gated(shape.tiles, buffers.normed[:tokens], layer.gate, layer.up, ffn)
    launch.multiply(shape.tiles, ffn, (layer.down,), buffers.delta[:tokens])
