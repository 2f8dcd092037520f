from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.model.arch import LlamaConfig, llama_config
from engine.model.gguf import Gguf, GgufError, read
from tests.engine.gguf_files import TINY, write_llama


@pytest.fixture
def tiny(tiny_path: Path) -> Gguf:
    return read(tiny_path)


def with_keys(gguf: Gguf, **changes: Any) -> Gguf:
    """`a__b` stands for the key a.b; None removes it."""
    named = {name.replace("__", "."): value for name, value in changes.items()}
    metadata = {**gguf.metadata, **named}
    return replace(gguf, metadata={name: value for name, value in metadata.items() if value is not None})


def test_reads_the_real_model(gguf: Gguf) -> None:
    assert llama_config(gguf) == LlamaConfig(
        layers=30,
        hidden=576,
        ffn=1536,
        heads=9,
        kv_heads=3,
        head_dim=64,
        context=8192,
        vocab=49152,
        rope_theta=100_000.0,
        rms_eps=float(np.float32(1e-5)),
    )


def test_reads_a_tied_and_an_untied_head(tiny: Gguf, tmp_path: Path) -> None:
    assert llama_config(tiny) == TINY
    assert llama_config(read(write_llama(tmp_path / "tied.gguf", tied=True))) == TINY


def test_kv_heads_and_theta_have_the_formats_defaults(tiny: Gguf) -> None:
    with pytest.raises(GgufError, match=r"attn_k.weight' has the shape \(32, 64\), not \(64, 64\)"):
        llama_config(with_keys(tiny, llama__attention__head_count_kv=None))
    assert llama_config(with_keys(tiny, llama__rope__freq_base=None)).rope_theta == 10_000.0


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"general__architecture": "qwen2"}, "the architecture is 'qwen2'"),
        ({"general__architecture": None}, "the architecture is None"),
        ({"llama__block_count": None}, "'llama.block_count' is missing"),
        ({"llama__block_count": 0}, "'llama.block_count' is 0"),
        ({"llama__block_count": True}, "'llama.block_count' is True"),
        ({"llama__block_count": 3}, "'blk.2.attn_norm.weight' is missing"),
        ({"llama__block_count": 1}, "'blk.1.attn_norm.weight' is no part"),
        ({"llama__embedding_length": "64"}, "'llama.embedding_length' is '64'"),
        ({"llama__embedding_length": 128}, "has the shape (128, 64), not (128, 128)"),
        ({"llama__attention__head_count": 3}, "3 heads do not share 2 KV heads"),
        ({"llama__attention__key_length": 15}, "odd"),
        ({"llama__attention__value_length": 8}, "values of width 8"),
        ({"llama__rope__dimension_count": 8}, "RoPE on 8 of 16"),
        ({"llama__rope__scaling__type": "yarn"}, "RoPE scaling 'yarn'"),
        ({"llama__rope__freq_base": float("nan")}, "'llama.rope.freq_base' is nan"),
        ({"llama__attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon' is missing"),
        ({"tokenizer__ggml__tokens": ("a",)}, "1 tokens for 128 rows"),
    ],
)
def test_what_does_not_fit_is_said(tiny: Gguf, changes: dict[str, Any], part: str) -> None:
    with pytest.raises(GgufError) as caught:
        llama_config(with_keys(tiny, **changes))
    assert part in str(caught.value)
    assert str(caught.value).startswith(f"{tiny.path}: ")
    assert "; " in str(caught.value)


def test_tensors_are_held_against_the_configuration(tiny: Gguf) -> None:
    def refusal(name: str, **change: Any) -> str:
        tensors = {**tiny.tensors, name: tiny.tensors[name]._replace(**change)}
        with pytest.raises(GgufError) as caught:
            llama_config(replace(tiny, tensors=tensors))
        return str(caught.value)

    assert "has the shape (64, 95), not (64, 96)" in refusal("blk.0.ffn_down.weight", shape=(64, 95))
    assert "'blk.1.attn_v.weight' is Q6_K; quantise the model" in refusal("blk.1.attn_v.weight", dtype="Q6_K")
    assert "'output_norm.weight' is F16" in refusal("output_norm.weight", dtype="F16")
    assert "'output.weight' has the shape" in refusal("output.weight", shape=(127, 64))
    assert "'token_embd.weight' is missing" in _without(tiny, "token_embd.weight")
    assert "'blk.0.attn_q.weight' is missing" in _without(tiny, "blk.0.attn_q.weight")


def _without(gguf: Gguf, name: str) -> str:
    with pytest.raises(GgufError) as caught:
        llama_config(replace(gguf, tensors={key: value for key, value in gguf.tensors.items() if key != name}))
    return str(caught.value)
