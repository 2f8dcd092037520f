from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.executor.reference import ReferenceExecutor


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Tests run beside one another: threads that wait for each other's turn make a step of 1 ms take 100."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def reference(model_path: Path) -> Iterator[ReferenceExecutor]:
    """The real model; tests share it and open their own slots."""
    executor = ReferenceExecutor(model_path, slots=16, blocks=256)
    yield executor
    executor.close()
