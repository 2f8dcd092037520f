"""Damages model files byte by byte and number by number, and runs what is not refused. A program of its own, since it
is run with the compiler's sanitizers in the process:

    python -m tests.engine.executor.hostile_files NATIVE_MODULE MODEL.gguf FOLDER ROUNDS

What is refused must be refused by an error that a start expects; everything else ends the program.
"""

from __future__ import annotations

import importlib.util
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import xxhash

EXPECTED = (ValueError, OSError, RuntimeError, MemoryError)
"""What engine/startup.py turns into a message."""
SIZES: dict[str, Any] = {"threads": 2, "slots": 2, "blocks": 8, "context": 64, "step_tokens": 32}
INTERESTING = (0, 1, -1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1, 31, 33, 64, 4096)


def use_native(module: Path) -> None:
    """In place of the one that is installed."""
    spec = importlib.util.spec_from_file_location("engine._native", module)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules["engine._native"] = found
    spec.loader.exec_module(found)
    import engine

    vars(engine)["_native"] = found


def flipped(content: bytes, chance: random.Random, start: int, end: int) -> bytes:
    """A few bytes of [start, end) changed: bits, any value, or four or eight that are an interesting number."""
    damaged = bytearray(content)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(start, end)
        match chance.randrange(4):
            case 0:
                damaged[at] ^= 1 << chance.randrange(8)
            case 1:
                damaged[at] = chance.randrange(256)
            case kind:
                size = 4 if kind == 2 else 8
                value = chance.choice(INTERESTING) % (1 << 8 * size)
                damaged[at : at + size] = value.to_bytes(size, "little")[: max(0, end - at)]
    return bytes(damaged)


def renumbered(value: Any, chance: random.Random) -> Any:
    """JSON in which about one number of ten is another."""
    if isinstance(value, dict):
        return {key: renumbered(item, chance) for key, item in value.items()}
    if isinstance(value, list):
        return [renumbered(item, chance) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.02:
        return chance.choice((value + 1, max(0, value - 1), value * 2, value ^ 1 << chance.randrange(40), 2**63 - 1))
    return value


def with_header(content: bytes, header: bytes) -> bytes:
    """An image whose hashes are right, whatever its header says."""
    from engine.model.image import PREAMBLE

    *first, offset, _, _, _ = PREAMBLE.unpack_from(content)
    hashed = PREAMBLE.pack(*first, offset, len(header), xxhash.xxh3_64_intdigest(header), 0)[:-8]
    preamble = hashed + struct.pack("<Q", xxhash.xxh3_64_intdigest(hashed))
    return preamble + content[PREAMBLE.size : offset] + header


def run(model: Any, config: Any, bits: int) -> None:
    """A prompt and a few steps."""
    from engine.executor.native import NativeExecutor
    from engine.step import Row, Sampling, StepPlan

    executor = NativeExecutor(model, config, activation_bits=bits, **SIZES)
    try:
        opens = Sampling(temperature=0.8, top_p=0.9, seed=5, logprobs=3)
        executor.submit(StepPlan(1, (Row(0, 0, (7,) * 20, (3, 1, 4), True, opens),)))
        for step in range(2, 5):
            executor.submit(StepPlan(step, (Row(0, 18 + step, (), (3, 1, 4), True),)))
            executor.collect()
        executor.collect()
        executor.residency()
    finally:
        executor.close()


def try_image(content: bytes, path: Path) -> None:
    from engine.executor.native import PACKER
    from engine.model.image import read

    path.write_bytes(content)
    image = read(path, PACKER.layout)
    run(image, image.config, 16)
    image.vocabulary()


def try_gguf(content: bytes, path: Path) -> None:
    from engine.executor.native import PACKER
    from engine.model.arch import llama_config
    from engine.model.gguf import read
    from engine.model.pack import pack

    path.write_bytes(content)
    gguf = read(path)
    run(gguf, llama_config(gguf), 16)
    packed = pack(path, path.with_suffix(".packed"), PACKER)
    run(packed, packed.config, 8)


def damages(gguf: bytes, image: bytes, chance: random.Random) -> list[tuple[Callable[[bytes, Path], None], bytes]]:
    """One of each kind."""
    from engine.model.image import PREAMBLE

    _, _, _, _, offset, nbytes, _, _ = PREAMBLE.unpack_from(image)
    header = image[offset : offset + nbytes]
    numbers = orjson.dumps(renumbered(orjson.loads(header), chance), option=orjson.OPT_PASSTHROUGH_SUBCLASS)
    head = min(len(gguf), 4096)
    return [
        (try_image, flipped(image, chance, 0, len(image))),
        (try_image, flipped(image, chance, PREAMBLE.size, offset)),
        (try_image, with_header(image, flipped(header, chance, 0, len(header)))),
        (try_image, with_header(image, numbers)),
        (try_image, image[: chance.randrange(len(image))]),
        (try_gguf, flipped(gguf, chance, 0, head)),
        (try_gguf, flipped(gguf, chance, 0, len(gguf))),
        (try_gguf, gguf[: chance.randrange(len(gguf))]),
    ]


def main(module: str, source: str, folder: str, rounds: str) -> None:
    use_native(Path(module))
    from engine.executor.native import PACKER
    from engine.model.pack import pack

    out = Path(folder)
    gguf = Path(source).read_bytes()
    image = pack(Path(source), out / "sound.image", PACKER).path.read_bytes()
    try_gguf(gguf, out / "sound.gguf")
    try_image(image, out / "sound.image")
    ran, refused = 0, 0
    for index in range(int(rounds)):
        for attempt, content in damages(gguf, image, random.Random(index)):
            try:
                attempt(content, out / "damaged")
                ran += 1
            except EXPECTED:
                refused += 1
    print(f"{ran} ran, {refused} refused")
    assert min(ran, refused) > int(rounds) // 2, "damage that is always or never refused tells nothing"


if __name__ == "__main__":
    main(*sys.argv[1:])
