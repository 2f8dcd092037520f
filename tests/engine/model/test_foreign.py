from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.model.foreign import HEAD_BYTES, foreign


@pytest.mark.parametrize(
    ("head", "what", "remedy"),
    [
        (b"<!DOCTYPE html><title>404", "a web page", "fetch it again"),
        (b"\n  <HTML>", "a web page", "fetch it again"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer", "git lfs pull"),
        (struct.pack("<Q", 60_000) + b'{"__metadata__":{}', "a safetensors file", "convert"),
        (b"PK\3\4archive/data.pkl", "a PyTorch checkpoint", "convert"),
        (b"\x1f\x8b\x08", "compressed", "unpack"),
        (bytes(HEAD_BYTES), "zeros", "fetch it again"),
        (b"# A model\n", "a text", "name a GGUF file"),
        (b"GGUG\3\0\0\0", "GGUF file whose first bytes are damaged", "fetch it again"),
        (b"edgeimg\0\1\0\0\0", "an image, packed already", "serve it as it is"),
        (b"edgfimg\0\1\0\0\0", "image whose first bytes are damaged", "engine pack"),
        (b"\x89PNG\r\n\x1a\n", "no GGUF file", "name a GGUF file"),
    ],
)
def test_what_people_name_in_place_of_a_model_is_recognised(head: bytes, what: str, remedy: str) -> None:
    found = foreign(head)
    assert what in found.what
    assert remedy in found.remedy


@given(st.binary(max_size=HEAD_BYTES))
def test_every_file_is_something(head: bytes) -> None:
    found = foreign(head)
    assert found.what
    assert found.remedy
