"""The kernels run in numpy here: Triton decides that when they are imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed: scripts/install --dev")

from tests.engine.executor.gpu.interpreter import quicken

quicken()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Infinities and NaN are computed with on purpose, and numpy, unlike a GPU, warns of each."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::RuntimeWarning"))
