"""The real model on the GPU executor, interpreted: the oracle's tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.executor.cuda import CudaExecutor
from engine.executor.gpu.device import CpuDevice
from engine.executor.reference import ReferenceExecutor
from engine.model.gpu_image import packer
from engine.model.gpu_layout import GpuSizes
from engine.model.pack import pack
from tests.engine.executor.driver import Driver

PROMPT = [1, 4093, 198, 1780, 314, 260, 3575, 282]


@pytest.mark.long
@pytest.mark.parametrize("kept", [True, False], ids=["of few bits", "dense"])
def test_tokens_of_the_real_model_are_the_oracles(
    model_path: Path, tmp_path: Path, reference: ReferenceExecutor, kept: bool
) -> None:
    image = pack(model_path, tmp_path / "image", packer("f32", kept=kept))
    sizes = GpuSizes(step_tokens=8, slots=2, blocks=4, context=64, dtype="f32")
    drive, oracle = Driver(CudaExecutor(image, CpuDevice(), sizes)), Driver(reference)
    found, expected = (one.generate(PROMPT, 3, blocks=(0, 1)) for one in (drive, oracle))
    assert found == expected
    np.testing.assert_allclose(drive.logits(), oracle.logits(), atol=2e-3)
    drive.executor.close()
