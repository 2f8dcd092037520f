from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import gguf as oracle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.model.gguf import BLOCKS, MAX_HEAD_BYTES, Gguf, GgufError, read
from tests.engine.gguf_files import add_tensor, finish

NUMBERS = {"uint8": 200, "int8": -5, "uint16": 60_000, "int16": -300, "uint32": 1 << 31, "int32": -70_000}
NUMBERS |= {"uint64": 1 << 63, "int64": -(1 << 40)}
U32, STRING, ARRAY = 4, 8, 9


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def head(*keys: bytes, tensors: tuple[bytes, ...] = (), version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys)) + b"".join(keys) + b"".join(tensors)


def key(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str, shape: tuple[int, ...], dtype: int = 0, offset: int = 0) -> bytes:
    """`shape` in the file's order: the contiguous dimension first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, dtype, offset)


def padded(raw: bytes) -> bytes:
    return raw + bytes(-len(raw) % 32)


def sample_file() -> bytes:
    start = head(
        key("general.architecture", STRING, text("llama")),
        key("count", U32, struct.pack("<I", 7)),
        key("words", ARRAY, array(STRING, 3, text("a") + text("é") + text(""))),
        key("numbers", ARRAY, array(5, 3, struct.pack("<3i", 1, -2, 3))),
        key("nested", ARRAY, array(ARRAY, 2, array(STRING, 1, text("x")) + array(U32, 1, struct.pack("<I", 9)))),
        tensors=(tensor("a", (2, 3)), tensor("b", (32, 2), dtype=8, offset=32)),
    )
    return padded(start) + bytes(32 + 2 * 34)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refused(path: Path, data: bytes) -> str:
    """The message, which names the file and ends in a remedy."""
    with pytest.raises(GgufError) as caught:
        read(written(path, data))
    message = str(caught.value)
    assert str(path) in message
    assert re.search(r"; [a-z]", message), message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def plain(value: Any) -> Any:
    return [plain(item) for item in value] if not isinstance(value, str) and hasattr(value, "__len__") else value


def test_reads_what_the_gguf_package_writes(path: Path) -> None:
    writer = oracle.GGUFWriter(path, "llama")
    for name, value in NUMBERS.items():
        getattr(writer, f"add_{name}")(f"of.{name}", value)
    writer.add_float32("of.float32", 1.5)
    writer.add_float64("of.float64", 1e300)
    writer.add_bool("of.bool", True)
    writer.add_string("of.string", "mañana 日本 😀")
    writer.add_array("of.strings", ["a", "", "ü"])
    writer.add_array("of.integers", [1, -2, 3])
    writer.add_array("of.bools", [True, False])
    add_tensor(writer, "matrix", np.ones((3, 64), np.float32), "Q4_1")
    add_tensor(writer, "vector", np.arange(5, dtype=np.float32), "F32")
    finish(writer)

    found = read(path)

    assert {name: found.metadata[f"of.{name}"] for name in NUMBERS} == NUMBERS
    assert (found.metadata["of.float32"], found.metadata["of.float64"]) == (1.5, 1e300)
    assert found.metadata["of.bool"] is True
    assert found.metadata["of.string"] == "mañana 日本 😀"
    assert found.metadata["of.strings"] == ("a", "", "ü")
    assert list(found.metadata["of.integers"]) == [1, -2, 3]
    assert found.metadata["of.bools"] == (True, False)
    matrix, vector = found.tensors["matrix"], found.tensors["vector"]
    assert (matrix.dtype, matrix.shape, matrix.nbytes) == ("Q4_1", (3, 64), 3 * 2 * 20)
    data = path.read_bytes()[vector.offset : vector.offset + vector.nbytes]
    assert np.frombuffer(data, np.float32).tolist() == [0, 1, 2, 3, 4]


def test_reads_the_real_file_as_the_gguf_package_does(model_path: Path, gguf: Gguf) -> None:
    expected = oracle.GGUFReader(model_path)
    fields = {name: field for name, field in expected.fields.items() if not name.startswith("GGUF.")}
    assert list(gguf.metadata) == list(fields)
    assert all(plain(gguf.metadata[name]) == plain(field.contents()) for name, field in fields.items())
    assert [(t.name, t.dtype, t.shape, t.offset, t.nbytes) for t in gguf.tensors.values()] == [
        (t.name, t.tensor_type.name, tuple(t.shape.tolist())[::-1], t.data_offset, t.n_bytes) for t in expected.tensors
    ]


def test_block_sizes_are_those_of_the_gguf_package(path: Path) -> None:
    sizes = {kind.name: tuple(size) for kind, size in oracle.GGML_QUANT_SIZES.items()}
    assert all(sizes[name] == size for name, size in BLOCKS.items())
    for name, (elements, nbytes) in BLOCKS.items():
        code = oracle.GGMLQuantizationType[name].value
        data = padded(head(tensors=(tensor("t", (elements,), code),))) + bytes(nbytes)
        found = read(written(path, data)).tensors["t"]
        assert (found.dtype, found.nbytes) == (name, nbytes)


def test_reads_nested_arrays_and_version_2(path: Path) -> None:
    found = read(written(path, sample_file()))
    assert [list(part) for part in found.metadata["nested"]] == [["x"], [9]]
    assert found.tensors["b"].shape == (2, 32)
    assert read(written(path, head(version=2))).version == 2


def test_every_truncation_is_refused(path: Path) -> None:
    data = sample_file()
    read(written(path, data))
    for length in range(len(data)):
        refused(path, data[:length])


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, len(sample_file()) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(path: Path, damage: list[tuple[int, int]]) -> None:
    data = bytearray(sample_file())
    for at, byte in damage:
        data[at] = byte
    try:
        found = read(written(path, bytes(data)))
    except GgufError:
        return
    assert all(t.offset + t.nbytes <= len(data) for t in found.tensors.values())


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.booleans())
def test_noise_is_refused_or_read(path: Path, noise: bytes, with_magic: bool) -> None:
    try:
        read(written(path, b"GGUF" + struct.pack("<I", 3) + noise if with_magic else noise))
    except GgufError:
        return


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("metadata keys", b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE)),
        ("tensors", b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0)),
        ("key length", b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE)),
        ("string length", head(key("k", STRING, struct.pack("<Q", HUGE)))),
        ("array count", head(key("k", ARRAY, array(STRING, HUGE, b"")))),
        ("number count", head(key("k", ARRAY, array(U32, HUGE, b"")))),
        ("bool count", head(key("k", ARRAY, array(7, HUGE, b"")))),
        ("array of arrays", head(key("k", ARRAY, array(ARRAY, HUGE, b"")))),
        ("string in array", head(key("k", ARRAY, array(STRING, 1, struct.pack("<Q", HUGE))))),
        ("tensor dimension", head(tensors=(tensor("t", (HUGE, HUGE)),))),
        ("tensor offset", head(tensors=(tensor("t", (1,), offset=HUGE - 31),))),
    ],
)
def test_lengths_beyond_the_file_are_refused(path: Path, what: str, data: bytes) -> None:
    assert "at byte" in refused(path, data)


@pytest.mark.parametrize(
    ("part", "data"),
    [
        ("a ZIP archive or a PyTorch checkpoint; convert", b"PK\3\4" + bytes(40)),
        ("version 1", head(version=1)),
        ("big-endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0)),
        ("'k' appears twice", head(key("k", U32, bytes(4)), key("k", U32, bytes(4)))),
        ("'t' appears twice", padded(head(tensors=(tensor("t", (1,)), tensor("t", (1,), offset=32)))) + bytes(64)),
        ("unknown value type 77", head(key("k", 77, bytes(4)))),
        ("unknown value type 77", head(key("k", ARRAY, array(77, 1, bytes(4))))),
        ("not UTF-8", head(key("k", STRING, text(b"\xff\xfe")))),
        ("string 1 is not UTF-8", head(key("k", ARRAY, array(STRING, 2, text("a") + text(b"\xff"))))),
        ("more than 4 deep", head(key("k", ARRAY, array(ARRAY, 1, b"") * 4 + array(U32, 0, b"") + bytes(64)))),
        ("not a power of two", head(key("general.alignment", U32, struct.pack("<I", 24)))),
        ("not a power of two", head(key("general.alignment", STRING, text("32")))),
        ("0 dimensions", head(tensors=(tensor("t", ()),)) + bytes(64)),
        ("5 dimensions", head(tensors=(tensor("t", (1, 1, 1, 1, 1)),)) + bytes(64)),
        ("unknown type 99", head(tensors=(tensor("t", (1,), dtype=99),)) + bytes(64)),
        ("no multiple of 32", head(tensors=(tensor("t", (33,), dtype=3),)) + bytes(64)),
        ("no multiple of 1", head(tensors=(tensor("t", (0,)),)) + bytes(64)),
        ("no multiple of 32", padded(head(tensors=(tensor("t", (1,), offset=4),))) + bytes(64)),
        ("the file is cut short", padded(head(tensors=(tensor("t", (9,)),))) + bytes(35)),
    ],
)
def test_what_is_wrong_is_said(path: Path, part: str, data: bytes) -> None:
    assert part in refused(path, data)


def test_a_head_beyond_the_limit_is_refused(path: Path) -> None:
    with path.open("wb") as file:
        file.write(head(key("k", ARRAY, array(0, MAX_HEAD_BYTES, b""))))
        file.truncate(MAX_HEAD_BYTES + 4096)
    with pytest.raises(GgufError, match="longer than 64 MiB"):
        read(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "absent", "No such file"), (tmp_path, "directory")):
        with pytest.raises(GgufError, match=reason):
            read(path)
    assert "empty" in refused(tmp_path / "empty", b"")
