from __future__ import annotations

import os
import struct
from array import array
from pathlib import Path

import orjson
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.model.contents import digest_of
from engine.model.gguf import BLOCKS, GgufError
from engine.model.gguf import read as read_gguf
from engine.model.image import (
    MAGIC,
    PREAMBLE,
    TENSOR_ALIGNMENT,
    VERSION,
    WEIGHTS_AT,
    Image,
    ImageError,
    is_image,
    read,
    verify,
)
from engine.model.pack import PART, check_weights, pack
from engine.model.packer import Packer
from engine.model.vocabulary import TemplateText, Vocabulary
from tests.engine.gguf_files import TINY, TOKENS, write_llama

PLAIN = Packer("plain")
REVERSED = Packer("reversed", {"Q4_1": "Q4_1r"}, lambda dtype, rows, cols, data: data[::-1] + bytes(rows + cols))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("source") / "tiny.gguf", text=True)


@pytest.fixture(scope="module")
def packed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(source, tmp_path_factory.mktemp("packed") / "tiny.image", PLAIN).path


def everything(path: Path) -> tuple[Image, Vocabulary]:
    image = read(path, "plain")
    verify(image)
    return image, image.vocabulary()


def rewritten(path: Path, out: Path, **changes: object) -> Path:
    """The image with another header, whose hashes are right."""
    data = path.read_bytes()
    *first, offset, nbytes, _, _ = PREAMBLE.unpack_from(data)
    header = orjson.dumps(orjson.loads(data[offset : offset + nbytes]) | changes)
    return with_header(data, header, out, offset, first)


def with_header(data: bytes, header: bytes, out: Path, offset: int, first: list[object]) -> Path:
    hashed = PREAMBLE.pack(*first, offset, len(header), xxhash.xxh3_64_intdigest(header), 0)[:-8]
    preamble = hashed + struct.pack("<Q", xxhash.xxh3_64_intdigest(hashed))
    out.write_bytes(preamble + data[PREAMBLE.size : offset] + header)
    return out


def test_an_image_holds_what_the_file_held(source: Path, packed: Path) -> None:
    gguf, image = read_gguf(source), read(packed, "plain")
    assert image.config == TINY
    found, given_words = image.vocabulary(), Vocabulary.from_gguf(gguf)
    assert tuple(found.tokens) == found.tokens[:] == given_words.tokens
    assert found._replace(tokens=given_words.tokens) == given_words
    assert image.template == TemplateText.from_gguf(gguf)
    assert (image.source.name, image.source.nbytes) == ("tiny.gguf", source.stat().st_size)
    assert image.source.digest == digest_of(source)
    theirs, ours = source.read_bytes(), packed.read_bytes()
    assert list(image.tensors) == list(gguf.tensors)
    for name, tensor in image.tensors.items():
        given = gguf.tensors[name]
        assert (tensor.dtype, tensor.shape) == (given.dtype, given.shape)
        assert tensor.offset % TENSOR_ALIGNMENT == 0
        data = theirs[given.offset : given.offset + given.nbytes]
        assert ours[tensor.offset : tensor.offset + tensor.nbytes] == data
    assert image.sections["weights"].offset == WEIGHTS_AT
    assert is_image(packed)
    assert not is_image(source)


def test_the_packer_arranges_matrices_of_its_types_and_nothing_else(source: Path, tmp_path: Path) -> None:
    image = pack(source, tmp_path / "r.image", REVERSED)
    gguf = read_gguf(source)
    theirs, ours = source.read_bytes(), image.path.read_bytes()
    for name, tensor in image.tensors.items():
        given = gguf.tensors[name]
        data = theirs[given.offset : given.offset + given.nbytes]
        if given.dtype == "Q4_1":
            assert tensor.dtype == "Q4_1r"
            data = data[::-1] + bytes(sum(given.shape))
        else:
            assert tensor.dtype == given.dtype
        assert ours[tensor.offset : tensor.offset + tensor.nbytes] == data


def test_the_same_source_gives_the_same_bytes(source: Path, packed: Path, tmp_path: Path) -> None:
    assert pack(source, tmp_path / "again.image", PLAIN).path.read_bytes() == packed.read_bytes()


