"""A llama that rounds where the native executor does, and computes all else in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engine.executor.llama import Emulation
from engine.executor.reference import ReferenceExecutor
from engine.step import BLOCK_TOKENS


def exact_logits(path: Path, tokens: Sequence[int], *, int8: bool = False) -> npt.NDArray[np.float32]:
    """[len(tokens), vocab]"""
    blocks = -(-len(tokens) // BLOCK_TOKENS)
    return ReferenceExecutor(path, slots=1, blocks=blocks, emulate=Emulation(int8=int8)).text_logits(tokens)
