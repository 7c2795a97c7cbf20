"""Where kept files go, and that they are whole."""

import sys
from pathlib import Path

import pytest

from runtime.storage import cache_folder, write_whole


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