def test_progress_ends_with_all_of_it(source: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    pack(source, tmp_path / "x.image", PLAIN, lambda done, total: told.append((done, total)))
    total = sum(tensor.nbytes for tensor in read_gguf(source).tensors.values())
    assert told[-1] == (total, total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_model_without_a_vocabulary_packs_and_says_so_when_asked(tmp_path: Path) -> None:
    image = pack(write_llama(tmp_path / "bare.gguf"), tmp_path / "bare.image", PLAIN)
    assert image.template is None
    with pytest.raises(ImageError, match="no tokenizer in it; pack a model that has one"):
        image.vocabulary()


@pytest.mark.parametrize(("dtype", "at"), [("F32", 3), ("F16", 1), ("Q4_1", 1), ("Q4_1", 3), ("Q8_0", 1)])
def test_a_tensor_with_a_number_that_is_none_is_refused(tmp_path: Path, dtype: str, at: int) -> None:
    path = write_llama(tmp_path / "nan.gguf")
    tensor = next(tensor for tensor in read_gguf(path).tensors.values() if tensor.dtype == dtype)
    content = bytearray(path.read_bytes())
    size = BLOCKS[dtype][1]
    last = tensor.offset + tensor.nbytes - size
    content[last + at - 1 : last + at + 1] = b"\xff\xff"
    path.write_bytes(content)
    match = rf"'{tensor.name}' has NaN or infinity in block {tensor.nbytes // size - 1} of.*damaged; fetch it again"
    with pytest.raises(GgufError, match=match):
        pack(path, tmp_path / "x.image", PLAIN)
    with pytest.raises(GgufError, match=match):
        check_weights(read_gguf(path))


def test_a_file_that_cannot_be_read_is_an_error_with_its_name(
    source: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapping would end the process."""
    image, gguf = read(packed, "plain"), read_gguf(source)

    def fails(fd: int, nbytes: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.pread", fails)
    for call, path in (
        (lambda: verify(image), packed),
        (lambda: image.vocabulary(), packed),
        (lambda: read(packed, "plain"), packed),
        (lambda: read_gguf(source), source),
        (lambda: check_weights(gguf), source),
    ):
        with pytest.raises((ImageError, GgufError), match=f"^{path}: cannot be read: Input/output error; "):
            call()


def test_a_source_that_ends_while_it_is_packed_is_what_cannot_be_read(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "shrinks.gguf"
    path.write_bytes(source.read_bytes())

    def shrinks(dtype: str, rows: int, cols: int, data: bytes) -> bytes:
        os.truncate(path, 4096)
        return data

    with pytest.raises(GgufError, match=r"shrinks.gguf: the tensor .* cannot be read: it was cut short"):
        pack(path, tmp_path / "x.image", Packer("x", {"Q4_1": "Q4_1"}, shrinks))
    assert [found.name for found in tmp_path.iterdir()] == ["shrinks.gguf"]


def test_the_numbers_of_a_sound_file_are_numbers(source: Path) -> None:
    told: list[int] = []
    check_weights(read_gguf(source), lambda done, total: told.append(total - done))
    assert told[-1] == 0


def test_what_lives_is_not_taken_for_left_behind(source: Path, tmp_path: Path) -> None:
    """Names may hold what a pattern would take for its own."""
    out = tmp_path / "a[1]*.image"
    dead, other = tmp_path / f".{out.name}.dead{PART}", tmp_path / f".a1.image.x{PART}"
    for left in (dead, other):
        left.write_bytes(b"half")

    def packs_beside(dtype: str, rows: int, cols: int, data: bytes) -> bytes:
        (mine,) = tmp_path.glob(f".a[[]1]*{PART}")
        pack(source, out, PLAIN)
        assert mine.exists()
        return data

    pack(source, out, Packer("x", {"Q4_1": "Q4_1"}, packs_beside))
    assert not dead.exists()
    assert other.exists()
    assert read(out, "x")


def test_a_failure_while_packing_leaves_what_was_there(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "kept.image"
    out.write_bytes(b"before")

    def fails(dtype: str, rows: int, cols: int, data: bytes) -> bytes:
        raise ValueError("no such kernel")

    with pytest.raises(ValueError, match="no such kernel"):
        pack(source, out, Packer("x", {"Q4_1": "y"}, fails))
    assert out.read_bytes() == b"before"
    assert not list(tmp_path.glob(f"*{PART}"))


def test_a_place_that_cannot_be_written_is_named_with_a_remedy(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"no/such.image: there is no folder .*/no; make it, or name another place"):
        pack(source, tmp_path / "no" / "such.image", PLAIN)


def test_a_source_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"something else")
    with pytest.raises(GgufError):
        pack(other, tmp_path / "x.image", PLAIN)


def test_another_layout_is_refused(packed: Path) -> None:
    with pytest.raises(ImageError, match="packed as 'plain', the kernels here read 'x16'; run engine pack again"):
        read(packed, "x16")


def test_another_version_is_refused(packed: Path, tmp_path: Path) -> None:
    data = bytearray(packed.read_bytes())
    data[len(MAGIC)] += 1
    newer = tmp_path / "newer.image"
    newer.write_bytes(data)
    with pytest.raises(ImageError, match=f"image version {VERSION + 1}, this engine reads {VERSION}; run engine pack"):
        read(newer, "plain")


@pytest.mark.parametrize(
    ("content", "part"), [(b"", "too short"), (b"x" * 63, "too short"), (b"GGUF" * 99, "is no image; make one")]
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, part: str) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=part):
        read(path, "plain")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"gone.image: cannot be read: No such file"):
        read(tmp_path / "gone.image", "plain")


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_a_flipped_bit_anywhere_is_an_error(
    packed: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(packed.read_bytes())
    weights = read(packed, "plain").sections["weights"]
    others = st.integers(weights.offset + weights.nbytes, len(content) - 1)
    at = data.draw(st.integers(0, 63) | others | st.integers(0, len(content) - 1))
    content[at] ^= 1 << data.draw(st.integers(0, 7))
    broken = tmp_path_factory.getbasetemp() / f"flipped-{packed.parent.name}"
    broken.write_bytes(content)
    with pytest.raises(ImageError, match=r"engine pack") as caught:
        everything(broken)
    assert str(broken) in str(caught.value)


@settings(deadline=None, max_examples=100)
@given(share=st.floats(0, 1, exclude_max=True), tail=st.binary(max_size=9))
def test_a_file_of_another_length_is_an_error(
    packed: Path, tmp_path_factory: pytest.TempPathFactory, share: float, tail: bytes
) -> None:
    content = packed.read_bytes()
    broken = tmp_path_factory.getbasetemp() / f"cut-{packed.parent.name}"
    broken.write_bytes(content[: int(share * len(content))] + tail)
    if broken.read_bytes() != content:
        with pytest.raises(ImageError):
            read(broken, "plain")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(
    key=st.sampled_from(["config", "source", "template", "tokenizer", "tensors", "sections"]),
    value=JSON,
)
def test_a_header_that_says_anything_is_an_error_or_harmless(
    packed: Path, tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    out = tmp_path_factory.getbasetemp() / f"header-{packed.parent.name}"
    try:
        everything(rewritten(packed, out, **{key: value}))
    except ImageError as error:
        assert str(out) in str(error)


@pytest.mark.parametrize("header", [b"", b"{", b"[]", b"null", b"{}", b"\xff"])
def test_a_header_that_is_no_object_is_an_error(packed: Path, tmp_path: Path, header: bytes) -> None:
    data = packed.read_bytes()
    *first, offset, _, _, _ = PREAMBLE.unpack_from(data)
    with pytest.raises(ImageError, match="its header makes no sense"):
        read(with_header(data, header, tmp_path / "h.image", offset, first), "plain")


def test_a_tensor_outside_the_weights_is_an_error(packed: Path, tmp_path: Path) -> None:
    tensors = [["a", "F32", [4], 0, 16]]
    with pytest.raises(ImageError, match=r"'a' lies at 0, 16 bytes, outside of 4096"):
        read(rewritten(packed, tmp_path / "t.image", tensors=tensors), "plain")


def test_a_merge_of_tokens_that_are_not_there_is_an_error(packed: Path, tmp_path: Path) -> None:
    image = read(packed, "plain")
    content = bytearray(packed.read_bytes())
    merges = array("I", [TINY.vocab, 0]).tobytes()
    at = image.sections["merges"].offset
    content[at : at + len(merges)] = merges
    bad = tmp_path / "bad"
    bad.write_bytes(content)
    sections = {name: [s.offset, s.nbytes, s.xxh3] for name, s in image.sections.items()}
    sections["merges"] = [at, len(merges), xxhash.xxh3_64_hexdigest(merges)]
    with pytest.raises(ImageError, match="names no token"):
        read(rewritten(bad, tmp_path / "m.image", sections=sections), "plain").vocabulary()


def test_damaged_weights_are_found_by_verify_alone(packed: Path, tmp_path: Path) -> None:
    content = bytearray(packed.read_bytes())
    content[WEIGHTS_AT + 100] ^= 1
    broken = tmp_path / "weights.image"
    broken.write_bytes(content)
    image = read(broken, "plain")
    assert image.vocabulary().tokens[: len(TOKENS)] == TOKENS
    with pytest.raises(ImageError, match="its weights do not have the hash"):
        verify(image)
