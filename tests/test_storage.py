"""Where kept files go, and that they are whole."""

import os
import pwd
import sys
import tempfile
from pathlib import Path

import pytest

from runtime import RequestError, storage
from runtime.storage import cache_folder, user_path, write_whole


def test_the_cache_folder_follows_the_variable_then_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "a b"))
    assert cache_folder() == tmp_path / "a b"
    monkeypatch.setenv("FORERUN_CACHE", "~/models")
    assert cache_folder() == Path.home() / "models"
    monkeypatch.setenv("FORERUN_CACHE", "")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "forerun"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "forerun"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "forerun"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Take the home folder away, and return where temporary files go."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "FORERUN_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(storage, "_temporary_folder", storage._temporary_folder.__wrapped__)
    return tmp_path


@pytest.mark.parametrize("chosen", ["", "~/models"])
def test_who_has_no_home_has_a_private_folder(
    temporary: Path, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_CACHE", chosen)
    folder = cache_folder()
    assert folder == cache_folder() == temporary / f"forerun-{os.getuid()}"
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("taken", ["file", "link", "open"])
def test_a_folder_that_others_can_change_is_not_used(temporary: Path, taken: str) -> None:
    place = temporary / f"forerun-{os.getuid()}"
    if taken == "file":
        place.write_bytes(b"")
    elif taken == "link":
        (temporary / "theirs").mkdir()
        place.symlink_to(temporary / "theirs")
    else:
        place.mkdir()
        place.chmod(0o777)
    folder = cache_folder()
    assert folder not in {place, temporary / "theirs"}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_failed_write_leaves_what_was_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "new" / "file.json"
    write_whole(place, "first ä")
    assert place.read_bytes() == "first ä".encode()

    def fail(self: Path, _: Path) -> None:
        raise OSError("no space")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_whole(place, "second")
    assert [file.name for file in place.parent.iterdir()] == ["file.json"]
    assert place.read_text(encoding="utf-8") == "first ä"


def test_a_home_folder_that_is_not_known_is_a_sentence() -> None:
    assert user_path("~/models") == Path.home() / "models"
    with pytest.raises(RequestError, match=r"~no-such-user/models: the home folder is not known"):
        user_path("~no-such-user/models")
