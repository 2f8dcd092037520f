"""Triton's interpreter at less cost: without what it does at every launch, and need not where all memory is the CPU's.

The one file that touches what triton keeps to itself; test_interpreter.py fails where that has changed.
"""

from __future__ import annotations

from functools import wraps
from inspect import ismodule
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def quicken() -> None:
    """In this process, for good."""
    patch, restore = interpreter._patch_lang, interpreter.GridExecutor._restore_args_dev
    done: set[str] = set()

    @wraps(patch)
    def patch_once(fn: FunctionType) -> Any:
        """The language stays as the interpreter wants it, instead of being made so by every call of every function:
        nothing is compiled in the same process."""
        seen = {module.__name__ for module in fn.__globals__.values() if ismodule(module) and module in (tl, tl.core)}
        if not seen <= done:
            done.update(seen)
            patch(fn)
        return interpreter._LangPatchScope()

    @wraps(restore)
    def nothing(*_: Any) -> None:
        """In place of a copy of every storage that a kernel was given, of all weights, as a whole onto itself."""

    interpreter._patch_lang = patch_once
    interpreter.GridExecutor._restore_args_dev = nothing
