"""What a file is that is no model: people meet a saved web page or another format far more often than damage."""

from __future__ import annotations

from typing import Final, NamedTuple

HEAD_BYTES: Final = 512
"""As much of a file's beginning as is looked at."""


class Foreign(NamedTuple):
    what: str
    remedy: str


_BEGINNINGS: Final = (
    (b"version https://git-lfs", Foreign("a Git LFS pointer, not the file itself", "run git lfs pull")),
    (b"PK\3\4", Foreign("a ZIP archive or a PyTorch checkpoint", "convert the model to GGUF")),
    (b"\x1f\x8b", Foreign("compressed with gzip", "unpack it first")),
    (b"\x28\xb5\x2f\xfd", Foreign("compressed with zstd", "unpack it first")),
    (b"\x7fELF", Foreign("a program or a library", "name a GGUF file")),
    (b"lmgg", Foreign("GGML, the format before GGUF", "convert the model to GGUF again")),
    (b"fmgg", Foreign("GGML, the format before GGUF", "convert the model to GGUF again")),
    (b"edgeimg\0", Foreign("an image, packed already", "serve it as it is, or name the GGUF file that it was made of")),
    (b"tjgg", Foreign("GGML, the format before GGUF", "convert the model to GGUF again")),
)
_DAMAGED: Final = (
    (b"GGUF", Foreign("a GGUF file whose first bytes are damaged", "fetch it again")),
    (b"edgeimg\0", Foreign("an image whose first bytes are damaged", "run engine pack again")),
)
_TEXT: Final = frozenset([*range(0x20, 0x7F), *b"\t\n\r\f"])


def foreign(head: bytes) -> Foreign:
    """head: the first HEAD_BYTES of a file that is to be GGUF, and does not begin so."""
    for beginning, found in _BEGINNINGS:
        if head.startswith(beginning):
            return found
    if not head.strip(b"\0"):
        return Foreign("nothing but zeros at the beginning, as of a download that was not finished", "fetch it again")
    if head.lstrip().lower().startswith((b"<!doctype", b"<html")):
        return Foreign("a web page saved in place of the model", "fetch it again, by the link of the file itself")
    if len(head) > 9 and head[8:10] == b'{"' and int.from_bytes(head[:8], "little") < 1 << 32:
        return Foreign("a safetensors file", "convert the model to GGUF (llama.cpp's convert_hf_to_gguf.py)")
    for magic, found in _DAMAGED:
        if sum(a == b for a, b in zip(magic, head, strict=False)) >= len(magic) - 1:
            return found
    if set(head) <= _TEXT:
        return Foreign("a text", "name a GGUF file")
    return Foreign("no GGUF file (it would begin with 'GGUF') and no image", "name a GGUF file")
