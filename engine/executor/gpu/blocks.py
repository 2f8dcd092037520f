"""KV blocks to the host and back, beside the steps: through one block of the arena, where its layers lie together, and
one of pinned memory."""

from __future__ import annotations

import numpy as np
import torch

from engine.executor.gpu.buffers import Buffers
from engine.executor.gpu.device import Device, Mark


class Blocks:
    """Belongs to the engine's thread. Asks nobody for memory once it is made."""

    def __init__(self, device: Device, buffers: Buffers) -> None:
        self._device, self._buffers = device, buffers
        whole = buffers.block
        self._pinned = device.pinned(whole.numel() * whole.element_size(), dtype=torch.uint8)
        self._staged = self._pinned.view(whole.dtype).view(whole.shape)
        self._sent: Mark | None = None
        """When what was written last had left pinned memory."""

    def read(self, block: int) -> bytes:
        """Of each layer keys and values, each [kv_heads, 16, head_dim]. The steps that wrote them are done."""
        with self._device.beside():
            self._buffers.block.copy_(self._buffers.kv[:, :, block])
            self._staged.copy_(self._buffers.block, non_blocking=True)
            mark = self._device.mark()
        mark.wait()
        return self._pinned.numpy().tobytes()

    def write(self, block: int, content: bytes | memoryview) -> None:
        """Steps that are begun from now on find it."""
        if self._sent is not None:
            self._sent.wait()
        self._pinned.numpy()[:] = np.frombuffer(content, np.uint8)
        with self._device.beside():
            self._buffers.block.copy_(self._staged, non_blocking=True)
            self._buffers.kv[:, :, block].copy_(self._buffers.block)
            self._sent = self._device.mark()
        self._device.join()
