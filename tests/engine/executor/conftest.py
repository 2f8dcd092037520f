from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    """Tests run beside one another: threads that wait for each other's turn make a step of 1 ms take 100."""
    torch.set_num_threads(1)
