"""The GPU executor: steps as CUDA graphs of Triton kernels, enqueued one ahead, over one arena.

A step is two works on the device, in one order: the forward pass, begun when the plan is submitted, and the sampling,
once the masks of its constrained slots are there. Sampled ids stay on the device, where the next step's decode rows
find them; the host waits in `collect` alone, for results that the device has copied to pinned memory.

On torch's CPU device (gpu/device.py) the same code runs with its kernels interpreted. Not run on a GPU yet.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.executor.base import Executor, Limits
from engine.executor.gpu import state
from engine.executor.gpu.blocks import Blocks
from engine.executor.gpu.buffers import DTYPES, Arena, Buffers, angles
from engine.executor.gpu.device import Device, Mark
from engine.executor.gpu.host import HostSlots, Staging
from engine.executor.gpu.launch import Shape, agree
from engine.executor.gpu.tiles import Tiles
from engine.executor.gpu.weights import Weights, spans, views
from engine.executor.gpu.works import Works
from engine.executor.kernels import slot as fields
from engine.executor.plans import check, check_block, check_content, check_depth, result
from engine.executor.upload import Uploader
from engine.executor.upload_torch import DeviceWeights, MappedBytes
from engine.model import gpu_layout
from engine.model.gpu_layout import GpuSizes
from engine.step import Finish, Logprobs, Row, RowResult, Sampling, StepPlan, StepResult

if TYPE_CHECKING:
    from engine.model.arch import LlamaConfig
    from engine.model.image import Image

_FINISH = {0: None, fields.STOP.value: Finish.STOP, fields.ERROR.value: Finish.ERROR}


@dataclass(slots=True)
class _Slot:
    sampling: Sampling
    samples: bool = False
    """A plan that was submitted samples in it."""


@dataclass(slots=True)
class _Step:
    plan: StepPlan
    sampled: list[tuple[Row, Sampling]]
    staging: Staging
    rows: int
    """Sampling rows that it is padded to."""
    masks: dict[int, bytes | None] = field(default_factory=dict)
    began: Mark | None = None
    ended: Mark | None = None

    @property
    def missing(self) -> list[int]:
        """Slots whose masks it waits for."""
        return [row.slot for row, sampling in self.sampled if sampling.constrained and row.slot not in self.masks]


class CudaExecutor(Executor):
    widens: bool
    """Whether many rows have tiles of their own, which give the bits of those for few."""

    def __init__(self, image: Image, device: Device, sizes: GpuSizes) -> None:
        """image: packed for a GPU, in the dtype of `sizes`.

        The weights are still on their way when this returns: the first step follows them, layer by layer. Raises
        ValueError for tensors that the kernels cannot read, RuntimeError where there is too little memory.
        """
        config = image.config
        self._device, self._sizes = device, sizes
        section = image.sections["weights"]
        order = spans(image.tensors, section.offset, config.layers)
        self._weights = DeviceWeights(
            MappedBytes(image.path, section.offset, section.nbytes), order, device.torch_device
        )
        self._views = views(self._weights.arena, section.offset, image.tensors, config)
        self._slots: dict[int, _Slot] = {}
        self._steps: deque[_Step] = deque()
        self._collected: set[int] = set()
        """Slots whose last logits are there."""
        self._asleep = self._closed = False
        self._uploaded_s = 0.0
        self._upload: Uploader | None = self._weights.upload()
        with self._unless_it_fails():
            tiles, self.widens = self._tiles(config)
            self._shape = Shape(config, sizes.context, sizes.slots, tiles, sizes.part)
            kinds = f"{'' if self.widens else 'narrow-'}{sizes.dtype}-kv{sizes.kv_dtype}-part{sizes.part}"
            super().__init__(
                Limits(sizes.slots, sizes.blocks, sizes.step_tokens, sizes.context, config.vocab),
                f"gpu-2-{device.name}-{kinds}-{image.layout}-{image.digest}",
            )
            with device.order():
                self._arena = Arena(config, sizes, device.torch_device)
            device.settle()  # or its zeros could come after what is written beside the steps
            self._buffers = Buffers(self._arena, self._shape, sizes)
            self._host = HostSlots(device, self._shape, sizes.slots)
            self._ring = deque(Staging(device, self._shape, sizes) for _ in range(self.depth + 1))
            self._blocks = Blocks(device, self._buffers)
            self._works = self._prepared()

    @property
    def device(self) -> Device:
        return self._device

    @property
    def weights(self) -> Weights:
        """On the device. For checks."""
        return self._views

    @property
    def block_bytes(self) -> int:
        return gpu_layout.kv_block_bytes(self._shape.config, self._sizes)

    def submit(self, plan: StepPlan) -> None:
        """Raises ValueError naming what breaks the contract, RuntimeError beyond `depth` plans or once closed."""
        self._open()
        check_depth(len(self._steps), self.depth)
        check(plan, self._limits, self._slots, lambda slot: self._slots[slot].samples)
        for row in plan.rows:
            if row.opens is not None and (problem := state.check(row.opens, self._limits.vocab)):
                raise ValueError(f"step {plan.step}, slot {row.slot}: {problem}")
        for row in plan.rows:
            if row.opens is not None:
                self._slots[row.slot] = _Slot(row.opens)
            self._slots[row.slot].samples |= row.sample
        sampled = [(row, self._slots[row.slot].sampling) for row in plan.rows if row.sample]
        self._ring.rotate(-1)
        tokens = sum(row.count for row in plan.rows)
        self._steps.append(_Step(plan, sampled, self._ring[0], self._works.rows(self._works.padded(tokens))))
        self._advance()

    def allow(self, slot: int, step: int, mask: bytes | None) -> None:
        """Raises ValueError for a mask that is too short, or of a step that is not submitted."""
        if mask is not None and len(mask) < 4 * self._shape.words:
            raise ValueError(f"a mask of {len(mask)} bytes; a bit a token, in words, are {4 * self._shape.words}")
        found = next((one for one in self._steps if one.plan.step == step), None)
        if found is None:
            raise ValueError(f"step {step} is not submitted")
        found.masks[slot] = mask
        self._advance()

    def collect(self) -> StepResult:
        """Raises RuntimeError if nothing is submitted, or the oldest plan waits for a mask."""
        if not self._steps:
            raise RuntimeError("there is nothing to collect")
        step = self._steps[0]
        if step.began is None or step.ended is None:
            raise RuntimeError(f"step {step.plan.step} waits for the masks of slots {step.missing}")
        step.ended.wait()
        self._steps.popleft()
        if self._upload is not None:
            self._uploaded_s = self._upload.finish()
            self._upload = None
        return result(step.plan, dict(self._results(step)), step.began.seconds(), step.ended.seconds())

    def logits(self, slot: int) -> array[float]:
        if self._steps:
            raise RuntimeError("logits can be read only while no plan is submitted")
        if slot not in self._collected:
            raise ValueError(f"slot {slot} has sampled nothing yet")
        return array("f", self._buffers.slots.logits[slot].tolist())

    def phases(self) -> tuple[tuple[str, float], ...]:
        """The weights come beside the others."""
        works = self._works
        return ("kernels", works.compiled_s), ("graphs", works.captured_s), ("weights", self._uploaded_s)

    def read_block(self, block: int) -> bytes:
        """Keys and values of each layer, each [kv_heads, 16, head_dim]."""
        check_block(block, self._limits)
        self._wake()
        return self._blocks.read(block)

    def write_block(self, block: int, content: bytes | memoryview) -> None:
        check_block(block, self._limits)
        check_content(content, self.block_bytes)
        self._wake()
        self._blocks.write(block, content)

    def release(self) -> None:
        """The weights too leave the device: they stay mapped, and come again with the next step."""
        if self._steps:
            raise RuntimeError("memory can be released only while no plan is submitted")
        if not self._asleep:
            self._give_back()
            self._slots.clear()
            self._collected.clear()
            self._host.forget()
            self._asleep = True

    def close(self) -> None:
        """Waits for no mask: what has not begun never does."""
        if not self._closed:
            self._closed = True
            self._steps.clear()
            self._give_back()

    def _tiles(self, config: LlamaConfig) -> tuple[Tiles, bool]:
        """And whether they are the device's own: not where its narrow and wide one do not agree."""
        sizes = self._sizes
        tiles = self._device.tiles(gpu_layout.WIDTHS[sizes.dtype], config.head_dim, config.heads // config.kv_heads)
        with self._device.order():
            kinds = {self._views.head.bits, *(m.bits for layer in self._views.layers for m in layer.matrices)}
            if tiles == tiles.one or agree(self._device.torch_device, tiles, DTYPES[sizes.dtype], kinds):
                return tiles, True
        return tiles.one, False

    def _prepared(self) -> Works:
        """Compiled and captured, while the weights are on their way."""
        with self._device.order():
            self._buffers.angles.copy_(angles(self._shape.config, self._shape.context))
            return Works(self._device, self._shape, self._views, self._buffers, self._sizes)

    def _wake(self) -> None:
        self._open()
        if self._asleep:
            self._upload = self._weights.wake()
            with self._unless_it_fails():
                with self._device.order():
                    self._arena.restore()
                self._device.settle()
                self._works = self._prepared()
            self._asleep = False

    def _give_back(self) -> None:
        self._finish_upload()
        self._device.settle()
        self._works.drop()
        self._arena.drop()
        self._weights.sleep()

    @contextmanager
    def _unless_it_fails(self) -> Iterator[None]:
        """An upload that is under way ends with what needs it."""
        try:
            yield
        except BaseException:
            self._finish_upload()
            raise

    def _open(self) -> None:
        if self._closed:
            raise RuntimeError("the executor is closed")

    def _finish_upload(self) -> None:
        if self._upload is not None:
            upload, self._upload = self._upload, None
            upload.cancel()
            try:
                upload.finish()
            except RuntimeError:
                self._device.settle()  # cancelled: nobody reads these weights

    def _advance(self) -> None:
        """Gives the device what can be given, in order."""
        self._wake()
        with self._device.order():
            for step in self._steps:
                if step.began is None:
                    self._begin(step)
                if step.ended is None:
                    if step.missing:
                        return
                    self._sample(step)

    def _begin(self, step: _Step) -> None:
        self._host.update(self._buffers, step.staging, step.plan.rows)
        step.staging.describe(self._buffers, step.plan.rows)
        step.began = self._device.mark()
        tokens = self._works.padded(sum(row.count for row in step.plan.rows))
        if self._upload is not None:
            self._works.run(tokens, self._upload.wait)
        elif step.plan.rows:
            self._works.forward(tokens)

    def _sample(self, step: _Step) -> None:
        if step.sampled:
            step.staging.allow(self._buffers, [(row.slot, step.masks.get(row.slot)) for row, _ in step.sampled])
            self._works.sample(step.rows, any(sampling.temperature for _, sampling in step.sampled))
            told = any(sampling.logprobs is not None for _, sampling in step.sampled)
            if told:
                self._works.tell(step.rows)
            step.staging.fetch(self._buffers, len(step.sampled), told)
        step.ended = self._device.mark()

    def _results(self, step: _Step) -> list[tuple[int, RowResult]]:
        found: list[tuple[int, RowResult]] = []
        outcomes = step.staging.results(len(step.sampled))
        for index, ((row, sampling), (token, finish)) in enumerate(zip(step.sampled, outcomes, strict=True)):
            if token >= 0 or finish:
                self._collected.add(row.slot)
            if token < 0:
                found.append((row.slot, RowResult(row.slot, finish=_FINISH[finish])))
                continue
            told: tuple[Logprobs, ...] = ()
            if sampling.logprobs is not None:
                sampled, ids, values = step.staging.told(index, sampling.logprobs)
                told = (Logprobs(sampled, tuple(zip(ids, values, strict=True))),)
            found.append((row.slot, RowResult(row.slot, (token,), _FINISH[finish], told)))
        return found
