"""A llama that rounds where the native executor does with float32 activations, and computes all else in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.executor.llama import Emulation
from engine.executor.reference import ReferenceExecutor
from engine.step import BLOCK_TOKENS


def exact_logits(path: Path, tokens: Sequence[int], *, int8_kv: bool = False) -> npt.NDArray[np.float32]:
    """[len(tokens), vocab]"""
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    emulate = Emulation(activation_bits=None, int8_kv=int8_kv)
    return ReferenceExecutor(path, slots=1, blocks=blocks, emulate=emulate).text_logits(tokens)
